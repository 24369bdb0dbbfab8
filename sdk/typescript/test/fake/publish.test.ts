import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { AuthError, ClosedError, PrombusError, type PublishResult } from "../../src/index.js";
import { connectTo, failure, FakeServer, type Frame, HAS_DETAILS, settle, until } from "../support/fake-server.js";

let server: FakeServer;
beforeEach(async () => { server = await FakeServer.start(); });
afterEach(() => { vi.useRealTimers(); });

const ids = (frames: Frame[]): unknown[] => frames.map((frame) => frame.opts?.id);

describe("a missing answer", () => {
  test("publishes whose OKs were lost are sent again with the same ids, in order, and resolve once", async () => {
    let isCut = false;
    server.script.PUBLISH = (_, from, usual) => {
      if (isCut) return usual();
      if (from.of("PUBLISH").length < 5) return;
      isCut = true;
      // The first two were stored, but not answered.
      for (const frame of from.of("PUBLISH").slice(0, 2)) server.stored.set(String(frame.opts?.id), server.stored.size + 1);
      from.cut();
    };
    const client = connectTo(server);
    const resolved: PublishResult[] = [];
    const results = await Promise.all([1, 2, 3, 4, 5].map(async (n) => {
      const result = await client.publish("orders.new", n);
      resolved.push(result);
      return result;
    }));
    const [first, second] = server.connections;
    expect(first?.of("PUBLISH").map(({ payload }) => payload)).toEqual([1, 2, 3, 4, 5]);
    expect(second?.of("PUBLISH")).toEqual(first?.of("PUBLISH"));
    expect(results.map(({ seq }) => seq)).toEqual([1, 2, 3, 4, 5]);
    expect(results.map(({ duplicate }) => duplicate)).toEqual([true, true, undefined, undefined, undefined]);
    expect(resolved).toHaveLength(5);
    expect(server.stored.size).toBe(5);
    expect(client.pendingPublishes).toBe(0);
  });

  test("an idempotency key is sent again unchanged, without an id", async () => {
    server.script.PUBLISH = (_, from, usual) => { if (server.connections.length === 1) from.cut(); else usual(); };
    const client = connectTo(server);
    await client.publish("orders.new", 1, { idempotencyKey: "order 17" });
    expect(server.of("PUBLISH").map(({ opts }) => opts)).toEqual([{ idempotencyKey: "order 17" }, { idempotencyKey: "order 17" }]);
  });

  test("refused publishes are sent before later ones after the connection broke", async () => {
    server.script.PUBLISH = (frame, from, usual) => {
      if (server.connections.length > 1) return usual();
      if (frame.payload === 1) from.err(frame, "rate_limited", { retry_after_ms: 50 });
      if (frame.payload === 3) from.cut();
    };
    const client = connectTo(server);
    await Promise.all([1, 2, 3].map((n) => client.publish("t", n)));
    expect(server.last.of("PUBLISH").map(({ payload }) => payload)).toEqual([1, 2, 3]);
  });

  test("a publish fails after its timeout, and the error contains the cause", async () => {
    server.script.PUBLISH = (frame, from) => from.err(frame, "storage_full", { retry_after_ms: 5 });
    const client = connectTo(server, { publishTimeoutMs: 60 });
    const error = await failure(client.publish("t", 1)) as PrombusError;
    expect(error).toMatchObject({ code: "timeout", isRetryable: true, cause: { code: "storage_full" } });
    expect(error.message).toContain("storage_full by script");
    expect(client.pendingPublishes).toBe(0);
  });

  test("the timeout also applies without a connection, and can be set for one publish", async () => {
    server.refuse = 503;
    const client = connectTo(server);
    const error = await failure(client.publish("t", 1, { timeoutMs: 60 })) as PrombusError;
    expect(error).toMatchObject({ code: "timeout", isRetryable: true });
    expect(error.message).toMatch(HAS_DETAILS ? /503/ : /1006/);
  });

  test("an answer after the timeout is ignored, and a publish that was not sent by then is never sent", async () => {
    let late: (() => void) | undefined;
    server.script.PUBLISH = (_, __, usual) => { late = usual; };
    const client = connectTo(server);
    await client.ready();
    expect(await failure(client.publish("t", 1, { timeoutMs: 20 }))).toMatchObject({ code: "timeout" });
    late?.();
    server.script.PUBLISH = (_, __, usual) => usual();
    server.refuse = 503;
    server.last.cut();
    await until(() => client.status === "reconnecting");
    expect(await failure(client.publish("t", 2, { timeoutMs: 20 }))).toMatchObject({ code: "timeout" });
    server.refuse = undefined;
    await client.publish("t", 3);
    expect(server.of("PUBLISH").map(({ payload }) => payload)).toEqual([1, 3]);
  });
});

