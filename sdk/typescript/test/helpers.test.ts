/** Tests exactly-once handlers, the outbox drainer and token buckets. */
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { type Client, connect } from "../src/client.js";
import { PrombusError } from "../src/errors.js";
import { MemoryDedupe, subscribeExactlyOnce } from "../src/exactly-once.js";
import { type OutboxBus, type OutboxRecord, type OutboxStore, runOutboxDrainer } from "../src/outbox.js";
import { TokenBucket } from "../src/token-bucket.js";
import { startServer, type TestServer } from "./support/server.js";

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

async function until(isTrue: () => boolean | Promise<boolean>, what: string, ms = 15_000): Promise<void> {
  const end = Date.now() + ms;
  while (!(await isTrue())) {
    if (Date.now() > end) throw new Error(`in vain: ${what}`);
    await sleep(5);
  }
}

let server: TestServer;
beforeAll(async () => { server = await startServer(); });
afterAll(async () => { await server.remove(); });

const cleanups: (() => unknown)[] = [];
afterEach(async () => { for (const cleanup of cleanups.splice(0).reverse()) await cleanup(); });

function client(): Client {
  const made = connect(server.ws, { backoff: { minMs: 20, maxMs: 200 } });
  cleanups.push(() => made.close({ timeoutMs: 1_000 }));
  return made;
}

describe("TokenBucket", () => {
  afterEach(() => { vi.useRealTimers(); });

  test("allows a burst of its capacity and refills over time, never above it", () => {
    vi.useFakeTimers({ now: 1_000_000 });
    const bucket = new TokenBucket({ capacity: 10, refillPerSec: 5 });
    expect(bucket.tryConsume(10)).toBe(true);
    expect(bucket.tryConsume()).toBe(false);
    expect(bucket.deficit(3)).toBe(3);
    vi.advanceTimersByTime(400);
    expect(bucket.deficit(3)).toBe(1);
    expect(bucket.tryConsume(2)).toBe(true);
    vi.advanceTimersByTime(60_000);
    expect(bucket.tryConsume(11)).toBe(false);
    expect(bucket.tryConsume(10)).toBe(true);
    expect(bucket.deficit()).toBe(1);
  });

  test("setting the clock back removes no tokens", () => {
    vi.useFakeTimers({ now: 1_000_000 });
    const bucket = new TokenBucket({ capacity: 10, refillPerSec: 5 });
    vi.setSystemTime(1);
    expect(bucket.tryConsume(10)).toBe(true);
  });
});

describe("MemoryDedupe", () => {
  afterEach(() => { vi.useRealTimers(); });

  test("marks belong to topic, group and id, and expire", async () => {
    vi.useFakeTimers({ now: 1_000 });
    const marks = new MemoryDedupe();
    await marks.mark("t", "g", "1", 100);
    expect(await marks.seen("t", "g", "1")).toBe(true);
    expect(await marks.seen("t", "h", "1")).toBe(false);
    expect(await marks.seen("u", "g", "1")).toBe(false);
    vi.setSystemTime(1_100);
    expect(await marks.seen("t", "g", "1")).toBe(false);
    await marks.mark("t", "g", "2");
    expect(marks.size).toBe(1);
    vi.setSystemTime(1_100 + 7 * 24 * 3_600_000 - 1);
    expect(await marks.seen("t", "g", "2")).toBe(true);
  });

  test("its size is bounded: the oldest mark is removed first", async () => {
    const marks = new MemoryDedupe(3);
    for (const id of ["1", "2", "3", "4"]) await marks.mark("t", "g", id);
    expect(marks.size).toBe(3);
    expect(await marks.seen("t", "g", "1")).toBe(false);
    expect(await marks.seen("t", "g", "4")).toBe(true);
  });
});

describe("subscribeExactlyOnce with the client", () => {
  test("redelivered events are acked without calling the handler; failures are retried and not marked", async () => {
    const bus = client();
    const marks = new MemoryDedupe();
    const calls: unknown[] = [];
    const subscription = await subscribeExactlyOnce(bus, "once.a", "g", marks, async (event) => {
      calls.push(event.payload);
      if (event.payload === "bad" && calls.filter((call) => call === "bad").length === 1) throw new Error("boom");
    }, { from: "earliest" });
    expect(subscription.created).toBe(true);
    const ids: string[] = [];
    for (const payload of ["one", "bad", "two"]) ids.push((await bus.publish("once.a", payload)).id);
    await until(() => marks.size === 3, "three marks");
    expect(calls.sort()).toEqual(["bad", "bad", "one", "two"]);
    await bus.seek("once.a", "g", "earliest");
    await until(async () => (await bus.cursor("once.a", "g"))?.lastId === ids[2], "the cursor at the end");
    expect(calls).toHaveLength(4);
    await subscription.unsubscribe();
  });
});

