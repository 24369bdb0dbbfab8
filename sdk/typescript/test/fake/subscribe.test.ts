import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import {
  AuthError, type DeliveryContext, type HandlerOptions, NackError, PrombusError, RejectError, type StoredEvent, type Subscription,
} from "../../src/index.js";
import { connectTo, failure, FakeServer, settle, until } from "../support/fake-server.js";

let server: FakeServer;
beforeEach(async () => { server = await FakeServer.start(); });
afterEach(() => { vi.useRealTimers(); });

function stopTime(): void {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "Date"] });
}

/** Handlers that run until the test lets them end. */
class Handlers {
  readonly started: { id: string; ctx: DeliveryContext; end: () => void; fail: (thrown: unknown) => void }[] = [];

  readonly handle = (event: StoredEvent, ctx: DeliveryContext): Promise<void> =>
    new Promise((end, fail) => { this.started.push({ id: event.id, ctx, end, fail }); });

  get ids(): string[] {
    return this.started.map(({ id }) => id);
  }

  async at(index: number): Promise<(typeof this.started)[number]> {
    await until(() => this.started.length > index, () => `handler ${index}; ${this.started.length} have run`);
    return this.started[index] as (typeof this.started)[number];
  }
}

const lost = { ctx: { attempt: 2, reason: "member_lost" } };

async function subscribed(handlers: Handlers, options: HandlerOptions = {}): Promise<{ client: ReturnType<typeof connectTo>; subscription: Subscription }> {
  // No heartbeat: tests advance the clock faster than the server can answer.
  const client = connectTo(server, { heartbeatMs: 1e9 });
  const subscription = await client.subscribe("t", "g", handlers.handle, options);
  return { client, subscription };
}

