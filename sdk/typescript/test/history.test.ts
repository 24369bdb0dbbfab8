import { createHash } from "node:crypto";
import type { ServerResponse } from "node:http";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { ConnectionError, PrombusError } from "../src/errors.js";
import { exportEvents, exportStream, last, replay, tail, ticketUrl } from "../src/history.js";
import { Http } from "../src/http.js";
import type { StoredEvent } from "../src/types.js";
import {
  collect, countedSignal, type FakeServer, fakeServer, httpOf, publish, publishRecords, timers, until,
} from "./support/history.js";
import { startServer, type TestServer } from "./support/server.js";

const range = (from: number, to: number): number[] => Array.from({ length: to - from + 1 }, (_, index) => from + index);
const payloads = (events: StoredEvent[]): unknown[] => events.map(({ payload }) => payload);

let server: TestServer;
let http: Http;
beforeAll(async () => {
  server = await startServer();
  ({ http } = httpOf(server.http));
});
afterAll(() => server.remove());

describe("replay", () => {
  beforeAll(async () => {
    await publish(server.http, "pages.a", range(1, 25));
  });

  it("reads all pages, whatever their size", async () => {
    for (const pageSize of [1, 7, 24, 25, 26, 1000]) {
      expect(payloads(await collect(replay(http, "pages.a", { pageSize }))), `${pageSize}`).toEqual(range(1, 25));
    }
    expect(payloads(await collect(replay(http, "pages.a")))).toEqual(range(1, 25));
    expect(await collect(replay(http, "pages.none"))).toEqual([]);
  });

  it("requests pages only as they are needed", async () => {
    let requests = 0;
    const counting = new Http(server.http, async () => undefined, new AbortController().signal, (url, init) => {
      requests += 1;
      return fetch(url, init);
    });
    for await (const { seq } of replay(counting, "pages.a", { pageSize: 5 })) if (seq === 5) break;
    expect(requests).toBe(1);
  });

  it("stops at the limit", async () => {
    expect(payloads(await collect(replay(http, "pages.a", { pageSize: 4, limit: 10 })))).toEqual(range(1, 10));
    expect(await collect(replay(http, "pages.a", { limit: 0 }))).toEqual([]);
    expect(payloads(await collect(replay(http, "pages.a", { from: "latest", limit: 10, pageSize: 4 })))).toEqual(range(16, 25));
  });

  it("reads the newest first", async () => {
    const newest = range(1, 25).reverse();
    expect(payloads(await collect(replay(http, "pages.a", { order: "desc", pageSize: 7 })))).toEqual(newest);
    expect(payloads(await collect(replay(http, "pages.a", { order: "desc", from: "latest", pageSize: 7, limit: 9 })))).toEqual(newest.slice(0, 9));
  });

  it("starts at a seq, after an id and at a time", async () => {
    const [, second] = await collect(replay(http, "pages.a", { limit: 2 }));
    const id = second?.id as string;
    for (const options of [{ fromSeq: 3 }, { from: { afterId: id } }, { from: "afterId", afterId: id }, { afterId: id }] as const) {
      expect(payloads(await collect(replay(http, "pages.a", { ...options, pageSize: 7 })))).toEqual(range(3, 25));
    }
    const hour = 3_600_000;
    const now = Date.now();
    await publishRecords(server.http, "pages.ts", range(1, 9).map((n) => ({ payload: n, ts: now - (10 - n) * hour })));
    const since = now - 4.5 * hour;
    for (const from of [{ ts: since }, { ts: new Date(since) }, { ts: new Date(since).toISOString() }, { ts: "-270m" }]) {
      expect(payloads(await collect(replay(http, "pages.ts", { from, pageSize: 2 })))).toEqual([6, 7, 8, 9]);
    }
    expect(payloads(await collect(replay(http, "pages.ts", { ts: since, toTs: now - 1.5 * hour, pageSize: 1 })))).toEqual([6, 7, 8]);
    const error = await collect(replay(http, "pages.a", { from: "ts" })).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: "bad_request", status: 400 });
  });

  it("uses one point in time for an age on all pages", async () => {
    const seen: (string | null)[] = [];
    const spying = new Http(server.http, async () => undefined, new AbortController().signal, async (url, init) => {
      seen.push(new URL(String(url)).searchParams.get("ts"));
      await new Promise((done) => setTimeout(done, 3));
      return fetch(url, init);
    });
    await collect(replay(spying, "pages.a", { from: { ts: "-1h" }, pageSize: 10 }));
    expect(seen).toHaveLength(3);
    expect(new Set(seen).size).toBe(1);
  });

  it("filters by key, tag and headers", async () => {
    await publishRecords(server.http, "pages.filter", [
      { payload: 1, key: "a b", tags: ["x"], headers: { h: "1" } },
      { payload: 2, key: "c&d", tags: ["x", "y"], headers: { h: "1", i: "a:b" } },
      { payload: 3, key: "a b", tags: ["y"] },
    ]);
    const found = async (filter: object): Promise<unknown[]> =>
      payloads(await collect(replay(http, "pages.filter", { ...filter, pageSize: 1 })));
    expect(await found({ key: "a b" })).toEqual([1, 3]);
    expect(await found({ key: "c&d" })).toEqual([2]);
    expect(await found({ tag: "y" })).toEqual([2, 3]);
    expect(await found({ header: { h: "1", i: "a:b" } })).toEqual([2]);
    expect(await found({ tag: "x", key: "a b" })).toEqual([1]);
    expect(payloads(await collect(exportEvents(http, "pages.filter", { tag: "y" })))).toEqual([2, 3]);
    expect(payloads(await last(http, "pages.filter", 1, { tag: "x" }))).toEqual([2]);
  });

  it("reads a pattern by position, in commit order", async () => {
    const expected = [];
    for (const n of range(1, 12)) {
      await publish(server.http, `pattern.${n % 3}`, [n]);
      await new Promise((done) => setTimeout(done, 2));
      expected.push(n);
    }
    expect(payloads(await collect(replay(http, "pattern.*", { pageSize: 5 })))).toEqual(expected);
    expect(payloads(await collect(exportEvents(http, "pattern.**")))).toEqual(expected);
  });

  it("fails with the server's code", async () => {
    const unknown = { afterId: "0196f1d0-1c2a-7b3c-8d4e-5f6071829304" };
    await expect(collect(replay(http, "pages.a", unknown))).rejects.toMatchObject({ code: "unknown_id", status: 404 });
    await expect(collect(replay(http, "not a topic"))).rejects.toMatchObject({ code: "bad_topic", status: 400 });
  });

  it("ends with `aborted`, also between pages", async () => {
    const { controller, listeners } = countedSignal();
    const seen: unknown[] = [];
    const reading = (async () => {
      for await (const { payload } of replay(http, "pages.a", { pageSize: 5, signal: controller.signal })) {
        seen.push(payload);
        if (payload === 5) controller.abort();
      }
    })();
    await expect(reading).rejects.toMatchObject({ code: "aborted" });
    expect([seen, listeners()]).toEqual([range(1, 5), 0]);
  });
});

