/** Tests the sketch's API with a real server. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import {
  EventClient, type EventBus, type EventRecord, type HeartbeatPayload, HttpEventStore, InMemoryEventBus, InMemoryEventStore,
  makeConnLimiter, makeTopicLimiter, MemoryDedupe, MetricNames, metrics, PrombusCursorStore, PrombusEventBus, type ProcessState,
  startCompactor, startProcessProjector, subscribeExactlyOnce, TopicConfig, Topics,
} from "../src/promethean/index.js";
import { NackError, RejectError } from "../src/errors.js";
import type { DeadLetter } from "../src/types.js";
import { startServer, type TestServer } from "./support/server.js";

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

async function until(isTrue: () => boolean | Promise<boolean>, what: string, ms = 10_000): Promise<void> {
  const end = Date.now() + ms;
  while (!(await isTrue())) {
    if (Date.now() > end) throw new Error(`in vain: ${what}`);
    await sleep(5);
  }
}

let server: TestServer;
const TOKEN = "sketch-token";
beforeAll(async () => { server = await startServer({ token: TOKEN }); });
afterAll(async () => { await server.remove(); });

const cleanups: (() => unknown)[] = [];
afterEach(async () => { for (const cleanup of cleanups.splice(0).reverse()) await cleanup(); });

type ClosableBus = EventBus & { close(): Promise<void> };

function prombus(): PrombusEventBus {
  const bus = new PrombusEventBus(server.ws, { token: TOKEN });
  cleanups.push(() => bus.close());
  return bus;
}

async function ready(): Promise<PrombusEventBus> {
  const bus = prombus();
  await bus.ready();
  return bus;
}

let used = 0;
/** A unique topic for each test. */
const topic = (name = "t"): string => `${name}.${process.pid}.${used++}`;

const BUSES: [string, () => Promise<ClosableBus>][] = [
  ["InMemoryEventBus", async () => {
    const bus = new InMemoryEventBus();
    cleanups.push(() => bus.close());
    return bus;
  }],
  ["PrombusEventBus", async () => prombus()],
];

describe.each(BUSES)("the sketch's tests with %s", (_name, newBus) => {
  test("publish -> subscribe (earliest) delivers and advances cursor", async () => {
    const bus = await newBus();
    const seen: string[] = [];

    await bus.subscribe("t.a", "g1", async (e) => {
      seen.push(e.payload as string);
    }, { from: "earliest" });

    await bus.publish("t.a", "one");
    await bus.publish("t.a", "two");

    await new Promise(r => setTimeout(r, 50));
    expect(seen).toEqual(["one","two"]);

    const cur = await bus.getCursor("t.a", "g1");
    expect(cur?.lastId).toBeTruthy();
  });

  test("nack leaves cursor; event is retried", async () => {
    const bus = await newBus();
    let attempts = 0;

    await bus.subscribe("t.b", "g1", async () => {
      attempts++;

      if (attempts === 1) throw new Error("boom");
    }, { from: "earliest" });

    await bus.publish("t.b", "x");
    await new Promise(r => setTimeout(r, 80));
    expect(attempts).toBeGreaterThanOrEqual(2);
  });
});

