import { afterEach, describe, expect, test, vi } from "vitest";
import { InMemoryCursorStore, InMemoryEventBus, InMemoryEventStore } from "../src/promethean/memory.js";
import { RejectError } from "../src/errors.js";
import type { DeadLetter } from "../src/types.js";
import type { EventRecord } from "../src/promethean/types.js";

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

async function until(isTrue: () => boolean, what: string, ms = 2_000): Promise<void> {
  const end = Date.now() + ms;
  while (!isTrue()) {
    if (Date.now() > end) throw new Error(`in vain: ${what}`);
    await sleep(2);
  }
}

const buses: InMemoryEventBus[] = [];
function newBus(...args: ConstructorParameters<typeof InMemoryEventBus>): InMemoryEventBus {
  const bus = new InMemoryEventBus(...args);
  buses.push(bus);
  return bus;
}
afterEach(async () => { for (const bus of buses.splice(0)) await bus.close(); });

/** A bus with short retry delays. */
const impatient = (): InMemoryEventBus => newBus(undefined, undefined, { retryDelayMs: () => 1 });

describe("the faults of the sketch are gone", () => {
  test("an ack out of order never moves the cursor over an unsettled event", async () => {
    const bus = newBus();
    const got: EventRecord[] = [];
    await bus.subscribe("t", "g", async (e) => { got.push(e); }, { from: "earliest", manualAck: true });
    for (const n of [1, 2, 3]) await bus.publish("t", n);
    await until(() => got.length === 3, "three events");
    const [first, second, third] = got as [EventRecord, EventRecord, EventRecord];
    await bus.ack("t", "g", third.id);
    expect((await bus.getCursor("t", "g"))?.lastId).toBeUndefined();
    await bus.ack("t", "g", first.id);
    expect((await bus.getCursor("t", "g"))?.lastId).toBe(first.id);
    await bus.ack("t", "g", second.id);
    expect(await bus.getCursor("t", "g")).toEqual({ topic: "t", lastId: third.id, lastTs: third.ts });
  });

  test("events in flight are not delivered again", async () => {
    const bus = newBus();
    const seen: unknown[] = [];
    await bus.subscribe("t", "g", async (e) => { seen.push(e.payload); await sleep(40); }, { from: "earliest" });
    for (let n = 0; n < 20; n += 1) await bus.publish("t", n);
    await sleep(120);
    expect(seen).toEqual(Array.from({ length: 20 }, (_, n) => n));
  });

  test("attempts are counted, and after the last one the event becomes a dead letter with the error", async () => {
    const bus = impatient();
    const attempts: number[] = [];
    const letters: EventRecord[] = [];
    await bus.subscribe("dlq.t", "repair", async (e) => { letters.push(e); });
    await bus.subscribe("t", "g", async (_e, ctx) => {
      attempts.push(ctx.attempt);
      throw new Error(`no ${ctx.attempt}`);
    }, { from: "earliest", maxAttempts: 3 });
    const event = await bus.publish("t", { a: 1 }, { key: "k" });
    await until(() => letters.length === 1, "a dead letter");
    expect(attempts).toEqual([1, 2, 3]);
    const letter = letters[0]?.payload as DeadLetter;
    expect(letter).toEqual({
      topic: "t", group: "g", original: event, err: "no 3", attempts: 3, ts: expect.any(Number), subscription: "t",
    });
    expect((await bus.getCursor("t", "g"))?.lastId).toBe(event.id);
    // After a seek back the event is given up again, with the same dead letter.
    await bus.setCursor("t", "g", { topic: "t" });
    await until(() => attempts.length === 6, "three more attempts");
    await sleep(20);
    expect(letters).toHaveLength(1);
  });

  test("two groups with one name on different subscriptions each make a dead letter", async () => {
    const bus = impatient();
    const subscriptions: unknown[] = [];
    await bus.subscribe("dlq.t.a", "repair", async (e) => { subscriptions.push((e.payload as DeadLetter).subscription); });
    for (const subscription of ["t.a", "t.*"]) {
      await bus.subscribe(subscription, "g", async () => { throw new RejectError("no"); });
    }
    await bus.publish("t.a", 1);
    await until(() => subscriptions.length === 2, "two dead letters");
    expect(subscriptions.sort()).toEqual(["t.*", "t.a"]);
  });

  test("a group that has only a stored cursor can be an addressee", async () => {
    const [store, cursors] = [new InMemoryEventStore(), new InMemoryCursorStore()];
    const bus = newBus(store, cursors);
    const addressee = { subscription: "t.*", group: "g" };
    await expect(bus.publish("t.a", 1, { addressee })).rejects.toMatchObject({ code: "not_found" });
    await bus.subscribe("t.*", "other", async () => {});
    const reader = { subscription: "t.*", group: "other" };
    await expect(bus.publish("elsewhere", 1, { addressee: reader })).rejects.toThrow("does not read elsewhere");
    await cursors.set("t.*>t.a", "g", { topic: "t.a" });
    await bus.publish("t.a", 2, { addressee });
    expect((await store.scan("t.a")).map(({ payload }) => payload)).toEqual([2]);
  });

  test("an event that fails in a dead-letter topic is settled there", async () => {
    const bus = impatient();
    let attempts = 0;
    await bus.subscribe("dlq.t", "g", async () => { attempts += 1; throw new Error("no"); }, { maxAttempts: 2 });
    const event = await bus.publish("dlq.t", 1);
    await until(() => attempts === 2, "two attempts");
    await sleep(10);
    expect((await bus.getCursor("dlq.t", "g"))?.lastId).toBe(event.id);
  });

  test("an event whose lease expires goes to another member, and a late ack is stale", async () => {
    const bus = newBus();
    const got: [string, number][] = [];
    const stop = await bus.subscribe("t", "g", async (_e, ctx) => { got.push(["a", ctx.attempt]); }, {
      manualAck: true, ackTimeoutMs: 30, maxInFlight: 1,
    });
    const event = await bus.publish("t", 1);
    await until(() => got.length === 1, "the first delivery");
    await bus.subscribe("t", "g", async (_e, ctx) => { got.push(["b", ctx.attempt]); }, { maxInFlight: 1 });
    await until(() => got.length === 2, "the second delivery");
    expect(got).toEqual([["a", 1], ["b", 2]]);
    expect(await bus.ack("t", "g", event.id)).toEqual({ id: event.id, ok: true, err: "stale" });
    await stop();
  });

  test("a slow handler keeps its event unless ackTimeoutMs is set", async () => {
    const bus = newBus();
    let calls = 0;
    await bus.subscribe("t", "strict", async () => { calls += 1; await sleep(70); }, { ackTimeoutMs: 25, maxAttempts: 100 });
    let keptCalls = 0;
    await bus.subscribe("t", "kept", async () => { keptCalls += 1; await sleep(70); });
    await bus.publish("t", 1);
    await sleep(150);
    expect(calls).toBeGreaterThan(1);
    expect(keptCalls).toBe(1);
  });

  test("a filtered event does not block the cursor", async () => {
    const bus = newBus();
    const seen: unknown[] = [];
    await bus.subscribe("t", "g", async (e) => { seen.push(e.payload); }, {
      from: "earliest", filter: (e) => (e.payload as number) % 2 === 0, batchSize: 1,
    });
    let last = "";
    for (let n = 1; n <= 5; n += 1) last = (await bus.publish("t", n)).id;
    await sleep(20);
    expect(seen).toEqual([2, 4]);
    expect((await bus.getCursor("t", "g"))?.lastId).toBe(last);
  });

  test("backpressure delays events and drops none", async () => {
    const bus = newBus();
    let running = 0;
    let most = 0;
    let done = 0;
    await bus.subscribe("t", "g", async () => {
      most = Math.max(most, ++running);
      await sleep(1);
      running -= 1;
      done += 1;
    }, { from: "earliest", maxInFlight: 3 });
    for (let n = 0; n < 50; n += 1) await bus.publish("t", n);
    await until(() => done === 50, "all events");
    expect(most).toBe(3);
  });

  test("late events with an older ts are delivered", async () => {
    const bus = newBus();
    const seen: unknown[] = [];
    await bus.publish("t", "old", { ts: 1_000 });
    await bus.subscribe("t", "g", async (e) => { seen.push(e.payload); }, { from: "ts", ts: 500 });
    await bus.publish("t", "new", { ts: 2_000 });
    await bus.publish("t", "late", { ts: 10 });
    await sleep(20);
    expect(seen).toEqual(["old", "new", "late"]);
  });

  // CPU time, because other tests may run at the same time.
  const cpuMs = (since: NodeJS.CpuUsage): number => {
    const { user, system } = process.cpuUsage(since);
    return (user + system) / 1000;
  };

  test("10,000 events take less than a second", async () => {
    const bus = newBus();
    let seen = 0;
    await bus.subscribe("t", "g", async () => { seen += 1; }, { from: "earliest" });
    const start = process.cpuUsage();
    let last = "";
    for (let n = 0; n < 10_000; n += 1) last = (await bus.publish("t", { n })).id;
    await until(() => seen === 10_000, "all events");
    const ms = cpuMs(start);
    expect((await bus.getCursor("t", "g"))?.lastId).toBe(last);
    expect(ms).toBeLessThan(1_000);
  });

  test("10,000 stored events are delivered to a new group once each, in order", async () => {
    const bus = newBus();
    for (let n = 0; n < 10_000; n += 1) await bus.publish("t", n);
    const seen: number[] = [];
    const start = process.cpuUsage();
    await bus.subscribe("t", "g", async (e) => { seen.push(e.payload as number); }, { from: "earliest" });
    await until(() => seen.length >= 10_000, "all events");
    expect(cpuMs(start)).toBeLessThan(1_000);
    expect(seen.every((n, at) => n === at)).toBe(true);
  });
});

