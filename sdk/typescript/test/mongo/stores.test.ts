/** Tests `MongoEventStore`, `MongoCursorStore` and `MongoDedupe` with a prombus server that uses a real MongoDB server. */
import { type Binary, type CommandStartedEvent, type Db, type Document, Long, MongoClient, UUID } from "mongodb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Client, connect } from "../../src/client.js";
import { subscribeExactlyOnce } from "../../src/exactly-once.js";
import { MongoCursorStore, MongoDedupe, MongoEventStore } from "../../src/mongo.js";
import { eventKey, FENCES, RECORDS } from "../../src/mongo/event-keys.js";
import { HttpEventStore } from "../../src/promethean/index.js";
import type { EventRecord } from "../../src/types.js";
import { uuidv7 } from "../../src/uuid.js";
import { hasMongod, startMongod, type TestMongod } from "../support/mongod.js";
import { startServer, type TestServer } from "../support/server.js";
import { sleep, until } from "../support/until.js";

/** The prombus server of each test has its own database. */
interface Store {
  readonly db: Db;
  readonly server: TestServer;
  readonly bus: Client;
  readonly events: MongoEventStore;
  readonly cursors: MongoCursorStore;
  /** Waits until the topic's name is in the database. */
  known(topic: string): Promise<void>;
}

