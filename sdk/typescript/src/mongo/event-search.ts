/**
 * Binary search in a topic, for values that have no index and never decrease with the seq: `max_ts` (the highest `ts` so far), commit
 * times, and ids that a server generated.
 */
import { type Collection, UUID as BsonUuid } from "mongodb";
import type { Millis, UUID } from "../types.js";
import type { EventDocument } from "./event-document.js";
import { keptIn, type SeqRange, seqOf } from "./event-keys.js";
import { PLAIN_NUMBERS } from "./options.js";
import type { ReadableTopic } from "./readable.js";

const UUID_TEXT = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
/** The name of the index of ids that publishers chose. */
const CHOSEN_IDS_INDEX = "publishers' ids";

/** The condition of a search. */
interface Probe {
  projection: Record<string, 1>;
  /** Events that do not match are ignored. */
  filter?: Record<string, unknown>;
  /** Whether an event is at or after the wanted position. If true for an event, it is true for all later events. */
  isAfter(event: EventDocument): boolean;
}

export class EventSearch {
  readonly #events: Collection<EventDocument>;

  constructor(events: Collection<EventDocument>) {
    this.#events = events;
  }

  /**
   * The seq of the event with this id. Also finds an event that was cleaned, if its document still contains an id chosen by a
   * publisher.
   */
  async seqOfId(topic: ReadableTopic, id: UUID): Promise<number | undefined> {
    const text = id.toLowerCase();
    if (!UUID_TEXT.test(text)) return undefined;
    const chosen = { topic_no: topic.topicNo, client_id: new BsonUuid(text) } as Record<string, unknown>;
    const found = await this.#events.findOne(chosen, { projection: { _id: 1 }, hint: CHOSEN_IDS_INDEX });
    if (found !== null && seqOf(found) <= topic.lastSeq) return seqOf(found);
    return this.#seqOfOwnId(topic, text);
  }

  /**
   * Finds an id that a server generated. Such ids increase with the seq and begin with the commit time of their events. First finds
   * the events with that commit time, then searches among those whose ids were not chosen by publishers.
   */
  async #seqOfOwnId(topic: ReadableTopic, id: UUID): Promise<number | undefined> {
    const madeMs = Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16);
    const committedFrom = (ms: Millis): Probe => ({
      projection: { committed_at: 1 },
      isAfter: ({ committed_at: at }) => at === undefined || at.getTime() >= ms,
    });
    const first = await this.#first(topic, committedFrom(madeMs));
    if (first === undefined) return undefined;
    const firstSeq = seqOf(first);
    const next = await this.#first({ ...topic, firstSeq }, committedFrom(madeMs + 1));
    const sameTime = { ...topic, firstSeq, lastSeq: next === undefined ? topic.lastSeq : seqOf(next) - 1 };
    const found = await this.#first(sameTime, {
      projection: { id: 1 },
      filter: { client_id: { $exists: false } },
      isAfter: (event) => event.id >= id,
    });
    return found?.id === id ? seqOf(found) : undefined;
  }

  /** The seq of the first event with the time `ts` or a later one. All events before it have earlier times. */
  async seqOfTime(topic: ReadableTopic, ts: Millis): Promise<number | undefined> {
    const first = await this.#first(topic, { projection: { max_ts: 1 }, isAfter: ({ max_ts = 0 }) => max_ts >= ts });
    return first && seqOf(first);
  }

  /** The first event at or after the wanted position. */
  async #first(topic: ReadableTopic, { projection, filter, isAfter }: Probe): Promise<EventDocument | undefined> {
    let { firstSeq: low, lastSeq: high }: SeqRange = topic;
    let found: EventDocument | undefined;
    // All events below `low` are before the wanted position; `found` is the lowest event known to be at or after it.
    while (low <= high) {
      const middle = low + Math.floor((high - low) / 2);
      const event = await this.#events.findOne(
        { ...keptIn(topic.topicNo, { firstSeq: middle, lastSeq: high }), ...filter },
        { sort: { _id: 1 }, projection, ...PLAIN_NUMBERS },
      );
      if (event !== null && !isAfter(event)) {
        low = seqOf(event) + 1;
      } else {
        found = event ?? found;
        high = middle - 1;
      }
    }
    return found;
  }
}