describe("groups", () => {
  test("from latest delivers only later events, from afterId those after the event; an unknown id creates no group", async () => {
    const bus = newBus();
    const first = await bus.publish("t", 1);
    await bus.publish("t", 2);
    const seen: Record<string, unknown[]> = { latest: [], afterId: [] };
    await bus.subscribe("t", "latest", async (e) => { seen.latest?.push(e.payload); });
    await bus.subscribe("t", "afterId", async (e) => { seen.afterId?.push(e.payload); }, { from: "afterId", afterId: first.id });
    await bus.publish("t", 3);
    await sleep(20);
    expect(seen).toEqual({ latest: [3], afterId: [2, 3] });
    const unknown = bus.subscribe("t", "g", async () => {}, { from: "afterId", afterId: "0196f1d0-1c2a-7b3c-8d4e-5f6071829304" });
    await expect(unknown).rejects.toMatchObject({ code: "unknown_id" });
    expect(await bus.getCursor("t", "g")).toBeNull();
  });

  test("a group continues at its position, and unsubscribing returns events without counting an attempt", async () => {
    const bus = newBus();
    const got: [unknown, number][] = [];
    const stop = await bus.subscribe("t", "g", async (e, ctx) => { got.push([e.payload, ctx.attempt]); }, { manualAck: true });
    const one = await bus.publish("t", 1);
    await bus.publish("t", 2);
    await until(() => got.length === 2, "two events");
    await bus.ack("t", "g", one.id);
    await stop();
    await bus.publish("t", 3);
    await bus.subscribe("t", "g", async (e, ctx) => { got.push([e.payload, ctx.attempt]); }, { from: "earliest" });
    await until(() => got.length === 4, "two more");
    expect(got).toEqual([[1, 1], [2, 1], [2, 1], [3, 1]]);
  });

  test("each event goes to one member, and members share the work", async () => {
    const bus = newBus();
    const counts = [0, 0];
    for (const member of [0, 1]) {
      await bus.subscribe("t", "g", async () => { counts[member] = (counts[member] ?? 0) + 1; await sleep(1); }, { maxInFlight: 1 });
    }
    for (let n = 0; n < 40; n += 1) await bus.publish("t", n);
    await until(() => (counts[0] ?? 0) + (counts[1] ?? 0) >= 40, "all events");
    await sleep(10);
    expect((counts[0] ?? 0) + (counts[1] ?? 0)).toBe(40);
    expect(Math.min(...counts)).toBeGreaterThan(10);
  });

  test("setCursor moves a group and voids leases", async () => {
    const bus = newBus();
    const seen: unknown[] = [];
    await bus.subscribe("t", "g", async (e) => { seen.push(e.payload); }, { from: "earliest" });
    const one = await bus.publish("t", 1);
    await bus.publish("t", 2);
    await until(() => seen.length === 2, "two events");
    await bus.setCursor("t", "g", { topic: "t", lastId: one.id });
    await until(() => seen.length === 3, "one again");
    await bus.setCursor("t", "g", { topic: "t" });
    await until(() => seen.length === 5, "both again");
    expect(seen).toEqual([1, 2, 2, 1, 2]);
  });

  test("a manual nack redelivers after a short delay; acks for unknown groups fail", async () => {
    const bus = newBus();
    const attempts: number[] = [];
    await bus.subscribe("t", "g", async (_e, ctx) => { attempts.push(ctx.attempt); }, { manualAck: true });
    const event = await bus.publish("t", 1);
    await until(() => attempts.length === 1, "the event");
    expect(await bus.nack("t", "g", event.id, "later")).toEqual({ id: event.id, ok: true, err: "later" });
    await until(() => attempts.length === 2, "the event again", 70);
    expect(await bus.ack("t", "g", event.id)).toEqual({ id: event.id, ok: true });
    expect(await bus.ack("t", "unknown", event.id)).toMatchObject({ ok: false });
  });

  test("patterns match topics that are created later, and no dead-letter topics", async () => {
    const bus = newBus();
    const seen: string[] = [];
    await bus.publish("orders.old", 0);
    await bus.subscribe("orders.*", "g", async (e) => { seen.push(`${e.topic} ${e.payload}`); }, { from: "earliest" });
    await bus.publish("orders.new", 1);
    await bus.publish("orders.a.b", 2);
    await bus.publish("dlq.orders", 3);
    await sleep(20);
    expect(seen).toEqual(["orders.old 0", "orders.new 1"]);
    const all: unknown[] = [];
    await bus.subscribe("**", "all", async (e) => { all.push(e.payload); }, { from: "earliest", manualAck: true });
    await until(() => all.length === 3, "all but the dead letter");
  });

  test("a publish with an id that the topic already has adds nothing", async () => {
    const bus = newBus();
    let seen = 0;
    await bus.subscribe("t", "g", async () => { seen += 1; });
    const first = await bus.publish("t", 1, { idempotencyKey: "order 17" });
    const again = await bus.publish("t", 2, { idempotencyKey: "order 17" });
    expect(again).toEqual(first);
    await sleep(20);
    expect(seen).toBe(1);
  });

  test("groups survive if their stores do", async () => {
    const stores = [new InMemoryEventStore(), new InMemoryCursorStore()] as const;
    const one = newBus(...stores);
    const seen: unknown[] = [];
    await one.subscribe("t", "g", async (e) => { seen.push(e.payload); }, { from: "earliest" });
    await one.publish("t", 1);
    await until(() => seen.length === 1, "the first");
    await sleep(5);
    await one.close();
    const two = newBus(...stores);
    await two.publish("t", 2);
    await two.subscribe("t", "g", async (e) => { seen.push(e.payload); }, { from: "earliest" });
    await until(() => seen.length === 2, "the second");
    expect(seen).toEqual([1, 2]);
  });
});