describe("how events are settled", () => {
  test("the context can be destructured, and a NackError accepts its delay as a number", async () => {
    const client = connectTo(server);
    await client.subscribe("t", "g", async (_, { extend, signal }) => {
      await extend(5_000);
      throw new NackError(`aborted: ${signal.aborted}`, 1_500);
    });
    client.on("nack", () => {});
    server.last.deliver("t", "g", "e1");
    await server.got("NACK", 1);
    expect(server.of("MODACK")[0]).toMatchObject({ extend_ms: 5_000 });
    expect(server.of("NACK")[0]).toMatchObject({ reason: "aborted: false", delay_ms: 1_500 });
  });

  test("returning acks the event without waiting for an answer; the context describes the delivery", async () => {
    const handlers = new Handlers();
    await subscribed(handlers);
    server.last.deliver("t", "g", "e1", { ctx: { attempt: 3, max_attempts: 7, reason: "nacked", last_error: "no" } });
    const { ctx, end } = await handlers.at(0);
    expect({ ...pick(ctx) }).toEqual({
      attempt: 3, maxAttempts: 7, subscription: "t", group: "g", reason: "nacked", lastError: "no", isAborted: false,
    });
    expect(ctx.leaseUntil - Date.now()).toBeGreaterThan(29_000);
    expect(server.of("ACK")).toEqual([]);
    end();
    expect(await server.got("ACK")).toEqual([{ op: "ACK", topic: "t", group: "g", id: "e1" }]);
  });

  function pick(ctx: DeliveryContext): object {
    const { attempt, maxAttempts, subscription, group, reason, lastError } = ctx;
    return { attempt, maxAttempts, subscription, group, reason, lastError, isAborted: ctx.signal.aborted };
  }

  test.each([
    ["an Error", new Error("no stock"), { reason: "no stock" }],
    ["an Error without a message", new TypeError(""), { reason: "TypeError" }],
    ["a NackError with a delay", new NackError("later", { delayMs: 500 }), { reason: "later", delay_ms: 500 }],
    ["a NackError without one", new NackError("later"), { reason: "later" }],
    ["a RejectError", new RejectError("never"), { reason: "never", dead: true }],
    ["a text", "just text", { reason: "just text" }],
    ["undefined", undefined, { reason: "undefined" }],
    ["null", null, { reason: "null" }],
    ["a symbol", Symbol("s"), { reason: "Symbol(s)" }],
    ["an object without a prototype", Object.create(null), { reason: "an error without a message" }],
    ["an Error with a strange message", Object.assign(new Error(), { message: { a: 1 } }), { reason: "[object Object]" }],
    ["a very long message", new Error("x".repeat(3_000_000)), { reason: "x".repeat(4096) }],
  ])("throwing %s nacks", async (_, thrown, fields) => {
    const client = connectTo(server);
    const nacks: unknown[] = [];
    client.on("nack", (nack) => nacks.push(nack));
    await client.subscribe("t", "g", () => { throw thrown; });
    server.last.deliver("t", "g", "e1");
    expect(await server.got("NACK")).toEqual([{ op: "NACK", topic: "t", group: "g", id: "e1", ...fields }]);
    expect(nacks).toEqual([{ error: thrown, topic: "t", group: "g", id: "e1", attempt: 1 }]);
    // The next event is handled.
    server.last.deliver("t", "g", "e2");
    await server.got("NACK", 2);
    expect(server.connections).toHaveLength(1);
  });

  test("an ERR to an ack is an error event; the subscription continues", async () => {
    const codes = [
      "bad_json", "bad_request", "bad_topic", "unauthorized", "bad_token", "forbidden", "already_subscribed", "not_subscribed",
      "unknown_id", "group_conflict", "not_found", "method_not_allowed", "limit_reached", "rate_limited", "too_large",
      "storage_full", "unavailable", "publish_failed", "ack_failed", "internal",
    ];
    server.script.ACK = (frame, from) => from.err(frame, frame.id as string);
    const client = connectTo(server);
    const errors: string[] = [];
    client.on("error", ({ code }) => errors.push(code));
    const handled: string[] = [];
    await client.subscribe("t", "g", ({ id }) => handled.push(id));
    for (const code of codes) server.last.deliver("t", "g", code);
    await server.got("ACK", codes.length);
    await client.cursor("t", "g");
    expect(handled).toEqual(codes);
    // These two codes may concern the subscription: the client checked, and it still exists.
    expect(errors).toEqual(codes.filter((code) => code !== "not_subscribed" && code !== "forbidden"));
    expect(client.status).toBe("connected");
  });

  test("many ERRs at once cause one check whether the subscription still exists", async () => {
    server.script.RESUME = () => {};
    const client = connectTo(server);
    await client.subscribe("t", "g", () => {});
    for (let n = 0; n < 10; n++) server.last.send({ op: "ERR", code: "storage_full", msg: "no room" });
    await server.got("RESUME");
    await client.cursor("t", "g");
    expect(server.of("RESUME")).toHaveLength(1);
  });

  test("concurrency 1 keeps the order; a higher one limits the handlers that run at the same time", async () => {
    const one = new Handlers();
    const three = new Handlers();
    const client = connectTo(server);
    await client.subscribe("t", "one", one.handle);
    await client.subscribe("t", "three", three.handle, { concurrency: 3 });
    for (const group of ["one", "three"]) for (let n = 0; n < 6; n++) server.last.deliver("t", group, `e${n}`);
    await three.at(2);
    await settle();
    expect(one.ids).toEqual(["e0"]);
    expect(three.ids).toEqual(["e0", "e1", "e2"]);
    three.started[1]?.end();
    await three.at(3);
    await settle(5);
    expect(three.ids).toHaveLength(4);
    for (let n = 0; n < 6; n++) (await one.at(n)).end();
    await server.got("ACK", 7);
    expect(server.of("ACK").filter(({ group }) => group === "one").map(({ id }) => id)).toEqual(["e0", "e1", "e2", "e3", "e4", "e5"]);
  });

  test("maxInFlight is at least the concurrency, and options are sent unchanged", async () => {
    const client = connectTo(server);
    await client.subscribe("a", "g", () => {}, { concurrency: 250 });
    await client.subscribe("b", "g", () => {}, {
      from: { ts: 17 }, maxInFlight: 7, batchSize: 3, ackTimeoutMs: 5000, maxAttempts: 2, maxUnsettled: 9, filter: { key: "k" },
      topics: ["c"], name: "me", expireMs: 60_000, autoExtend: false, maxExtensionMs: 1, concurrency: 2,
    });
    await client.subscribe("c", "g", () => {}, { from: { afterId: "x" } });
    await client.subscribe("d", "g", () => {}, { from: "earliest" });
    expect(server.of("SUBSCRIBE").map(({ opts }) => opts)).toEqual([
      { maxInFlight: 250 },
      {
        from: "ts", ts: 17, maxInFlight: 7, batchSize: 3, ackTimeoutMs: 5000, maxAttempts: 2, maxUnsettled: 9, filter: { key: "k" },
        topics: ["c"], name: "me", expireMs: 60_000,
      },
      { maxInFlight: 100, from: "afterId", afterId: "x" },
      { maxInFlight: 100, from: "earliest" },
    ]);
  });
});

