/** Stores in memory, for `InMemoryEventBus` and tests. */
import { PrombusError } from "../errors.js";
import type { CursorPosition, EventRecord, Millis, UUID } from "../types.js";
import type { CursorStore, EventStore } from "./types.js";

interface TopicEvents {
  events: EventRecord[];
  /** The index of each event in `events`. */
  byId: Map<UUID, number>;
}

export class InMemoryEventStore implements EventStore {
  readonly #topics = new Map<string, TopicEvents>();

  async insert<T>(e: EventRecord<T>): Promise<void> {
    let topic = this.#topics.get(e.topic);
    if (topic === undefined) this.#topics.set(e.topic, (topic = { events: [], byId: new Map() }));
    if (topic.byId.has(e.id)) return;
    topic.byId.set(e.id, topic.events.length);
    topic.events.push({ ...e, seq: topic.events.length + 1 });
  }

  async scan(topic: string, params: { afterId?: UUID; ts?: Millis; limit?: number } = {}): Promise<EventRecord[]> {
    const { events, byId } = this.#topics.get(topic) ?? { events: [], byId: new Map<UUID, number>() };
    const { afterId, ts, limit } = params;
    let start = 0;
    if (afterId !== undefined) {
      const at = byId.get(afterId);
      if (at === undefined) throw new PrombusError("unknown_id", `${topic} has no event with the id ${afterId}`);
      start = at + 1;
    } else if (ts !== undefined) {
      const at = events.findIndex((event) => event.ts >= ts);
      start = at < 0 ? events.length : at;
    }
    return events.slice(start, limit === undefined ? undefined : start + limit);
  }

  async latestByKey(topic: string, keys?: string[]): Promise<Record<string, EventRecord | undefined>> {
    const latest = new Map<string, EventRecord>();
    const wanted = keys === undefined || keys.length === 0 ? undefined : new Set(keys);
    for (const event of this.#topics.get(topic)?.events ?? []) {
      if (event.key === undefined || (wanted !== undefined && !wanted.has(event.key))) continue;
      // An event for one group neither sets nor deletes its key.
      if (event.addressee !== undefined) continue;
      // `null` deletes a key.
      if (event.payload === null) latest.delete(event.key);
      else latest.set(event.key, event);
    }
    return Object.fromEntries(latest);
  }

  /** The event with this id; undefined if the topic has none. */
  find(topic: string, id: UUID): EventRecord | undefined {
    const events = this.#topics.get(topic);
    const at = events?.byId.get(id);
    return at === undefined ? undefined : events?.events[at];
  }

  /** All topics, in the order in which they got their first events. */
  topics(): string[] {
    return [...this.#topics.keys()];
  }
}

export class InMemoryCursorStore implements CursorStore {
  readonly #cursors = new Map<string, CursorPosition>();

  async get(topic: string, group: string): Promise<CursorPosition | null> {
    const cursor = this.#cursors.get(`${topic}::${group}`);
    return cursor === undefined ? null : { ...cursor };
  }

  async set(topic: string, group: string, cursor: CursorPosition): Promise<void> {
    this.#cursors.set(`${topic}::${group}`, { ...cursor });
  }
}