describe("after close", () => {
  afterEach(() => { vi.useRealTimers(); });

  test.each([["last attempt", 1], ["first attempt", 5]])("a handler whose %s fails leaves no timer", async (_name, maxAttempts) => {
    vi.useFakeTimers();
    const bus = newBus();
    let fail: (error: Error) => void = () => {};
    const running = new Promise<void>((_resolve, reject) => { fail = reject; });
    let calls = 0;
    await bus.subscribe("t", "g", async () => { calls += 1; await running; }, { from: "earliest", maxAttempts });
    await bus.publish("t", 1);
    await vi.advanceTimersByTimeAsync(1);
    expect(calls).toBe(1);
    await bus.close();
    fail(new Error("too late"));
    await vi.advanceTimersByTimeAsync(1);
    expect(vi.getTimerCount()).toBe(0);
    expect((await bus.getCursor("t", "g"))?.lastId).toBeUndefined();
  });

  test("publishing a dead letter is not retried", async () => {
    vi.useFakeTimers();
    const store = new InMemoryEventStore();
    const insert = store.insert.bind(store);
    let fail: (() => void) | undefined;
    store.insert = (event) => (event.topic === "t" ? insert(event) : new Promise((_resolve, reject) => { fail = () => reject(new Error("full")); }));
    const bus = newBus(store);
    await bus.subscribe("t", "g", async () => { throw new Error("no"); }, { from: "earliest", maxAttempts: 1 });
    await bus.publish("t", 1);
    await vi.advanceTimersByTimeAsync(1);
    await bus.close();
    expect(fail).toBeDefined();
    fail?.();
    await vi.advanceTimersByTimeAsync(1);
    expect(vi.getTimerCount()).toBe(0);
  });
});

describe("stores", () => {
  test("scan pages without losing events of the same ts; latestByKey without keys returns all", async () => {
    const bus = newBus();
    const store = new InMemoryEventStore();
    for (let n = 0; n < 7; n += 1) await store.insert({ id: `id-${n}`, ts: 5, topic: "t", key: `k${n % 2}`, payload: n });
    const found: unknown[] = [];
    for (let page = await store.scan("t", { ts: 5, limit: 3 }); page.length > 0;) {
      found.push(...page.map((event) => event.payload));
      page = await store.scan("t", { afterId: page.at(-1)?.id as string, limit: 3 });
    }
    expect(found).toEqual([0, 1, 2, 3, 4, 5, 6]);
    const latest = await store.latestByKey("t");
    expect(Object.entries(latest).map(([key, event]) => [key, event?.payload])).toEqual([["k0", 6], ["k1", 5]]);
    expect(Object.keys(await store.latestByKey("t", ["k1"]))).toEqual(["k1"]);
    await bus.close();
  });
});