/** A store like the sketch's, with only the four required methods. */
class SketchOutbox implements OutboxStore {
  readonly rows = new Map<string, OutboxRecord & { status: string; err?: string }>();

  async add(rec: OutboxRecord): Promise<void> {
    this.rows.set(rec.id, { ...rec, status: "pending" });
  }

  async claimBatch(n: number): Promise<OutboxRecord[]> {
    const claimed = [...this.rows.values()].filter((row) => row.status === "pending").slice(0, n);
    for (const row of claimed) row.status = "claimed";
    return claimed;
  }

  async markSent(id: string): Promise<void> {
    this.#row(id).status = "sent";
  }

  async markError(id: string, err: string): Promise<void> {
    Object.assign(this.#row(id), { status: "error", err });
  }

  statuses(): string[] {
    return [...this.rows.values()].map((row) => row.status);
  }

  #row(id: string): { status: string } {
    const row = this.rows.get(id);
    if (row === undefined) throw new Error(`no row ${id}`);
    return row;
  }
}

function drain(outbox: OutboxStore, bus: OutboxBus, onError: (error: unknown, row?: OutboxRecord) => void = () => {}): () => Promise<void> {
  const controller = new AbortController();
  const done = runOutboxDrainer(outbox, bus, { intervalMs: 10, signal: controller.signal, onError });
  const stop = async (): Promise<void> => {
    controller.abort();
    await done;
  };
  cleanups.push(stop);
  return stop;
}

async function stored(bus: Client, topic: string): Promise<unknown[]> {
  const payloads: unknown[] = [];
  for await (const event of bus.replay(topic)) payloads.push(event.payload);
  return payloads;
}

