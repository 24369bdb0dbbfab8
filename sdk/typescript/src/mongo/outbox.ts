/**
 * The outbox of a service in its own MongoDB database.
 *
 * A claimed row contains the token of its claim and belongs to the drainer that made the claim. All lease times are from the database's
 * clock, so the clocks of drainers need not agree. Every write waits until a majority has journaled it.
 */
import type { ClientSession, Collection, Db, Document, Filter } from "mongodb";
import { messageOf, PrombusError } from "../errors.js";
import type { OutboxRecord, OutboxStore } from "../outbox.js";
import type { Millis, UUID } from "../types.js";
import { uuidv7 } from "../uuid.js";
import { DURABLE, PLAIN_NUMBERS } from "./options.js";
import { integerOf, storedPayload } from "./payload.js";
import { type OutboxRow, recordOf, ROW_OPTIONS, type RowId } from "./row.js";
import { RowWatch } from "./row-watch.js";

/** Options of {@link MongoOutbox}. */
export interface MongoOutboxOptions {
  /** Default `"outbox"`. */
  collection?: string;
  /** Name of this drainer in the rows that it claimed, for people. Default: a unique name. */
  worker?: string;
  /** How long a claimed row is leased to this drainer; default 30,000. */
  leaseMs?: Millis;
  /** After this many failed attempts a row is dead: it is not tried again. Default 10. */
  maxAttempts?: number;
  /** How long sent rows are kept; default one day. 0 deletes a row when it is sent. */
  keepSentMs?: Millis;
}

/** Options of `MongoOutbox.add`. */
export interface MongoOutboxAddOptions {
  /** The row is part of this session's transaction: it exists when that transaction has committed. */
  session?: ClientSession;
}

/** A row that this drainer has claimed. */
interface Claim {
  _id: RowId;
  token: string;
  /** By the clock of this process, for {@link MongoOutbox.#forgetOldClaims}. */
  claimedAt: Millis;
}

const STATUSES = ["pending", "claimed", "sent", "error", "dead"];
const MAX_ERROR_CHARS = 1_000;
/** How many times a batch claim is tried. It claims nothing if other drainers claim all its rows first. */
const CLAIM_ATTEMPTS = 5;
/** A claim that is not settled after this many lease durations is forgotten. */
const CLAIM_LEASES_MAX = 10;
/** With a change stream, an idle drainer polls after this time in any case. */
const IDLE_MAX_MS = 5_000;
/** Without a change stream, an idle drainer waits up to this many intervals. */
const POLL_INTERVALS_MAX = 16;
/** The longest pause of a drainer that found rows but claimed none, because other drainers claimed them first. */
const CONTENDED_MS = 20;

const EXPIRED = { $expr: { $lte: ["$lease_until", "$$NOW"] } };
const UNCLAIM = { $unset: ["worker", "claim", "lease_until"] };

/**
 * The collection `outbox` of a MongoDB database, for `runOutboxDrainer`. The Rust library drains the same collection.
 *
 * ```ts
 * const outbox = await MongoOutbox.open(client.db("shop"));
 * await client.withSession((session) => session.withTransaction(async () => {
 *   await client.db("shop").collection("orders").insertOne({ item: "tea" }, { session });
 *   await outbox.add({ id: "order-17", topic: "orders", payload: { item: "tea" } }, { session });
 * }));
 * ```
 *
 * Transactions need a replica set. Use one object per drainer: the object keeps the drainer's claims, and a late `markSent` changes a
 * row only if its claim is still valid.
 *
 * A service in any language may insert rows with `topic` and `payload`, `status: "pending"`, and `id` or an `_id` that is a string or
 * an ObjectId. BSON types that JSON does not have are converted: a 64-bit integer to a number, or beyond 2^53 to a string of its
 * digits; a date to ISO 8601, an ObjectId to hex, a Decimal128 to its digits, binary data to base64. If a row has `payload_json`, a
 * JSON text, that text is used instead of `payload`; its numbers are parsed as JavaScript numbers. A row from which no event can be
 * made becomes `dead`.
 */
export class MongoOutbox<T = unknown> implements OutboxStore<T> {
  readonly worker: string;
  readonly #collection: Collection<OutboxRow>;
  readonly #watch: RowWatch;
  readonly #leaseMs: Millis;
  readonly #maxAttempts: number;
  readonly #keepSentMs: Millis;
  /** The claims of this drainer, by record id. */
  readonly #claims = new Map<UUID, Claim>();
  /** The number of waits without a change stream since the last claimed row. */
  #idlePolls = 0;

