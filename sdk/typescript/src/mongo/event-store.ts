/** Reads the events of a server that uses the MongoDB engine, directly from the database. */
import type { Db } from "mongodb";
import { PrombusError } from "../errors.js";
import type { EventStore } from "../promethean/types.js";
import type { EventRecord, Millis, StoredEvent, UUID } from "../types.js";
import { type EventDocument, eventOf } from "./event-document.js";
import { keptIn } from "./event-keys.js";
import { EventSearch } from "./event-search.js";
import { PLAIN_NUMBERS } from "./options.js";
import { ReadableEvents, type ReadableTopic } from "./readable.js";

const EVENTS = "events";
const SCAN_LIMIT = 1_000;
/** The name of the index of events with keys. */
const KEYS_INDEX = "keys";
/** How many keys are looked up in parallel. */
const KEYS_AT_ONCE = 32;
/** Events per query when the newest events of all keys are read. */
const EVENTS_AT_ONCE = 200;
const FIND = { projection: { payload: 0 }, ...PLAIN_NUMBERS } as const;

/**
 * Reads the collections that `prombus serve --store mongodb://…` writes. The store never writes to them: publish through the server.
 *
 * The store returns only events of complete commits that a majority of the replica set has. So it never returns events that a failover
 * could roll back, and it does not return a part of a commit, except in one rare case that `readable.ts` describes. An event may be
 * visible shortly before its publish is answered. A new topic appears, and a deleted one disappears, within about a second. All reads
 * go to the primary and use indexes. To read through the server instead, use `HttpEventStore`.
 */
export class MongoEventStore implements EventStore {
  readonly #readable: ReadableEvents;
  readonly #search: EventSearch;

  /** If the server sets `mongodb.prefix`, the collection name is that prefix followed by `events`. */
  constructor(db: Db, collectionName = EVENTS) {
    if (!collectionName.endsWith(EVENTS)) {
      throw new PrombusError("bad_request", `collection name ${collectionName}: must be mongodb.prefix followed by "${EVENTS}"`);
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
   * Returns events in commit order: those after `afterId`, or those with the time `ts` or later, or all. `afterId` takes precedence
   * over `ts`. Returns at most `limit` events, 1,000 by default. Rejects with `unknown_id` if the topic has no event `afterId`.
   */
  async scan(topic: string, params: { afterId?: UUID; ts?: Millis; limit?: number } = {}): Promise<StoredEvent[]> {
    const { afterId, ts, limit = SCAN_LIMIT } = params;
    const readable = await this.#readable.topic(topic);
    const firstSeq = readable && await this.#start(readable, afterId, ts);
    if (afterId !== undefined && firstSeq === undefined) {
      throw new PrombusError("unknown_id", `${topic} has no event with the id ${afterId}`);
    }
    if (readable === undefined || firstSeq === undefined || limit <= 0) return [];
    const kept = keptIn(readable.topicNo, { ...readable, firstSeq });
    const filter = afterId === undefined && ts !== undefined ? { ...kept, ts: { $gte: ts } } : kept;
    const documents = await this.#readable.events.find(filter, { ...FIND, sort: { _id: 1 }, limit }).toArray();
    return documents.map(eventOf);
  }

  /** The first seq of a scan; `undefined` if no event qualifies. */
  async #start(topic: ReadableTopic, afterId: UUID | undefined, ts: Millis | undefined): Promise<number | undefined> {
    if (afterId !== undefined) {
      const seq = await this.#search.seqOfId(topic, afterId);
      return seq === undefined ? undefined : Math.max(seq + 1, topic.firstSeq);
    }
    return ts === undefined ? topic.firstSeq : this.#search.seqOfTime(topic, ts);
  }

  /**
   * The newest event of each key in `keys`, or of every key of the topic if `keys` is empty. Omits deleted keys, whose newest payload is
   * `null`. Ignores events for one group (with an `addressee`), as the server's states do.
   */
  async latestByKey(topic: string, keys: string[] = []): Promise<Record<string, EventRecord | undefined>> {
    const readable = await this.#readable.topic(topic);
    if (readable === undefined) return {};
    const documents = keys.length === 0 ? await this.#newestOfAll(readable) : await this.#newestOf(readable, [...new Set(keys)]);
    const latest = documents.map(eventOf).filter(({ payload }) => payload !== null);
    return Object.fromEntries(latest.map((event) => [event.key as string, event]));
  }

  async #newestOf(topic: ReadableTopic, keys: string[]): Promise<EventDocument[]> {
    const newest = (key: string): Promise<EventDocument | null> => {
      const filter = keyed(topic, { key, addressee: { $exists: false } });
      return this.#readable.events.findOne(filter, { ...FIND, sort: { seq: -1 }, hint: KEYS_INDEX });
    };
    const documents: EventDocument[] = [];
    for (const part of chunks(keys, KEYS_AT_ONCE)) {
      for (const found of await Promise.all(part.map(newest))) {
        if (found !== null) documents.push(found);
      }
    }
    return documents;
  }

  /**
   * First reads only the index to find the newest seq of each key, then one event per key. The index does not contain the addressee,
   * so keys whose newest event is for one group are looked up again, one by one.
   */
  async #newestOfAll(topic: ReadableTopic): Promise<EventDocument[]> {
    const stages = [
      { $match: keyed(topic, { key: { $gte: "" } }) },
      { $group: { _id: "$key", seq: { $max: "$seq" } } },
    ];
    const options = { hint: KEYS_INDEX, allowDiskUse: true, ...PLAIN_NUMBERS };
    const found = await this.#readable.events.aggregate<{ _id: string; seq: number }>(stages, options).toArray();
    const documents: EventDocument[] = [];
    for (const part of chunks(found, EVENTS_AT_ONCE)) {
      // On a clustered collection, `$in` on `_id` would read the whole collection.
      const $or = part.map(({ _id: key, seq }) => ({ topic_no: topic.topicNo, key, seq }));
      documents.push(...await this.#readable.events.find({ $or }, { ...FIND, hint: KEYS_INDEX }).toArray());
    }
    const addressed = documents.filter(({ addressee }) => addressee !== undefined);
    if (addressed.length === 0) return documents;
    const others = documents.filter(({ addressee }) => addressee === undefined);
    return [...others, ...await this.#newestOf(topic, addressed.map(({ key }) => key as string))];
  }
}

/** A filter for events that have keys. The index of keys can serve it. */
function keyed({ topicNo, firstSeq, lastSeq }: ReadableTopic, filter: Record<string, unknown>): Record<string, unknown> {
  return { topic_no: topicNo, ...filter, seq: { $gte: firstSeq, $lte: lastSeq } };
}

function chunks<T>(list: T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(list.length / size) }, (_, part) => list.slice(part * size, (part + 1) * size));
}