describe.each(BUSES)("both buses behave the same: %s", (_name, newBus) => {
  test("publish resolves with the whole event, and a second publish with the same id resolves with the first event", async () => {
    const bus = await newBus();
    const t = topic();
    const opts = { key: "k", headers: { a: "b" }, tags: ["x"], ts: 1_741_964_400_000 };
    const event = await bus.publish(t, { total: 12 }, opts);
    expect(event).toMatchObject({ topic: t, payload: { total: 12 }, seq: 1, ...opts });
    expect(event.id).toMatch(/^[0-9a-f-]{36}$/);
    const again = await bus.publish(t, { total: 99 }, { id: event.id });
    expect(again).toEqual(event);
  });

  test("manualAck: nothing is settled until ack; acks out of order do not move the cursor over unsettled events", async () => {
    const bus = await newBus();
    const t = topic();
    const got: EventRecord[] = [];
    await bus.subscribe(t, "g", async (e) => { got.push(e); }, { from: "earliest", manualAck: true });
    for (const n of [1, 2, 3]) await bus.publish(t, n);
    await until(() => got.length === 3, "three events");
    const [first, second, third] = got as [EventRecord, EventRecord, EventRecord];
    expect(await bus.ack(t, "g", third.id)).toEqual({ id: third.id, ok: true });
    expect((await bus.getCursor(t, "g"))?.lastId).toBeUndefined();
    expect(await bus.ack(t, "g", third.id)).toEqual({ id: third.id, ok: true, err: "stale" });
    await bus.ack(t, "g", first.id);
    expect((await bus.getCursor(t, "g"))?.lastId).toBe(first.id);
    await bus.ack(t, "g", second.id);
    expect(await bus.getCursor(t, "g")).toEqual({ topic: t, lastId: third.id, lastTs: third.ts });
    expect(await bus.ack(t, "unknown", first.id)).toMatchObject({ id: first.id, ok: false });
  });

  test("manualAck: a nack redelivers soon, and an expired lease calls the handler again", async () => {
    const bus = await newBus();
    const t = topic();
    const attempts: number[] = [];
    await bus.subscribe(t, "g", async (_e, ctx) => { attempts.push(ctx.attempt); }, {
      from: "earliest", manualAck: true, ackTimeoutMs: 150,
    });
    const event = await bus.publish(t, 1);
    await until(() => attempts.length === 1, "the event");
    expect(await bus.nack(t, "g", event.id, "later")).toEqual({ id: event.id, ok: true, err: "later" });
    await until(() => attempts.length === 2, "the redelivery");
    await until(() => attempts.length === 3, "the redelivery after the lease");
    expect(attempts).toEqual([1, 2, 3]);
    expect(await bus.ack(t, "g", event.id)).toEqual({ id: event.id, ok: true });
    await sleep(200);
    expect(attempts).toHaveLength(3);
  });

  test("after maxAttempts failures the event becomes a dead letter with the last error", async () => {
    const bus = await newBus();
    const t = topic();
    const letters: EventRecord[] = [];
    await bus.subscribe(`dlq.${t}`, "repair", async (e) => { letters.push(e); }, { from: "earliest" });
    const attempts: number[] = [];
    await bus.subscribe(t, "g", async (_e, ctx) => {
      attempts.push(ctx.attempt);
      throw new Error(`no ${ctx.attempt}`);
    }, { from: "earliest", maxAttempts: 2 });
    const event = await bus.publish(t, { a: 1 });
    await until(() => letters.length === 1, "a dead letter");
    expect(attempts).toEqual([1, 2]);
    expect(letters[0]?.payload as DeadLetter).toMatchObject({
      topic: t, group: "g", err: "no 2", attempts: 2, original: { id: event.id, payload: { a: 1 } },
    });
  });

  test("an event for one group is delivered only to it, and its dead letter names the subscription", async () => {
    const bus = await newBus();
    const [t, pattern] = [topic("addressed"), "addressed.**"];
    const seen: [string, unknown][] = [];
    const letters: DeadLetter[] = [];
    await bus.subscribe(pattern, "g", async (e) => {
      seen.push(["pattern", e.payload]);
      if (e.payload === "copy") throw new RejectError("no");
    });
    await bus.subscribe(t, "g", async (e) => { seen.push(["topic", e.payload]); });
    await bus.subscribe(t, "manual", async (e) => { seen.push(["manual", e.payload]); }, { manualAck: true });
    await bus.subscribe(`dlq.${t}`, "repair", async (e) => { letters.push(e.payload as DeadLetter); });
    const addressee = { subscription: pattern, group: "g" };
    const copy = await bus.publish(t, "copy", { addressee });
    expect(copy.addressee).toEqual(addressee);
    const last = await bus.publish(t, "last");
    await until(() => letters.length === 1 && seen.length === 4, "all deliveries");
    await until(async () => (await bus.getCursor(t, "g"))?.lastId === last.id, "the last event");
    expect(seen.sort()).toEqual([["manual", "last"], ["pattern", "copy"], ["pattern", "last"], ["topic", "last"]]);
    expect((await bus.getCursor(t, "manual"))?.lastId).toBe(copy.id);
    expect(letters[0]).toEqual({
      topic: t, group: "g", original: expect.objectContaining({ id: copy.id, addressee }), err: "no", attempts: 1,
      ts: expect.any(Number), subscription: pattern,
    });
    const unknown = bus.publish(t, 1, { addressee: { subscription: t, group: "nobody" } });
    await expect(unknown).rejects.toMatchObject({ code: "not_found" });
  });

  test("a filter function refuses events without blocking the cursor", async () => {
    const bus = await newBus();
    const t = topic();
    const seen: unknown[] = [];
    await bus.subscribe(t, "g", async (e) => { seen.push(e.payload); }, {
      from: "earliest", filter: (e) => (e.payload as number) % 2 === 0,
    });
    let last = "";
    for (let n = 1; n <= 5; n += 1) last = (await bus.publish(t, n)).id;
    await until(async () => (await bus.getCursor(t, "g"))?.lastId === last, "the cursor at the end");
    expect(seen).toEqual([2, 4]);
  });

  test("setCursor moves a group, or creates it if it does not exist", async () => {
    const bus = await newBus();
    const t = topic();
    const one = await bus.publish(t, 1);
    await bus.publish(t, 2);
    const seen: unknown[] = [];
    await bus.setCursor(t, "new", { topic: t, lastId: one.id });
    await bus.subscribe(t, "new", async (e) => { seen.push(e.payload); });
    await until(() => seen.length === 1, "the second event");
    await bus.setCursor(t, "new", { topic: t });
    await until(() => seen.length === 3, "both");
    expect(seen).toEqual([2, 1, 2]);
  });

  test("setCursor delivers held events of manualAck again", async () => {
    const bus = await newBus();
    const t = topic();
    const seen: number[] = [];
    await bus.subscribe(t, "g", async (_e, ctx) => { seen.push(ctx.attempt); }, { from: "earliest", manualAck: true });
    await bus.publish(t, 1);
    await until(() => seen.length === 1, "the event");
    await bus.setCursor(t, "g", { topic: t });
    await until(() => seen.length === 2, "the event again");
    expect(seen[0]).toBe(1);
  });

  test("unsubscribe stops deliveries and returns unsettled events, also from inside the handler", async () => {
    const bus = await newBus();
    const t = topic();
    const got: [unknown, number][] = [];
    const stop = await bus.subscribe(t, "g", async (e, ctx) => { got.push([e.payload, ctx.attempt]); }, {
      from: "earliest", manualAck: true,
    });
    await bus.publish(t, 1);
    await until(() => got.length === 1, "the event");
    await stop();
    await bus.publish(t, 2);
    await sleep(50);
    expect(got).toEqual([[1, 1]]);
    let isStopped = false;
    const second: () => Promise<void> = await bus.subscribe(t, "g", async (e, ctx) => {
      got.push([e.payload, ctx.attempt]);
      if (e.payload === 2) {
        await second();
        isStopped = true;
      }
    });
    await until(() => isStopped, "the handler's own unsubscribe");
    expect(got).toEqual([[1, 1], [1, 1], [2, 1]]);
  });

  test("two members of a group in one process share the events", async () => {
    const bus = await newBus();
    const t = topic();
    const counts = [0, 0];
    for (const member of [0, 1]) {
      await bus.subscribe(t, "g", async () => { counts[member] = (counts[member] ?? 0) + 1; await sleep(2); }, {
        from: "earliest", maxInFlight: 1,
      });
    }
    for (let n = 0; n < 40; n += 1) await bus.publish(t, n);
    await until(() => (counts[0] ?? 0) + (counts[1] ?? 0) >= 40, "all events");
    await sleep(20);
    expect((counts[0] ?? 0) + (counts[1] ?? 0)).toBe(40);
    expect(Math.min(...counts)).toBeGreaterThan(5);
  });

  test("RejectError makes a dead letter at once, and NackError sets the delay", async () => {
    const bus = await newBus();
    const t = topic("verdict");
    const letters: DeadLetter[] = [];
    await bus.subscribe(`dlq.${t}`, "repair", async (e) => { letters.push(e.payload as DeadLetter); }, { from: "earliest" });
    const calls: [unknown, number, number][] = [];
    await bus.subscribe(t, "g", async (e, ctx) => {
      calls.push([e.payload, ctx.attempt, Date.now()]);
      if (e.payload === "reject") throw new RejectError("no sense");
      if (ctx.attempt === 1) throw new NackError("later", { delayMs: 400 });
    }, { from: "earliest" });
    await bus.publish(t, "reject");
    await bus.publish(t, "nack");
    await until(() => letters.length === 1 && calls.length === 3, "a dead letter and a retry");
    expect(letters[0]).toMatchObject({ topic: t, group: "g", err: "no sense", attempts: 1 });
    const times = calls.filter(([payload]) => payload === "nack").map(([, , at]) => at) as [number, number];
    expect(times).toHaveLength(2);
    expect(times[1] - times[0]).toBeGreaterThanOrEqual(380);
  });

  test("subscribeExactlyOnce with a pattern marks by the event's own topic", async () => {
    const bus = await newBus();
    const t = topic("once");
    const store = new MemoryDedupe();
    const seen: unknown[] = [];
    const stop = await subscribeExactlyOnce(bus, `${t}.*`, "g", store, async (e) => { seen.push(e.payload); }, { from: "earliest" });
    const event = await bus.publish(`${t}.a`, 1);
    await until(() => store.size === 1, "a mark");
    expect(await store.seen(`${t}.a`, `${t}.*/g`, event.id)).toBe(true);
    await bus.setCursor(`${t}.*`, "g", { topic: `${t}.*` });
    await bus.publish(`${t}.b`, 2);
    await until(() => seen.length === 2, "the second");
    expect(seen).toEqual([1, 2]);
    await stop();
  });
});