  /** Call `init` before the first use, or use `MongoOutbox.open`. */
  constructor(db: Db, options: MongoOutboxOptions = {}) {
    this.worker = options.worker ?? uuidv7();
    this.#collection = db.collection<OutboxRow>(options.collection ?? "outbox", DURABLE);
    this.#watch = new RowWatch(db, this.#collection);
    this.#leaseMs = Math.round(options.leaseMs ?? 30_000);
    this.#maxAttempts = Math.max(1, options.maxAttempts ?? 10);
    this.#keepSentMs = Math.round(options.keepSentMs ?? 24 * 3_600_000);
  }

  /** Creates an outbox, with its collection and indexes if they do not exist. */
  static async open<T = unknown>(db: Db, options: MongoOutboxOptions = {}): Promise<MongoOutbox<T>> {
    const outbox = new MongoOutbox<T>(db, options);
    await outbox.init();
    return outbox;
  }

  /** Creates the collection and its indexes if they do not exist. */
  async init(): Promise<void> {
    await this.#collection.createIndexes([
      { key: { status: 1, lease_until: 1 } },
      { key: { ts: 1 } },
      { key: { status: 1, ts: 1 } },
      { key: { expireAt: 1 }, expireAfterSeconds: 0 },
    ]);
  }

  /**
   * Adds a row, within the caller's transaction if `session` has one: the row exists when that transaction has committed. The payload
   * is stored as a publish would send it: dates, `undefined` and `toJSON` behave as in `JSON.stringify`. Rejects if a row with this id
   * exists.
   */
  async add(rec: OutboxRecord<T>, options: MongoOutboxAddOptions = {}): Promise<void> {
    const { id, topic, headers, key, ts = Date.now() } = rec;
    if (typeof id !== "string" || id === "") throw new PrombusError("bad_request", "an outbox row needs an id");
    const row: OutboxRow = { _id: id, id, topic, ...storedPayload(topic, rec.payload) };
    // The JSON round trip removes fields that are undefined.
    if (headers !== undefined) row["headers"] = JSON.parse(JSON.stringify(headers));
    if (key !== undefined) row["key"] = key;
    Object.assign(row, { ts: integerOf(ts), status: "pending", attempts: 0 });
    await this.#collection.insertOne(row, options.session === undefined ? {} : { session: options.session });
  }

  async claimBatch(n: number): Promise<OutboxRecord<T>[]> {
    let skip = 0;
    for (let attempt = 1; attempt <= CLAIM_ATTEMPTS && n > 0; attempt += 1) {
      const ids = await this.#due(n, skip);
      if (ids.length === 0 && skip === 0) return [];
      const token = crypto.randomUUID();
      const rows = ids.length === 0 ? [] : await this.#claim(ids, token);
      if (rows.length > 0) {
        this.#idlePolls = 0;
        return this.#recordsOf(rows, token);
      }
      // Other drainers claimed these rows first: the next attempt skips some rows, or starts over if it had skipped all of them.
      skip = ids.length === 0 ? 0 : 1 + Math.floor(Math.random() * n * 2 ** attempt);
    }
    return [];
  }

  /** Rows that are due: failed rows first, then new rows in the order of `ts`. */
  async #due(n: number, skip: number): Promise<RowId[]> {
    const find = (filter: Filter<OutboxRow>, by: string): Promise<OutboxRow[]> =>
      this.#collection.find(filter, { projection: { _id: 1 }, sort: { [by]: 1 }, skip, limit: n, ...ROW_OPTIONS }).toArray();
    const [failed, pending] = await Promise.all([
      find({ status: "error", ...EXPIRED }, "lease_until"),
      find({ status: "pending" }, "ts"),
    ]);
    return [...failed, ...pending].slice(0, n).map(({ _id }) => _id);
  }

  /** Claims the rows with these ids, except those that another drainer has claimed in the meantime. */
  async #claim(ids: RowId[], token: string): Promise<OutboxRow[]> {
    const claimed = {
      status: "claimed", worker: { $literal: this.worker }, claim: token, lease_until: { $add: ["$$NOW", this.#leaseMs] },
    };
    const due = { _id: { $in: ids }, status: { $in: ["pending", "error"] } };
    const { modifiedCount } = await this.#collection.updateMany(due, [{ $set: claimed }]);
    if (modifiedCount === 0) return [];
    const rows = await this.#collection.find({ _id: { $in: ids }, claim: token }, ROW_OPTIONS).toArray();
    const places = new Map(ids.map((id, place) => [String(id), place]));
    const place = (row: OutboxRow): number => places.get(String(row._id)) ?? 0;
    return rows.sort((one, other) => tsOf(one) - tsOf(other) || place(one) - place(other));
  }

  async #recordsOf(rows: OutboxRow[], token: string): Promise<OutboxRecord<T>[]> {
    this.#forgetOldClaims();
    const records: OutboxRecord<T>[] = [];
    const others: Promise<unknown>[] = [];
    for (const row of rows) {
      let record: OutboxRecord<T>;
      try {
        record = recordOf<T>(row);
      } catch (thrown) {
        // An invalid row must not block the other rows.
        others.push(this.#fail(row._id, token, messageOf(thrown), true));
        continue;
      }
      if (this.#isHeldByOther(record.id, row._id)) {
        // Two rows have the same id: this row waits until the other one is settled.
        others.push(this.#collection.updateOne(held([row._id], token), [{ $set: { status: "pending" } }, UNCLAIM]));
        continue;
      }
      this.#claims.set(record.id, { _id: row._id, token, claimedAt: performance.now() });
      records.push(record);
    }
    const failed = (await Promise.allSettled(others)).find((result) => result.status === "rejected");
    // If there are records to return, the failure is ignored: the other rows are due again when their leases expire.
    if (failed !== undefined && records.length === 0) throw failed.reason;
    return records;
  }

  /** Whether this drainer has claimed another row with this id. */
  #isHeldByOther(id: UUID, rowId: RowId): boolean {
    const claim = this.#claims.get(id);
    if (claim === undefined || performance.now() - claim.claimedAt > this.#leaseMs) return false;
    return typeof claim._id !== typeof rowId || String(claim._id) !== String(rowId);
  }

  /** Removes claims that could not be settled and whose leases expired long ago. */
  #forgetOldClaims(): void {
    const oldest = performance.now() - CLAIM_LEASES_MAX * this.#leaseMs;
    for (const [id, { claimedAt }] of this.#claims) {
      if (claimedAt < oldest) this.#claims.delete(id);
    }
  }

  async markSent(id: UUID): Promise<void> {
    await this.markSentBatch([id]);
  }

  async markSentBatch(ids: UUID[]): Promise<void> {
    const sent = { status: "sent", sent_at: "$$NOW", expireAt: { $add: ["$$NOW", this.#keepSentMs] } };
    await this.#settle(ids, (filter) => this.#keepSentMs <= 0
      ? this.#collection.deleteMany(filter)
      : this.#collection.updateMany(filter, [{ $set: sent }, UNCLAIM, { $unset: "last_err" }]));
  }

  async markError(id: UUID, err: string, isPermanent = false): Promise<void> {
    const claim = this.#claims.get(id);
    if (claim === undefined) return;
    await this.#fail(claim._id, claim.token, err, isPermanent);
    this.#claims.delete(id);
  }

  async release(ids: UUID[], reason: string): Promise<void> {
    const released = { status: "pending", last_err: { $literal: shortened(reason) } };
    await this.#settle(ids, (filter) => this.#collection.updateMany(filter, [{ $set: released }, UNCLAIM]));
  }

  async requeueExpired(): Promise<number> {
    const expired = { status: "claimed", ...EXPIRED };
    const { modifiedCount } = await this.#collection.updateMany(expired, [{ $set: { status: "pending" } }, UNCLAIM]);
    return modifiedCount;
  }

  /** Deletes expired sent rows at once; the TTL index does the same once a minute. */
  async purgeSent(): Promise<number> {
    const { deletedCount } = await this.#collection.deleteMany({ status: "sent", $expr: { $lte: ["$expireAt", "$$NOW"] } });
    return deletedCount;
  }

  /** How many rows have each status. */
  async counts(): Promise<Record<string, number>> {
    const stages = [{ $match: { status: { $in: STATUSES } } }, { $group: { _id: "$status", n: { $sum: 1 } } }];
    const found = await this.#collection.aggregate<{ _id: string; n: number }>(stages, PLAIN_NUMBERS).toArray();
    return Object.fromEntries(found.map(({ _id, n }) => [_id, n]));
  }

  /**
   * Waits until the change stream reports a row, the earliest lease or backoff ends, or 5 s have passed. On a standalone server, and
   * while a change stream cannot be opened, the drainer waits for `intervalMs`, doubling to at most 16 times that while there are no
   * rows.
   */
  async waitForRows(intervalMs: Millis, signal: AbortSignal): Promise<void> {
    // Open the stream before the query: it then reports every row that is inserted after the query.
    const isWatching = await this.#watch.open();
    const dueMs = await this.#nextDueMs();
    if (dueMs <= 0) return this.#watch.wait(Math.random() * CONTENDED_MS, signal);
    let ms = IDLE_MAX_MS;
    if (!isWatching) {
      ms = Math.max(1, intervalMs) * Math.min(2 ** this.#idlePolls, POLL_INTERVALS_MAX);
      this.#idlePolls += 1;
    }
    await this.#watch.wait(Math.min(ms, dueMs), signal);
  }

  /** Milliseconds until a row is due; 0 if one is due already, `Infinity` if there is none. */
  async #nextDueMs(): Promise<Millis> {
    const isDate = { $eq: [{ $type: "$lease_until" }, "date"] };
    const stages: Document[] = [
      { $match: { status: { $in: ["error", "claimed"] } } },
      { $sort: { lease_until: 1 } },
      { $limit: 1 },
      { $project: { _id: 0, ms: { $cond: [isDate, { $subtract: ["$lease_until", "$$NOW"] }, 0] } } },
    ];
    const [pending, [next]] = await Promise.all([
      this.#collection.findOne({ status: "pending" }, { projection: { _id: 1 } }),
      this.#collection.aggregate<{ ms: Millis }>(stages, PLAIN_NUMBERS).toArray(),
    ]);
    if (pending !== null) return 0;
    return next === undefined ? Infinity : Math.max(0, next.ms);
  }

  /** Closes the change stream. A drainer that still runs polls from then on. */
  async close(): Promise<void> {
    await this.#watch.close();
  }

  /** Applies an update to the rows with these record ids whose claims are still valid, and forgets the claims. */
  async #settle(ids: UUID[], update: (filter: Filter<OutboxRow>) => Promise<unknown>): Promise<void> {
    const byToken = new Map<string, RowId[]>();
    for (const id of ids) {
      const claim = this.#claims.get(id);
      if (claim === undefined) continue;
      const rows = byToken.get(claim.token);
      if (rows === undefined) byToken.set(claim.token, [claim._id]);
      else rows.push(claim._id);
    }
    await Promise.all([...byToken].map(([token, rows]) => update(held(rows, token))));
    for (const id of ids) this.#claims.delete(id);
  }

  /** Counts a failed attempt. The backoff is 100 ms, doubling to 30 s, with ±20 % jitter. */
  async #fail(_id: RowId, token: string, err: string, isPermanent: boolean): Promise<void> {
    const attempts = { $add: [{ $cond: [{ $isNumber: "$attempts" }, "$attempts", 0] }, 1] };
    const isDead = isPermanent ? true : { $gte: ["$attempts", this.#maxAttempts] };
    const full = { $min: [{ $multiply: [100, { $pow: [2, { $min: [{ $subtract: ["$attempts", 1] }, 16] }] }] }, 30_000] };
    const backoff = { $round: { $multiply: [full, 0.8 + Math.random() * 0.4] } };
    await this.#collection.updateOne(held([_id], token), [
      { $set: { attempts, last_err: { $literal: shortened(err) } } },
      {
        $set: {
          status: { $cond: [isDead, "dead", "error"] },
          lease_until: { $cond: [isDead, "$$REMOVE", { $add: ["$$NOW", backoff] }] },
        },
      },
      { $unset: ["worker", "claim"] },
    ]);
  }
}

/** A filter for rows that still belong to a claim. */
function held(rows: RowId[], token: string): Filter<OutboxRow> {
  return { _id: { $in: rows }, status: "claimed", claim: token };
}

function tsOf(row: OutboxRow): number {
  const ts = Number(row["ts"] ?? -Infinity);
  return Number.isNaN(ts) ? -Infinity : ts;
}

function shortened(error: string): string {
  return [...error].slice(0, MAX_ERROR_CHARS).join("");
}