describe("joining", () => {
  const passing = ["unauthorized", "rate_limited", "storage_full", "unavailable"];
  const final = [
    "bad_json", "bad_request", "bad_topic", "bad_token", "forbidden", "already_subscribed", "not_subscribed", "unknown_id",
    "group_conflict", "not_found", "method_not_allowed", "limit_reached", "too_large", "publish_failed", "ack_failed", "internal",
  ];

  test.each(passing)("SUBSCRIBE is retried after ERR %s", async (code) => {
    let count = 0;
    server.script.SUBSCRIBE = (frame, from, usual) => {
      if (++count < 3) from.err(frame, code, { retry_after_ms: 5 });
      else usual();
    };
    const client = connectTo(server);
    const subscription = await client.subscribe("t", "g", () => {});
    expect(subscription.created).toBe(true);
    expect(server.of("SUBSCRIBE")).toHaveLength(3);
  });

  test.each(final)("ERR %s to SUBSCRIBE rejects, once", async (code) => {
    server.script.SUBSCRIBE = (frame, from) => from.err(frame, code);
    const client = connectTo(server);
    const errors: unknown[] = [];
    client.on("error", (error) => errors.push(error));
    const error = await failure(client.subscribe("t", "g", () => {}));
    expect(error).toBeInstanceOf(PrombusError);
    expect(error).toMatchObject({ code, isRetryable: false });
    expect(errors).toEqual([]);
    // The same group can be joined again.
    delete server.script.SUBSCRIBE;
    await client.subscribe("t", "g", () => {});
  });

  test("the client refuses a second subscription of the same topic and group", async () => {
    const client = connectTo(server);
    await client.subscribe("t", "g", () => {});
    expect(await failure(client.subscribe("t", "g", () => {}))).toMatchObject({ code: "already_subscribed" });
    expect(server.of("SUBSCRIBE")).toHaveLength(1);
  });

  test("SUBSCRIBE is sent again over the next connection if its OK was lost", async () => {
    server.script.SUBSCRIBE = (_, from, usual) => { if (server.connections.length === 1) from.cut(); else usual(); };
    const client = connectTo(server);
    await client.subscribe("t", "g", () => {}, { from: "earliest" });
    expect(server.of("SUBSCRIBE").map(({ opts }) => opts?.from)).toEqual(["earliest", "earliest"]);
  });

  test("events that arrive before the OK are handled", async () => {
    server.script.SUBSCRIBE = (_, from, usual) => {
      from.deliver("t", "g", "early");
      usual();
    };
    const client = connectTo(server);
    const handled: string[] = [];
    await client.subscribe("t", "g", ({ id }) => handled.push(id));
    await server.got("ACK");
    expect(handled).toEqual(["early"]);
  });
});

