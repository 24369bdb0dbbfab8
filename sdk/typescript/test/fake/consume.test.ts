import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { AuthError, type Delivery, PrombusError } from "../../src/index.js";
import { connectTo, failure, FakeServer, settle, until } from "../support/fake-server.js";

let server: FakeServer;
beforeEach(async () => { server = await FakeServer.start(); });
afterEach(() => { vi.useRealTimers(); });

const lost = { ctx: { attempt: 2, reason: "member_lost" } };

function deliverOnSubscribe(...ids: string[]): void {
  server.script.SUBSCRIBE = (_, from, usual) => {
    usual();
    for (const id of ids.splice(0)) from.deliver("t", "g", id);
  };
}

async function next(consumer: AsyncIterator<Delivery, undefined>): Promise<Delivery> {
  const { value } = await consumer.next();
  if (value === undefined) throw new Error("the iterator ended");
  return value;
}

describe("settling", () => {
  test("ack, nack and extend wait for the server's answer", async () => {
    deliverOnSubscribe("e1", "e2", "e3");
    const consumer = connectTo(server).consume("t", "g");
    const [one, two, three] = [await next(consumer), await next(consumer), await next(consumer)];
    expect([one.event.payload, one.ctx.attempt]).toEqual(["e1", 1]);
    await one.extend(5000);
    expect(await one.ack()).toBe("settled");
    expect(await two.nack("no", { delayMs: 100 })).toBe("settled");
    expect(await three.nack(undefined, { dead: true })).toBe("settled");
    const frames = server.last.received.slice(2).map(({ topic: _, group: __, corr, ...rest }) => ({ ...rest, hasCorr: corr !== undefined }));
    expect(frames).toEqual([
      { op: "MODACK", id: "e1", extend_ms: 5000, hasCorr: true },
      { op: "ACK", id: "e1", hasCorr: true },
      { op: "NACK", id: "e2", reason: "no", delay_ms: 100, hasCorr: true },
      { op: "NACK", id: "e3", dead: true, hasCorr: true },
    ]);
    expect(await failure(one.extend())).toMatchObject({ code: "unknown_id" });
  });

  test("only the first verdict is sent; a second call returns its outcome", async () => {
    deliverOnSubscribe("e1");
    const delivery = await next(connectTo(server).consume("t", "g"));
    expect(await Promise.all([delivery.ack(), delivery.nack("no"), delivery.ack()])).toEqual(["settled", "settled", "settled"]);
    expect(await delivery.ack()).toBe("settled");
    expect(server.of("ACK")).toHaveLength(1);
    expect(server.of("NACK")).toHaveLength(0);
  });

  test("an ack that comes too late is stale, and the signal aborts", async () => {
    server.script.ACK = (frame, from) => from.ok(frame, { stale: true });
    deliverOnSubscribe("e1");
    const delivery = await next(connectTo(server).consume("t", "g"));
    const { signal } = delivery.ctx;
    expect(await delivery.ack()).toBe("stale");
    expect(signal.aborted).toBe(true);
  });

  test("a verdict while disconnected is deferred: it is sent when the event is redelivered, and the event is not yielded again", async () => {
    deliverOnSubscribe("e1", "e2");
    const client = connectTo(server);
    const consumer = client.consume("t", "g");
    const [one, two] = [await next(consumer), await next(consumer)];
    server.refuse = 503;
    server.last.cut();
    await until(() => client.status === "reconnecting");
    expect(await one.ack()).toBe("deferred");
    expect(await two.nack("no")).toBe("deferred");
    server.refuse = undefined;
    await server.got("SUBSCRIBE", 2);
    for (const id of ["e1", "e2"]) server.last.deliver("t", "g", id, lost);
    server.last.deliver("t", "g", "e3");
    expect((await next(consumer)).event.id).toBe("e3");
    await server.got("NACK");
    expect(server.last.of("ACK").map(({ id }) => id)).toEqual(["e1"]);
    expect(server.last.of("NACK").map(({ id }) => id)).toEqual(["e2"]);
  });

  test("a verdict whose answer was lost with the connection is deferred as well", async () => {
    server.script.ACK = (_, from) => from.cut();
    deliverOnSubscribe("e1");
    const delivery = await next(connectTo(server).consume("t", "g"));
    expect(await delivery.ack()).toBe("deferred");
    await server.got("SUBSCRIBE", 2);
    delete server.script.ACK;
    server.last.deliver("t", "g", "e1", lost);
    await until(() => server.last.of("ACK").length === 1);
  });

  test("a nack that arrived and whose answer was lost is not repeated", async () => {
    server.script.NACK = (_, from) => from.cut();
    deliverOnSubscribe("e1");
    const consumer = connectTo(server).consume("t", "g");
    expect(await (await next(consumer)).nack("no")).toBe("deferred");
    await server.got("SUBSCRIBE", 2);
    server.last.deliver("t", "g", "e1", { ctx: { attempt: 2, reason: "nacked" } });
    expect((await next(consumer)).ctx.attempt).toBe(2);
  });

  const codes = [
    "bad_json", "bad_request", "bad_topic", "unauthorized", "bad_token", "forbidden", "already_subscribed", "not_subscribed",
    "unknown_id", "group_conflict", "not_found", "method_not_allowed", "limit_reached", "rate_limited", "too_large",
    "storage_full", "unavailable", "publish_failed", "ack_failed", "internal",
  ];
  test.each(codes)("ERR %s to an ack or nack rejects with it; it can be repeated", async (code) => {
    const refuse = { ACK: 1, NACK: 1 };
    for (const op of ["ACK", "NACK"] as const) {
      server.script[op] = (frame, from, usual) => {
        if (refuse[op]-- > 0) from.err(frame, code, code === "rate_limited" ? { retry_after_ms: 9 } : {});
        else usual();
      };
    }
    deliverOnSubscribe("e1", "e2");
    const client = connectTo(server);
    const consumer = client.consume("t", "g");
    const [one, two] = [await next(consumer), await next(consumer)];
    const errors = [await failure(one.ack()), await failure(two.nack("no"))] as PrombusError[];
    for (const error of errors) {
      expect(error).toBeInstanceOf(["unauthorized", "bad_token", "forbidden"].includes(code) ? AuthError : PrombusError);
      expect(error).toMatchObject({ code, isRetryable: ["rate_limited", "storage_full", "unavailable"].includes(code) });
      expect(error.retryAfterMs).toBe(code === "rate_limited" ? 9 : undefined);
    }
    // On a full disk the ack applies: there is no lease to extend.
    if (code !== "storage_full") await one.extend();
    expect(await one.ack()).toBe("settled");
    expect(await two.nack("no")).toBe("settled");
    expect(client.status).toBe("connected");
  });

  test("a failed verdict without await does not cause an unhandled rejection", async () => {
    server.script.ACK = (frame, from) => from.err(frame, "internal");
    deliverOnSubscribe("e1");
    void (await next(connectTo(server).consume("t", "g"))).ack();
    await server.got("ACK");
    await settle();
  });

  test("a held delivery gets its new lease after a reconnect and is not yielded again", async () => {
    deliverOnSubscribe("e1");
    const consumer = connectTo(server).consume("t", "g");
    const delivery = await next(consumer);
    server.last.cut();
    await server.got("SUBSCRIBE", 2);
    server.last.deliver("t", "g", "e1", lost);
    server.last.deliver("t", "g", "e2");
    expect((await next(consumer)).event.id).toBe("e2");
    expect(delivery.ctx).toMatchObject({ attempt: 2, reason: "member_lost" });
    expect(await delivery.ack()).toBe("settled");
    expect(server.last.of("ACK").map(({ id }) => id)).toEqual(["e1"]);
  });

  test("a delivery that was never settled is yielded again after its lease has ended", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "Date"] });
    deliverOnSubscribe("e1");
    const client = connectTo(server, { heartbeatMs: 1e9 });
    const consumer = client.consume("t", "g", { autoExtend: false });
    const forgotten = await next(consumer);
    const { signal } = forgotten.ctx;
    await vi.advanceTimersByTimeAsync(31_500);
    expect(signal.aborted).toBe(true);
    server.last.deliver("t", "g", "e1", { ctx: { attempt: 2, reason: "lease_expired" } });
    const again = await next(consumer);
    expect([again.event.id, again.ctx.attempt, again.ctx.signal.aborted]).toEqual(["e1", 2, false]);
    expect(await failure(forgotten.extend())).toMatchObject({ code: "unknown_id" });
    await again.extend();
    expect(await again.ack()).toBe("settled");
  });

  test("deliveries that were not yielded yet are dropped with the connection", async () => {
    deliverOnSubscribe("e1", "e2");
    const client = connectTo(server);
    const consumer = client.consume("t", "g");
    await next(consumer);
    await settle(5);
    server.last.cut();
    await server.got("SUBSCRIBE", 2);
    server.last.deliver("t", "g", "e3");
    expect((await next(consumer)).event.id).toBe("e3");
  });
});

