/** Events of a server that stores in MongoDB, read from the database. */
import type { Db } from "mongodb";
import { PrombusError } from "../errors.js";
import type { EventStore } from "../promethean/types.js";
import type { EventRecord, Millis, StoredEvent, UUID } from "../types.js";
import { type EventDocument, eventOf } from "./event-document.js";
import { eventKey, keptIn, seqOf } from "./event-keys.js";
import { EventSearch } from "./event-search.js";
import { PLAIN_NUMBERS } from "./options.js";
import { ReadableEvents, type ReadableTopic } from "./readable.js";

const EVENTS = "events";
const SCAN_LIMIT = 1_000;
/** The index of events with keys. */
const KEYS_INDEX = "keys";
/** Keys whose newest events are looked up at once. */
const KEYS_AT_ONCE = 32;
/** Events of one query by `_id`. */
const SEQS_AT_ONCE = 1_000;

/**
 * Reads the collections that `prombus serve --store mongodb://…` writes. It never writes to them: publish through the server.
 *
 * A reader sees events of whole commits that a majority of the replica set has: never a part of a commit, nothing that a failover
 * takes back, and not the ids that cleaned events leave behind. It may see an event a moment before its publish is answered. A new
 * topic appears, and a deleted one disappears, within about a second. All reads go to the primary and use indexes. Where the gateway
 * can answer, `HttpEventStore` asks it instead.
 */
export class MongoEventStore implements EventStore {
  readonly #readable: ReadableEvents;
  readonly #search: EventSearch;

  /** With `mongodb.prefix`, the name of the collection is the prefix and `events`. */
  constructor(db: Db, collectionName = EVENTS) {
    if (!collectionName.endsWith(EVENTS)) {
      throw new PrombusError("bad_request", `the name of the collection is mongodb.prefix and "${EVENTS}": ${collectionName}`);
    }
    this.#readable = new ReadableEvents(db, collectionName.slice(0, -EVENTS.length));
    this.#search = new EventSearch(this.#readable.events);
  }

  /** Does nothing: the server creates the collections and their indexes. */
  static async ensureIndexes(_db: Db, _name = EVENTS): Promise<void> {}

  /** Always rejects: the server owns the collection. */
  async insert<T>(_e: EventRecord<T>): Promise<void> {
    throw new PrombusError(
      "method_not_allowed",
      "MongoEventStore only reads: publish through the server, with client.publish() or HttpEventStore",
    );
  }

  /**
   * Events in commit order, after `afterId` or from the first event of `ts` or later; `afterId` takes precedence. At most `limit`,
   * 1,000 by default. Rejects with `unknown_id` if the topic has no event `afterId`.
   */
  async scan(topic: string, params: { afterId?: UUID; ts?: Millis; limit?: number } = {}): Promise<StoredEvent[]> {
    const { afterId, ts, limit = SCAN_LIMIT } = params;
    const readable = await this.#readable.topic(topic);
    const firstSeq = readable && await this.#start(readable, afterId, ts);
    if (afterId !== undefined && firstSeq === undefined) {
      throw new PrombusError("unknown_id", `${topic} has no event with the id ${afterId}`);
    }
    if (readable === undefined || firstSeq === undefined || limit <= 0) return [];
    return this.#find(keptIn(readable.topicNo, { ...readable, firstSeq }), limit);
  }

  /** The first seq of a scan; `undefined` if there is no such event. */
  async #start(topic: ReadableTopic, afterId: UUID | undefined, ts: Millis | undefined): Promise<number | undefined> {
    if (afterId !== undefined) {
      const seq = await this.#search.seqOfId(topic, afterId);
      return seq === undefined ? undefined : Math.max(seq + 1, topic.firstSeq);
    }
    return ts === undefined ? topic.firstSeq : this.#search.seqOfTime(topic, ts);
  }

  /** The newest event of each key; of all keys if none are given. A key whose newest payload is `null` is deleted and left out. */
  async latestByKey(topic: string, keys: string[] = []): Promise<Record<string, EventRecord | undefined>> {
    const readable = await this.#readable.topic(topic);
    if (readable === undefined) return {};
    const seqs = keys.length === 0 ? await this.#newestOfAll(readable) : await this.#newestOf(readable, [...new Set(keys)]);
    const latest: [string, EventRecord][] = [];
    for (const part of chunks(seqs, SEQS_AT_ONCE)) {
      const ids = part.map((seq) => eventKey(readable.topicNo, seq));
      for (const event of await this.#find({ _id: { $in: ids }, expire_at: { $exists: false } }, ids.length)) {
        if (event.payload !== null) latest.push([event.key as string, event]);
      }
    }
    return Object.fromEntries(latest);
  }

  /** The seqs of the newest events of these keys. */
  async #newestOf(topic: ReadableTopic, keys: string[]): Promise<number[]> {
    const newest = (key: string): Promise<EventDocument | null> => this.#readable.events.findOne(
      { topic_no: topic.topicNo, key, seq: { $gte: topic.firstSeq, $lte: topic.lastSeq } } as Record<string, unknown>,
      { sort: { seq: -1 }, projection: { _id: 1 }, hint: KEYS_INDEX },
    );
    const seqs: number[] = [];
    for (const part of chunks(keys, KEYS_AT_ONCE)) {
      for (const found of await Promise.all(part.map(newest))) {
        if (found !== null) seqs.push(seqOf(found));
      }
    }
    return seqs;
  }

  /** The same for all keys. It reads the topic's part of the index, and no events. */
  async #newestOfAll(topic: ReadableTopic): Promise<number[]> {
    const stages = [
      { $match: { topic_no: topic.topicNo, key: { $gte: "" }, seq: { $gte: topic.firstSeq, $lte: topic.lastSeq } } },
      { $group: { _id: "$key", seq: { $max: "$seq" } } },
    ];
    const options = { hint: KEYS_INDEX, allowDiskUse: true, ...PLAIN_NUMBERS };
    const found = await this.#readable.events.aggregate<{ seq: number }>(stages, options).toArray();
    return found.map(({ seq }) => seq).sort((one, other) => one - other);
  }

  async #find(filter: Record<string, unknown>, limit: number): Promise<StoredEvent[]> {
    const options = { sort: { _id: 1 }, limit, projection: { payload: 0 }, ...PLAIN_NUMBERS } as const;
    return (await this.#readable.events.find(filter, options).toArray()).map(eventOf);
  }
}

function chunks<T>(list: T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(list.length / size) }, (_, part) => list.slice(part * size, (part + 1) * size));
}