describe("after a reconnect", () => {
  test("subscribes again with the same options, and pauses subscriptions again that were paused", async () => {
    const client = connectTo(server);
    const paused = await client.subscribe("a", "g", () => {}, { maxInFlight: 5 });
    await client.subscribe("b", "g", () => {}, { from: "earliest" });
    await paused.pause();
    server.last.cut();
    await server.connected(2);
    await client.publish("t", 1);
    const [first, second] = server.connections;
    const withoutCorr = (frames = first?.of("SUBSCRIBE")): object[] => (frames ?? []).map(({ corr: _, ...rest }) => rest);
    expect(withoutCorr(second?.of("SUBSCRIBE"))).toEqual(withoutCorr());
    expect(second?.of("PAUSE").map(({ topic }) => topic)).toEqual(["a"]);
    // PAUSE is sent together with SUBSCRIBE, not after its answer, so that the server delivers little in between.
    expect(second?.received.slice(1, 4).map(({ op }) => op)).toEqual(["SUBSCRIBE", "PAUSE", "SUBSCRIBE"]);
    await paused.resume();
    server.last.cut();
    await server.connected(3);
    await client.publish("t", 2);
    expect(server.last.of("PAUSE")).toEqual([]);
  });

  test("a pause while the connection is down applies to the next connection", async () => {
    const handlers = new Handlers();
    const { client, subscription } = await subscribed(handlers);
    server.refuse = 503;
    server.last.cut();
    await until(() => client.status === "reconnecting");
    await subscription.pause();
    server.refuse = undefined;
    await server.got("PAUSE");
  });

  test("a running handler gets the new lease, runs once, and its event is acked over the new connection", async () => {
    const handlers = new Handlers();
    const { client } = await subscribed(handlers);
    server.last.deliver("t", "g", "e1");
    const { ctx, end } = await handlers.at(0);
    const first = server.last;
    first.cut();
    await server.got("SUBSCRIBE", 2);
    server.last.deliver("t", "g", "e1", { ctx: { attempt: 2, reason: "member_lost" } });
    await client.cursor("t", "g");
    expect(ctx).toMatchObject({ attempt: 2, reason: "member_lost" });
    expect(ctx.signal.aborted).toBe(false);
    end();
    await server.got("ACK");
    expect(first.of("ACK")).toEqual([]);
    expect(server.last.of("ACK").map(({ id }) => id)).toEqual(["e1"]);
    await settle();
    expect(handlers.ids).toEqual(["e1"]);
  });

  test("the same if the lease expired on the same connection: the lease is extended again, and a new signal is not aborted", async () => {
    stopTime();
    server.script.MODACK = (frame, from) => from.err(frame, "unknown_id");
    const handlers = new Handlers();
    const { client } = await subscribed(handlers, { ackTimeoutMs: 2_000 });
    server.last.deliver("t", "g", "e1", { ctx: { ack_deadline_ms: 2_000 } });
    const { ctx, end } = await handlers.at(0);
    const { signal } = ctx;
    await vi.advanceTimersByTimeAsync(2_300);
    await until(() => signal.aborted);
    delete server.script.MODACK;
    server.last.deliver("t", "g", "e1", { ctx: { attempt: 2, reason: "lease_expired", ack_deadline_ms: 2_000 } });
    await client.cursor("t", "g");
    expect(ctx.signal.aborted).toBe(false);
    const asked = server.of("MODACK").length;
    await vi.advanceTimersByTimeAsync(1_500);
    await server.got("MODACK", asked + 1);
    end();
    await server.got("ACK");
    expect(handlers.ids).toEqual(["e1"]);
  });

  test("the same event id in another topic of a pattern is another event", async () => {
    const handlers = new Handlers();
    const client = connectTo(server);
    await client.subscribe("t.*", "g", handlers.handle, { concurrency: 2 });
    server.last.deliver("t.*", "g", "e1", { event: { topic: "t.a" } });
    server.last.deliver("t.*", "g", "e1", { event: { topic: "t.b" } });
    await handlers.at(1);
    expect(handlers.ids).toEqual(["e1", "e1"]);
  });

  test("the result of a handler that ended while disconnected is sent when the event is redelivered, and it does not run again", async () => {
    const handlers = new Handlers();
    const { client } = await subscribed(handlers, { concurrency: 3 });
    for (const id of ["good", "bad", "later"]) server.last.deliver("t", "g", id);
    await handlers.at(2);
    server.refuse = 503;
    server.last.cut();
    await until(() => client.status === "reconnecting");
    handlers.started[0]?.end();
    handlers.started[1]?.fail(new RejectError("never"));
    handlers.started[2]?.fail(new NackError("wait", { delayMs: 9 }));
    await settle();
    server.refuse = undefined;
    await server.got("SUBSCRIBE", 2);
    for (const id of ["good", "bad", "later"]) server.last.deliver("t", "g", id, lost);
    await server.got("NACK", 2);
    expect(server.of("ACK").map(({ id }) => id)).toEqual(["good"]);
    expect(server.of("NACK").map(({ op: _, ...rest }) => rest)).toEqual([
      { topic: "t", group: "g", id: "bad", reason: "never", dead: true },
      { topic: "t", group: "g", id: "later", reason: "wait", delay_ms: 9 },
    ]);
    expect(handlers.ids).toEqual(["good", "bad", "later"]);
    // A result is used once: if the event is delivered again after that, it is handled again.
    server.last.deliver("t", "g", "good", { ctx: { attempt: 1 } });
    await handlers.at(3);
  });

  test("the same for a handler that ended after the reconnect and before the redelivery", async () => {
    const handlers = new Handlers();
    const { client } = await subscribed(handlers);
    server.last.deliver("t", "g", "e1");
    await handlers.at(0);
    server.last.cut();
    await server.got("SUBSCRIBE", 2);
    await client.ready();
    handlers.started[0]?.end();
    await settle();
    expect(server.of("ACK")).toEqual([]);
    server.last.deliver("t", "g", "e1", lost);
    await server.got("ACK");
    expect(handlers.ids).toEqual(["e1"]);
  });

  test("an ack that was lost with a dead connection is sent again when the event is redelivered", async () => {
    const handlers = new Handlers();
    const { client } = await subscribed(handlers);
    server.last.deliver("t", "g", "e1");
    const { end } = await handlers.at(0);
    server.last.freeze();
    end();
    await settle(5);
    server.last.cut();
    await server.got("SUBSCRIBE", 2);
    server.last.deliver("t", "g", "e1", lost);
    await until(() => server.last.of("ACK").length === 1, "an ack over the second connection");
    expect(handlers.ids).toEqual(["e1"]);
    // Without a reason this is not a redelivery: a seek moved the group.
    server.last.cut();
    await server.got("SUBSCRIBE", 3);
    server.last.deliver("t", "g", "e1");
    await handlers.at(1);
    expect(client.status).toBe("connected");
  });

  test("an event that another member nacked in the meantime is handled again, although a nack for it is kept here", async () => {
    const handlers = new Handlers();
    const { client } = await subscribed(handlers);
    server.last.deliver("t", "g", "e1");
    await handlers.at(0);
    server.refuse = 503;
    server.last.cut();
    await until(() => client.status === "reconnecting");
    handlers.started[0]?.fail(new Error("no"));
    server.refuse = undefined;
    await server.got("SUBSCRIBE", 2);
    server.last.deliver("t", "g", "e1", { ctx: { attempt: 3, reason: "nacked" } });
    await handlers.at(1);
    expect(server.of("NACK")).toEqual([]);
  });

  test("a seek voids running handlers: their results are not sent, and their events run again", async () => {
    const handlers = new Handlers();
    const { client } = await subscribed(handlers, { concurrency: 2 });
    server.last.deliver("t", "g", "e1");
    const first = await handlers.at(0);
    const sought = client.seek("t", "g", "earliest");
    await server.got("SEEK", 1);
    await sought;
    server.last.deliver("t", "g", "e1");
    const second = await handlers.at(1);
    expect([first.ctx.signal.aborted, second.ctx.signal.aborted]).toEqual([true, false]);
    first.end();
    await settle(5);
    expect(server.of("ACK")).toEqual([]);
    second.end();
    await server.got("ACK", 1);
    expect(handlers.ids).toEqual(["e1", "e1"]);
  });

  test("a seek that the server refuses voids nothing", async () => {
    const handlers = new Handlers();
    const { client } = await subscribed(handlers);
    server.last.deliver("t", "g", "e1");
    const { end, ctx } = await handlers.at(0);
    server.script.SEEK = (frame, from) => from.err(frame, "unknown_id");
    await expect(client.seek("t", "g", { afterId: "x" })).rejects.toMatchObject({ code: "unknown_id" });
    expect(ctx.signal.aborted).toBe(false);
    end();
    await server.got("ACK", 1);
  });

  test("an event whose lease expired before its handler started is not handled until it is redelivered", async () => {
    stopTime();
    const handlers = new Handlers();
    await subscribed(handlers, { ackTimeoutMs: 10_000, autoExtend: false });
    for (const id of ["e1", "e2"]) server.last.deliver("t", "g", id, { ctx: { ack_deadline_ms: 10_000 } });
    const { end } = await handlers.at(0);
    await vi.advanceTimersByTimeAsync(11_000);
    end();
    await settle(5);
    expect(handlers.ids).toEqual(["e1"]);
    server.last.deliver("t", "g", "e2", { ctx: { attempt: 2, reason: "lease_expired" } });
    await handlers.at(1);
    expect(handlers.ids).toEqual(["e1", "e2"]);
  });

  test("results are forgotten after five minutes, and when this client seeks", async () => {
    stopTime();
    const handlers = new Handlers();
    const { client } = await subscribed(handlers, { concurrency: 2 });
    const endWhileDown = async (...indexes: number[]): Promise<void> => {
      const count = server.connections.length;
      server.refuse = 503;
      server.last.cut();
      await until(() => client.status === "reconnecting");
      for (const index of indexes) handlers.started[index]?.end();
      await settle(5);
      server.refuse = undefined;
      await vi.advanceTimersByTimeAsync(50);
      await until(() => server.connections.length > count && client.status === "connected");
      await server.got("SUBSCRIBE", count + 1);
    };
    server.last.deliver("t", "g", "e1");
    await handlers.at(0);
    await endWhileDown(0);
    await vi.advanceTimersByTimeAsync(301_000);
    server.last.deliver("t", "g", "e1", lost);
    await handlers.at(1);
    await endWhileDown(1);
    await client.seek("t", "g", "earliest");
    server.last.deliver("t", "g", "e1", lost);
    await handlers.at(2);
  });

  test("at least the newest 5,000 results are kept, and at most 10,000", async () => {
    const ended: (() => void)[] = [];
    let runs = 0;
    const client = connectTo(server);
    await client.subscribe("t", "g", () => { runs += 1; return new Promise<void>((end) => { ended.push(end); }); }, { concurrency: 20_000 });
    for (let n = 0; n < 10_050; n++) server.last.deliver("t", "g", `e${n}`);
    await until(() => runs === 10_050);
    server.refuse = 503;
    server.last.cut();
    await until(() => client.status === "reconnecting");
    for (const end of ended) end();
    await settle(5);
    server.refuse = undefined;
    await server.got("SUBSCRIBE", 2);
    for (let n = 0; n < 10_050; n++) server.last.deliver("t", "g", `e${n}`, lost);
    await server.got("ACK", 5_000);
    await settle();
    expect(runs).toBe(10_050 + 5_050);
  });

  test("queued events whose handlers have not started are dropped; the server redelivers them", async () => {
    const handlers = new Handlers();
    const { client } = await subscribed(handlers);
    for (const id of ["e1", "e2", "e3"]) server.last.deliver("t", "g", id);
    const { end } = await handlers.at(0);
    server.refuse = 503;
    server.last.cut();
    await until(() => client.status === "reconnecting");
    end();
    await settle();
    expect(handlers.ids).toEqual(["e1"]);
    server.refuse = undefined;
    await server.got("SUBSCRIBE", 2);
    server.last.deliver("t", "g", "e3", lost);
    await handlers.at(1);
    expect(handlers.ids).toEqual(["e1", "e3"]);
  });

  test("a subscription that the server refuses after a reconnect ends with an error event; others continue", async () => {
    const client = connectTo(server);
    const errors: PrombusError[] = [];
    client.on("error", (error) => errors.push(error));
    const gone = await client.subscribe("a", "g", () => {});
    const stays = new Handlers();
    await client.subscribe("b", "g", stays.handle);
    server.script.SUBSCRIBE = (frame, from, usual) => { if (frame.topic === "a") from.err(frame, "forbidden"); else usual(); };
    server.last.cut();
    expect(await gone.finished).toBeInstanceOf(AuthError);
    expect(errors.map(({ code }) => code)).toEqual(["forbidden"]);
    server.last.deliver("b", "g", "e1");
    await stays.at(0);
  });
});