describe("PrombusEventBus", () => {
  test("a wrong token is refused", async () => {
    const bus = new PrombusEventBus(server.ws, { token: "wrong" });
    await expect(bus.publish("t", 1)).rejects.toMatchObject({ code: "bad_token" });
    await bus.close();
  });

  test("delivers 5,000 events once each", async () => {
    const bus = await ready();
    const t = topic();
    const seen = new Set<number>();
    let calls = 0;
    await bus.subscribe(t, "g", async (e) => { calls += 1; seen.add(e.payload as number); }, { from: "earliest" });
    await Promise.all(Array.from({ length: 5_000 }, (_, n) => bus.publish(t, n)));
    await until(() => seen.size === 5_000, "all events");
    expect(calls).toBe(5_000);
  });

  test("a deleted group ends the subscription with an error", async () => {
    const errors: unknown[] = [];
    const bus = new PrombusEventBus(server.ws, { token: TOKEN, onError: (error) => errors.push(error) });
    cleanups.push(() => bus.close());
    const t = topic();
    await bus.subscribe(t, "g", async () => {});
    await bus.client.http.json("DELETE", `/groups/${t}/g`);
    await until(() => errors.length === 1, "the error");
    expect(errors[0]).toMatchObject({ code: "not_subscribed" });
    await bus.subscribe(t, "g", async () => {});
  });

  test.each(["unsubscribe", "close"])("a handler that runs during %s can ack", async (how) => {
    const bus = await ready();
    const t = topic();
    let isRunning = false;
    const acks: unknown[] = [];
    const stop = await bus.subscribe(t, "g", async (e) => {
      isRunning = true;
      await sleep(200);
      acks.push(await bus.ack(t, "g", e.id));
    }, { from: "earliest", manualAck: true });
    const event = await bus.publish(t, 1);
    await until(() => isRunning, "the handler");
    await (how === "close" ? bus.close() : stop());
    expect(acks).toEqual([{ id: event.id, ok: true }]);
    const other = await ready();
    expect((await other.getCursor(t, "g"))?.lastId).toBe(event.id);
    if (how === "close") return;
    expect(await bus.ack(t, "g", event.id)).toMatchObject({ ok: false });
    await bus.subscribe(t, "g", async () => {});
  });

  test("setCursor during unsubscribe does not join again", async () => {
    const bus = await ready();
    const t = topic();
    let calls = 0;
    const stop = await bus.subscribe(t, "g", async () => { calls += 1; await sleep(100); }, { from: "earliest" });
    await bus.publish(t, 1);
    await until(() => calls === 1, "the handler");
    const stopped = stop();
    await bus.setCursor(t, "g", { topic: t });
    await stopped;
    await sleep(100);
    expect(calls).toBe(1);
  });

  test("two buses share their groups", async () => {
    const one = await ready();
    const two = await ready();
    const t = topic();
    const event = await one.publish(t, 1);
    const stop = await one.subscribe(t, "g", async () => {}, { from: "earliest" });
    await until(async () => (await two.getCursor(t, "g"))?.lastId === event.id, "the cursor");
    await stop();
    expect(await two.getCursor(t, "unknown")).toBeNull();
  });
});