describe("last", () => {
  it("returns the newest events in ascending order", async () => {
    await publish(server.http, "last", range(1, 9));
    expect(payloads(await last(http, "last", 3))).toEqual([7, 8, 9]);
    expect(payloads(await last(http, "last", 100))).toEqual(range(1, 9));
    expect(await last(http, "last", 0)).toEqual([]);
    expect(await last(http, "last.none", 3)).toEqual([]);
  });
});

describe("export", () => {
  const count = 20_000;
  beforeAll(async () => {
    for (let from = 1; from <= count; from += 5_000) {
      await publish(server.http, "export.many", range(from, from + 4_999).map((n) => ({ n, pad: "ä".repeat(50) })));
    }
  });

  it("streams every event once, in order", async () => {
    let next = 1;
    for await (const { seq, payload } of exportEvents<{ n: number }>(http, "export.many")) {
      if (seq !== next || payload.n !== next) expect([seq, payload.n]).toEqual([next, next]);
      next += 1;
    }
    expect(next - 1).toBe(count);
  });

  it("reads the response only as fast as the reader", async () => {
    let pulled = 0;
    let isCancelled = false;
    const line = `${JSON.stringify({ id: "i", seq: 1, ts: 1, topic: "t", payload: 1 })}\n`;
    const endless = new Http("http://fake", async () => undefined, new AbortController().signal, async () =>
      new Response(new ReadableStream({
        pull(controller) {
          pulled += 1;
          controller.enqueue(new TextEncoder().encode(line.repeat(10)));
        },
        cancel() {
          isCancelled = true;
        },
      })));
    expect(await collect(exportEvents(endless, "t"), 100)).toHaveLength(100);
    expect(pulled).toBeLessThan(15);
    expect(isCancelled).toBe(true);
  });

  it("returns the same bytes as the server", async () => {
    const hash = async (stream: ReadableStream<Uint8Array> | null): Promise<string> => {
      const sum = createHash("sha256");
      for await (const piece of stream ?? []) sum.update(piece);
      return sum.digest("hex");
    };
    const plain = await fetch(`${server.http}/export?topic=export.many`);
    expect(await hash(await exportStream(http, "export.many"))).toBe(await hash(plain.body));
  });

  it("limits the time", async () => {
    await publishRecords(server.http, "export.ts", range(1, 9).map((n) => ({ payload: n, ts: n * 1000 })));
    expect(payloads(await collect(exportEvents(http, "export.ts", { fromTs: 3000, toTs: new Date(5000) })))).toEqual([3, 4, 5]);
  });

  it("fails if the response is cut off, at a line end and inside a line", async () => {
    const line = `${JSON.stringify({ id: "i", seq: 1, ts: 1, topic: "t", payload: 1 })}\n`;
    for (const cut of [line, `${line}{"id":`]) {
      const fake = await fakeServer((_, response) => {
        response.writeHead(200, { "content-type": "application/x-ndjson" });
        response.write(cut);
        setTimeout(() => response.destroy(), 30);
      });
      try {
        const broken = httpOf(fake.url).http;
        const seen: unknown[] = [];
        const reading = (async () => {
          for await (const { payload } of exportEvents(broken, "t")) seen.push(payload);
        })();
        await expect(reading).rejects.toBeInstanceOf(ConnectionError);
        expect(seen).toEqual([1]);
        await expect(new Response(await exportStream(broken, "t")).text()).rejects.toMatchObject({ code: "connection_lost" });
      } finally {
        await fake.close();
      }
    }
  });

  it("fails if a runtime does not report that the response was cut off", async () => {
    const silent = new Http("http://fake", async () => undefined, new AbortController().signal, async () => new Response('{"id":1}'));
    await expect(collect(exportEvents(silent, "t"))).rejects.toMatchObject({ code: "connection_lost" });
  });

  it("stops the request on break and on close", async () => {
    const closed = new AbortController();
    const own = new Http(server.http, async () => undefined, closed.signal);
    for await (const _ of exportEvents(own, "export.many")) break;
    expect(own.stops.size).toBe(0);
    const reading = (async () => {
      for await (const { seq } of exportEvents(own, "export.many")) if (seq === 10) closed.abort();
    })();
    await expect(reading).rejects.toMatchObject({ code: "closed" });
    expect(own.stops.size).toBe(0);
  });
});