describe("leases", () => {
  test("leases are extended before half of their time has passed, while a handler runs and while an event waits", async () => {
    stopTime();
    const handlers = new Handlers();
    await subscribed(handlers, { ackTimeoutMs: 10_000 });
    server.last.deliver("t", "g", "runs", { ctx: { ack_deadline_ms: 10_000 } });
    server.last.deliver("t", "g", "waits", { ctx: { ack_deadline_ms: 10_000 } });
    const { ctx, end } = await handlers.at(0);
    await vi.advanceTimersByTimeAsync(3_000);
    await settle();
    expect(server.of("MODACK")).toEqual([]);
    await vi.advanceTimersByTimeAsync(2_000);
    await server.got("MODACK", 2);
    expect(server.of("MODACK").map(({ id, extend_ms }) => [id, extend_ms])).toEqual([["runs", 10_000], ["waits", 10_000]]);
    await settle();
    expect(ctx.leaseUntil - Date.now()).toBeGreaterThan(9_000);
    await vi.advanceTimersByTimeAsync(5_000);
    await server.got("MODACK", 4);
    end();
    (await handlers.at(1)).end();
    await server.got("ACK", 2);
    await vi.advanceTimersByTimeAsync(60_000);
    await settle();
    expect(server.of("MODACK").length).toBeLessThanOrEqual(4);
  });

  test("extension stops after maxExtensionMs; then the signal aborts when the lease ends", async () => {
    stopTime();
    const handlers = new Handlers();
    await subscribed(handlers, { ackTimeoutMs: 10_000, maxExtensionMs: 12_000 });
    server.last.deliver("t", "g", "e1", { ctx: { ack_deadline_ms: 10_000 } });
    const { ctx } = await handlers.at(0);
    for (let seconds = 0; seconds < 40 && !ctx.signal.aborted; seconds++) {
      await vi.advanceTimersByTimeAsync(1_000);
      await settle(3);
    }
    expect(server.of("MODACK").length).toBeGreaterThanOrEqual(2);
    expect(server.of("MODACK").length).toBeLessThanOrEqual(3);
    expect(ctx.signal.aborted).toBe(true);
    expect(ctx.signal.reason).toMatchObject({ code: "timeout" });
  });

  test("the time that an event waits for its handler does not count against maxExtensionMs", async () => {
    stopTime();
    const handlers = new Handlers();
    await subscribed(handlers, { ackTimeoutMs: 10_000, maxExtensionMs: 12_000 });
    for (const id of ["e1", "e2"]) server.last.deliver("t", "g", id, { ctx: { ack_deadline_ms: 10_000 } });
    const first = await handlers.at(0);
    for (let seconds = 0; seconds < 30; seconds++) {
      await vi.advanceTimersByTimeAsync(1_000);
      await settle(3);
    }
    expect(first.ctx.signal.aborted).toBe(true);
    first.end();
    const second = await handlers.at(1);
    expect(second.ctx.signal.aborted).toBe(false);
    expect(second.ctx.leaseUntil).toBeGreaterThan(Date.now());
  });

  test("autoExtend: false extends nothing; the signal aborts when the lease time has passed", async () => {
    stopTime();
    const handlers = new Handlers();
    await subscribed(handlers, { autoExtend: false });
    server.last.deliver("t", "g", "e1");
    const { ctx } = await handlers.at(0);
    const { signal } = ctx;
    await vi.advanceTimersByTimeAsync(29_000);
    expect(signal.aborted).toBe(false);
    await vi.advanceTimersByTimeAsync(2_100);
    expect(signal.aborted).toBe(true);
    expect(server.of("MODACK")).toEqual([]);
    expect(await failure(ctx.extend())).toMatchObject({ code: "unknown_id" });
  });

  test("the signal aborts when MODACK says unknown_id", async () => {
    server.script.MODACK = (frame, from) => from.err(frame, "unknown_id");
    const handlers = new Handlers();
    await subscribed(handlers);
    server.last.deliver("t", "g", "e1");
    const { ctx } = await handlers.at(0);
    expect(await failure(ctx.extend(5000))).toMatchObject({ code: "unknown_id" });
    expect(ctx.signal.aborted).toBe(true);
    expect(ctx.signal.reason).toMatchObject({ code: "unknown_id" });
  });

  test("the signal aborts when the lease time has passed while disconnected", async () => {
    stopTime();
    const handlers = new Handlers();
    const { client } = await subscribed(handlers);
    server.last.deliver("t", "g", "e1");
    const { ctx } = await handlers.at(0);
    server.refuse = 503;
    server.last.cut();
    await until(() => client.status === "reconnecting");
    expect(ctx.signal.aborted).toBe(false);
    expect(await failure(ctx.extend())).toMatchObject({ code: "connection_lost" });
    await vi.advanceTimersByTimeAsync(31_000);
    expect(ctx.signal.aborted).toBe(true);
  });

  test("extend() moves the end of the lease, by at least a second", async () => {
    const handlers = new Handlers();
    await subscribed(handlers);
    server.last.deliver("t", "g", "e1");
    const { ctx } = await handlers.at(0);
    await ctx.extend(120_000);
    expect(ctx.leaseUntil - Date.now()).toBeGreaterThan(119_000);
    await ctx.extend(10);
    expect(ctx.leaseUntil - Date.now()).toBeGreaterThan(900);
    expect(server.of("MODACK").map(({ extend_ms }) => extend_ms)).toEqual([120_000, 10]);
  });
});

