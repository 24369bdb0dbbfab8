/** Tests the drainer with `MongoOutbox` and real MongoDB and prombus servers. */
import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { type Db, type Document, MongoClient } from "mongodb";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { type Client, connect } from "../../src/client.js";
import { MongoOutbox, type MongoOutboxOptions } from "../../src/mongo.js";
import { type OutboxBus, type OutboxStore, runOutboxDrainer } from "../../src/outbox.js";
import { hasMongod, startMongod, type TestMongod } from "../support/mongod.js";
import { startServer, type TestServer } from "../support/server.js";
import { sleep, until } from "../support/until.js";
import { killPrograms, REPOSITORY, runProgram } from "../support/workspace.js";

const PROMBUS = process.env["PROMBUS_BIN"] ?? join(REPOSITORY, "target/debug/prombus");
const cleanups: (() => unknown)[] = [];
afterEach(async () => { for (const cleanup of cleanups.splice(0).reverse()) await cleanup(); });
let used = 0;

async function open(db: Db, options: MongoOutboxOptions = {}): Promise<MongoOutbox> {
  const outbox = await MongoOutbox.open(db, options);
  cleanups.push(() => outbox.close());
  return outbox;
}

interface Running {
  readonly errors: unknown[];
  stop(): Promise<void>;
}

function drain(outbox: OutboxStore, bus: OutboxBus, intervalMs = 250): Running {
  const stop = new AbortController();
  const errors: unknown[] = [];
  const done = runOutboxDrainer(outbox, bus, { intervalMs, signal: stop.signal, onError: (error) => errors.push(error) });
  const running = {
    errors,
    stop: async () => {
      stop.abort();
      await done;
    },
  };
  cleanups.push(running.stop);
  return running;
}

/** A bus that counts publishes by id. */
function counting(client: Client): OutboxBus & { calls: Map<string, number> } {
  const calls = new Map<string, number>();
  return {
    calls,
    publish(topic, payload, options) {
      const id = (options?.id ?? options?.idempotencyKey) as string;
      calls.set(id, (calls.get(id) ?? 0) + 1);
      return client.publish(topic, payload, options);
    },
    whenWritable: () => client.whenWritable(),
    get status() { return client.status; },
  };
}

/** A bus that records the time of each publish, and stores nothing. */
function noting(): OutboxBus & { at: number[] } {
  const at: number[] = [];
  return { at, publish: async () => { at.push(performance.now()); } };
}

async function seen(client: Client, topic: string): Promise<number[]> {
  const numbers: number[] = [];
  for await (const event of client.replay(topic)) numbers.push((event.payload as { n: number }).n);
  return numbers.sort((one, other) => one - other);
}

const numbers = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