describe("the end", () => {
  test("break leaves the group", async () => {
    deliverOnSubscribe("e1", "e2");
    const client = connectTo(server);
    for await (const delivery of client.consume("t", "g")) {
      await delivery.ack();
      break;
    }
    expect(server.last.received.map(({ op }) => op)).toEqual(["AUTH", "SUBSCRIBE", "ACK", "UNSUBSCRIBE"]);
    await client.subscribe("t", "g", () => {});
  });

  test("an error in the loop leaves the group", async () => {
    deliverOnSubscribe("e1");
    const client = connectTo(server);
    const loop = async (): Promise<void> => {
      for await (const _ of client.consume("t", "g")) throw new Error("mine");
    };
    expect(await failure(loop())).toEqual(new Error("mine"));
    expect(server.of("UNSUBSCRIBE")).toHaveLength(1);
  });

  test("if the server ends the subscription, the iterator throws the error", async () => {
    const client = connectTo(server);
    const consumer = client.consume("t", "g");
    expect(await consumer.join()).toBe(true);
    const waiting = failure(consumer.next());
    server.script.RESUME = (frame, from) => from.err(frame, "not_subscribed");
    server.last.send({ op: "ERR", code: "not_subscribed", msg: "the group was deleted" });
    expect(await waiting).toMatchObject({ code: "not_subscribed" });
    expect(await failure(consumer.next())).toMatchObject({ code: "not_subscribed" });
  });

  test("if the server refuses SUBSCRIBE, the iterator throws the error", async () => {
    server.script.SUBSCRIBE = (frame, from) => from.err(frame, "group_conflict");
    const client = connectTo(server);
    const errors: unknown[] = [];
    client.on("error", (error) => errors.push(error));
    expect(await failure(client.consume("t", "g").next())).toMatchObject({ code: "group_conflict" });
    expect(errors).toEqual([]);
  });

  test("close() while next() waits ends the loop", async () => {
    const client = connectTo(server);
    const consumer = client.consume("t", "g");
    const waiting = consumer.next();
    await server.got("SUBSCRIBE");
    await client.ready();
    await consumer.close();
    expect(await waiting).toEqual({ done: true, value: undefined });
    expect(await consumer.next()).toEqual({ done: true, value: undefined });
    expect(server.of("UNSUBSCRIBE")).toHaveLength(1);
  });

  test("close() while SUBSCRIBE is under way leaves no subscription on the server", async () => {
    let answer: (() => void) | undefined;
    server.script.SUBSCRIBE = (_, __, usual) => { answer = usual; };
    const client = connectTo(server);
    const consumer = client.consume("t", "g");
    const waiting = consumer.next();
    await server.got("SUBSCRIBE");
    const closed = consumer.close();
    answer?.();
    await closed;
    expect(await waiting).toEqual({ done: true, value: undefined });
    expect(server.of("UNSUBSCRIBE")).toHaveLength(1);
  });

  test("close() of the client while next() waits, connected or not", async () => {
    const client = connectTo(server);
    const waiting = client.consume("t", "g").next();
    await server.got("SUBSCRIBE");
    await client.close();
    expect(await waiting).toEqual({ done: true, value: undefined });
    server.refuse = 503;
    const other = connectTo(server);
    const alsoWaiting = other.consume("t", "g").next();
    await settle();
    await other.close();
    expect(await alsoWaiting).toEqual({ done: true, value: undefined });
  });

  test("verdicts after the end are stale and send nothing", async () => {
    deliverOnSubscribe("e1");
    const client = connectTo(server);
    const consumer = client.consume("t", "g");
    const delivery = await next(consumer);
    await consumer.close();
    expect(delivery.ctx.signal.aborted).toBe(true);
    expect(await delivery.ack()).toBe("stale");
    await client.publish("t", 1);
    expect(server.of("ACK")).toEqual([]);
  });

  test("an unused consumer does not join the group", async () => {
    const client = connectTo(server);
    const consumer = client.consume("t", "g");
    await client.publish("t", 1);
    await consumer.close();
    expect(server.of("SUBSCRIBE")).toEqual([]);
    expect(await consumer.next()).toEqual({ done: true, value: undefined });
  });
});