describe.skipIf(!hasMongod())("stores in MongoDB", () => {
  let mongod: TestMongod;
  let client: MongoClient;
  let shared: Store;
  const opened: Store[] = [];

  beforeAll(async () => {
    mongod = await startMongod("replica set");
    client = new MongoClient(mongod.url, { monitorCommands: true });
    shared = await open();
  }, 60_000);
  afterAll(async () => {
    for (const { bus, server } of opened) {
      await bus.close({ timeoutMs: 1_000 });
      await server.remove();
    }
    await client?.close();
    await mongod?.remove();
  });

  async function open(prefix = ""): Promise<Store> {
    const db = client.db(`store-${opened.length}`);
    const server = await startServer({
      env: {
        PROMBUS_STORE: mongod.url, PROMBUS_MONGODB_DATABASE: db.databaseName, ...(prefix === "" ? {} : { PROMBUS_MONGODB_PREFIX: prefix }),
      },
    });
    const bus = connect(server.ws);
    const store: Store = {
      db, server, bus,
      events: new MongoEventStore(db, `${prefix}events`),
      cursors: new MongoCursorStore(db, `${prefix}cursors`),
      known: (topic) => {
        const topics = db.collection(`${prefix}topics`, { readConcern: { level: "majority" } });
        return until(async () => (await topics.findOne({ name: topic })) !== null, `the topic ${topic}`);
      },
    };
    opened.push(store);
    return store;
  }

  /** Publishes over HTTP without an id, so that the server generates one; the client would choose one. */
  async function publishWithoutId(topic: string, body: string, query = ""): Promise<{ id: string }> {
    const type = body.includes("\n") ? "application/x-ndjson" : "application/json";
    const answer = await fetch(`${shared.server.http}/publish/${topic}?${query}`, { method: "POST", body, headers: { "Content-Type": type } });
    expect(answer.status).toBe(200);
    return await answer.json() as { id: string };
  }

  const payloads = (events: EventRecord[]): unknown[] => events.map(({ payload }) => payload);

  describe("MongoEventStore", () => {
    test("scan returns events as the server does", async () => {
      const { bus, events, known } = shared;
      expect(await events.scan("full")).toEqual([]);
      const id = uuidv7();
      await bus.publish("full", { amount: 1.5, text: "é" }, {
        id, ts: 1_700_000_000_123, key: "k", headers: { trace: "a\"b", "x.y$": "" }, tags: ["#duck", "two words"], caused_by: [uuidv7()], sid: uuidv7(),
      });
      await bus.publish("full", null, { headers: { "a\0b": "c" }, key: "z" });
      await bus.publish("full", [1]);
      await known("full");
      const found = await events.scan("full");
      const replayed: EventRecord[] = [];
      for await (const event of bus.replay("full")) replayed.push(event);
      expect(found).toEqual(replayed);
      expect(found.map(({ seq }) => seq)).toEqual([1, 2, 3]);
      expect(found[0]).toMatchObject({ id, payload: { amount: 1.5, text: "é" }, headers: { trace: "a\"b" } });
    });

    test("afterId, ts and limit select the same events as the server's own history", async () => {
      const { bus, events, known } = shared;
      const http = new HttpEventStore(bus);
      const ids: string[] = [];
      for (let n = 0; n < 300; n += 1) {
        // Alternating runs of ids that publishers chose and ids that the server generated, with unsorted times.
        const isChosen = n % 40 < 10;
        const ts = 1_000_000 + n * 10 + (n % 7) * 13;
        ids.push(isChosen ? (await bus.publish("many", n, { ts })).id : (await publishWithoutId("many", `${n}`, `ts=${ts}`)).id);
      }
      await known("many");
      expect(payloads(await events.scan("many"))).toEqual(ids.map((_, n) => n));
      expect(payloads(await events.scan("many", { limit: 3 }))).toEqual([0, 1, 2]);
      expect(await events.scan("many", { limit: 0 })).toEqual([]);
      for (const n of [0, 1, 9, 10, 11, 39, 40, 150, 298, 299]) {
        const afterId = ids[n] as string;
        expect(payloads(await events.scan("many", { afterId, limit: 2 }))).toEqual([n + 1, n + 2].filter((next) => next < 300));
        expect(payloads(await events.scan("many", { afterId: afterId.toUpperCase(), ts: 5, limit: 1 }))).toEqual([n + 1].filter((next) => next < 300));
      }
      for (const ts of [0, 1_000_000, 1_000_001, 1_000_500, 1_001_234, 1_002_990, 1_003_040, 9_000_000]) {
        expect(await events.scan("many", { ts, limit: 5 }), `${ts}`).toEqual(await http.scan("many", { ts, limit: 5 }));
      }
      for (const afterId of [uuidv7(), "no uuid", "00000000-0000-7000-8000-000000000000"]) {
        await expect(events.scan("many", { afterId })).rejects.toMatchObject({ name: "PrombusError", code: "unknown_id" });
      }
      await expect(events.scan("nothing", { afterId: uuidv7() })).rejects.toMatchObject({ code: "unknown_id" });
      expect(await events.scan("nothing")).toEqual([]);
    });

    test("a scan without a limit returns 1,000 events", { timeout: 60_000 }, async () => {
      const { bus, events, known } = shared;
      await bus.publishMany("thousand", Array.from({ length: 1_005 }, (_, n) => n));
      await known("thousand");
      const first = await events.scan("thousand");
      expect(first).toHaveLength(1_000);
      expect(payloads(await events.scan("thousand", { afterId: first.at(-1)?.id as string }))).toEqual([1_000, 1_001, 1_002, 1_003, 1_004]);
    });

    test("a reader of a busy server's database sees every event once and in order", { timeout: 60_000 }, async () => {
      const { bus, events, known } = shared;
      await bus.publish("busy", 0);
      await known("busy");
      const publishing = (async () => {
        for (let n = 1; n < 5_000; n += 250) await bus.publishMany("busy", Array.from({ length: Math.min(250, 5_000 - n) }, (_, at) => n + at));
      })();
      const seen = await events.scan("busy");
      const end = Date.now() + 40_000;
      while (seen.length < 5_000 && Date.now() < end) seen.push(...await events.scan("busy", { afterId: seen.at(-1)?.id as string, limit: 300 }));
      await publishing;
      expect(payloads(seen)).toEqual(Array.from({ length: 5_000 }, (_, n) => n));
      expect(seen.map(({ seq }) => seq)).toEqual(seen.map((_, at) => at + 1));
    });

    test("latestByKey returns the newest event of each key, without deleted keys", async () => {
      const { bus, events, known } = shared;
      for (let n = 0; n < 50; n += 1) await bus.publish("state", n, { key: `k${n % 5}` });
      await bus.publish("state", "no key");
      await bus.publish("state", null, { key: "k3" });
      await bus.publish("state", "empty", { key: "" }).catch(() => {});
      await known("state");
      const some = await events.latestByKey("state", ["k0", "k3", "k4", "missing", "k0"]);
      expect(some).toEqual({ k0: expect.objectContaining({ seq: 46, payload: 45, key: "k0" }), k4: expect.objectContaining({ payload: 49 }) });
      const all = await events.latestByKey("state");
      expect(Object.fromEntries(Object.entries(all).map(([key, event]) => [key, event?.payload]))).toMatchObject({ k0: 45, k1: 46, k2: 47, k4: 49 });
      expect(all["k3"]).toBe(undefined);
      expect(await events.latestByKey("nothing", ["a"])).toEqual({});
    });

    test("events for one group keep their addressee and do not change the state", async () => {
      const { bus, events, known } = shared;
      const subscription = await bus.subscribe("addressed", "readers", () => {});
      const addressee = { subscription: "addressed", group: "readers" };
      for (const key of ["set", "deleted", "headers", "tombstone"]) await bus.publish("addressed", "state", { key });
      await bus.publish("addressed", null, { key: "tombstone" });
      await bus.publish("addressed", "copy", { key: "set", addressee });
      await bus.publish("addressed", "another copy", { key: "set", addressee });
      await bus.publish("addressed", null, { key: "deleted", addressee });
      // The server stores this event in a different form.
      await bus.publish("addressed", "copy", { key: "headers", headers: { "a\0b": "c" }, addressee });
      await bus.publish("addressed", "copy", { key: "tombstone", addressee });
      await bus.publish("addressed", "copy", { key: "new", addressee });
      await known("addressed");
      const replayed: EventRecord[] = [];
      for await (const event of bus.replay("addressed")) replayed.push(event);
      expect(await events.scan("addressed")).toEqual(replayed);
      expect(replayed.map((event) => event.addressee)).toEqual([...Array(5).fill(undefined), ...Array(6).fill(addressee)]);
      const states = {
        set: expect.objectContaining({ seq: 1 }), deleted: expect.objectContaining({ seq: 2 }), headers: expect.objectContaining({ seq: 3 }),
      };
      expect(await events.latestByKey("addressed")).toEqual(states);
      expect(await events.latestByKey("addressed", ["set", "deleted", "headers", "tombstone", "new"])).toEqual(states);
      expect(await events.latestByKey("addressed")).toEqual(await new HttpEventStore(bus).latestByKey("addressed"));
      await subscription.unsubscribe();
    });

    test("the stores refuse writes", async () => {
      const { db, events, cursors } = shared;
      const event = { id: uuidv7(), ts: 1, topic: "t", payload: 1 };
      await expect(events.insert(event)).rejects.toMatchObject({ code: "method_not_allowed", message: expect.stringContaining("publish") });
      await expect(cursors.set("t", "g", { topic: "t" })).rejects.toMatchObject({ code: "method_not_allowed", message: expect.stringContaining("ack") });
      const before = await db.collection("events").indexes();
      await MongoEventStore.ensureIndexes(db);
      expect(await db.collection("events").indexes()).toEqual(before);
      expect(() => new MongoEventStore(db, "other")).toThrow(/mongodb.prefix/);
    });

    test("every query uses an index and reads few documents", { timeout: 60_000 }, async () => {
      const { db, bus, events, known } = shared;
      for (let n = 0; n < 20; n += 1) await publishWithoutId("explained", Array.from({ length: 100 }, (_, at) => n * 100 + at).join("\n"));
      for (let n = 0; n < 100; n += 1) await bus.publish("explained", n, { key: `k${n % 10}`, id: uuidv7() });
      await known("explained");
      const [{ id: own }] = await bus.last("explained", 1) as [EventRecord];
      const middle = (await events.scan("explained", { limit: 900 })).at(-1) as EventRecord;
      const commands: Document[] = [];
      const listen = ({ commandName, command }: CommandStartedEvent): void => {
        if (commandName === "find" || commandName === "aggregate") commands.push(command);
      };
      client.on("commandStarted", listen);
      await events.scan("explained", { limit: 10 });
      expect(payloads(await events.scan("explained", { afterId: middle.id, limit: 2 }))).toEqual([900, 901]);
      await events.scan("explained", { afterId: own, limit: 10 });
      await events.scan("explained", { ts: middle.ts, limit: 10 });
      await events.latestByKey("explained", ["k1", "k2"]);
      await events.latestByKey("explained");
      client.off("commandStarted", listen);
      expect(commands.length).toBeGreaterThan(40);
      for (const { lsid: _, $db: __, $clusterTime: ___, ...command } of commands) {
        expect(command["readConcern"]).toMatchObject({ level: "majority" });
        const text = JSON.stringify(command);
        const { readConcern: ____, ...explained } = command;
        const plan = await db.command({ explain: { ...explained, ...(explained["aggregate"] ? { cursor: {} } : {}) }, verbosity: "executionStats" });
        const stats = plan["executionStats"] ?? plan["stages"]?.[0]?.["$cursor"]?.executionStats;
        const stages = JSON.stringify(plan);
        if (command["find"] === "snapshots") continue;
        expect(stages, text).not.toContain('"COLLSCAN"');
        expect(stats.totalDocsExamined, text).toBeLessThanOrEqual(command["find"] === "topics" ? 2 : 110);
      }
    });

    test("documents of an incomplete commit are not returned", { timeout: 60_000 }, async () => {
      const { db, bus, server, events, known } = await open();
      for (let n = 0; n < 5; n += 1) await bus.publish("cut", n, { key: `k${n}` });
      await known("cut");
      await bus.close();
      await server.stop();
      const documents = db.collection<Document & { _id: Binary }>("events");
      const { _id: topicNo } = await db.collection<Document & { _id: number }>("topics").findOne({ name: "cut" }) as { _id: number };
      const newest = async (number: number, count = 1): Promise<Document[]> => documents
        .find({ _id: { $gte: eventKey(number, 0), $lt: eventKey(number + 1, 0) } }, { promoteLongs: false }).sort({ _id: -1 }).limit(count).toArray();
      const [last] = await newest(topicNo) as [Document];
      const fence = (await newest(FENCES, 10)).find((it) => it["records"] > 0) as Document;
      const [newestFence] = await newest(FENCES) as [Document];
      const next = Number(newestFence["_id"].buffer.readBigUInt64BE(4)) + 1;
      const { client_id: _, ...fields } = last;
      const event = (seq: number, commit: number): Document & { _id: Binary } =>
        ({ ...fields, _id: eventKey(topicNo, seq), seq: Long.fromNumber(seq), id: uuidv7(), commit: Long.fromNumber(commit), payload_json: `"cut ${seq}"`, key: "k0" });
      const whole = [0, 1, 2, 3, 4];
      expect(payloads(await events.scan("cut"))).toEqual(whole);

      // A bulk that is running or was interrupted: its fence and some of its events exist, its last record does not.
      await documents.insertOne({ ...fence, _id: eventKey(FENCES, next) });
      await documents.insertMany([event(6, next), event(7, next)]);
      expect(payloads(await events.scan("cut"))).toEqual(whole);
      expect((await events.latestByKey("cut", ["k0"]))["k0"]?.payload).toBe(0);
      expect((await events.latestByKey("cut"))["k0"]?.payload).toBe(0);
      // The next leader has written its own fence.
      await documents.insertOne({ ...fence, _id: eventKey(FENCES, next + 1), records: 0, topics: [] });
      expect(payloads(await events.scan("cut"))).toEqual(whole);
      // It voided the commit, and has not removed its documents yet.
      await documents.updateOne({ _id: eventKey(FENCES, next) }, { $set: { void: true } });
      expect(payloads(await events.scan("cut"))).toEqual(whole);
      // A later commit is complete, and the voided bulk continued.
      await documents.insertOne({ ...fence, _id: eventKey(FENCES, next + 2), topics: [] });
      await documents.insertOne({ _id: eventKey(RECORDS, (next + 2) * 256 + fence["records"] - 1), commit: next + 2 });
      expect(payloads(await events.scan("cut"))).toEqual(whole);
      // The same events in a complete commit are returned.
      await documents.updateMany({ commit: next }, { $set: { commit: Long.fromNumber(next + 2) } });
      expect(payloads(await events.scan("cut"))).toEqual([...whole, "cut 6", "cut 7"]);
      expect((await events.latestByKey("cut", ["k0"]))["k0"]?.payload).toBe("cut 7");
      // A snapshot replaces records and older fences.
      await documents.deleteMany({ _id: { $gte: eventKey(RECORDS, 0), $lt: eventKey(RECORDS + 1, 0) } });
      await documents.deleteMany({ _id: { $gte: eventKey(FENCES, 0), $lt: eventKey(FENCES, next + 2) } });
      await db.collection<Document & { _id: Document }>("snapshots").insertOne({ _id: { n: Long.fromNumber(next + 2), piece: 0 }, pieces: 1 });
      expect(payloads(await events.scan("cut"))).toEqual([...whole, "cut 6", "cut 7"]);
      await documents.insertOne({ ...fence, _id: eventKey(FENCES, next + 3) });
      await documents.insertOne(event(8, next + 3));
      expect(payloads(await events.scan("cut"))).toEqual([...whole, "cut 6", "cut 7"]);
      // A damaged document is an error, not a missing event.
      await documents.updateOne({ _id: eventKey(topicNo, 7) }, { $set: { payload_json: "{" } });
      await expect(events.scan("cut")).rejects.toMatchObject({ code: "internal", message: "the document of seq 7 in cut is damaged" });
      expect(payloads(await events.scan("cut", { limit: 5 }))).toEqual(whole);
    });

    test("ids of cleaned events are not returned, and a scan can start after one", async () => {
      const { db, bus, server, events, known } = await open();
      const ids: string[] = [];
      for (let n = 0; n < 6; n += 1) ids.push((await bus.publish("cleaned", n, { id: uuidv7(), key: `${n % 2}` })).id);
      await known("cleaned");
      await bus.close();
      await server.stop();
      // Does what the server does when it cleans events whose ids publishers chose.
      const stub = { _id: "$_id", topic_no: "$topic_no", seq: "$seq", client_id: "$client_id", expire_at: { $add: ["$$NOW", 3_600_000] } };
      const chosen = [ids[1], ids[5]].map((id) => new UUID(id as string));
      await db.collection("events").updateMany({ client_id: { $in: chosen } }, [{ $replaceWith: stub }]);
      expect(payloads(await events.scan("cleaned"))).toEqual([0, 2, 3, 4]);
      expect(payloads(await events.scan("cleaned", { afterId: ids[1] as string }))).toEqual([2, 3, 4]);
      expect((await events.latestByKey("cleaned"))["1"]?.payload).toBe(3);
      await db.collection("topics").updateOne({ name: "cleaned" }, { $set: { first_seq: Long.fromNumber(4) } });
      expect(payloads(await events.scan("cleaned"))).toEqual([3, 4]);
      expect(payloads(await events.scan("cleaned", { afterId: ids[0] as string }))).toEqual([3, 4]);
    });

    test("the collection name contains the server's prefix", async () => {
      const { bus, events, cursors, known } = await open("shop_");
      await bus.publish("prefixed", 1);
      await known("prefixed");
      expect(payloads(await events.scan("prefixed"))).toEqual([1]);
      expect(await cursors.get("prefixed", "g")).toBe(null);
    });
  });

  test("MongoCursorStore returns the cursors that the server writes", async () => {
    const { bus, cursors } = shared;
    expect(cursors.key("acked", "g")).toBe("acked::g");
    expect(await cursors.get("acked", "g")).toBe(null);
    const subscription = await bus.subscribe("acked", "g", async () => {}, { from: "earliest" });
    await bus.publish("acked", 1);
    const { id } = await bus.publish("acked", 2, { ts: 1_700_000_000_000 });
    await until(async () => (await cursors.get("acked", "g"))?.lastId === id, "the cursor");
    expect(await cursors.get("acked", "g")).toEqual({ topic: "acked", lastId: id, lastTs: 1_700_000_000_000 });
    expect(await cursors.get("acked", "g")).toEqual(await bus.cursor("acked", "g"));
    await subscription.unsubscribe();
  });

  describe("MongoDedupe", () => {
    test("marks have the documented form, and expire by the database's clock", async () => {
      const db = client.db("marks");
      const marks = new MongoDedupe(db);
      const documents = db.collection<{ _id: string; expireAt?: Date }>("dedupe");
      expect(await marks.seen("t", "g", "1")).toBe(false);
      await marks.mark("t", "g", "1");
      expect(marks.key("t", "g", "1")).toBe("t::g::1");
      const [mark] = await documents.find().toArray();
      expect(mark).toEqual({ _id: "t::g::1", expireAt: expect.any(Date) });
      const days = ((mark?.expireAt?.getTime() ?? 0) - Date.now()) / 86_400_000;
      expect(days).toBeGreaterThan(6.99);
      expect(days).toBeLessThan(7.01);
      expect((await documents.indexes()).map(({ key, expireAfterSeconds }) => [key, expireAfterSeconds])).toEqual([[{ _id: 1 }, undefined], [{ expireAt: 1 }, 0]]);
      // A mark that has not expired stays unchanged.
      await marks.mark("t", "g", "1", 1);
      expect(await documents.findOne({ _id: "t::g::1" })).toEqual(mark);
      await marks.mark("t", "g", "2", 200);
      await marks.mark("t", "g", "2", 60_000);
      expect([await marks.seen("t", "g", "2"), await marks.seen("t", "h", "2"), await marks.seen("u", "g", "2")]).toEqual([true, false, false]);
      await sleep(250);
      expect(await marks.seen("t", "g", "2")).toBe(false);
      await marks.mark("t", "g", "2", 60_000);
      expect(await new MongoDedupe(db).seen("t", "g", "2")).toBe(true);
      await documents.insertOne({ _id: "t::g::3" });
      expect(await marks.seen("t", "g", "3")).toBe(true);
      await Promise.all(Array.from({ length: 20 }, () => marks.mark("t", "g", "race")));
      expect(await marks.seen("t", "g", "race")).toBe(true);
      const other = new MongoDedupe(db, "other");
      await other.init();
      expect(await other.seen("t", "g", "1")).toBe(false);
    });

    test("subscribeExactlyOnce skips events that have a mark", async () => {
      const { bus } = shared;
      const marks = new MongoDedupe(client.db("once"));
      let calls = 0;
      const subscription = await subscribeExactlyOnce(bus, "once", "g", marks, async () => { calls += 1; }, { from: "earliest" });
      const { id } = await bus.publish("once", 1);
      await until(() => marks.seen("once", "g", id), "the mark");
      await bus.seek("once", "g", "earliest");
      await until(async () => (await bus.cursor("once", "g"))?.lastId === id, "the ack");
      expect(calls).toBe(1);
      await subscription.unsubscribe();
    });
  });
});
