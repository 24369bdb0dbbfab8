/**
 * Outbox and deduplication marks (records that a group has processed an event) in SQLite, with `node:sqlite` (Node 22.5 or later) or
 * better-sqlite3.
 *
 * The Rust library uses the same tables, so Rust and Node programs can share them. A drainer claims outbox rows in an immediate
 * transaction before it publishes them, so only one drainer gets a row. Both drivers are synchronous: each call blocks the thread
 * until SQLite is done.
 */
import { DEDUPE_TTL_MS, type DedupeStore } from "./exactly-once.js";
import { PrombusError } from "./errors.js";
import type { OutboxRecord, OutboxStore } from "./outbox.js";
import type { Millis, UUID } from "./types.js";
import { uuidv7 } from "./uuid.js";

type SqlValue = null | number | bigint | string | Uint8Array;

/** The methods of a database that this module uses; `DatabaseSync` of `node:sqlite` and `Database` of better-sqlite3 have them. */
export interface SqliteDatabase {
  exec(sql: string): unknown;
  prepare(sql: string): SqliteStatement;
  close(): unknown;
}

export interface SqliteStatement {
  run(...values: SqlValue[]): { changes: number | bigint };
  get(...values: SqlValue[]): unknown;
  all(...values: SqlValue[]): unknown[];
}

/** The table `outbox`. A service inserts rows with `id`, `topic` and `payload`; the other columns have defaults. */
export const OUTBOX_SQL = `CREATE TABLE IF NOT EXISTS outbox (
  id              TEXT PRIMARY KEY NOT NULL CHECK (typeof(id) = 'text' AND id <> ''),
  topic           TEXT NOT NULL,
  payload         TEXT NOT NULL,
  headers         TEXT,
  key             TEXT,
  ts              INTEGER DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  status          TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'claimed', 'sent', 'error', 'dead')),
  attempts        INTEGER NOT NULL DEFAULT 0,
  next_attempt_ms INTEGER NOT NULL DEFAULT 0,
  lease_until_ms  INTEGER NOT NULL DEFAULT 0,
  worker          TEXT,
  sent_ms         INTEGER,
  last_err        TEXT
);
CREATE INDEX IF NOT EXISTS outbox_due ON outbox (status, next_attempt_ms);
CREATE INDEX IF NOT EXISTS outbox_lease ON outbox (status, lease_until_ms);
CREATE INDEX IF NOT EXISTS outbox_sent ON outbox (status, sent_ms);
CREATE INDEX IF NOT EXISTS outbox_ts ON outbox (ts);
`;

/** The table of marks. Marks with a seq belong to the Rust library's `SqliteExactlyOnce`, which purges them itself. */
const DEDUPE_SQL = `CREATE TABLE IF NOT EXISTS prombus_dedupe (
  topic TEXT NOT NULL,
  consumer TEXT NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER,
  expires_ms INTEGER NOT NULL,
  PRIMARY KEY (topic, consumer, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS prombus_dedupe_expires ON prombus_dedupe (expires_ms);
`;

const BUSY_TIMEOUT_MS = 5_000;
const PURGE_ROWS = 1_000;
const MAX_ERROR_CHARS = 1_000;

/**
 * Opens a database with `node:sqlite`, or with better-sqlite3 if `node:sqlite` is missing. The database is in WAL mode, commits
 * survive a power cut, and statements wait up to 5 s for locks of other processes.
 */
export async function openDatabase(path: string): Promise<SqliteDatabase> {
  const database = await open(path);
  database.exec(`PRAGMA busy_timeout = ${BUSY_TIMEOUT_MS}; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL`);
  return database;
}

async function open(path: string): Promise<SqliteDatabase> {
  const reasons: string[] = [];
  try {
    const { DatabaseSync } = await importModule<{ DatabaseSync: SqliteConstructor }>("node:sqlite");
    return new DatabaseSync(path);
  } catch (thrown) {
    if (!isMissing(thrown)) throw thrown;
    reasons.push("node:sqlite needs Node 22.5 or later");
  }
  let Database: SqliteConstructor;
  try {
    ({ default: Database } = await importModule<{ default: SqliteConstructor }>("better-sqlite3"));
  } catch (thrown) {
    if (!isMissing(thrown)) throw thrown;
    reasons.push("better-sqlite3 is not installed");
    throw new PrombusError("internal", `no SQLite driver found: ${reasons.join(", and ")}`, { cause: thrown });
  }
  return new Database(path);
}