describe.skipIf(!hasMongod())("draining a replica set", () => {
  let mongod: TestMongod;
  let server: TestServer;
  let client: MongoClient;

  beforeAll(async () => {
    [mongod, server] = await Promise.all([startMongod("replica set"), startServer()]);
    client = new MongoClient(mongod.url);
  }, 60_000);
  afterAll(async () => {
    killPrograms();
    await client?.close();
    await Promise.all([mongod?.remove(), server?.remove()]);
  });

  const newDb = (): Db => client.db(`drain-${used++}`);
  const bus = (): Client => {
    const made = connect(server.ws);
    cleanups.push(() => made.close({ timeoutMs: 1_000 }));
    return made;
  };
  const insert = (db: Db, topic: string, from: number, to: number): Promise<unknown> =>
    db.collection<Document & { _id: string }>("outbox").insertMany(numbers(to - from).map((at) => {
      const id = `row ${from + at}`;
      return { _id: id, id, topic, payload: { n: from + at }, ts: Date.now(), status: "pending", attempts: 0 };
    }));

  test("four drainers publish each of some thousand rows once, while the service adds rows", { timeout: 120_000 }, async () => {
    const db = newDb();
    const topic = `shop.${used}`;
    const publisher = bus();
    const counted = counting(publisher);
    const adding = await open(db);
    const drainers: Running[] = [];
    for (let n = 0; n < 4; n += 1) drainers.push(drain(await open(db, { worker: `w${n}` }), counted));
    await insert(db, topic, 0, 3_000);
    for (let n = 3_000; n < 3_200; n += 1) {
      await client.withSession((session) => session.withTransaction(async () => {
        await adding.add({ id: `row ${n}`, topic, payload: { n } }, { session });
      }));
    }
    await until(async () => (await adding.counts())["sent"] === 3_200, "all rows", 60_000);
    await Promise.all(drainers.map((drainer) => drainer.stop()));
    expect(drainers.flatMap(({ errors }) => errors)).toEqual([]);
    expect(counted.calls.size).toBe(3_200);
    expect([...counted.calls.values()].filter((count) => count > 1)).toEqual([]);
    expect(await seen(publisher, topic)).toEqual(numbers(3_200));
  });

  test("one drainer keeps the order of rows within a topic", async () => {
    const db = newDb();
    const topic = `order.${used}`;
    const publisher = bus();
    const outbox = await open(db);
    await insert(db, topic, 0, 450);
    drain(outbox, publisher);
    await until(async () => (await outbox.counts())["sent"] === 450, "all rows");
    const published: number[] = [];
    for await (const event of publisher.replay(topic)) published.push((event.payload as { n: number }).n);
    expect(published).toEqual(numbers(450));
  });

  test("a row that was published and not marked is published again as a duplicate", async () => {
    const db = newDb();
    const topic = `again.${used}`;
    const publisher = bus();
    const dying = await open(db, { leaseMs: 100 });
    await dying.add({ id: "order 1", topic, payload: { n: 1 } });
    const [row] = await dying.claimBatch(1);
    await publisher.publish(topic, row?.payload, { idempotencyKey: row?.id as string });
    const outbox = await open(db);
    const begun = performance.now();
    drain(outbox, publisher);
    // The wait ends when the lease expires, not after 5 s.
    await until(async () => (await outbox.counts())["sent"] === 1, "the row");
    expect(performance.now() - begun).toBeLessThan(2_000);
    expect(await seen(publisher, topic)).toEqual([1]);
  });

  test("rows that can never be published are dead, and the others are published", async () => {
    const db = newDb();
    const topic = `bad.${used}`;
    const publisher = bus();
    const outbox = await open(db);
    await outbox.add({ id: "1", topic: "not a topic", payload: { n: 1 } });
    await db.collection("outbox").insertOne({ status: "pending", topic, payload: 1, headers: { a: 1 } });
    await outbox.add({ id: "2", topic, payload: { n: 2 } });
    const { errors } = drain(outbox, publisher);
    await until(async () => (await outbox.counts())["sent"] === 1, "the good row");
    expect(await outbox.counts()).toEqual({ dead: 2, sent: 1 });
    expect(errors).toMatchObject([{ code: "bad_topic" }]);
    expect(await seen(publisher, topic)).toEqual([2]);
  });

  test("the change stream wakes an idle drainer at once, also for a row that a person set to pending", async () => {
    const db = newDb();
    const outbox = await open(db);
    const bus = noting();
    const { errors } = drain(outbox, bus, 60_000);
    await sleep(500);
    const rows = db.collection<Document & { _id: string }>("outbox");
    for (let n = 0; n < 5; n += 1) {
      const added = performance.now();
      await outbox.add({ id: `${n}`, topic: "t", payload: n });
      await until(() => bus.at.length === n + 1, `row ${n}`);
      expect((bus.at[n] as number) - added).toBeLessThan(500);
      await until(async () => (await outbox.counts())["sent"] === n + 1, "the mark");
      await sleep(Math.random() * 100);
    }
    const changed = performance.now();
    await rows.updateOne({ _id: "0" }, { $set: { status: "pending" } });
    await until(() => bus.at.length === 6, "the row again");
    expect(performance.now() - changed).toBeLessThan(500);
    expect(errors).toEqual([]);
  });

  test("an idle drainer queries the database every 5 s, not every interval", async () => {
    const watched = new MongoClient(mongod.url, { monitorCommands: true });
    cleanups.push(() => watched.close());
    const db = watched.db(`drain-${used++}`);
    let finds = 0;
    watched.on("commandStarted", ({ commandName }) => { finds += commandName === "find" ? 1 : 0; });
    drain(await open(db), noting(), 10);
    await sleep(500);
    const before = finds;
    await sleep(2_000);
    expect(finds - before).toBeLessThanOrEqual(4);
  });

  test("a failed row is tried again when its backoff ends, not after 5 s", async () => {
    const db = newDb();
    const outbox = await open(db);
    const at: number[] = [];
    const failing: OutboxBus = {
      publish: async () => {
        at.push(performance.now());
        if (at.length < 4) throw new Error("refused");
      },
    };
    const { errors } = drain(outbox, failing, 10);
    await outbox.add({ id: "a", topic: "t", payload: 1 });
    await until(async () => (await outbox.counts())["sent"] === 1, "the fourth attempt");
    expect(errors).toHaveLength(3);
    // 100 + 200 + 400 ms, with ±20 % jitter.
    expect((at[3] as number) - (at[0] as number)).toBeGreaterThan(500);
    expect((at[3] as number) - (at[0] as number)).toBeLessThan(2_500);
  });

  test("a failed change stream is opened again, and the drainer polls in the meantime", async () => {
    const db = newDb();
    const outbox = await open(db);
    const bus = noting();
    const running = drain(outbox, bus, 100);
    await sleep(300);
    // Dropping the collection invalidates the stream.
    await db.collection("outbox").drop();
    await outbox.init();
    await outbox.add({ id: "1", topic: "t", payload: 1 });
    await until(() => bus.at.length === 1, "a row by polling");
    // The stream is opened again after a backoff of at most a second, so the interval of a minute does not matter.
    await sleep(1_500);
    await running.stop();
    drain(outbox, bus, 60_000);
    await sleep(300);
    const added = performance.now();
    await outbox.add({ id: "2", topic: "t", payload: 2 });
    await until(() => bus.at.length === 2, "a row by the stream");
    expect(performance.now() - added).toBeLessThan(1_000);
    expect(running.errors).toEqual([]);
  });

  test("close() closes the change stream; a drainer that is stopped ends at once", async () => {
    const db = newDb();
    const outbox = await open(db);
    const running = drain(outbox, noting());
    await sleep(300);
    const begun = performance.now();
    await running.stop();
    await outbox.close();
    expect(performance.now() - begun).toBeLessThan(1_000);
    const cursors = [{ $currentOp: { idleCursors: true } }, { $match: { ns: `${db.databaseName}.outbox` } }];
    await until(async () => (await client.db("admin").aggregate(cursors).toArray()).length === 0, "no cursor");
  });

  test("an unavailable database is reported, and the drainer resumes when it is back", { timeout: 60_000 }, async () => {
    const other = await startMongod("replica set");
    const away = new MongoClient(other.url, { serverSelectionTimeoutMS: 500 });
    try {
      const outbox = await open(away.db("shop"));
      const bus = noting();
      const { errors, stop } = drain(outbox, bus, 20);
      await sleep(300);
      await other.kill();
      await until(() => errors.length > 0, "a report", 20_000);
      await other.start();
      await until(async () => outbox.add({ id: "1", topic: "t", payload: 1 }).then(() => true, () => false), "a row");
      await until(() => bus.at.length === 1, "its publish", 20_000);
      await stop();
      await outbox.close();
    } finally {
      await away.close();
      await other.remove();
    }
  });

  test("two Rust drainers and a Node drainer on one outbox: 20,000 rows, each published once", { timeout: 300_000 }, async (context) => {
    const { stdout } = await promisify(execFile)(PROMBUS, ["outbox", "drain", "--help"]);
    if (!stdout.includes("--mongodb")) {
      const why = `${PROMBUS} outbox drain has no --mongodb`;
      if (process.env["CI"] === "true") throw new Error(why);
      console.error(`SKIPPED: Rust and Node drainers on one outbox: ${why}`);
      return context.skip(why);
    }
    const db = newDb();
    const topic = `mixed.${used}`;
    const publisher = bus();
    const outbox = await open(db);
    const counted = counting(publisher);
    const rust = numbers(2).map(() => runProgram(PROMBUS, [
      "outbox", "drain", "--mongodb", mongod.url, "--database", db.databaseName, "--to", server.ws,
    ]));
    const running = drain(outbox, counted);
    for (let from = 0; from < 20_000; from += 1_000) await insert(db, topic, from, from + 1_000);
    await until(async () => (await outbox.counts())["sent"] === 20_000, "all rows", 240_000);
    await running.stop();
    for (const program of rust) expect(await program.stop(), program.output()).toBe(0);
    expect(running.errors).toEqual([]);
    expect([...counted.calls.values()].filter((count) => count > 1)).toEqual([]);
    console.log(`of 20,000 rows, the Node drainer published ${counted.calls.size}`);
    expect(counted.calls.size).toBeGreaterThan(0);
    expect(counted.calls.size).toBeLessThan(20_000);
    expect(await seen(publisher, topic)).toEqual(numbers(20_000));
  });
});

