/** Tests `MongoOutbox` with a real MongoDB server. `drain.test.ts` tests the drainer. */
import { Binary, type Collection, type Db, Decimal128, type Document, Double, Long, MongoClient, ObjectId, Timestamp } from "mongodb";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { MongoOutbox, type MongoOutboxOptions } from "../../src/mongo.js";
import { hasMongod, startMongod, type TestMongod } from "../support/mongod.js";
import { sleep } from "../support/until.js";

describe.skipIf(!hasMongod())("MongoOutbox", () => {
  let mongod: TestMongod;
  let client: MongoClient;
  let db: Db;
  let used = 0;
  const cleanups: (() => unknown)[] = [];

  beforeAll(async () => {
    mongod = await startMongod("replica set");
    client = new MongoClient(mongod.url);
  }, 60_000);
  afterAll(async () => {
    await client?.close();
    await mongod?.remove();
  });
  afterEach(async () => { for (const cleanup of cleanups.splice(0).reverse()) await cleanup(); });

  /** An outbox in a new database, or in `db` if given. */
  async function outbox(options: MongoOutboxOptions = {}, isNew = true): Promise<MongoOutbox> {
    if (isNew) db = client.db(`outbox-${used++}`);
    const made = await MongoOutbox.open(db, options);
    cleanups.push(() => made.close());
    return made;
  }

  const rows = (): Collection<Document & { _id: string | number | ObjectId }> => db.collection("outbox");
  const row = async (id: string): Promise<Document> => (await rows().findOne({ _id: id })) as Document;

  test("add is part of the caller's transaction", async () => {
    const shop = await outbox();
    await db.createCollection("orders");
    const sell = (id: string, isCancelled: boolean): Promise<unknown> => client.withSession(async (session) => {
      session.startTransaction();
      await db.collection("orders").insertOne({ item: id }, { session });
      await shop.add({ id, topic: "orders", payload: { item: 7 }, headers: { a: "b" }, key: "k", ts: 5 }, { session });
      expect(await shop.counts()).toEqual({});
      await (isCancelled ? session.abortTransaction() : session.commitTransaction());
    });
    await sell("order-17", true);
    expect(await rows().find().toArray()).toEqual([]);
    await sell("order-17", false);
    expect(await rows().find().toArray()).toEqual([{
      _id: "order-17", id: "order-17", topic: "orders", payload: { item: 7 }, headers: { a: "b" }, key: "k", ts: 5,
      status: "pending", attempts: 0,
    }]);
    expect(await db.collection("orders").countDocuments()).toBe(1);
    await expect(shop.add({ id: "order-17", topic: "orders", payload: 1 })).rejects.toThrow(/E11000/);
    await expect(shop.add({ id: "", topic: "orders", payload: 1 })).rejects.toMatchObject({ code: "bad_request" });
  });

  test("the indexes are those that the Rust library expects", async () => {
    await outbox();
    const indexes = (await rows().indexes()).map(({ key, expireAfterSeconds }) => [key, expireAfterSeconds]);
    expect(indexes).toEqual([
      [{ _id: 1 }, undefined], [{ status: 1, lease_until: 1 }, undefined], [{ ts: 1 }, undefined], [{ status: 1, ts: 1 }, undefined],
      [{ expireAt: 1 }, 0],
    ]);
  });

  test("a payload is stored as a publish would send it", async () => {
    const shop = await outbox();
    const deep = (levels: number): unknown => (levels === 0 ? 1 : { d: deep(levels - 1) });
    const payloads: Record<string, unknown> = {
      plain: { text: "é", list: [1, -2.5, null, true, { a: [] }], none: undefined, at: new Date(0), own: { toJSON: () => "own" } },
      numbers: [0, -0, 1e21, 2 ** 31, -(2 ** 31) - 1, 1_700_000_000_123, Number.MAX_SAFE_INTEGER, 2 ** 60, Number.NaN],
      names: { $a: 1, "b.c": 2, "": 3, ["__proto__"]: 4 },
      nul: { "a\0b": "c\0d" },
      half: "\ud800",
      reference: [{ $ref: "a.b", $id: 1 }],
      type: { _bsontype: "Long" },
      null: null,
      deep: deep(90),
      deeper: deep(91),
    };
    for (const [id, payload] of Object.entries(payloads)) await shop.add({ id, topic: "t", payload, ts: used++ });
    const claimed = await shop.claimBatch(100);
    expect(claimed.map(({ id }) => id)).toEqual(Object.keys(payloads));
    for (const { id, payload } of claimed) expect(JSON.stringify(payload), id).toBe(JSON.stringify(payloads[id]));
    const asText = (await rows().find({ payload_json: { $exists: true } }).toArray()).map(({ _id, payload }) => [_id, payload]);
    expect(asText).toEqual([["nul", undefined], ["half", undefined], ["reference", undefined], ["type", undefined], ["deeper", undefined]]);
    const types = await rows().aggregate([{ $match: { _id: "numbers" } }, { $project: { types: { $map: { input: "$payload", in: { $type: "$$this" } } } } }]).next();
    expect(types?.["types"]).toEqual(["int", "int", "double", "long", "long", "long", "long", "double", "null"]);
    for (const payload of [undefined, () => 1, 1n, { a: 1n }]) {
      await expect(shop.add({ id: "x", topic: "t", payload })).rejects.toMatchObject({ code: "invalid_payload" });
    }
  });

  test("rows of other programs are read, and invalid rows become dead", async () => {
    const shop = await outbox();
    const object = new ObjectId();
    const at = new Date("2026-01-02T03:04:05.678Z");
    const pending = { topic: "t", status: "pending", ts: 1 };
    const nested = { ...pending, payload: 1 };
    await rows().insertMany([
      {
        ...pending, _id: "bson", ts: Long.fromNumber(7),
        payload: {
          safe: Long.fromString("9007199254740991"), large: Long.fromString("9007199254740993"), low: Long.fromString("-9223372036854775808"),
          at, object, decimal: Decimal128.fromString("1.10"), bytes: new Binary(new Uint8Array([1, 2, 255])), double: new Double(1.5),
          regex: /a.b/i, none: null, time: new Timestamp({ t: 1, i: 2 }),
        },
      },
      { ...pending, _id: "json", payload: "loses", payload_json: '{ "a" : 1.0 }' },
      { _id: object, topic: "t", status: "pending", payload: 3 },
      { ...nested, _id: 17, id: "seventeen", ts: at, attempts: 3, headers: null, key: null },
      { ...nested, _id: "no topic", topic: undefined },
      { ...nested, _id: "topic", topic: 5 },
      { ...nested, _id: "headers", headers: { a: 1 } },
      { ...nested, _id: "header list", headers: ["a"] },
      { ...nested, _id: "key", key: 1 },
      { ...nested, _id: "ts", ts: 1.5 },
      { ...nested, _id: "id", id: 5 },
      { ...nested, _id: 18 },
      { ...pending, _id: "no payload" },
      { ...pending, _id: "bad json", payload_json: "{" },
      { ...pending, _id: "json type", payload_json: { a: 1 }, attempts: "many" },
    ], { ignoreUndefined: true });
    const claimed = await shop.claimBatch(100);
    expect(claimed).toEqual([
      { id: object.toHexString(), topic: "t", payload: 3, attempts: 0 },
      { id: "json", topic: "t", payload: { a: 1 }, attempts: 0, ts: 1 },
      {
        id: "bson", topic: "t", attempts: 0, ts: 7,
        payload: {
          safe: Number.MAX_SAFE_INTEGER, large: "9007199254740993", low: "-9223372036854775808", at: "2026-01-02T03:04:05.678Z",
          object: object.toHexString(), decimal: "1.10", bytes: "AQL/", double: 1.5, regex: "/a.b/i", none: null, time: "4294967298",
        },
      },
      { id: "seventeen", topic: "t", payload: 1, attempts: 3, ts: at.getTime() },
    ]);
    const dead = await rows().find({ status: "dead" }).sort({ $natural: 1 }).toArray();
    expect(dead.map(({ _id, last_err }) => [_id, last_err])).toEqual([
      ["no topic", "the row has no topic"], ["topic", "the topic is not a string"], ["headers", "the headers are not an object of strings"],
      ["header list", "the headers are not an object of strings"], ["key", "the key is not a string"], ["ts", "the ts is not a whole number"],
      ["id", "the id is not a string"], [18, "the row has no id, and its _id is neither a string nor an ObjectId"],
      ["no payload", "the row has no payload"], ["bad json", expect.stringContaining("the payload_json is not JSON")],
      ["json type", "the payload_json is not a string"],
    ]);
    for (const it of dead) {
      expect(it["attempts"]).toBe(1);
      expect(Object.keys(it)).not.toEqual(expect.arrayContaining(["claim"]));
      expect([it["worker"], it["lease_until"]]).toEqual([undefined, undefined]);
    }
    await shop.markSentBatch(claimed.map(({ id }) => id));
    expect(await shop.counts()).toEqual({ sent: 4, dead: 11 });
  });

  test("rows are claimed in the order of ts, then in insertion order", async () => {
    const shop = await outbox();
    for (const [id, ts] of [["a", 5], ["b", 3], ["c", 5], ["d", 3], ["e", 1], ["f", 5]] as const) await shop.add({ id, topic: "t", payload: 1, ts });
    expect((await shop.claimBatch(4)).map(({ id }) => id)).toEqual(["e", "b", "d", "a"]);
    await shop.release(["d", "a"], "later");
    expect((await shop.claimBatch(10)).map(({ id }) => id)).toEqual(["d", "a", "c", "f"]);
    expect(await shop.claimBatch(10)).toEqual([]);
    expect(await shop.claimBatch(0)).toEqual([]);
  });

  test("only the current claim can settle a row: a late markSent changes nothing", async () => {
    const one = await outbox({ worker: "$one", leaseMs: 200 });
    const two = await outbox({ worker: "two" }, false);
    for (const n of [1, 2, 3, 4]) await one.add({ id: `${n}`, topic: "t", payload: n });
    expect((await one.claimBatch(3)).map(({ id }) => id)).toEqual(["1", "2", "3"]);
    const held = await row("1");
    expect(held).toMatchObject({ status: "claimed", worker: "$one", claim: expect.stringMatching(/^[0-9a-f]{8}-[0-9a-f]{4}-4/) });
    expect(Math.abs(held["lease_until"].getTime() - Date.now() - 200)).toBeLessThan(150);
    expect((await two.claimBatch(10)).map(({ id }) => id)).toEqual(["4"]);
    expect(await two.requeueExpired()).toBe(0);
    await sleep(250);
    expect(await two.requeueExpired()).toBe(3);
    expect(await row("1")).toEqual({ _id: "1", id: "1", topic: "t", payload: 1, ts: expect.any(Number), status: "pending", attempts: 0 });
    // No drainer has claimed the rows since, but the old claim is not valid any more.
    await one.markSent("3");
    expect(await two.claimBatch(10)).toMatchObject([{ id: "1", payload: 1, attempts: 0 }, { id: "2" }, { id: "3" }]);
    await one.markSent("1");
    await one.markError("2", "late");
    await one.release(["2"], "late");
    const statuses = (await rows().find().toArray()).map((it) => [it["status"], it["worker"], it["attempts"], it["last_err"]]);
    expect(statuses).toEqual(Array(4).fill(["claimed", "two", 0, undefined]));
    await two.markSentBatch(["1", "2", "3", "unknown"]);
    expect(await two.counts()).toEqual({ claimed: 1, sent: 3 });
    const sent = await row("1");
    expect(Object.keys(sent).sort()).toEqual(["_id", "attempts", "expireAt", "id", "payload", "sent_at", "status", "topic", "ts"]);
    expect(sent["expireAt"] - sent["sent_at"]).toBe(24 * 3_600_000);
  });

  test("a row with an expired claim that no other drainer has taken can still be settled", async () => {
    const shop = await outbox({ leaseMs: 20 });
    await shop.add({ id: "a", topic: "t", payload: 1 });
    await shop.claimBatch(1);
    await sleep(40);
    await shop.markSent("a");
    expect(await shop.counts()).toEqual({ sent: 1 });
  });

  test("failures are retried after a backoff and are dead after ten, or at once if they are permanent", async () => {
    const shop = await outbox();
    await shop.add({ id: "a", topic: "t", payload: 1 });
    await shop.add({ id: "b", topic: "t", payload: 2 });
    await shop.claimBatch(2);
    await shop.markError("b", "$never", true);
    for (let attempt = 1; attempt <= 10; attempt += 1) {
      const before = Date.now();
      await shop.markError("a", `failure ${attempt}`);
      const found = await row("a");
      expect(found).toMatchObject({ attempts: attempt, last_err: `failure ${attempt}` });
      expect([found["worker"], found["claim"]]).toEqual([undefined, undefined]);
      if (attempt === 10) {
        expect([found["status"], found["lease_until"]]).toEqual(["dead", undefined]);
        break;
      }
      expect(found["status"]).toBe("error");
      const full = Math.min(100 * 2 ** (attempt - 1), 30_000);
      const delay = found["lease_until"].getTime() - before;
      expect(delay).toBeGreaterThanOrEqual(full * 0.8 - 2);
      expect(delay).toBeLessThanOrEqual(full * 1.2 + 500);
      await rows().updateOne({ _id: "a" }, { $set: { lease_until: new Date(Date.now() + 60_000) } });
      expect(await shop.claimBatch(2)).toEqual([]);
      await rows().updateOne({ _id: "a" }, { $set: { lease_until: new Date(0) } });
      expect(await shop.claimBatch(2)).toMatchObject([{ id: "a", attempts: attempt }]);
    }
    expect(await row("b")).toMatchObject({ status: "dead", attempts: 1, last_err: "$never" });
    expect(await shop.claimBatch(2)).toEqual([]);
  });

  test("a release does not count as an attempt", async () => {
    const shop = await outbox();
    await shop.add({ id: "a", topic: "t", payload: 1 });
    await shop.claimBatch(1);
    await shop.release(["a"], `$${"x".repeat(2_000)}`);
    const found = await row("a");
    expect(found).toMatchObject({ status: "pending", attempts: 0, last_err: `$${"x".repeat(999)}` });
    expect([found["worker"], found["claim"], found["lease_until"]]).toEqual([undefined, undefined, undefined]);
    expect(await shop.claimBatch(1)).toHaveLength(1);
    await shop.markSent("a");
    expect((await row("a"))["last_err"]).toBe(undefined);
  });

  test("sent rows are kept for a while, or deleted at once", async () => {
    const shop = await outbox({ keepSentMs: 300 });
    for (let n = 0; n < 5; n += 1) await shop.add({ id: `${n}`, topic: "t", payload: n });
    await shop.claimBatch(3);
    await shop.markSentBatch(["0", "1", "2"]);
    expect(await shop.purgeSent()).toBe(0);
    await sleep(350);
    expect(await shop.purgeSent()).toBe(3);
    const tidy = await outbox({ keepSentMs: 0 }, false);
    await tidy.claimBatch(1);
    await tidy.markSent("3");
    expect((await rows().find().toArray()).map(({ _id }) => _id)).toEqual(["4"]);
  });

  test("of two rows with the same id, the second waits for the first", async () => {
    const shop = await outbox();
    const twin = { id: "twin", status: "pending", payload: 1, ts: 1 };
    await rows().insertMany([{ ...twin, _id: 1, topic: "a" }, { ...twin, _id: 2, topic: "b" }]);
    expect(await shop.claimBatch(10)).toMatchObject([{ id: "twin", topic: "a" }]);
    await shop.markSent("twin");
    expect(await shop.claimBatch(10)).toMatchObject([{ id: "twin", topic: "b" }]);
    await shop.markSent("twin");
    expect(await shop.counts()).toEqual({ sent: 2 });
  });

  test("two claims never get the same row", async () => {
    await outbox();
    await rows().insertMany(Array.from({ length: 1_000 }, (_, n) => ({ _id: `${n}`, topic: "t", payload: n, ts: n, status: "pending" })));
    const workers = await Promise.all(Array.from({ length: 6 }, () => outbox({}, false)));
    const claimed: string[] = [];
    await Promise.all(workers.map(async (worker) => {
      for (let batch = await worker.claimBatch(25); batch.length > 0; batch = await worker.claimBatch(25)) {
        claimed.push(...batch.map(({ id }) => id));
      }
    }));
    expect(new Set(claimed).size).toBe(claimed.length);
    expect(claimed.length).toBeGreaterThan(900);
  });

  test("claims, requeues and purges use indexes", async () => {
    const shop = await outbox();
    const plans: string[] = [];
    const explain = async (filter: Document, sort: Document): Promise<void> => {
      const plan = await rows().find(filter).sort(sort as Record<string, 1>).explain("queryPlanner");
      plans.push(JSON.stringify(plan["queryPlanner"].winningPlan));
    };
    for (let n = 0; n < 50; n += 1) await shop.add({ id: `${n}`, topic: "t", payload: n });
    const due = { $expr: { $lte: ["$lease_until", "$$NOW"] } };
    await explain({ status: "error", ...due }, { lease_until: 1 });
    await explain({ status: "pending" }, { ts: 1 });
    await explain({ status: "claimed", ...due }, {});
    await explain({ status: "sent", $expr: { $lte: ["$expireAt", "$$NOW"] } }, {});
    await explain({ status: { $in: ["error", "claimed"] } }, { lease_until: 1 });
    for (const plan of plans) {
      expect(plan).toContain("IXSCAN");
      expect(plan).not.toMatch(/COLLSCAN|"SORT"/);
    }
    expect(plans[0]).toContain("lease_until_1");
  });
});