describe("stores that use the server", () => {
  test("HttpEventStore inserts, scans in pages, and finds the newest event of each key", async () => {
    const bus = await ready();
    const store = new HttpEventStore(bus);
    const t = topic();
    for (let n = 0; n < 7; n += 1) {
      await store.insert({ id: `0196f1d0-1c2a-7b3c-8d4e-${process.pid.toString(16).padStart(8, "0")}000${n}`, ts: 5, topic: t, key: `k${n % 2}`, payload: n });
    }
    const events = await store.scan(t, { ts: 0 });
    await store.insert(events[0] as EventRecord);
    const found: unknown[] = [];
    for (let page = await store.scan(t, { ts: 5, limit: 3 }); page.length > 0;) {
      found.push(...page.map((event) => event.payload));
      page = await store.scan(t, { afterId: page.at(-1)?.id as string, limit: 3 });
    }
    expect(found).toEqual([0, 1, 2, 3, 4, 5, 6]);
    const all = await store.latestByKey(t);
    expect(Object.fromEntries(Object.entries(all).map(([key, event]) => [key, event?.payload]))).toEqual({ k0: 6, k1: 5 });
    const some = await store.latestByKey(t, ["k1", "none"]);
    expect([some["k1"]?.payload, some["none"]]).toEqual([5, undefined]);
    expect(await store.scan(topic())).toEqual([]);
    expect(await store.latestByKey(topic())).toEqual({});
  });

  test("PrombusCursorStore reads and moves groups", async () => {
    const bus = await ready();
    const cursors = new PrombusCursorStore(bus);
    const t = topic();
    const one = await bus.publish(t, 1);
    expect(await cursors.get(t, "g")).toBeNull();
    await cursors.set(t, "g", { topic: t, lastId: one.id });
    expect(await cursors.get(t, "g")).toEqual({ topic: t, lastId: one.id, lastTs: one.ts });
    await new PrombusCursorStore(bus.client).set(t, "g", { topic: t });
    expect((await cursors.get(t, "g"))?.lastId).toBeUndefined();
    const unknown = cursors.set(t, "g", { topic: t, lastId: "0196f1d0-1c2a-7b3c-8d4e-5f6071829304" });
    await expect(unknown).rejects.toMatchObject({ code: "unknown_id" });
  });
});