type SqliteConstructor = new (path: string) => SqliteDatabase;

/** Imports an optional module. Its name is a variable, so that compilers and bundlers do not try to resolve it. */
async function importModule<M>(name: string): Promise<M> {
  return (await import(name)) as M;
}

function isMissing(thrown: unknown): boolean {
  const { code } = (thrown ?? {}) as { code?: unknown };
  return code === "ERR_UNKNOWN_BUILTIN_MODULE" || code === "ERR_MODULE_NOT_FOUND" || code === "MODULE_NOT_FOUND";
}

export interface SqliteOutboxOptions {
  /** Name of this drainer in the rows that it claimed. Must be unique among running drainers. Default: a unique name. */
  worker?: string;
  /** How long a claimed row is leased to this drainer; default 30,000. */
  leaseMs?: Millis;
  /** After this many failed attempts a row is dead: it is not tried again. Default 10. */
  maxAttempts?: number;
  /** How long sent rows are kept; default one day. 0 deletes a row when it is sent. */
  keepSentMs?: Millis;
}

interface OutboxRow {
  id: unknown;
  topic: unknown;
  payload: unknown;
  headers: unknown;
  key: unknown;
  ts: unknown;
  attempts: number;
}

/**
 * The table `outbox` of a SQLite database, for `runOutboxDrainer`.
 *
 * ```ts
 * const database = await openDatabase("shop.db");
 * const outbox = new SqliteOutbox(database);
 * database.exec("BEGIN");
 * database.prepare("INSERT INTO orders (id, item) VALUES (?, ?)").run("order-17", 7);
 * outbox.add({ id: "order-17", topic: "orders", payload: { item: 7 } });
 * database.exec("COMMIT");
 * ```
 *
 * The drainer uses its own transactions on the same connection. A service that keeps a transaction open across an `await` needs a
 * second connection for its drainer.
 */
export class SqliteOutbox<T = unknown> implements OutboxStore<T> {
  readonly worker: string;
  readonly #database: SqliteDatabase;
  readonly #statements = new Map<string, SqliteStatement>();
  readonly #leaseMs: Millis;
  readonly #maxAttempts: number;
  readonly #keepSentMs: Millis;

  /** Creates the table if it does not exist. */
  constructor(database: SqliteDatabase, options: SqliteOutboxOptions = {}) {
    this.#database = database;
    this.worker = options.worker ?? uuidv7();
    this.#leaseMs = options.leaseMs ?? 30_000;
    this.#maxAttempts = Math.max(1, options.maxAttempts ?? 10);
    this.#keepSentMs = options.keepSentMs ?? 24 * 3_600_000;
    database.exec(OUTBOX_SQL);
  }

  /**
   * Adds a row, within the caller's transaction if there is one: the row exists when that transaction has committed. Throws if a row
   * with this id exists.
   */
  add(rec: OutboxRecord<T>): void {
    const payload: string | undefined = JSON.stringify(rec.payload);
    if (payload === undefined) {
      throw new PrombusError("invalid_payload", `the payload for ${rec.topic} cannot be written as JSON`);
    }
    const headers = rec.headers === undefined ? null : JSON.stringify(rec.headers);
    const sql = "INSERT INTO outbox (id, topic, payload, headers, key, ts) VALUES (?, ?, ?, ?, ?, ?)";
    this.#prepare(sql).run(rec.id, rec.topic, payload, headers, rec.key ?? null, rec.ts ?? Date.now());
  }

