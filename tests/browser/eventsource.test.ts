import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { launchBrowser, Origin } from "./browser.js";
import { RestartableServer } from "./restartable-server.js";

const TOKEN = "a token for the tests, not a secret";

let browser: Browser;
let origin: Origin;
let server: RestartableServer;
let page: Page;

beforeAll(async () => {
  [browser, origin] = await Promise.all([launchBrowser(), Origin.start()]);
});

afterAll(async () => {
  await browser?.close();
  await origin?.stop();
});

beforeEach(async () => {
  server = await RestartableServer.start(origin.url, TOKEN);
  page = await origin.open(browser);
});

afterEach(async () => {
  await page?.close();
  await server?.remove();
});

/** Values that the page keeps between two calls into it. */
interface Tail {
  source: EventSource;
  payloads: unknown[];
  opens: number;
}
declare const window: { tail: Tail };

/** Gets a ticket with the token and opens an EventSource with it, as a page does. Returns when it is open. */
async function openTail(topic: string): Promise<void> {
  const status = await page.evaluate(async ({ http, topic, token }) => {
    const response = await fetch(`${http}/tickets`, {
      method: "POST",
      headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
      body: JSON.stringify({ topic }),
    });
    if (!response.ok) return `${response.status} ${await response.text()}`;
    const { ticket } = await response.json();
    const source = new EventSource(`${http}/subscribe/${topic}?ticket=${encodeURIComponent(ticket)}`);
    window.tail = { source, payloads: [], opens: 0 };
    source.onmessage = ({ data }) => window.tail.payloads.push(JSON.parse(data).payload);
    source.onopen = () => window.tail.opens += 1;
    return "ok";
  }, { http: server.http, topic, token: TOKEN });
  expect(status).toBe("ok");
  await opens(1);
}

/** Waits until the EventSource was opened `count` times; throws if it gave up. */
async function opens(count: number): Promise<void> {
  await page.waitForFunction((count) => {
    if (window.tail.source.readyState === EventSource.CLOSED) throw new Error("the EventSource gave up");
    return window.tail.opens >= count;
  }, count, { timeout: 15_000 });
}

/** Waits until the payload has arrived; returns all payloads so far. */
async function payloadsUpTo(last: unknown): Promise<unknown[]> {
  await page.waitForFunction((last) => {
    if (window.tail.source.readyState === EventSource.CLOSED) throw new Error("the EventSource gave up");
    return window.tail.payloads.includes(last);
  }, last, { timeout: 15_000 });
  return await page.evaluate(() => window.tail.payloads);
}

test("a ticket works after two restarts: every event arrives once, in order", async () => {
  await server.publish("t", ["before the page"]);
  await openTail("t");
  await server.publish("t", [1, 2, 3]);
  expect(await payloadsUpTo(3)).toEqual([1, 2, 3]);

  // Event 4 may or may not reach the page before the server ends.
  await server.publish("t", [4]);
  await server.restart("SIGTERM", () => server.publishElsewhere("t", [5, 6]));
  await server.publish("t", [7]);
  await opens(2);
  await server.publish("t", [8, 9]);
  expect(await payloadsUpTo(9)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9]);

  await server.publish("t", [10]);
  await server.restart("SIGKILL", () => server.publishElsewhere("t", [11, 12]));
  await server.publish("t", [13]);
  await opens(3);
  await server.publish("t", [14, 15]);
  expect(await payloadsUpTo(15)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
});

test("a restart before the first event loses none", async () => {
  await server.publish("t", ["before the page"]);
  await openTail("t");
  await server.restart("SIGTERM", () => server.publishElsewhere("t", [1]));
  expect(await payloadsUpTo(1)).toEqual([1]);
  await server.publish("t", [2]);
  expect(await payloadsUpTo(2)).toEqual([1, 2]);
});

test("two restarts before the first event of an empty topic lose none", async () => {
  await openTail("t");
  await server.restart("SIGKILL");
  await opens(2);
  await server.restart("SIGTERM", () => server.publishElsewhere("t", [1, 2]));
  expect(await payloadsUpTo(2)).toEqual([1, 2]);
});