describe("EventClient", () => {
  async function client(): Promise<EventClient> {
    const made = new EventClient(server.ws, TOKEN);
    cleanups.push(() => made.close());
    return made;
  }

  test("publishes, subscribes with acks and nacks, and unsubscribes like the sketch's client", async () => {
    const events = await client();
    const t = topic();
    const seen: [unknown, number][] = [];
    const ok = await events.subscribe(t, "g", (event, ctx) => {
      seen.push([event.payload, ctx.attempt]);
      expect(ctx.ack_deadline_ms).toBeGreaterThan(1_000);
      if (ctx.attempt === 1) throw new Error("boom");
    }, { from: "earliest" });
    expect(ok).toEqual({ op: "OK", created: true });
    const published = await events.publish(t, { n: 1 }, { key: "k" });
    expect(published).toMatchObject({ op: "OK", id: expect.stringMatching(/-/), seq: 1 });
    await until(() => seen.length === 2, "the retry");
    expect(seen).toEqual([[{ n: 1 }, 1], [{ n: 1 }, 2]]);
    await expect(events.subscribe(t, "g", () => {})).rejects.toMatchObject({ op: "ERR", code: "already_subscribed" });
    expect(await events.unsubscribe(t, "g")).toEqual({ op: "OK" });
    await expect(events.unsubscribe(t, "g")).rejects.toMatchObject({ op: "ERR", code: "not_subscribed", msg: expect.any(String) });
    await expect(events.publish("not a topic", 1)).rejects.toMatchObject({ op: "ERR", code: "bad_topic", msg: expect.any(String) });
  });

  test("modAck extends a lease; without it the event is redelivered", async () => {
    const events = await client();
    const t = topic();
    const calls: Record<string, number> = {};
    await events.subscribe(t, "g", async (event) => {
      const name = event.payload as string;
      calls[name] = (calls[name] ?? 0) + 1;
      if (name === "kept") events.modAck(t, "g", event.id, 10_000);
      await sleep(name === "kept" || calls[name] === 1 ? 700 : 0);
    }, { from: "earliest", ackTimeoutMs: 300 });
    await events.publish(t, "kept");
    await events.publish(t, "lost");
    await until(() => calls["lost"] === 2, "the second delivery");
    await sleep(500);
    expect(calls["kept"]).toBe(1);
  });

  test("modAck extends the lease of a handler that runs during unsubscribe", async () => {
    const events = await client();
    const t = topic();
    let isRunning = false;
    await events.subscribe(t, "g", async (event) => {
      isRunning = true;
      await sleep(100);
      events.modAck(t, "g", event.id, 10_000);
      await sleep(600);
    }, { from: "earliest", ackTimeoutMs: 400 });
    const { id } = await events.publish(t, 1);
    await until(() => isRunning, "the handler");
    expect(await Promise.all([events.unsubscribe(t, "g"), events.unsubscribe(t, "g")])).toEqual([{ op: "OK" }, { op: "OK" }]);
    expect((await (await ready()).getCursor(t, "g"))?.lastId).toBe(id);
    await expect(events.unsubscribe(t, "g")).rejects.toMatchObject({ code: "not_subscribed" });
  });
});

