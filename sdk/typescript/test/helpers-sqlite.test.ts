/**
 * Tests the SQLite outbox with both drivers. `node:sqlite` needs Node 22.5: in an older Node, this file runs itself in a newer one,
 * from PROMBUS_NEW_NODE or the npm package `node`. better-sqlite3 is taken from node_modules, or from the folder that
 * PROMBUS_BETTER_SQLITE3 names.
 */
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, symlink } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { build } from "esbuild";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { type Client, connect } from "../src/client.js";
import { subscribeExactlyOnce } from "../src/exactly-once.js";
import { runOutboxDrainer } from "../src/outbox.js";
import { openDatabase, OUTBOX_SQL, type SqliteDatabase, SqliteDedupe, SqliteOutbox } from "../src/sqlite.js";
import { startServer, type TestServer } from "./support/server.js";

const root = join(import.meta.dirname, "..");
const require = createRequire(process.env["PROMBUS_BETTER_SQLITE3"] ?? import.meta.url);
const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
const hasNodeSqlite = major > 22 || (major === 22 && minor >= 5);

type Driver = (path: string) => Promise<SqliteDatabase> | SqliteDatabase;

function betterSqlite3(): Driver | undefined {
  try {
    const Database = require("better-sqlite3") as new (path: string) => SqliteDatabase;
    new Database(":memory:").close();
    return (path) => new Database(path);
  } catch {
    return undefined;
  }
}

const drivers: [string, Driver][] = [];
if (hasNodeSqlite) drivers.push(["node:sqlite", openDatabase]);
const better = betterSqlite3();
if (better !== undefined) drivers.push(["better-sqlite3", better]);

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

async function until(isTrue: () => boolean | Promise<boolean>, what: string, ms = 15_000): Promise<void> {
  const end = Date.now() + ms;
  while (!(await isTrue())) {
    if (Date.now() > end) throw new Error(`in vain: ${what}`);
    await sleep(5);
  }
}

let server: TestServer;
let folder: string;
let used = 0;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "prombus-sqlite-"));
  server = await startServer();
});
afterAll(async () => {
  await server.remove();
  await rm(folder, { recursive: true, force: true });
});

const cleanups: (() => unknown)[] = [];
afterEach(async () => { for (const cleanup of cleanups.splice(0).reverse()) await cleanup(); });

function client(): Client {
  const made = connect(server.ws);
  cleanups.push(() => made.close({ timeoutMs: 1_000 }));
  return made;
}

test("the table is the same as in the Rust library", async () => {
  expect(OUTBOX_SQL).toBe(await readFile(join(root, "../../crates/prombus/src/outbox/outbox.sql"), "utf8"));
});

test("a driver is tested, or a newer Node tests node:sqlite", { timeout: 600_000 }, async () => {
  if (hasNodeSqlite) return;
  const vitest = [join(root, "node_modules/vitest/vitest.mjs"), "run", "test/helpers-sqlite.test.ts"];
  const own = process.env["PROMBUS_NEW_NODE"];
  const [command, args] = own === undefined ? ["npx", ["-y", "-p", "node@24", "node", ...vitest]] : [own, vitest];
  const run = await promisify(execFile)(command as string, args as string[], { cwd: root, env: { ...process.env, NO_COLOR: "1" } });
  expect(run.stdout).toMatch(/Tests +\d+ passed/);
  expect(run.stdout).not.toContain("failed");
});

/** Opens a database in a plain Node process, in a folder with these modules installed. */
async function openIn(modules: string | undefined): Promise<string> {
  const place = await mkdtemp(join(folder, "plain-"));
  if (modules !== undefined) await symlink(modules, join(place, "node_modules"));
  const entry = join(place, "sqlite.mjs");
  await build({ entryPoints: [join(root, "src/sqlite.ts")], outfile: entry, bundle: true, format: "esm", platform: "node", logLevel: "error" });
  const script = `import { openDatabase, SqliteOutbox } from ${JSON.stringify(entry)};
    try {
      const database = await openDatabase(${JSON.stringify(join(place, "x.db"))});
      new SqliteOutbox(database).add({ id: "1", topic: "t", payload: 1 });
      console.log(database.constructor.name, database.prepare("PRAGMA journal_mode").get().journal_mode);
    } catch (error) { console.log(error.message); }`;
  const run = await promisify(execFile)(process.execPath, ["--no-warnings", "--input-type=module", "-e", script], { cwd: place });
  return run.stdout.trim();
}

