/** Tests pages of another origin than the server's in Chromium: token, CORS and tickets. */
import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type * as Prombus from "../../src/index.js";
import { launchBrowser, type Origin, skipsChromium, startOrigin } from "../support/browser.js";
import { bundleForBrowser } from "../support/bundle.js";
import { fixedPort } from "../support/ports.js";
import { startServer, type TestServer } from "../support/server.js";

const TOKEN = "a token for the tests, not a secret";

/** The globals of a page: the client, and values that a test keeps between two calls into the page. */
interface PageGlobals {
  prombus: typeof Prombus;
  client: Prombus.Client;
  source: EventSource;
  seen: unknown[];
  opens: number;
}
declare const window: PageGlobals;

let browser: Browser;
let listed: Origin;
let unlisted: Origin;
let server: TestServer;
let page: Page;
let pageErrors: string[];

describe.skipIf(skipsChromium)("in Chromium", () => {
  beforeAll(async () => {
    const [script, module] = await Promise.all([
      bundleForBrowser("test/browser/page.mjs"),
      bundleForBrowser("src/index.ts"),
    ]);
    const scripts = { "/page.js": script, "/client.js": module };
    [browser, listed, unlisted] = await Promise.all([launchBrowser(), startOrigin({ scripts }), startOrigin({ scripts })]);
  });

  afterAll(async () => {
    await browser?.close();
    await Promise.all([listed?.stop(), unlisted?.stop()]);
  });

  beforeEach(async () => {
    server = await startServer({
      token: TOKEN,
      listen: `127.0.0.1:${await fixedPort()}`,
      env: { PROMBUS_HTTP_CORS_ORIGINS: listed.url },
    });
    page = await openPage(listed);
  });

  afterEach(async () => {
    await page?.close();
    await server?.remove();
    expect(pageErrors).toEqual([]);
  });

  /** Opens a page with the client loaded. Errors and rejections that the page does not handle fail the test. */
  async function openPage(origin: Origin): Promise<Page> {
    const opened = await origin.open(browser);
    pageErrors = [];
    opened.on("pageerror", (error) => pageErrors.push(error.message));
    await loadClient(opened);
    return opened;
  }

  async function loadClient(opened: Page): Promise<void> {
    await opened.addScriptTag({ url: "/page.js", type: "module" });
  }

  /** Publishes from this process, one event after the other. */
  async function publish(topic: string, payloads: unknown[], query = ""): Promise<void> {
    for (const payload of payloads) {
      const response = await fetch(`${server.http}/publish/${topic}${query}`, {
        method: "POST",
        headers: { Authorization: `Bearer ${TOKEN}` },
        body: JSON.stringify(payload),
      });
      if (!response.ok) throw new Error(`publish: ${response.status} ${await response.text()}`);
    }
  }

  /** Waits until the page has seen `count` payloads; returns all of them. */
  async function seen(count: number): Promise<unknown[]> {
    await page.waitForFunction((wanted) => window.seen.length >= wanted, count, { timeout: 15_000 });
    return await page.evaluate(() => window.seen);
  }

  const place = () => ({ url: server.ws, token: TOKEN });

  test("a page publishes and subscribes with a durable group, which continues after a reload", async () => {
    const first = await page.evaluate(async ({ url, token }) => {
      const client = window.prombus.connect(url, { token });
      const payloads: unknown[] = [];
      const keep = (event: Prombus.StoredEvent): void => void payloads.push(event.payload);
      const subscription = await client.subscribe("page.*", "ui", keep, { from: "earliest" });
      const { seq } = await client.publish("page.orders", { total: 12 });
      const many = await client.publishMany("page.orders", [1, 2, 3]);
      while (payloads.length < 4) await new Promise((done) => { setTimeout(done, 5); });
      const { created } = subscription;
      await client.close();
      return { seq, seqs: many.map((result) => result.seq), payloads, created, status: client.status };
    }, place());
    expect(first).toEqual({ seq: 1, seqs: [2, 3, 4], payloads: [{ total: 12 }, 1, 2, 3], created: true, status: "closed" });

    await publish("page.orders", ["while the page was away"]);
    await page.reload();
    await loadClient(page);
    const second = await page.evaluate(async ({ url, token }) => {
      const client = window.prombus.connect(url, { token });
      const payloads: unknown[] = [];
      const keep = (event: Prombus.StoredEvent): void => void payloads.push(event.payload);
      const { created } = await client.subscribe("page.*", "ui", keep, { from: "earliest" });
      while (payloads.length < 1) await new Promise((done) => { setTimeout(done, 5); });
      await client.close();
      return { payloads, created };
    }, place());
    expect(second).toEqual({ payloads: ["while the page was away"], created: false });
  });

  test("a page reads state, replay, last, export, topics and groups over fetch", async () => {
    await publish("prices", [{ price: 1 }, { price: 2 }], "?key=apple");
    await publish("prices", [{ price: 3 }], "?key=pear");
    const result = await page.evaluate(async ({ url, token }) => {
      const client = window.prombus.connect(url, { token: async () => token });
      const view = await client.state("prices");
      const loaded = [...view.entries()].map(([key, event]) => [key, event.payload]);
      const changes = view[Symbol.asyncIterator]();
      const change = changes.next();
      await client.publish("prices", { price: 4 }, { key: "apple" });
      const changed = (await change).value as Prombus.StateChange;
      const collect = async (events: AsyncIterable<Prombus.StoredEvent>): Promise<unknown[]> => {
        const payloads: unknown[] = [];
        for await (const event of events) payloads.push(event.payload);
        return payloads;
      };
      const replayed = await collect(client.replay("prices", { pageSize: 2 }));
      const exported = await collect(client.export("**"));
      const last = (await client.last("prices", 1)).map(({ seq }) => seq);
      const subscription = await client.subscribe("prices", "readers", () => {});
      const topics = (await client.topics()).map(({ topic, count }) => `${topic} ${count}`);
      const groups = (await client.groups()).map(({ topic, group }) => `${topic} ${group}`);
      const isCurrent = view.get("apple")?.seq;
      await subscription.unsubscribe();
      await client.close();
      await view.closed;
      return { loaded, changed: [changed.key, changed.event?.payload], replayed, exported, last, topics, groups, isCurrent };
    }, place());
    expect(result).toEqual({
      loaded: [["apple", { price: 2 }], ["pear", { price: 3 }]],
      changed: ["apple", { price: 4 }],
      replayed: [{ price: 1 }, { price: 2 }, { price: 3 }, { price: 4 }],
      exported: [{ price: 1 }, { price: 2 }, { price: 3 }, { price: 4 }],
      last: [4],
      topics: ["prices 4"],
      groups: ["prices readers"],
      isCurrent: 4,
    });
  });

  test("a tail in a page continues after a restart without a gap", async () => {
    await publish("news", ["old"]);
    await page.evaluate(async ({ url, token }) => {
      window.client = window.prombus.connect(url, { token });
      window.seen = [];
      await new Promise<void>((opened) => {
        void (async () => {
          for await (const event of window.client.tail("news", { onOpen: opened })) window.seen.push(event.payload);
          window.seen.push("ended");
        })();
      });
    }, place());
    await publish("news", [1, 2]);
    expect(await seen(2)).toEqual([1, 2]);
    await server.restart("SIGKILL");
    await publish("news", [3, 4]);
    expect(await seen(4)).toEqual([1, 2, 3, 4]);
    await page.evaluate(() => window.client.close());
    expect(await seen(5)).toEqual([1, 2, 3, 4, "ended"]);
  });

  test("an EventSource with a ticket URL of the client continues after two restarts", async () => {
    await publish("news", ["old"]);
    await page.evaluate(async ({ url, token }) => {
      const client = window.prombus.connect(url, { token });
      const source = new EventSource(await client.ticketUrl("news", { from: "earliest" }));
      window.seen = [];
      window.source = source;
      source.onmessage = ({ data }) => window.seen.push((JSON.parse(data as string) as Prombus.StoredEvent).payload);
      // The ticket outlives the client that made it.
      await client.close();
    }, place());
    await publish("news", [1, 2]);
    expect(await seen(3)).toEqual(["old", 1, 2]);
    for (const signal of ["SIGTERM", "SIGKILL"] as const) {
      const before = (await page.evaluate(() => window.seen)).length;
      await server.restart(signal);
      await publish("news", [signal]);
      expect((await seen(before + 1)).at(-1)).toBe(signal);
    }
    expect(await page.evaluate(() => window.seen)).toEqual(["old", 1, 2, "SIGTERM", "SIGKILL"]);
    await page.evaluate(() => window.source.close());
  });

  test("a ticket URL works for a pattern with a filter, and for nothing else", async () => {
    await publish("news.a", [1], "?key=k");
    await publish("news.b", [2], "?key=other");
    const result = await page.evaluate(async ({ url, token }) => {
      const client = window.prombus.connect(url, { token });
      const address = await client.ticketUrl("news.*", { from: "earliest", key: "k" });
      const other = new EventSource(address.replace("key=k", "key=other"));
      const refused = await new Promise((done) => { other.onerror = () => done(other.readyState); });
      const source = new EventSource(address);
      const payload = await new Promise((done) => {
        source.onmessage = ({ data }) => done((JSON.parse(data as string) as Prombus.StoredEvent).payload);
      });
      source.close();
      await client.close();
      return { refused, payload };
    }, place());
    expect(result).toEqual({ refused: 2, payload: 1 });
  });

  test("a wrong token is an AuthError, over WebSocket and HTTP", async () => {
    const result = await page.evaluate(async ({ url }) => {
      const client = window.prombus.connect(url, { token: "wrong" });
      const reasonOf = (thrown: unknown): string => {
        const error = thrown as Prombus.PrombusError;
        return `${error.name} ${error.code}`;
      };
      const overHttp = await client.topics().then(() => "fine", reasonOf);
      const overWebSocket = await client.ready().then(() => "fine", reasonOf);
      const published = await client.publish("t", 1).then(() => "fine", reasonOf);
      await client.close();
      return { overHttp, overWebSocket, published };
    }, place());
    const refused = "AuthError bad_token";
    expect(result).toEqual({ overHttp: refused, overWebSocket: refused, published: refused });
  });

  test("a page of an origin that is not listed gets an error that names the origin and the setting", async () => {
    // With auth, the server accepts WebSockets from every origin; without auth it refuses those as well.
    for (const isOpen of [false, true]) {
      const strange = isOpen ? await startServer({ env: { PROMBUS_HTTP_CORS_ORIGINS: listed.url } }) : server;
      const stranger = await openPage(unlisted);
      try {
        const result = await stranger.evaluate(async ({ url, token }) => {
          const client = window.prombus.connect(url, { token });
          const reasonOf = (thrown: unknown): string => {
            const error = thrown as Prombus.PrombusError;
            return `${error.name} ${error.code}: ${error.message}`;
          };
          const overWebSocket = await client.ready({ timeoutMs: 2_000 }).then(() => "fine", reasonOf);
          const overHttp = await client.topics().then(() => "fine", reasonOf);
          const published = await client.publish("t", 1, { timeoutMs: 500 }).then(() => "fine", reasonOf);
          await client.close();
          return { overWebSocket, overHttp, published };
        }, { url: strange.ws, token: TOKEN });
        const hint = `(does http.cors_origins of the server list ${unlisted.url}?)`;
        expect(result.overHttp).toContain("ConnectionError connection_lost: GET /topics: Failed to fetch");
        expect(result.overHttp).toContain(hint);
        if (isOpen) {
          expect(result.overWebSocket).toContain("ConnectionError timeout: cannot connect to");
          expect(result.overWebSocket).toContain(hint);
          expect(result.published).toContain("PrombusError timeout");
          expect(result.published).toContain(hint);
        } else {
          expect(result).toMatchObject({ overWebSocket: "fine", published: "fine" });
        }
      } finally {
        await stranger.close();
        if (isOpen) await strange.remove();
      }
    }
  });

  test("the client works in a module worker", async () => {
    const result = await page.evaluate(async ({ url, token }) => {
      const code = `
        import { connect } from "${location.origin}/client.js";
        const client = connect(${JSON.stringify(url)}, { token: ${JSON.stringify(token)} });
        const received = new Promise((done) => {
          client.subscribe("worker.jobs", "workers", async (event) => done(event.payload), { from: "earliest" });
        });
        const { seq } = await client.publish("worker.jobs", { job: 1 });
        const payload = await received;
        const topics = (await client.topics()).map(({ topic }) => topic);
        await client.close();
        postMessage({ seq, payload, topics, status: client.status });
      `;
      const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
      const worker = new Worker(address, { type: "module" });
      try {
        return await new Promise((done, failed) => {
          worker.onmessage = ({ data }) => done(data);
          worker.onerror = ({ message }) => failed(new Error(message));
        });
      } finally {
        worker.terminate();
        URL.revokeObjectURL(address);
      }
    }, place());
    expect(result).toEqual({ seq: 1, payload: { job: 1 }, topics: ["worker.jobs"], status: "closed" });
  });
});