describe("leaving", () => {
  test("unsubscribe pauses, waits for the running handler, acks and leaves; waiting events are not handled", async () => {
    const handlers = new Handlers();
    const { client, subscription } = await subscribed(handlers);
    server.last.deliver("t", "g", "e1");
    server.last.deliver("t", "g", "e2");
    const { end } = await handlers.at(0);
    const left = subscription.unsubscribe();
    await server.got("PAUSE");
    server.last.deliver("t", "g", "e3");
    await settle();
    expect(server.of("UNSUBSCRIBE")).toEqual([]);
    end();
    await left;
    expect(server.last.received.map(({ op, id }) => id ?? op)).toEqual(["AUTH", "SUBSCRIBE", "PAUSE", "e1", "UNSUBSCRIBE"]);
    expect(handlers.ids).toEqual(["e1"]);
    expect(await subscription.finished).toBeUndefined();
    await client.subscribe("t", "g", () => {});
  });

  test("the drain ends after its timeout", async () => {
    const handlers = new Handlers();
    const { subscription } = await subscribed(handlers);
    server.last.deliver("t", "g", "e1");
    const { ctx } = await handlers.at(0);
    await subscription.unsubscribe({ timeoutMs: 30 });
    expect(server.of("UNSUBSCRIBE")).toHaveLength(1);
    expect(ctx.signal.aborted).toBe(true);
    expect(server.of("ACK")).toEqual([]);
  });

  test("the timeout of the drain starts before the answer to PAUSE", async () => {
    server.script.PAUSE = () => {};
    const handlers = new Handlers();
    const { subscription } = await subscribed(handlers);
    server.last.deliver("t", "g", "e1");
    await handlers.at(0);
    await subscription.unsubscribe({ timeoutMs: 30 });
    expect(server.of("UNSUBSCRIBE")).toHaveLength(1);
  });

  test("unsubscribe twice, and while disconnected", async () => {
    const handlers = new Handlers();
    const { client, subscription } = await subscribed(handlers);
    await Promise.all([subscription.unsubscribe(), subscription.unsubscribe()]);
    const other = await client.subscribe("t", "g", handlers.handle);
    server.refuse = 503;
    server.last.cut();
    await until(() => client.status === "reconnecting");
    await other.unsubscribe();
    server.refuse = undefined;
    await client.publish("t", 1);
    expect(server.last.of("SUBSCRIBE")).toEqual([]);
  });

  test("unsubscribe while SUBSCRIBE is being repeated leaves the group on the server as well", async () => {
    const handlers = new Handlers();
    const { client, subscription } = await subscribed(handlers);
    let answer: (() => void) | undefined;
    server.script.SUBSCRIBE = (_, __, usual) => { answer = usual; };
    server.last.cut();
    await server.got("SUBSCRIBE", 2);
    const left = subscription.unsubscribe();
    answer?.();
    await left;
    await client.cursor("t", "g");
    expect(server.last.of("UNSUBSCRIBE")).toHaveLength(1);
  });

  test("await using leaves the group", async () => {
    const client = connectTo(server);
    const subscription = await client.subscribe("t", "g", () => {});
    await subscription[Symbol.asyncDispose]();
    expect(server.of("UNSUBSCRIBE")).toHaveLength(1);
  });
});