describe("tail", () => {
  it("follows a topic from the given start, with filters", async () => {
    await publishRecords(server.http, "tail.a", range(1, 4).map((n) => ({ payload: n, key: n % 2 ? "odd" : "even" })));
    expect(payloads(await collect(tail(http, "tail.a", { from: "earliest" }), 4))).toEqual([1, 2, 3, 4]);
    expect(payloads(await collect(tail(http, "tail.a", { from: "earliest", key: "even" }), 2))).toEqual([2, 4]);
    expect(payloads(await collect(tail(http, "tail.*", { from: { ts: "-1h" } }), 4))).toEqual([1, 2, 3, 4]);
    const live = collect(tail(http, "tail.a", { onOpen: () => void publish(server.http, "tail.a", [5]) }), 1);
    expect(payloads(await live)).toEqual([5]);
  });

  it("throws the server's error if it is refused", async () => {
    const locked = await startServer({ token: "t" });
    try {
      await expect(tail(httpOf(locked.http, "wrong").http, "a").next()).rejects.toMatchObject({ code: "bad_token", status: 401 });
    } finally {
      await locked.remove();
    }
    await expect(tail(http, "not a topic").next()).rejects.toMatchObject({ code: "bad_topic", status: 400 });
    const unknown = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";
    await expect(tail(http, "tail.a", { afterId: unknown }).next()).rejects.toMatchObject({ code: "unknown_id", status: 404 });
  });

  for (const [topic, published] of [["kill.a", "kill.a"], ["kill.**", "kill.b"]] as const) {
    it(`resumes after SIGKILL and SIGTERM without a gap or a duplicate: ${topic}`, async () => {
      const own = await startServer();
      try {
        const total = 600;
        let acked = 0;
        const publishing = (async () => {
          for (let n = 1; n <= total; n += 1) {
            for (;;) {
              try {
                await publishRecords(own.http, published, [{ payload: n, id: `0196f1d0-1c2a-7b3c-8d4e-${String(n).padStart(12, "0")}` }]);
                break;
              } catch {
                await new Promise((done) => setTimeout(done, 20));
              }
            }
            acked = n;
          }
        })();
        const reading = collect(tail<number>(httpOf(own.http).http, topic, { from: "earliest" }), total);
        await until(() => acked > 100);
        await own.restart("SIGKILL");
        await until(() => acked > 300);
        await own.restart("SIGTERM");
        await publishing;
        expect(payloads(await reading)).toEqual(range(1, total));
      } finally {
        await own.remove();
      }
    });
  }

  it("waits for a server that is not there yet", async () => {
    const own = await startServer();
    try {
      await publish(own.http, "later", [1]);
      await own.stop();
      const reading = collect(tail(httpOf(own.http).http, "later", { from: "earliest" }), 1);
      await new Promise((done) => setTimeout(done, 300));
      await own.start();
      expect(payloads(await reading)).toEqual([1]);
    } finally {
      await own.remove();
    }
  });

  it("ends quietly when the client is closed, throws `aborted` for a signal, and leaves nothing behind", async () => {
    const before = timers();
    const closed = new AbortController();
    const caller = countedSignal();
    const own = new Http(server.http, async () => undefined, closed.signal);
    const opened = (options: object): { reading: Promise<unknown>; open: Promise<void> } => {
      let onOpen!: () => void;
      const open = new Promise<void>((done) => (onOpen = done));
      return { reading: collect(tail(own, "quiet", { ...options, onOpen })).catch((thrown: unknown) => thrown), open };
    };
    const first = opened({ signal: caller.controller.signal });
    await first.open;
    caller.controller.abort();
    expect(await first.reading).toMatchObject({ code: "aborted" });
    const second = opened({});
    await second.open;
    closed.abort();
    expect(await second.reading).toEqual([]);
    expect([own.stops.size, caller.listeners()]).toEqual([0, 0]);
    await until(() => timers() <= before, "no timer is left");
  });

  it("causes no warning about listeners when 50 of them run", async () => {
    const warnings: Error[] = [];
    const note = (warning: Error): void => void warnings.push(warning);
    process.on("warning", note);
    const { http: own, close } = httpOf(server.http);
    let opened = 0;
    const reading = Array.from({ length: 50 }, () => collect(tail(own, "quiet", { onOpen: () => (opened += 1) })));
    await until(() => opened === 50);
    close();
    await Promise.all(reading);
    await new Promise((done) => setTimeout(done, 20));
    process.off("warning", note);
    expect([warnings, own.stops.size]).toEqual([[], 0]);
  });
});

