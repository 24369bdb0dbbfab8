/**
 * Decides which events of a store are readable.
 *
 * A server writes a commit as one ordered bulk of documents: first its fence, which takes the commit's number; then its events; then
 * its records, which contain changes of topics and groups. While the bulk runs, and if it was interrupted, some of its events exist
 * although the commit is incomplete. So events are readable only up to the newest commit whose last document exists. Only the newest
 * commit can be incomplete: the server sends the next one only when it knows that the previous one is complete, or after it has marked
 * the previous fence as void. Snapshots of the state of topics and groups replace older records, and a snapshot contains only complete
 * commits.
 *
 * One case remains: if a bulk takes longer than its fence allows, a new leader can void the commit just as the bulk completes. A
 * reader at that moment can see events of the voided commit.
 */
import type { Collection, Db } from "mongodb";
import type { EventDocument } from "./event-document.js";
import { eventKey, FENCES, keptIn, RECORDS, type SeqRange, seqOf } from "./event-keys.js";
import { MAJORITY, PLAIN_NUMBERS } from "./options.js";

/** Maximum number of record documents per commit. The seq of a commit's first record document is the commit's number times this. */
const RECORD_PIECES_MAX = 256;

interface TopicDocument {
  /** The topic's number. */
  _id: number;
  name: string;
  first_seq: number;
}

/** The first document of a commit. */
type FenceDocument = EventDocument & { records: number; void?: boolean };

/** A topic and its readable range. */
export interface ReadableTopic extends SeqRange {
  readonly topicNo: number;
}

export class ReadableEvents {
  readonly events: Collection<EventDocument>;
  readonly #topics: Collection<TopicDocument>;
  readonly #snapshots: Collection<{ _id: { n: number; piece: number } }>;

  /** `prefix` is `mongodb.prefix` of the server. */
  constructor(db: Db, prefix: string) {
    this.events = db.collection<EventDocument>(`${prefix}events`, MAJORITY);
    this.#topics = db.collection<TopicDocument>(`${prefix}topics`, MAJORITY);
    this.#snapshots = db.collection(`${prefix}snapshots`, MAJORITY);
  }

  /** Returns the readable range of a topic; `undefined` if the topic does not exist or has no readable event. */
  async topic(name: string): Promise<ReadableTopic | undefined> {
    // A topic that was deleted and created again may briefly have two documents.
    const [topic, commit] = await Promise.all([
      this.#topics.findOne({ name }, { sort: { _id: -1 }, ...PLAIN_NUMBERS }),
      this.#newestCommit(),
    ]);
    if (topic === null) return undefined;
    const { _id: topicNo, first_seq: firstSeq } = topic;
    let lastSeq = Number.MAX_SAFE_INTEGER;
    for (;;) {
      const found = await this.events.findOne(
        { ...keptIn(topicNo, { firstSeq, lastSeq }), commit: { $lte: commit } },
        { sort: { _id: -1 }, projection: { commit: 1 }, ...PLAIN_NUMBERS },
      );
      if (found === null) return undefined;
      lastSeq = seqOf(found);
      if (!(await this.#isVoid(found.commit))) return { topicNo, firstSeq, lastSeq };
      // The event was written by a bulk that continued after its commit had been voided.
      lastSeq -= 1;
    }
  }

  /**
   * The number of the newest complete commit; 0 if there is none. Ignores the fence of a new leader's takeover, which has no records.
   */
  async #newestCommit(): Promise<number> {
    const fences = await this.#fences({ records: { $gt: 0 }, void: { $ne: true } });
    const [newest, before] = fences;
    if (newest !== undefined) {
      const number = seqOf(newest);
      const last = eventKey(RECORDS, number * RECORD_PIECES_MAX + newest.records - 1);
      if ((await this.events.findOne({ _id: last }, { projection: { _id: 1 } })) !== null) return number;
    }
    const snapshot = await this.#snapshots.findOne({}, { sort: { _id: -1 }, projection: { _id: 1 }, ...PLAIN_NUMBERS });
    return Math.max(snapshot?._id.n ?? 0, before === undefined ? 0 : seqOf(before));
  }

  /** The two newest fences that match, newest first. */
  #fences(filter: Record<string, unknown>): Promise<FenceDocument[]> {
    const all = { _id: { $gte: eventKey(FENCES, 0), $lt: eventKey(RECORDS, 0) } };
    const options = { sort: { _id: -1 }, limit: 2, projection: { records: 1 }, ...PLAIN_NUMBERS } as const;
    return this.events.find<FenceDocument>({ ...all, ...filter }, options).toArray();
  }

  async #isVoid(commit: number): Promise<boolean> {
    const fence = { _id: eventKey(FENCES, commit), void: true } as Record<string, unknown>;
    return (await this.events.findOne(fence, { projection: { _id: 1 } })) !== null;
  }
}