  async claimBatch(n: number): Promise<OutboxRecord<T>[]> {
    const now = Date.now();
    // Without due rows, no transaction is started: an idle drainer must not keep the service from writing.
    if (this.#due(now, 1).length === 0) return [];
    return this.#transact(() => {
      const claim = this.#prepare(`UPDATE outbox SET status = 'claimed', worker = ?, lease_until_ms = ?
        WHERE rowid = ? RETURNING id, topic, payload, headers, key, ts, attempts`);
      const records: OutboxRecord<T>[] = [];
      for (const rowid of this.#due(now, n)) {
        const row = claim.get(this.worker, now + this.#leaseMs, rowid) as OutboxRow;
        try {
          records.push(recordOf<T>(row));
        } catch (thrown) {
          // An invalid row must not block the other rows.
          const sql = `UPDATE outbox SET status = 'dead', worker = NULL, lease_until_ms = 0, next_attempt_ms = 0,
            attempts = attempts + 1, last_err = ? WHERE rowid = ?`;
          this.#prepare(sql).run(shortened((thrown as Error).message), rowid);
        }
      }
      return records;
    });
  }

  async markSent(id: UUID): Promise<void> {
    await this.markSentBatch([id]);
  }

  async markSentBatch(ids: UUID[]): Promise<void> {
    this.#transact(() => {
      const held = "WHERE id = ? AND worker = ? AND status = 'claimed'";
      if (this.#keepSentMs <= 0) {
        for (const id of ids) this.#prepare(`DELETE FROM outbox ${held}`).run(id, this.worker);
        return;
      }
      const sql = `UPDATE outbox SET status = 'sent', sent_ms = ?, worker = NULL, lease_until_ms = 0, last_err = NULL ${held}`;
      for (const id of ids) this.#prepare(sql).run(Date.now(), id, this.worker);
    });
  }

  async markError(id: UUID, err: string, isPermanent = false): Promise<void> {
    this.#transact(() => {
      const failed = this.#prepare(`UPDATE outbox SET attempts = attempts + 1
        WHERE id = ? AND worker = ? AND status = 'claimed' RETURNING rowid, attempts`).get(id, this.worker);
      // This drainer's lease has expired, and another drainer may have claimed the row.
      if (failed === undefined || failed === null) return;
      const { rowid, attempts } = failed as { rowid: number; attempts: number };
      const isDead = isPermanent || attempts >= this.#maxAttempts;
      const sql = `UPDATE outbox SET status = ?, worker = NULL, lease_until_ms = 0, last_err = ?, next_attempt_ms = ?
        WHERE rowid = ?`;
      const nextAttemptMs = isDead ? 0 : Date.now() + backoffMs(attempts);
      this.#prepare(sql).run(isDead ? "dead" : "error", shortened(err), nextAttemptMs, rowid);
    });
  }

  async release(ids: UUID[], reason: string): Promise<void> {
    this.#transact(() => {
      const sql = `UPDATE outbox SET status = 'pending', worker = NULL, lease_until_ms = 0, last_err = ?
        WHERE id = ? AND worker = ? AND status = 'claimed'`;
      for (const id of ids) this.#prepare(sql).run(shortened(reason), id, this.worker);
    });
  }

  async requeueExpired(): Promise<number> {
    const now = Date.now();
    const expired = "FROM outbox WHERE status = 'claimed' AND lease_until_ms <= ?";
    const { found } = this.#prepare(`SELECT EXISTS (SELECT 1 ${expired}) AS found`).get(now) as { found: number };
    if (found === 0) return 0;
    const sql = `UPDATE outbox SET status = 'pending', worker = NULL, lease_until_ms = 0, next_attempt_ms = 0
      WHERE status = 'claimed' AND lease_until_ms <= ?`;
    return Number(this.#prepare(sql).run(now).changes);
  }

  async purgeSent(): Promise<number> {
    const sql = `DELETE FROM outbox WHERE rowid IN
      (SELECT rowid FROM outbox WHERE status = 'sent' AND sent_ms <= ? LIMIT ${PURGE_ROWS})`;
    let count = 0;
    for (let purged = PURGE_ROWS; purged === PURGE_ROWS; count += purged) {
      purged = Number(this.#prepare(sql).run(Date.now() - this.#keepSentMs).changes);
    }
    return count;
  }

  /** How many rows have each status. */
  counts(): Record<string, number> {
    const rows = this.#prepare("SELECT status, count(*) AS n FROM outbox GROUP BY status").all() as { status: string; n: number }[];
    return Object.fromEntries(rows.map(({ status, n }) => [status, n]));
  }

  /** Selects up to `n` due rows, failed ones in preference to new ones. Returns their rowids in insertion order. */
  #due(now: Millis, n: number): number[] {
    const sql = `SELECT rowid FROM outbox WHERE status = ? AND next_attempt_ms <= ?
      ORDER BY next_attempt_ms, rowid LIMIT ?`;
    const rowids: number[] = [];
    for (const status of ["error", "pending"]) {
      const rows = this.#prepare(sql).all(status, now, n - rowids.length) as { rowid: number }[];
      rowids.push(...rows.map(({ rowid }) => rowid));
    }
    return rowids.sort((a, b) => a - b);
  }

  #transact<R>(work: () => R): R {
    this.#database.exec("BEGIN IMMEDIATE");
    try {
      const result = work();
      this.#database.exec("COMMIT");
      return result;
    } catch (thrown) {
      this.#database.exec("ROLLBACK");
      throw thrown;
    }
  }

  #prepare(sql: string): SqliteStatement {
    let statement = this.#statements.get(sql);
    if (statement === undefined) this.#statements.set(sql, (statement = this.#database.prepare(sql)));
    return statement;
  }
}

/** Stores the marks of `subscribeExactlyOnce` in a SQLite database. */
export class SqliteDedupe implements DedupeStore {
  readonly #database: SqliteDatabase;
  #marked = 0;

  /** Creates the table `prombus_dedupe` if it does not exist. */
  constructor(database: SqliteDatabase) {
    this.#database = database;
    database.exec(DEDUPE_SQL);
  }

  async seen(topic: string, group: string, id: string): Promise<boolean> {
    const sql = "SELECT 1 AS found FROM prombus_dedupe WHERE topic = ? AND consumer = ? AND id = ? AND expires_ms > ?";
    return this.#database.prepare(sql).all(topic, group, id, Date.now()).length > 0;
  }

  /** Resolves when the mark is durable. */
  async mark(topic: string, group: string, id: string, ttlMs: Millis = DEDUPE_TTL_MS): Promise<void> {
    const now = Date.now();
    if (this.#marked++ % PURGE_ROWS === 0) this.purge();
    const sql = `INSERT INTO prombus_dedupe (topic, consumer, id, expires_ms) VALUES (?, ?, ?, ?)
      ON CONFLICT DO UPDATE SET expires_ms = excluded.expires_ms WHERE expires_ms <= ?`;
    this.#database.prepare(sql).run(topic, group, id, now + ttlMs, now);
  }

  /** Deletes expired marks, at most 1,000. Returns how many it deleted. */
  purge(): number {
    const sql = `DELETE FROM prombus_dedupe WHERE (topic, consumer, id) IN (
      SELECT topic, consumer, id FROM prombus_dedupe WHERE expires_ms <= ? AND seq IS NULL LIMIT ${PURGE_ROWS})`;
    return Number(this.#database.prepare(sql).run(Date.now()).changes);
  }
}

/** Converts a row to a record. Checks every column, because other programs may have written the row. */
function recordOf<T>(row: OutboxRow): OutboxRecord<T> {
  const record: OutboxRecord<T> = {
    id: required(row.id, "id"),
    topic: required(row.topic, "topic"),
    payload: parsed(required(row.payload, "payload"), "payload") as T,
    attempts: row.attempts,
  };
  const key = text(row.key, "key");
  if (key !== undefined) record.key = key;
  const headers = text(row.headers, "headers");
  if (headers !== undefined) record.headers = headersOf(headers);
  if (row.ts !== null) {
    if (!Number.isSafeInteger(row.ts)) throw new Error("the ts is not a whole number");
    record.ts = row.ts as Millis;
  }
  return record;
}

function headersOf(json: string): Record<string, string> {
  const headers = parsed(json, "headers");
  const isObject = typeof headers === "object" && headers !== null && !Array.isArray(headers);
  if (!isObject || !Object.values(headers).every((value) => typeof value === "string")) {
    throw new Error("the headers are not a JSON object of strings");
  }
  return headers as Record<string, string>;
}

function parsed(json: string, name: string): unknown {
  try {
    return JSON.parse(json);
  } catch (thrown) {
    throw new Error(`the ${name} is not JSON: ${(thrown as Error).message}`);
  }
}

function required(value: unknown, name: string): string {
  const found = text(value, name);
  if (found === undefined) throw new Error(`the ${name} is NULL`);
  return found;
}

/** The text of a column; undefined if it is NULL. Accepts a blob, because another program may have written the text as one. */
function text(value: unknown, name: string): string | undefined {
  if (value === null) return undefined;
  if (typeof value === "string") return value;
  if (!(value instanceof Uint8Array)) throw new Error(`the ${name} is a number, not a string`);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(value);
  } catch {
    throw new Error(`the ${name} is not UTF-8`);
  }
}

/** The wait after a failed attempt: 100 ms, doubled with each further attempt up to 30 s, with ±20 % jitter. */
function backoffMs(attempts: number): Millis {
  const full = Math.min(100 * 2 ** Math.min(attempts - 1, 16), 30_000);
  return Math.round(full * (0.8 + Math.random() * 0.4));
}

function shortened(error: string): string {
  return [...error].slice(0, MAX_ERROR_CHARS).join("");
}