describe("a rate limit", () => {
  test("after a refusal the window starts at one publish and grows with the OKs", async () => {
    let tokens = 0;
    server.script.PUBLISH = (frame, from, usual) => {
      if (tokens-- > 0) usual();
      else from.err(frame, "rate_limited", { retry_after_ms: 1 });
    };
    const refill = setInterval(() => { tokens = 5; }, 2);
    const client = connectTo(server);
    const results = await client.publishMany("t", Array.from({ length: 300 }, (_, n) => n));
    clearInterval(refill);
    expect(results).toHaveLength(300);
    expect(server.of("PUBLISH").length).toBeLessThan(2_000);
  });
});

describe("an unexpected answer", () => {
  test("a second OK changes nothing", async () => {
    server.script.PUBLISH = (frame, from, usual) => {
      usual();
      from.ok(frame, { id: "x", seq: 99 });
      from.err(frame, "internal");
    };
    const client = connectTo(server);
    expect(await client.publish("t", 1)).toMatchObject({ seq: 1 });
    expect(await client.publish("t", 2)).toMatchObject({ seq: 2 });
    expect(client.pendingPublishes).toBe(0);
    expect(client.status).toBe("connected");
  });

  test("an OK without id and seq is bad_answer", async () => {
    server.script.PUBLISH = (frame, from) => from.ok(frame);
    const client = connectTo(server);
    expect(await failure(client.publish("t", 1))).toMatchObject({ code: "bad_answer", isRetryable: false });
  });

  const retried = ["unauthorized", "rate_limited", "storage_full", "unavailable"];
  const final = [
    "bad_json", "bad_request", "bad_topic", "bad_token", "forbidden", "already_subscribed", "not_subscribed", "unknown_id",
    "group_conflict", "not_found", "method_not_allowed", "limit_reached", "too_large", "publish_failed", "ack_failed", "internal",
    "a_code_of_the_future",
  ];

  test.each(retried)("after ERR %s the same publish is sent again", async (code) => {
    let refusals = 0;
    server.script.PUBLISH = (frame, from, usual) => {
      if (refusals++ < 2) from.err(frame, code, { retry_after_ms: 5 });
      else usual();
    };
    const client = connectTo(server);
    expect(await client.publish("t", 1)).toMatchObject({ seq: 1 });
    const sent = server.of("PUBLISH");
    expect(sent).toHaveLength(3);
    expect(new Set(ids(sent)).size).toBe(1);
    expect(server.connections).toHaveLength(1);
  });

  test.each(final)("ERR %s rejects at once", async (code) => {
    server.script.PUBLISH = (frame, from, usual) => {
      if (frame.payload === "bad") from.err(frame, code, code === "limit_reached" ? { retry_after_ms: 7 } : {});
      else usual();
    };
    const client = connectTo(server);
    const [good, bad] = await Promise.allSettled([client.publish("t", "good"), client.publish("t", "bad")]);
    expect(good.status).toBe("fulfilled");
    const { reason } = bad as PromiseRejectedResult;
    expect(reason).toBeInstanceOf(code === "forbidden" || code === "bad_token" ? AuthError : PrombusError);
    expect(reason).toMatchObject({ code, message: `${code} by script`, isRetryable: false });
    expect((reason as PrombusError).retryAfterMs).toBe(code === "limit_reached" ? 7 : undefined);
    expect(server.of("PUBLISH")).toHaveLength(2);
    expect(client.status).toBe("connected");
  });

  test("retry_after_ms delays the retry and all later publishes", async () => {
    let refusedAt = 0;
    let repeatedAt = 0;
    server.script.PUBLISH = (frame, from, usual) => {
      if (refusedAt === 0) {
        refusedAt = performance.now();
        return from.err(frame, "rate_limited", { retry_after_ms: 80 });
      }
      repeatedAt ||= performance.now();
      usual();
    };
    const client = connectTo(server);
    const first = client.publish("t", 1);
    await server.got("PUBLISH");
    await settle(10);
    await Promise.all([first, client.publish("t", 2)]);
    expect(repeatedAt - refusedAt).toBeGreaterThan(75);
    expect(server.of("PUBLISH").map(({ payload }) => payload)).toEqual([1, 1, 2]);
  });

  test("a frame over the server's limit is not sent again; the others are", async () => {
    server.script.PUBLISH = (frame, from, usual) => {
      if (String(frame.payload).length < 1000) return server.connections.length > 1 ? usual() : undefined;
      from.send({ op: "ERR", code: "too_large", msg: "the frame has too many bytes" });
      from.close(1009);
    };
    const client = connectTo(server);
    const small = client.publish("t", "small");
    const large = failure(client.publish("t", "x".repeat(2000)));
    expect(await large).toMatchObject({ code: "too_large", message: "the frame has too many bytes" });
    expect(await small).toMatchObject({ seq: 1 });
    expect(server.connections).toHaveLength(2);
  });
});

