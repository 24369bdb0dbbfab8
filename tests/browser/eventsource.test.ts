import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { launchBrowser, Origin } from "./browser.js";
import { Gateway } from "./gateway.js";

const TOKEN = "a token for the tests, not a secret";

let browser: Browser;
let origin: Origin;
let gateway: Gateway;
let page: Page;

beforeAll(async () => {
  [browser, origin] = await Promise.all([launchBrowser(), Origin.start()]);
});

afterAll(async () => {
  await browser?.close();
  await origin?.stop();
});

beforeEach(async () => {
  gateway = await Gateway.start(origin.url, TOKEN);
  page = await origin.open(browser);
});

afterEach(async () => {
  await page?.close();
  await gateway?.remove();
});

/** What the page keeps between two calls into it. */
interface Tail {
  source: EventSource;
  payloads: unknown[];
  opens: number;
}
declare const window: { tail: Tail };

/** Gets a ticket with the token and opens the topic with it, as a page does. Returns when it is open. */
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
  }, { http: gateway.http, topic, token: TOKEN });
  expect(status).toBe("ok");
  await opens(1);
}

/** Waits until it was opened for the `count`th time; an EventSource that gave up fails. */
async function opens(count: number): Promise<void> {
  await page.waitForFunction((count) => {
    if (window.tail.source.readyState === EventSource.CLOSED) throw new Error("the EventSource gave up");
    return window.tail.opens >= count;
  }, count, { timeout: 15_000 });
}

/** Waits until the payload came; returns all that came up to now. */
async function payloadsUpTo(last: unknown): Promise<unknown[]> {
  await page.waitForFunction((last) => {
    if (window.tail.source.readyState === EventSource.CLOSED) throw new Error("the EventSource gave up");
    return window.tail.payloads.includes(last);
  }, last, { timeout: 15_000 });
  return await page.evaluate(() => window.tail.payloads);
}

test("a ticket lasts over two restarts: every event comes once, in order", async () => {
  await gateway.publish("t", ["before the page"]);
  await openTail("t");
  await gateway.publish("t", [1, 2, 3]);
  expect(await payloadsUpTo(3)).toEqual([1, 2, 3]);

  // Event 4 may reach the page or not before the server ends.
  await gateway.publish("t", [4]);
  await gateway.restart("SIGTERM", () => gateway.publishElsewhere("t", [5, 6]));
  await gateway.publish("t", [7]);
  await opens(2);
  await gateway.publish("t", [8, 9]);
  expect(await payloadsUpTo(9)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9]);

  await gateway.publish("t", [10]);
  await gateway.restart("SIGKILL", () => gateway.publishElsewhere("t", [11, 12]));
  await gateway.publish("t", [13]);
  await opens(3);
  await gateway.publish("t", [14, 15]);
  expect(await payloadsUpTo(15)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
});

test("a restart before the first event loses none", async () => {
  await gateway.publish("t", ["before the page"]);
  await openTail("t");
  await gateway.restart("SIGTERM", () => gateway.publishElsewhere("t", [1]));
  expect(await payloadsUpTo(1)).toEqual([1]);
  await gateway.publish("t", [2]);
  expect(await payloadsUpTo(2)).toEqual([1, 2]);
});

test("two restarts before the first event of an empty topic lose none", async () => {
  await openTail("t");
  await gateway.restart("SIGKILL");
  await opens(2);
  await gateway.restart("SIGTERM", () => gateway.publishElsewhere("t", [1, 2]));
  expect(await payloadsUpTo(2)).toEqual([1, 2]);
});