test("openDatabase uses node:sqlite, else better-sqlite3, else its error says what is missing", async () => {
  const missing = "no SQLite driver found: node:sqlite needs Node 22.5 or later, and better-sqlite3 is not installed";
  expect(await openIn(undefined)).toBe(hasNodeSqlite ? "DatabaseSync wal" : missing);
  if (better === undefined || hasNodeSqlite) return;
  expect(await openIn(join(require.resolve("better-sqlite3/package.json"), "../.."))).toBe("Database wal");
});

describe.each(drivers)("%s", (_name, open) => {
  async function database(path = join(folder, `db-${used++}.sqlite`)): Promise<SqliteDatabase> {
    const opened = await open(path);
    opened.exec("PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL");
    cleanups.push(() => opened.close());
    return opened;
  }

  const rows = (db: SqliteDatabase): Record<string, unknown>[] =>
    (db.prepare("SELECT * FROM outbox ORDER BY rowid").all() as Record<string, unknown>[]).map((row) => ({ ...row }));

  test("add is part of the caller's transaction", async () => {
    const db = await database();
    const outbox = new SqliteOutbox(db);
    db.exec("BEGIN");
    outbox.add({ id: "order-17", topic: "orders", payload: { item: 7 } });
    db.exec("ROLLBACK");
    expect(rows(db)).toEqual([]);
    db.exec("BEGIN");
    outbox.add({ id: "order-17", topic: "orders", payload: { item: 7 }, headers: { a: "b" }, key: "k", ts: 5 });
    db.exec("COMMIT");
    expect(rows(db)).toMatchObject([{
      id: "order-17", topic: "orders", payload: '{"item":7}', headers: '{"a":"b"}', key: "k", ts: 5, status: "pending", attempts: 0,
    }]);
    expect(() => outbox.add({ id: "order-17", topic: "orders", payload: 1 })).toThrow(/UNIQUE/);
    expect(() => outbox.add({ id: "x", topic: "orders", payload: undefined })).toThrow(/JSON/);
  });

  test("a row belongs to one worker until its lease expires, and only that worker can settle it", async () => {
    const db = await database();
    const one = new SqliteOutbox(db, { worker: "one", leaseMs: 30 });
    const two = new SqliteOutbox(db, { worker: "two" });
    for (const n of [1, 2, 3]) one.add({ id: `${n}`, topic: "t", payload: n });
    expect((await one.claimBatch(2)).map((row) => row.id)).toEqual(["1", "2"]);
    expect((await two.claimBatch(10)).map((row) => row.id)).toEqual(["3"]);
    expect(await two.requeueExpired()).toBe(0);
    await sleep(40);
    expect(await two.requeueExpired()).toBe(2);
    const taken = await two.claimBatch(10);
    expect(taken).toMatchObject([{ id: "1", topic: "t", payload: 1, attempts: 0 }, { id: "2" }]);
    await one.markSent("1");
    await one.markError("2", "late");
    await one.release(["2"], "late");
    expect(rows(db).map((row) => [row["status"], row["worker"], row["attempts"]])).toEqual([
      ["claimed", "two", 0], ["claimed", "two", 0], ["claimed", "two", 0],
    ]);
    await two.markSentBatch(["1", "2"]);
    expect(two.counts()).toEqual({ claimed: 1, sent: 2 });
  });

  test("failures are retried after a backoff and are dead after ten, or at once if they are permanent", async () => {
    const db = await database();
    const outbox = new SqliteOutbox(db, { worker: "w" });
    outbox.add({ id: "a", topic: "t", payload: 1 });
    outbox.add({ id: "b", topic: "t", payload: 2 });
    await outbox.claimBatch(2);
    await outbox.markError("b", "never", true);
    for (let attempt = 1; attempt <= 10; attempt += 1) {
      const before = Date.now();
      await outbox.markError("a", `failure ${attempt}`);
      const [row] = rows(db);
      expect(row).toMatchObject({ attempts: attempt, worker: null, lease_until_ms: 0, last_err: `failure ${attempt}` });
      if (attempt === 10) {
        expect(row).toMatchObject({ status: "dead", next_attempt_ms: 0 });
        break;
      }
      const full = Math.min(100 * 2 ** (attempt - 1), 30_000);
      const delay = (row?.["next_attempt_ms"] as number) - before;
      expect(delay).toBeGreaterThanOrEqual(full * 0.8 - 1);
      expect(delay).toBeLessThanOrEqual(full * 1.2 + 200);
      expect(await outbox.claimBatch(2)).toEqual([]);
      db.exec("UPDATE outbox SET next_attempt_ms = 0 WHERE id = 'a'");
      expect(await outbox.claimBatch(2)).toMatchObject([{ id: "a", attempts: attempt }]);
    }
    expect(rows(db)[1]).toMatchObject({ status: "dead", attempts: 1, last_err: "never" });
    expect(await outbox.claimBatch(2)).toEqual([]);
  });

  test("a release does not count as an attempt", async () => {
    const db = await database();
    const outbox = new SqliteOutbox(db);
    outbox.add({ id: "a", topic: "t", payload: 1 });
    await outbox.claimBatch(1);
    await outbox.release(["a"], "x".repeat(2_000));
    expect(rows(db)).toMatchObject([{ status: "pending", attempts: 0, worker: null, last_err: "x".repeat(1_000) }]);
    expect(await outbox.claimBatch(1)).toHaveLength(1);
  });

  test("rows of other programs may have defaults and blobs, and invalid rows become dead", async () => {
    const db = await database();
    const outbox = new SqliteOutbox(db);
    const insert = db.prepare("INSERT INTO outbox (id, topic, payload, headers) VALUES (?, ?, ?, ?)");
    const before = Date.now();
    insert.run("1", "t", '{"a":1}', null);
    insert.run("2", "t", new TextEncoder().encode('"blob"'), null);
    insert.run("3", "t", "no json", null);
    insert.run("4", "t", "1", '{"a":1}');
    insert.run("5", "t", new Uint8Array([0x22, 0xff, 0x22]), null);
    insert.run("6", "t", "null", '{"a":"b"}');
    const claimed = await outbox.claimBatch(10);
    expect(claimed).toMatchObject([{ id: "1", payload: { a: 1 } }, { id: "2", payload: "blob" }, { id: "6", payload: null, headers: { a: "b" } }]);
    expect(Math.abs((claimed[0]?.ts ?? 0) - before)).toBeLessThan(2_000);
    expect(rows(db).map((row) => row["status"])).toEqual(["claimed", "claimed", "dead", "dead", "dead", "claimed"]);
    expect(rows(db).slice(2, 5).map((row) => row["last_err"])).toEqual([
      expect.stringContaining("the payload is not JSON"), "the headers are not a JSON object of strings", "the payload is not UTF-8",
    ]);
  });

  test("sent rows are kept for a while, or deleted at once", async () => {
    const db = await database();
    const outbox = new SqliteOutbox(db, { keepSentMs: 20 });
    for (let n = 0; n < 5; n += 1) outbox.add({ id: `${n}`, topic: "t", payload: n });
    await outbox.claimBatch(10);
    await outbox.markSentBatch(["0", "1", "2"]);
    expect(await outbox.purgeSent()).toBe(0);
    await sleep(30);
    expect(await outbox.purgeSent()).toBe(3);
    const tidy = new SqliteOutbox(db, { worker: outbox.worker, keepSentMs: 0 });
    await tidy.markSent("3");
    expect(rows(db).map((row) => row["id"])).toEqual(["4"]);
  });

  test("two drainers over one file publish every row once, while the service adds rows", async () => {
    const path = join(folder, `shared-${used++}.sqlite`);
    const topic = `shop.${used}`;
    const bus = client();
    const service = await database(path);
    const adding = new SqliteOutbox(service);
    const stop = new AbortController();
    const errors: unknown[] = [];
    const drainers = [];
    for (const worker of ["one", "two"]) {
      const outbox = new SqliteOutbox(await database(path), { worker });
      drainers.push(runOutboxDrainer(outbox, bus, {
        intervalMs: 5, batchSize: 20, signal: stop.signal, onError: (error) => errors.push(error),
      }));
    }
    service.exec("CREATE TABLE orders (id TEXT PRIMARY KEY)");
    for (let n = 0; n < 300; n += 1) {
      service.exec("BEGIN IMMEDIATE");
      service.prepare("INSERT INTO orders VALUES (?)").run(`order ${n}`);
      adding.add({ id: `order ${n}`, topic, payload: { n } });
      service.exec(n % 10 === 9 ? "ROLLBACK" : "COMMIT");
      if (n % 10 === 0) await sleep(1);
    }
    await until(() => adding.counts()["sent"] === 270, "all rows");
    stop.abort();
    await Promise.all(drainers);
    const seen: number[] = [];
    for await (const event of bus.replay(topic)) seen.push((event.payload as { n: number }).n);
    expect(seen.sort((a, b) => a - b)).toEqual(Array.from({ length: 300 }, (_, n) => n).filter((n) => n % 10 !== 9));
    expect(errors).toEqual([]);
  });

  test("a row that was published and not marked is published again as a duplicate", async () => {
    const db = await database();
    const bus = client();
    const topic = `again.${used++}`;
    const dying = new SqliteOutbox(db, { leaseMs: 20 });
    dying.add({ id: "order 1", topic, payload: 1 });
    const [row] = await dying.claimBatch(1);
    await bus.publish(topic, row?.payload, { idempotencyKey: row?.id as string });
    const outbox = new SqliteOutbox(db);
    const stop = new AbortController();
    const done = runOutboxDrainer(outbox, bus, { intervalMs: 5, signal: stop.signal });
    await until(() => outbox.counts()["sent"] === 1, "the row");
    stop.abort();
    await done;
    expect(await bus.last(topic, 10)).toHaveLength(1);
  });

  test("SqliteDedupe marks survive the process, and expire", async () => {
    const path = join(folder, `marks-${used++}.sqlite`);
    const marks = new SqliteDedupe(await database(path));
    await marks.mark("t", "g", "1");
    await marks.mark("t", "g", "1", 1);
    await marks.mark("t", "g", "2", 1);
    await sleep(5);
    const again = new SqliteDedupe(await database(path));
    expect([await again.seen("t", "g", "1"), await again.seen("t", "g", "2"), await again.seen("t", "h", "1")]).toEqual([true, false, false]);
    expect(again.purge()).toBe(1);
    const bus = client();
    const topic = `marked.${used++}`;
    let calls = 0;
    const subscription = await subscribeExactlyOnce(bus, topic, "g", again, async () => { calls += 1; }, { from: "earliest" });
    const { id } = await bus.publish(topic, 1);
    await until(() => again.seen(topic, "g", id), "the mark");
    await bus.seek(topic, "g", "earliest");
    await until(async () => (await bus.cursor(topic, "g"))?.lastId === id, "the ack");
    expect(calls).toBe(1);
    await subscription.unsubscribe();
  });
});

test("better-sqlite3 is installed", (context) => {
  if (better === undefined) context.skip("better-sqlite3 is not installed for this Node: its tests did not run");
});
