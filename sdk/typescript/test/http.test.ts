import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { AuthError, ClosedError, ConnectionError, PrombusError } from "../src/errors.js";
import { Http } from "../src/http.js";
import { groups, topics } from "../src/lists.js";
import { countedSignal, type FakeServer, fakeServer, httpOf, publish, timers } from "./support/history.js";
import { startServer, type TestServer } from "./support/server.js";

const TOKEN = "history-secret";

async function failureOf(work: Promise<unknown>): Promise<PrombusError> {
  const error = await work.then(() => undefined, (thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(PrombusError);
  return error as PrombusError;
}

describe("against a server with a token", () => {
  let server: TestServer;
  beforeAll(async () => {
    server = await startServer({ token: TOKEN });
  });
  afterAll(() => server.remove());

  it("sends the token", async () => {
    expect(await topics(httpOf(server.http, TOKEN).http)).toEqual([]);
  });

  it("maps 401, 400 and 404 to errors with code and status", async () => {
    const none = await failureOf(topics(httpOf(server.http).http));
    expect([none instanceof AuthError, none.code, none.status, none.isRetryable]).toEqual([true, "unauthorized", 401, false]);
    const wrong = await failureOf(topics(httpOf(server.http, "wrong").http));
    expect([wrong instanceof AuthError, wrong.code, wrong.status]).toEqual([true, "bad_token", 401]);
    const { http } = httpOf(server.http, TOKEN);
    const request = await failureOf(http.json("GET", "/replay", { query: { topic: "a", limit: "none" } }));
    expect([request.code, request.status]).toEqual(["bad_request", 400]);
    expect(request.message).toContain("limit");
    const missing = await failureOf(http.json("GET", "/nowhere"));
    expect([missing.code, missing.status]).toEqual(["not_found", 404]);
  });

  it("follows the pages of topics and groups", async () => {
    const { http } = httpOf(server.http, TOKEN);
    for (const topic of ["list.a", "list.b", "other"]) await publish(server.http, topic, [1], "", TOKEN);
    for (const group of ["one", "two"]) {
      await http.json("PUT", `/groups/list.*/${group}`, { body: { from: "earliest" } });
    }
    expect((await topics(http, { prefix: "list." })).map(({ topic }) => topic)).toEqual(["list.a", "list.b"]);
    expect((await groups(http, { topic: "list.*" })).map(({ group, lag }) => [group, lag])).toEqual([["one", 2], ["two", 2]]);
    expect(await groups(http, { prefix: "nothing" })).toEqual([]);
  });
});

describe("against a server without a token", () => {
  it("maps 403 to an AuthError", async () => {
    const server = await startServer();
    try {
      const { http } = httpOf(server.http);
      const error = await failureOf(http.json("GET", "/topics", { headers: { origin: "https://example.com" } }));
      expect([error instanceof AuthError, error.code, error.status]).toEqual([true, "forbidden", 403]);
    } finally {
      await server.remove();
    }
  });
});

describe("against a scripted server", () => {
  let fake: FakeServer;
  afterEach(() => fake.close());

  it("follows `next` to the end of a list", async () => {
    fake = await fakeServer((request, response) => {
      const next = new URL(request.url ?? "", "http://x").searchParams.get("next");
      response.end(JSON.stringify(next === null ? { topics: [{ topic: "a" }], next: "a" } : { topics: [{ topic: "b" }] }));
    });
    expect((await topics(httpOf(fake.url).http)).map(({ topic }) => topic)).toEqual(["a", "b"]);
  });

  it("maps responses of proxies by their status", async () => {
    const statuses = [401, 403, 404, 429, 502, 418];
    fake = await fakeServer((_, response, attempt) => {
      response.writeHead(statuses[attempt - 1] ?? 500).end("<html>");
    });
    const found = [];
    for (const _ of statuses) {
      const { code, status } = await failureOf(httpOf(fake.url).http.json("GET", "/topics"));
      found.push([status, code]);
    }
    expect(found).toEqual([
      [401, "unauthorized"], [403, "forbidden"], [404, "not_found"], [429, "rate_limited"], [502, "unavailable"],
      [418, "bad_answer"],
    ]);
  });

  it("takes retry_after_ms from the body", async () => {
    fake = await fakeServer((_, response) => {
      response.writeHead(429, { "retry-after": "2" }).end('{"error":"slow","code":"rate_limited","retry_after_ms":1234}');
    });
    const error = await failureOf(httpOf(fake.url).http.json("GET", "/topics"));
    expect([error.code, error.message, error.retryAfterMs, error.isRetryable]).toEqual(["rate_limited", "slow", 1234, true]);
  });

  it("reports a body that is not JSON as bad_answer, and a body that is cut off as connection_lost", async () => {
    fake = await fakeServer((_, response, attempt) => {
      if (attempt === 1) {
        response.end("hello");
      } else {
        response.writeHead(200, { "content-length": "100" });
        response.write('{"topics":');
        setTimeout(() => response.destroy(), 20);
      }
    });
    const { http } = httpOf(fake.url);
    expect((await failureOf(http.json("GET", "/topics"))).code).toBe("bad_answer");
    const broken = await failureOf(http.json("GET", "/topics"));
    expect([broken instanceof ConnectionError, broken.code]).toEqual([true, "connection_lost"]);
  });

  it("ends with `aborted`, `closed` or `timeout`, and leaves no listener and no timer", async () => {
    fake = await fakeServer(() => undefined);
    const before = timers();
    const closed = new AbortController();
    const caller = countedSignal();
    const http = new Http(fake.url, async () => undefined, closed.signal);
    const late = await failureOf(http.json("GET", "/topics", { idleMs: 50, signal: caller.controller.signal }));
    expect([late.code, late.isRetryable]).toEqual(["timeout", true]);
    expect([http.stops.size, caller.listeners()]).toEqual([0, 0]);

    const aborted = failureOf(http.json("GET", "/topics", { signal: caller.controller.signal }));
    setTimeout(() => caller.controller.abort(new Error("enough")), 20);
    expect((await aborted).code).toBe("aborted");
    expect((await aborted).cause).toEqual(new Error("enough"));
    expect((await failureOf(http.json("GET", "/topics", { signal: caller.controller.signal }))).code).toBe("aborted");

    const ended = failureOf(http.json("GET", "/topics"));
    setTimeout(() => closed.abort(), 20);
    expect(await ended).toBeInstanceOf(ClosedError);
    expect(await failureOf(http.json("GET", "/topics"))).toBeInstanceOf(ClosedError);
    expect([http.stops.size, caller.listeners()]).toEqual([0, 0]);
    expect(timers()).toBeLessThanOrEqual(before);
  });

  it("does not wait for a token after an abort", async () => {
    fake = await fakeServer(() => undefined);
    const http = new Http(fake.url, () => new Promise(() => undefined), new AbortController().signal);
    expect((await failureOf(http.json("GET", "/topics", { signal: AbortSignal.timeout(30) }))).code).toBe("aborted");
    expect(fake.requests).toHaveLength(0);
  });

  it("reports a server that cannot be reached, and a token function that throws, as ConnectionError", async () => {
    fake = await fakeServer(() => undefined);
    const { url } = fake;
    const broken = new Http(url, async () => { throw new Error("login is down"); }, new AbortController().signal);
    const login = await failureOf(broken.json("GET", "/topics"));
    expect([login instanceof ConnectionError, login.message]).toEqual([true, "GET /topics: login is down"]);
    await fake.close();
    const refused = await failureOf(httpOf(url).http.json("GET", "/topics"));
    expect([refused.code, refused.isRetryable]).toEqual(["connection_lost", true]);
    expect(refused.message).toContain("ECONNREFUSED");
  });

  it("cancels the request when the body of a response is cancelled", async () => {
    let isClosed = false;
    fake = await fakeServer((request, response) => {
      request.on("close", () => (isClosed = true));
      response.writeHead(200);
      response.write("begin");
    });
    const exchange = await httpOf(fake.url).http.open("GET", "/export");
    const reader = exchange.stream().getReader();
    await reader.read();
    await reader.cancel();
    await expect.poll(() => isClosed).toBe(true);
  });

  it("writes lists, times and undefined parameters", () => {
    const { http } = httpOf("http://h");
    const query = { a: undefined, b: ["x:1", "y&z"], c: new Date(5), d: "2026-05-01T14:00:00+02:00", e: 7 };
    expect(http.url("/p", query)).toBe("http://h/p?b=x%3A1&b=y%26z&c=5&d=2026-05-01T14%3A00%3A00%2B02%3A00&e=7");
    expect(http.url("/p")).toBe("http://h/p");
  });
});