describe("the queue", () => {
  test("a publish beyond maxQueued fails with queue_full, and whenWritable waits for room", async () => {
    const held: (() => void)[] = [];
    server.script.PUBLISH = (_, __, usual) => { held.push(usual); };
    const client = connectTo(server, { maxQueued: 2 });
    const first = [client.publish("t", 1), client.publish("t", 2)];
    expect(await failure(client.publish("t", 3))).toMatchObject({ code: "queue_full", isRetryable: true });
    let isWritable = false;
    const writable = client.whenWritable().then(() => { isWritable = true; });
    await server.got("PUBLISH", 2);
    await settle(10);
    expect(isWritable).toBe(false);
    for (const answer of held) answer();
    await Promise.all([...first, writable]);
  });

  test("maxQueuedBytes limits the queue as well", async () => {
    server.refuse = 503;
    const client = connectTo(server, { maxQueuedBytes: 500 });
    client.publish("t", "x".repeat(600)).catch(() => {});
    expect(await failure(client.publish("t", 1))).toMatchObject({ code: "queue_full" });
  });

  test("publishes that time out without a connection free their memory", async () => {
    server.refuse = 503;
    const client = connectTo(server);
    const before = process.memoryUsage().heapUsed;
    for (let n = 0; n < 3000; n++) {
      await client.publish("t", String(n).padEnd(100_000, "x"), { timeoutMs: 0 }).catch(() => {});
    }
    expect(client.pendingPublishes).toBe(0);
    // All publishes together would need 300 MB.
    expect((process.memoryUsage().heapUsed - before) / 1e6).toBeLessThan(200);
  });

  test("publishMany takes items from an endless source only while the queue has room", async () => {
    const answers: (() => void)[] = [];
    server.script.PUBLISH = (_, __, usual) => { answers.push(usual); };
    const client = connectTo(server, { maxQueued: 10 });
    let taken = 0;
    let most = 0;
    async function* endless(): AsyncGenerator<number> {
      while (taken < 200) {
        most = Math.max(most, client.pendingPublishes);
        yield taken++;
      }
    }
    const done = client.publishMany("t", endless());
    await server.got("PUBLISH", 10);
    await settle();
    expect(taken).toBeLessThanOrEqual(11);
    server.script.PUBLISH = (_, __, usual) => usual();
    for (const answer of answers) answer();
    const results = await done;
    expect(results.map(({ seq }) => seq)).toEqual(Array.from({ length: 200 }, (_, at) => at + 1));
    expect(most).toBeLessThanOrEqual(10);
  });

  test("several publishMany share a small queue without queue_full", async () => {
    const client = connectTo(server, { maxQueued: 2 });
    const batches = await Promise.all(Array.from({ length: 10 }, () => client.publishMany("t", Array.from({ length: 20 }, (_, n) => n))));
    expect(batches.flat()).toHaveLength(200);
    expect(server.stored.size).toBe(200);
  });

  test("publishMany takes no more items after an error, and rejects with it after all sent publishes are answered", async () => {
    server.script.PUBLISH = (frame, from, usual) => { if (frame.payload === 2) from.err(frame, "forbidden"); else usual(); };
    const client = connectTo(server, { maxQueued: 4 });
    let taken = 0;
    let isReturned = false;
    async function* source(): AsyncGenerator<{ topic: string; payload: number }> {
      try {
        for (;;) yield { topic: "t", payload: taken++ };
      } finally {
        isReturned = true;
      }
    }
    expect(await failure(client.publishMany(source()))).toMatchObject({ code: "forbidden" });
    expect(isReturned).toBe(true);
    expect(taken).toBeLessThan(50);
    expect(client.pendingPublishes).toBe(0);
  });

  test("publishMany rejects when its source throws, and when the client is closed", async () => {
    const client = connectTo(server, { maxQueued: 2 });
    await client.ready();
    async function* broken(): AsyncGenerator<number> {
      yield 1;
      throw new Error("no more");
    }
    expect(await failure(client.publishMany("t", broken()))).toEqual(new Error("no more"));
    await until(() => client.pendingPublishes === 0);
    server.script.PUBLISH = () => {};
    const waiting = failure(client.publishMany("t", [1, 2, 3, 4]));
    await server.got("PUBLISH", 3);
    await client.close({ timeoutMs: 10 });
    expect(await waiting).toBeInstanceOf(ClosedError);
  });

  test("a payload that JSON cannot express is invalid_payload, and nothing is sent", async () => {
    const client = connectTo(server);
    const circle: { self?: unknown } = {};
    circle.self = circle;
    for (const payload of [undefined, () => {}, 10n, circle]) {
      expect(await failure(client.publish("t", payload))).toMatchObject({ code: "invalid_payload", isRetryable: false });
    }
    await client.publish("t", null);
    expect(server.of("PUBLISH")).toHaveLength(1);
    await until(() => client.pendingPublishes === 0);
  });
});