describe("tail of a scripted server", () => {
  const record = (n: number): string => JSON.stringify({ id: `id-${n}`, seq: n, ts: n, topic: "t", payload: n });
  const block = (n: number): string => `id: id-${n}\ndata: ${record(n)}\n\n`;
  const begin = (response: ServerResponse, text: string): void => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(text);
  };
  let fake: FakeServer;
  afterEach(() => fake.close());

  it("resumes after the last complete event, wherever the stream is cut", async () => {
    const second = block(2);
    const cuts = range(0, second.length);
    let attempts = 0;
    fake = await fakeServer((request, response) => {
      const lastId = request.headers["last-event-id"];
      if (lastId === undefined) {
        const cut = cuts[attempts++] as number;
        begin(response, `retry: 1\nid: p0\n: connected\n\n${block(1)}${second.slice(0, cut)}`);
        setTimeout(() => response.destroy(), 5);
      } else {
        const n = lastId === "p0" ? 1 : Number(String(lastId).slice(3)) + 1;
        begin(response, `retry: 1\n\n${range(n, 3).map(block).join("")}`);
      }
    });
    for (let at = 0; at < cuts.length; at += 8) {
      const round = cuts.slice(at, at + 8).map(() => collect(tail<number>(httpOf(fake.url).http, "t"), 3));
      for (const events of await Promise.all(round)) expect(payloads(events)).toEqual([1, 2, 3]);
    }
  });

  it("resumes at the position from before the first event", async () => {
    fake = await fakeServer((_, response, attempt) => {
      begin(response, attempt === 1 ? "retry: 1\nid: p0\n\n" : block(1));
      if (attempt === 1) response.end();
    });
    expect(payloads(await collect(tail(httpOf(fake.url).http, "t"), 1))).toEqual([1]);
    expect(fake.requests[1]?.headers["last-event-id"]).toBe("p0");
  });

  it("reconnects after 5xx, 429 and an error event that is retryable", async () => {
    fake = await fakeServer((_, response, attempt) => {
      if (attempt === 1) begin(response, `retry: 1\n\n${block(1)}event: error\ndata: {"error":"disk","code":"unavailable"}\n\n`);
      else if (attempt === 2) response.writeHead(500).end('{"error":"fault","code":"internal"}');
      else if (attempt === 3) response.writeHead(429).end('{"error":"slow","code":"rate_limited","retry_after_ms":20}');
      else begin(response, block(2));
    });
    expect(payloads(await collect(tail(httpOf(fake.url).http, "t"), 2))).toEqual([1, 2]);
    expect(fake.requests.map(({ headers }) => headers["last-event-id"])).toEqual([undefined, "id-1", "id-1", "id-1"]);
  });

  it("throws an error event that is not retryable", async () => {
    fake = await fakeServer((_, response) => {
      begin(response, `${block(1)}event: error\ndata: {"error":"no more","code":"forbidden"}\n\n`);
    });
    const events = tail(httpOf(fake.url).http, "t");
    expect((await events.next()).value).toMatchObject({ payload: 1 });
    await expect(events.next()).rejects.toMatchObject({ code: "forbidden", message: "no more" });
    expect(fake.requests).toHaveLength(1);
  });

  it("reconnects after silence; comments count as signs of life", async () => {
    fake = await fakeServer((_, response, attempt) => {
      begin(response, `retry: 1\n\n${block(attempt)}`);
      if (attempt === 1) return;
      const comments = setInterval(() => response.write(": keep-alive\n\n"), 40);
      setTimeout(() => response.write(block(3)), 400);
      response.on("close", () => clearInterval(comments));
    });
    expect(payloads(await collect(tail(httpOf(fake.url).http, "t", { silenceMs: 150 }), 3))).toEqual([1, 2, 3]);
    expect(fake.requests).toHaveLength(2);
  });

  it("does not take a slow reader for a silent server", async () => {
    fake = await fakeServer((_, response) => begin(response, block(1) + block(2)));
    const events = tail(httpOf(fake.url).http, "t", { silenceMs: 500 });
    await events.next();
    await new Promise((done) => setTimeout(done, 800));
    expect((await events.next()).value).toMatchObject({ payload: 2 });
    expect(fake.requests).toHaveLength(1);
    await events.return(undefined);
  });

  it("refuses an answer that is not an event stream", async () => {
    fake = await fakeServer((_, response) => response.writeHead(200, { "content-type": "text/html" }).end("<html>"));
    await expect(tail(httpOf(fake.url).http, "t").next()).rejects.toMatchObject({ code: "bad_answer" });
  });

  it("gets a fresh token for each connection", async () => {
    fake = await fakeServer((_, response, attempt) => {
      begin(response, `retry: 1\n\n${block(attempt)}`);
      response.end();
    });
    let tokens = 0;
    const own = new Http(fake.url, async () => `token-${(tokens += 1)}`, new AbortController().signal);
    await collect(tail(own, "t"), 2);
    expect(fake.requests.map(({ headers }) => headers.authorization)).toEqual(["Bearer token-1", "Bearer token-2"]);
  });
});

describe("ticketUrl", () => {
  it("opens the stream without a token, once, and for its query only", async () => {
    const locked = await startServer({ token: "t" });
    try {
      const own = httpOf(locked.http, "t").http;
      await publish(locked.http, "a.b", [1, 2], "?key=k%20%26", "t");
      const url = await ticketUrl(own, "a.*", { from: "earliest", key: "k &" });
      const other = await ticketUrl(own, "a.*");
      const response = await fetch(url);
      expect(response.status).toBe(200);
      const reader = response.body?.getReader();
      let text = "";
      while (!text.includes('"seq":2')) text += new TextDecoder().decode((await reader?.read())?.value);
      await reader?.cancel();
      expect((await fetch(url)).status).toBe(401);
      expect((await fetch(other.replace("?", "?from=earliest&"))).status).toBe(401);
      await expect(ticketUrl(httpOf(locked.http).http, "a.*")).rejects.toBeInstanceOf(PrombusError);
    } finally {
      await locked.remove();
    }
  });
});