describe("runOutboxDrainer", () => {
  test("publishes rows with their ids, in order, with headers, key and ts", async () => {
    const bus = client();
    const outbox = new SketchOutbox();
    const uuid = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";
    await outbox.add({ id: uuid, topic: "box.a", payload: 0, headers: { a: "b" }, key: "k", ts: 1_741_964_400_000 });
    for (let n = 1; n < 350; n += 1) await outbox.add({ id: `order ${n}`, topic: "box.a", payload: n });
    const stop = drain(outbox, bus);
    await until(() => outbox.statuses().every((status) => status === "sent"), "all sent");
    await stop();
    const events = [];
    for await (const event of bus.replay("box.a")) events.push(event);
    expect(events.map((event) => event.payload)).toEqual(Array.from({ length: 350 }, (_, n) => n));
    expect(events[0]).toMatchObject({ id: uuid, headers: { a: "b" }, key: "k", ts: 1_741_964_400_000 });
    // The same id as that of an HTTP publish with the same key.
    const again = await bus.publish("box.a", "again", { idempotencyKey: "order 17" });
    expect(again).toEqual({ id: events[17]?.id, seq: 18, duplicate: true });
  });

  test("a row that was published and not marked does not become a second event", async () => {
    const bus = client();
    const outbox = new SketchOutbox();
    for (let n = 0; n < 5; n += 1) await outbox.add({ id: `row ${n}`, topic: "box.lost", payload: n });
    let isBroken = true;
    const markSent = outbox.markSent.bind(outbox);
    outbox.markSent = async (id) => {
      if (isBroken) throw new Error("database is locked");
      await markSent(id);
    };
    const errors: unknown[] = [];
    drain(outbox, bus, (error) => errors.push(error));
    await until(() => errors.length > 0, "an error of the store");
    isBroken = false;
    // Does what requeueExpired does in a store with leases.
    for (const row of outbox.rows.values()) row.status = "pending";
    await until(() => outbox.statuses().every((status) => status === "sent"), "all sent");
    expect(await stored(bus, "box.lost")).toEqual([0, 1, 2, 3, 4]);
  });

  test("a refused row is an error, and the other rows are published", async () => {
    const bus = client();
    const outbox = new SketchOutbox();
    await outbox.add({ id: "1", topic: "box.refused", payload: 1 });
    await outbox.add({ id: "2", topic: "not a topic", payload: 2 });
    await outbox.add({ id: "3", topic: "box.refused", payload: "x".repeat(1_100_000) });
    await outbox.add({ id: "4", topic: "box.refused", payload: 4 });
    const permanent: boolean[] = [];
    const markError = outbox.markError.bind(outbox);
    outbox.markError = async (id, err, isPermanent?: boolean) => {
      permanent.push(isPermanent === true);
      await markError(id, err);
    };
    const reported: (string | undefined)[] = [];
    drain(outbox, bus, (_error, row) => reported.push(row?.id));
    await until(() => outbox.statuses().every((status) => status === "sent" || status === "error"), "all settled");
    expect(outbox.statuses()).toEqual(["sent", "error", "error", "sent"]);
    expect(outbox.rows.get("2")?.err).toMatch(/topic/);
    expect(permanent).toEqual([true, true]);
    expect(reported.sort()).toEqual(["2", "3"]);
    expect(await stored(bus, "box.refused")).toEqual([1, 4]);
  });

  test("a server that is down does not count as an attempt: rows wait, and are published once it is back", async () => {
    const own = await startServer();
    cleanups.push(() => own.remove());
    const bus = connect(own.ws, { backoff: { minMs: 20, maxMs: 100 } });
    cleanups.push(() => bus.close({ timeoutMs: 500 }));
    await bus.ready();
    const outbox = new SketchOutbox();
    const errors: unknown[] = [];
    drain(outbox, bus, (error) => errors.push(error));
    await own.stop("SIGKILL");
    for (let n = 0; n < 50; n += 1) await outbox.add({ id: `row ${n}`, topic: "box.down", payload: n });
    await sleep(300);
    expect(outbox.statuses().some((status) => status === "error" || status === "sent")).toBe(false);
    await own.start();
    await until(() => outbox.statuses().every((status) => status === "sent"), "all sent");
    // Killed in the middle of a stream of rows.
    for (let n = 50; n < 1_000; n += 1) await outbox.add({ id: `row ${n}`, topic: "box.down", payload: n });
    await sleep(10);
    await own.restart("SIGKILL");
    await until(() => outbox.statuses().every((status) => status === "sent"), "all sent");
    expect(await stored(bus, "box.down")).toEqual(Array.from({ length: 1_000 }, (_, n) => n));
    expect(errors).toEqual([]);
  });

  test("while the bus is unavailable, rows of a topic wait in order, and a store with release gets them back", async () => {
    const published: unknown[] = [];
    let failures = 2;
    const bus: OutboxBus = {
      publish: async (_topic, payload) => {
        if (payload === 1 && failures-- > 0) throw new PrombusError("storage_full", "the disk is full");
        published.push(payload);
      },
    };
    const outbox = new SketchOutbox();
    for (let n = 0; n < 4; n += 1) await outbox.add({ id: `${n}`, topic: "t", payload: n });
    const stop = drain(outbox, bus);
    await until(() => outbox.statuses().every((status) => status === "sent"), "all sent");
    expect(published).toEqual([0, 1, 2, 3]);
    await stop();

    failures = 1;
    const releasing = new SketchOutbox() as SketchOutbox & Pick<OutboxStore, "release">;
    const released: string[][] = [];
    releasing.release = async (ids) => {
      released.push(ids);
      for (const id of ids) (releasing.rows.get(id) as { status: string }).status = "pending";
    };
    for (let n = 0; n < 3; n += 1) await releasing.add({ id: `${n}`, topic: "t", payload: n });
    drain(releasing, bus);
    await until(() => releasing.statuses().every((status) => status === "sent"), "all sent");
    expect(released).toEqual([["1", "2"]]);
  });

  test("failures of the store are reported and never end the drainer", async () => {
    const outbox = new SketchOutbox();
    let failures = 2;
    const claimBatch = outbox.claimBatch.bind(outbox);
    outbox.claimBatch = async (n) => {
      if (failures-- > 0) throw new Error("database is locked");
      return claimBatch(n);
    };
    await outbox.add({ id: "1", topic: "t", payload: 1 });
    const errors: unknown[] = [];
    drain(outbox, { publish: async () => {} }, (error) => {
      errors.push(error);
      throw new Error("a mistake in the report");
    });
    await until(() => outbox.statuses()[0] === "sent", "sent");
    expect(errors).toHaveLength(2);
  });

  test("waitForRows of the store replaces the interval, except after a failed row", async () => {
    const outbox = new SketchOutbox() as SketchOutbox & Pick<OutboxStore, "waitForRows">;
    const waits: number[] = [];
    let wake = (): void => {};
    outbox.waitForRows = (intervalMs, signal) => new Promise((resolve) => {
      waits.push(intervalMs);
      wake = resolve;
      signal.addEventListener("abort", () => resolve());
    });
    const published: unknown[] = [];
    const stop = drain(outbox, {
      publish: async (topic, payload) => {
        published.push(payload);
        if (topic === "refused") throw new Error("refused");
      },
    });
    await until(() => waits.length === 1, "the first wait");
    await outbox.add({ id: "1", topic: "t", payload: 1 });
    await sleep(50);
    expect(published).toEqual([]);
    wake();
    await until(() => waits.length === 2, "the second wait");
    expect([published, waits]).toEqual([[1], [10, 10]]);
    await outbox.add({ id: "2", topic: "refused", payload: 2 });
    wake();
    await until(() => published.length > 1, "the refused row");
    await stop();
  });

  test("a failure of waitForRows is reported; the wait ends when the bus is closed", async () => {
    const outbox = new SketchOutbox() as SketchOutbox & Pick<OutboxStore, "waitForRows">;
    let waits = 0;
    outbox.waitForRows = () => {
      waits += 1;
      if (waits === 1) throw new Error("thrown");
      return waits === 2 ? Promise.reject(new Error("rejected")) : new Promise(() => {});
    };
    const errors: unknown[] = [];
    const bus = { publish: async () => {}, status: "connected" };
    const done = runOutboxDrainer(outbox, bus, { onError: (error) => errors.push(error) });
    await until(() => waits === 3, "the third wait");
    expect(errors).toMatchObject([{ message: "thrown" }, { message: "rejected" }]);
    bus.status = "closed";
    await done;
  });

  test("resolves when the client is closed, while idle and while rows wait", async () => {
    const errors: unknown[] = [];
    const onError = (error: unknown): void => { errors.push(error); };
    const idle = client();
    await idle.ready();
    const done = runOutboxDrainer(new SketchOutbox(), idle, { onError });
    await sleep(20);
    await idle.close();
    await done;

    const unreachable = connect("ws://127.0.0.1:9", { backoff: { minMs: 50, maxMs: 50 } });
    const outbox = new SketchOutbox() as SketchOutbox & Pick<OutboxStore, "release">;
    const released: string[][] = [];
    outbox.release = async (ids) => { released.push(ids); };
    await outbox.add({ id: "1", topic: "t", payload: 1 });
    const waiting = runOutboxDrainer(outbox, unreachable, { onError });
    await sleep(50);
    await unreachable.close({ timeoutMs: 10 });
    await waiting;
    expect(released).toEqual([["1"]]);
    expect(errors).toEqual([]);
  });

  test("resolves when a bus without a status rejects with closed, but not when the store does", async () => {
    const outbox = new SketchOutbox();
    await outbox.add({ id: "1", topic: "t", payload: 1 });
    const claimBatch = outbox.claimBatch.bind(outbox);
    let claims = 0;
    outbox.claimBatch = async (n) => {
      if (claims++ === 0) throw new PrombusError("closed", "the database is closed");
      return claimBatch(n);
    };
    const errors: unknown[] = [];
    const bus: OutboxBus = { publish: async () => { throw new PrombusError("closed", "the bus is closed"); } };
    await runOutboxDrainer(outbox, bus, { onError: (error) => errors.push(error) });
    expect(claims).toBe(2);
    expect(errors).toMatchObject([{ message: "the database is closed" }]);
  });

  test("a bus that is closed during a backoff ends the drainer", async () => {
    const outbox = new SketchOutbox();
    outbox.claimBatch = async () => { throw new Error("database is locked"); };
    const bus = { status: "connected", publish: async () => {} };
    let isDone = false;
    const done = runOutboxDrainer(outbox, bus, { onError: () => {} }).then(() => { isDone = true; });
    await sleep(500);
    expect(isDone).toBe(false);
    bus.status = "closed";
    const before = Date.now();
    await done;
    expect(Date.now() - before).toBeLessThan(1_000);
  });

  test("resolves when the signal aborts, also while the server is down; the third argument may be the interval", async () => {
    const bus = connect("ws://127.0.0.1:9", { backoff: { minMs: 50, maxMs: 50 } });
    const outbox = new SketchOutbox();
    await outbox.add({ id: "1", topic: "t", payload: 1 });
    const controller = new AbortController();
    const done = runOutboxDrainer(outbox, bus, { signal: controller.signal, onError: () => {} });
    await sleep(50);
    const before = Date.now();
    controller.abort();
    await done;
    expect(Date.now() - before).toBeLessThan(500);
    expect(outbox.statuses()).toEqual(["claimed"]);
    await bus.close({ timeoutMs: 10 });
    await runOutboxDrainer(outbox, { publish: async () => {} }, { signal: AbortSignal.abort() });
    const typed: Parameters<typeof runOutboxDrainer>[2] = 250;
    expect(typed).toBe(250);
  });
});