describe("process projector", () => {
  const heartbeat: HeartbeatPayload = { pid: 7, name: "stt", host: "dev", cpu_pct: 1, mem_mb: 2 };

  test.each(BUSES)("a process becomes alive, stale, and alive again: %s", async (name, newBus) => {
    const bus = await newBus();
    const states: ProcessState[] = [];
    const group = `watch-${process.pid}-${used++}`;
    await bus.subscribe(Topics.ProcessState, group, async (e) => { states.push(e.payload as ProcessState); });
    const stop = await startProcessProjector(bus, { staleMs: 150, scanMs: 20 });
    await bus.publish(Topics.HeartbeatReceived, { ...heartbeat, name });
    await until(() => states.length === 2, "stale");
    await bus.publish(Topics.HeartbeatReceived, { ...heartbeat, name, cpu_pct: 3 }, { ts: Date.now() + 60_000 });
    await until(() => states.length === 3, "alive again");
    // A heartbeat that is older than the state is ignored.
    await bus.publish(Topics.HeartbeatReceived, { ...heartbeat, name, cpu_pct: 4 }, { ts: 1 });
    await sleep(50);
    expect(states.map((state) => [state.processId, state.status, state.cpu_pct])).toEqual([
      [`dev:${name}:7`, "alive", 1], [`dev:${name}:7`, "stale", 1], [`dev:${name}:7`, "alive", 3],
    ]);
    await stop();
    await bus.publish(Topics.HeartbeatReceived, { ...heartbeat, name, cpu_pct: 5 }, { ts: Date.now() + 90_000 });
    await sleep(60);
    expect(states).toHaveLength(3);
  });

  test("a second run starts with the states of the first", async () => {
    const bus = await ready();
    const first = await startProcessProjector(bus, { scanMs: 10_000 });
    const name = `later-${used++}`;
    await bus.publish(Topics.HeartbeatReceived, { ...heartbeat, name });
    const store = new HttpEventStore(bus);
    const state = async (): Promise<ProcessState | undefined> =>
      (await store.latestByKey(Topics.ProcessState, [`dev:${name}:7`]))[`dev:${name}:7`]?.payload as ProcessState | undefined;
    await until(async () => (await state())?.status === "alive", "alive");
    await first();
    const second = await startProcessProjector(bus, { staleMs: 10, scanMs: 20 });
    await until(async () => (await state())?.status === "stale", "stale");
    await second();
  });

  test("failures of a scan are reported, and the next scan retries", async () => {
    const inner = new InMemoryEventBus();
    cleanups.push(() => inner.close());
    let failures = 0;
    const bus: EventBus = {
      publish: async (t, payload, opts) => {
        if ((payload as ProcessState).status === "stale" && failures < 2) {
          failures += 1;
          throw new Error("no server");
        }
        return inner.publish(t, payload, opts);
      },
      subscribe: (...args) => inner.subscribe(...args),
      ack: (...args) => inner.ack(...args),
      nack: (...args) => inner.nack(...args),
      getCursor: (...args) => inner.getCursor(...args),
      setCursor: (...args) => inner.setCursor(...args),
    };
    const errors: unknown[] = [];
    const states: ProcessState[] = [];
    await inner.subscribe(Topics.ProcessState, "watch", async (e) => { states.push(e.payload as ProcessState); });
    const stop = await startProcessProjector(bus, { staleMs: 10, scanMs: 10, onError: (error) => errors.push(error) });
    await bus.publish(Topics.HeartbeatReceived, heartbeat);
    await until(() => states.at(-1)?.status === "stale", "stale");
    expect(errors).toHaveLength(2);
    await stop();
  });
});