describe("the server ends a subscription", () => {
  function endOf(topic: string, code: string): void {
    server.script.RESUME = (frame, from, usual) => { if (frame.topic === topic) from.err(frame, "not_subscribed"); else usual(); };
    server.last.send({ op: "ERR", code, msg: `group g on ${topic}: the group was deleted` });
  }

  test.each(["not_subscribed", "forbidden", "internal"])("ERR %s without corr: finished resolves with it, other subscriptions continue", async (code) => {
    const client = connectTo(server);
    const errors: PrombusError[] = [];
    client.on("error", (error) => errors.push(error));
    const gone = await client.subscribe("a", "g", () => {});
    const handlers = new Handlers();
    const stays = await client.subscribe("b", "g", handlers.handle);
    let isOver = false;
    void stays.finished.then(() => { isOver = true; });
    endOf("a", code);
    const error = await gone.finished;
    expect(error).toBeInstanceOf(code === "forbidden" ? AuthError : PrombusError);
    expect(error).toMatchObject({ code });
    expect(error?.message).toContain("the group was deleted");
    expect(errors).toContain(error);
    server.last.deliver("b", "g", "e1");
    (await handlers.at(0)).end();
    await server.got("ACK");
    expect(isOver).toBe(false);
    await client.subscribe("a", "g", () => {});
  });

  test("a subscription that ended because the store is unavailable is made again", async () => {
    const client = connectTo(server);
    client.on("error", () => {});
    const handlers = new Handlers();
    await client.subscribe("a", "g", handlers.handle);
    endOf("a", "unavailable");
    await server.got("SUBSCRIBE", 2);
    server.last.deliver("a", "g", "e1");
    await handlers.at(0);
  });

  test("the running handler's signal aborts", async () => {
    const handlers = new Handlers();
    await subscribed(handlers);
    server.last.deliver("t", "g", "e1");
    const { ctx, end } = await handlers.at(0);
    endOf("t", "not_subscribed");
    await until(() => ctx.signal.aborted);
    end();
    await settle();
    expect(server.of("ACK")).toEqual([]);
  });
});
