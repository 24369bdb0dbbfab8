/**
 * Which events of a store are readable.
 *
 * A server writes a commit as one ordered bulk: its fence, its events, its records. While the bulk runs, and when it was cut in the
 * middle, some of its events are there although the commit is not. So events count only up to the newest commit whose last
 * document is there. Only the newest commit can be incomplete: the next one is sent when it is known to be whole, or when its fence is
 * marked void. Snapshots replace records, and a snapshot contains only whole commits.
 *
 * One case remains: a bulk that takes longer than its fence allows can be voided by a new leader at the moment at which it ends. A
 * reader that looks at that moment sees it.
 */
import type { Collection, Db } from "mongodb";
import type { EventDocument } from "./event-document.js";
import { eventKey, FENCES, keptIn, RECORDS, type SeqRange, seqOf } from "./event-keys.js";
import { MAJORITY, PLAIN_NUMBERS } from "./options.js";

/** Documents with records of one commit; their seq is the fence's number times this. */
const RECORD_PIECES_MAX = 256;

interface TopicDocument {
  /** The topic's number. */
  _id: number;
  name: string;
  first_seq: number;
}

/** The first document of a commit. */
type FenceDocument = EventDocument & { records: number; void?: boolean };

/** A topic and what of it is readable. */
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

  /** `undefined` if the topic does not exist or has no readable event. */
  async topic(name: string): Promise<ReadableTopic | undefined> {
    // A topic that was deleted and created again may be there twice for a moment.
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
      // It was written by a bulk that ran on after its commit had been given up.
      lastSeq -= 1;
    }
  }

  /** The number of the newest whole commit; 0 if there is none. */
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

  /** The newest two fences that match, the newest first. */
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