describe("compactor", () => {
  test.each(BUSES)("snapshots all keys without a key list, each state once: %s", async (name, newBus) => {
    const t = topic("state");
    const snapshots = `${t}.snapshot`;
    const store = new InMemoryEventStore();
    const bus = name === "InMemoryEventBus" ? new InMemoryEventBus(store) : await newBus();
    const source = bus instanceof PrombusEventBus ? new HttpEventStore(bus) : store;
    for (const n of [1, 2, 3]) await bus.publish(t, { n }, { key: `k${n % 2}` });
    const seen: EventRecord[] = [];
    await bus.subscribe(snapshots, "watch", async (e) => { seen.push(e); }, { from: "earliest" });
    const stop = startCompactor(source, bus, { topic: t, snapshotTopic: snapshots, intervalMs: 20 });
    await until(() => seen.length === 2, "two snapshots");
    expect(seen.map((e) => [e.key, (e.payload as { payload: unknown }).payload]).sort()).toEqual([["k0", { n: 2 }], ["k1", { n: 3 }]]);
    await bus.publish(t, { n: 4 }, { key: "k0" });
    await until(() => seen.length === 3, "the change");
    // An event for one group is not a state.
    await bus.subscribe(t, "readers", async () => {});
    const addressee = { subscription: t, group: "readers" };
    for (const key of ["k0", "k1", "k2"]) await bus.publish(t, key === "k1" ? null : "copy", { key, addressee });
    expect((await source.scan(t, {})).slice(-3).map((event) => event.addressee)).toEqual([addressee, addressee, addressee]);
    await sleep(60);
    expect(seen).toHaveLength(3);
    await bus.publish(t, null, { key: "k0" });
    await until(() => seen.length === 4, "the deletion");
    expect(seen[3]).toMatchObject({ key: "k0", payload: null });
    stop();
    const again = startCompactor(source, bus, { topic: t, snapshotTopic: snapshots, intervalMs: 20 });
    await sleep(80);
    again();
    expect(seen).toHaveLength(4);
  });

  test("keySource returns the keys of events that have none", async () => {
    const store = new InMemoryEventStore();
    const bus = new InMemoryEventBus(store);
    cleanups.push(() => bus.close());
    for (const n of [1, 2, 3]) await bus.publish("s", { n });
    const stop = startCompactor(store, bus, {
      topic: "s", snapshotTopic: "s.snapshot", intervalMs: 10, keySource: (e) => `k${(e.payload as { n: number }).n % 2}`,
    });
    await until(async () => (await store.scan("s.snapshot")).length === 2, "two snapshots");
    await bus.subscribe("s", "readers", async () => {});
    for (const payload of [{ n: 4 }, { n: 5 }]) await bus.publish("s", payload, { addressee: { subscription: "s", group: "readers" } });
    await sleep(50);
    expect(await store.scan("s.snapshot")).toHaveLength(2);
    stop();
  });
});