describe.skipIf(!hasMongod())("draining a standalone server", () => {
  let mongod: TestMongod;
  let client: MongoClient;

  beforeAll(async () => {
    mongod = await startMongod("standalone");
    client = new MongoClient(mongod.url);
  }, 60_000);
  afterAll(async () => {
    await client?.close();
    await mongod?.remove();
  });

  test("polling backs off to 16 times the interval, and returns to the interval after a row", async () => {
    const outbox = await open(client.db("polling"));
    const { signal } = new AbortController();
    const wait = async (): Promise<number> => {
      const begun = performance.now();
      await outbox.waitForRows(20, signal);
      return (performance.now() - begun) / 20;
    };
    const expected = [1, 2, 4, 8, 16, 16];
    for (const intervals of expected) {
      const waited = await wait();
      expect(waited).toBeGreaterThan(intervals * 0.9);
      expect(waited).toBeLessThan(intervals * 1.2 + 5);
    }
    await outbox.add({ id: "1", topic: "t", payload: 1 });
    // A row is due, so the wait is short.
    expect(await wait()).toBeLessThan(4);
    expect(await outbox.claimBatch(1)).toHaveLength(1);
    await outbox.markSent("1");
    expect(await wait()).toBeLessThan(4);
  });

  test("rows are published by polling, and the signal ends the wait", async () => {
    const outbox = await open(client.db("polled"));
    const bus = noting();
    const { errors, stop } = drain(outbox, bus, 20);
    await sleep(200);
    for (let n = 0; n < 10; n += 1) await outbox.add({ id: `${n}`, topic: "t", payload: n });
    await until(async () => (await outbox.counts())["sent"] === 10, "all rows");
    await stop();
    expect(errors).toEqual([]);
    const waiting = drain(outbox, bus, 60_000);
    await sleep(100);
    const begun = performance.now();
    await waiting.stop();
    expect(performance.now() - begun).toBeLessThan(500);
  });
});
