import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { launchBrowser, Origin } from "./browser.js";
import { RestartableServer } from "./restartable-server.js";

let browser: Browser;
let allowed: Origin;
let foreign: Origin;
let server: RestartableServer;

beforeAll(async () => {
  [browser, allowed, foreign] = await Promise.all([launchBrowser(), Origin.start(), Origin.start()]);
  server = await RestartableServer.start(allowed.url);
});

afterAll(async () => {
  await browser?.close();
  await server?.remove();
  await allowed?.stop();
  await foreign?.stop();
});

interface Answer {
  status: number;
  /** The headers that the page may read. */
  headers: Record<string, string>;
  body: string;
}

/** The response that `fetch` returns in the page, or the name of the error that it throws. */
function fetchIn(page: Page, path: string, init: RequestInit = {}): Promise<Answer | string> {
  return page.evaluate(async ({ url, init }) => {
    try {
      const response = await fetch(url, init);
      return { status: response.status, headers: Object.fromEntries(response.headers), body: await response.text() };
    } catch (error) {
      return (error as Error).name;
    }
  }, { url: server.http + path, init });
}

async function answerIn(page: Page, path: string, init: RequestInit = {}): Promise<Answer> {
  const answer = await fetchIn(page, path, init);
  if (typeof answer === "string") throw new Error(`fetch ${path}: ${answer}`);
  return answer;
}

describe("a page of an allowed origin", () => {
  let page: Page;

  beforeAll(async () => {
    page = await allowed.open(browser);
  });

  test("reads the ETag of a key, and gets 304 with If-None-Match until it changes", async () => {
    await server.publish("state.etag?key=k", [{ a: 1 }]);
    const first = await answerIn(page, "/state/state.etag/k");
    expect(first.status).toBe(200);
    expect(first.headers.etag).toMatch(/^"[^"]+"$/);
    expect(JSON.parse(first.body).payload).toEqual({ a: 1 });

    const headers = { "If-None-Match": first.headers.etag! };
    const same = await answerIn(page, "/state/state.etag/k", { headers });
    expect([same.status, same.body]).toEqual([304, ""]);
    expect(same.headers.etag).toBe(first.headers.etag);

    await server.publish("state.etag?key=k", [{ a: 2 }]);
    const changed = await answerIn(page, "/state/state.etag/k", { headers });
    expect(changed.status).toBe(200);
    expect(changed.headers.etag).not.toBe(first.headers.etag);
    expect(JSON.parse(changed.body).payload).toEqual({ a: 2 });
  });

  test("reads ETag, X-Position-Id and X-Position-Seq of a topic's state, and gets 304", async () => {
    await server.publish("state.position?key=k", [1, 2]);
    const state = await answerIn(page, "/state/state.position");
    expect(state.status).toBe(200);
    const { position } = JSON.parse(state.body);
    expect(state.headers["x-position-id"]).toBe(position.id);
    expect(state.headers["x-position-seq"]).toBe("2");
    const same = await answerIn(page, "/state/state.position", { headers: { "If-None-Match": state.headers.etag! } });
    expect(same.status).toBe(304);
  });

  test("publishes with an Idempotency-Key, and a second publish changes nothing", async () => {
    const init = { method: "POST", headers: { "Idempotency-Key": "order 7" }, body: '{"total": 15}' };
    const first = await answerIn(page, "/publish/page.orders", init);
    const second = await answerIn(page, "/publish/page.orders", init);
    expect([first.status, second.status]).toEqual([200, 200]);
    const { id, seq } = JSON.parse(first.body);
    expect(JSON.parse(second.body)).toMatchObject({ id, seq });
    const replay = await answerIn(page, "/replay?topic=page.orders");
    expect(JSON.parse(replay.body).count).toBe(1);
  });
});

describe("a page of another origin", () => {
  let page: Page;

  beforeAll(async () => {
    await server.publish("secret?key=k", [1]);
    page = await foreign.open(browser);
  });

  test("reads nothing with fetch", async () => {
    expect(await fetchIn(page, "/state/secret/k")).toBe("TypeError");
    expect(await fetchIn(page, "/state/secret/k", { headers: { "If-None-Match": '"x"' } })).toBe("TypeError");
    expect(await fetchIn(page, "/topics")).toBe("TypeError");
  });

  test("publishes nothing, not even with a request that needs no preflight", async () => {
    for (const mode of ["cors", "no-cors"] as const) {
      await fetchIn(page, "/publish/secret", { method: "POST", mode, body: "2" });
    }
    const replay = await fetch(`${server.http}/replay?topic=secret`);
    expect(await replay.json()).toMatchObject({ count: 1 });
  });

  test("can open neither a WebSocket nor an EventSource", async () => {
    const seen = await page.evaluate(({ ws, http }) => Promise.all([
      new Promise((over) => {
        const socket = new WebSocket(ws);
        socket.onopen = () => over("open");
        socket.onclose = ({ code }) => over(code);
      }),
      new Promise((over) => {
        const source = new EventSource(`${http}/subscribe/secret?from=earliest`);
        source.onopen = () => over("open");
        source.onerror = () => over(source.readyState);
      }),
    ]), { ws: server.ws, http: server.http });
    expect(seen).toEqual([1006, 2]);
  });
});