describe("the rest of the sketch", () => {
  test("topics and limiters have the sketch's values", () => {
    expect(Topics).toEqual({
      HeartbeatReceived: "heartbeat.received", ProcessState: "process.state", ProcessStateSnapshot: "process.state.snapshot",
      KvSet: "kv.set",
    });
    expect(TopicConfig.KvSet).toEqual({ name: "kv.set", compaction: true });
    const limiter = makeConnLimiter();
    expect([limiter.tryConsume(200), limiter.tryConsume(50), Math.ceil(limiter.deficit(50)) > 0]).toEqual([true, false, true]);
    expect(makeTopicLimiter("t").tryConsume(1000)).toBe(true);
  });

  test("metrics are counted with prom-client from the first call on", async () => {
    metrics.counter(MetricNames.EventsPublished, "published").inc({ topic: "t" });
    metrics.counter(MetricNames.EventsPublished, "published").inc({ topic: "t" }, 2);
    metrics.gauge(MetricNames.EventsInflight, "in flight").set({ topic: "t", group: "g" }, 5);
    metrics.gauge(MetricNames.EventsInflight, "in flight").set({ topic: "t", group: "g" }, 4);
    metrics.histo(MetricNames.DeliveryHandlerDuration, "ms").observe({ topic: "t", group: "g" }, 7);
    expect(await metrics.ready()).toBe(true);
    metrics.counter(MetricNames.EventsPublished, "published").inc({ topic: "t" });
    let route: ((req: unknown, res: never) => unknown) | undefined;
    metrics.expose({ get: (path, handler) => { expect(path).toBe("/metrics"); route = handler; } });
    let body = "";
    const head: string[] = [];
    await route?.({}, {
      statusCode: 200, set: (name: string, value: string) => head.push(name, value), end: (text: string) => { body = text; },
    } as never);
    expect(head[0]).toBe("Content-Type");
    expect(body).toContain('events_published_total{topic="t"} 4');
    expect(body).toContain('events_inflight{topic="t",group="g"} 4');
    expect(body).toContain('delivery_handler_duration_ms_bucket{le="10",topic="t",group="g"} 1');
    metrics.use(null);
    metrics.counter("more_total", "nothing").inc();
    let status = 0;
    const response = { set statusCode(value: number) { status = value; }, set: () => {}, end: () => {} };
    await route?.({}, response as never);
    expect(status).toBe(404);
  });
});
