/**
 * At-least-once delivery with deduplication: handled events are marked in a store, and marked events are skipped.
 *
 * The order is: run the handler, store the mark, ack. After a crash between the handler's end and the mark, the handler runs again, so
 * repeating its effect must be harmless.
 */
import type { EventRecord, Millis } from "./types.js";

/** Remembers which events a group has handled. Members of one group must share the store. */
export interface DedupeStore {
  /** Whether there is a mark that has not expired. */
  seen(topic: string, group: string, id: string): Promise<boolean>;
  /** Adds a mark; an existing mark stays as it is. */
  mark(topic: string, group: string, id: string, ttlMs?: Millis): Promise<void>;
}

/** How long a mark is kept by default: seven days. */
export const DEDUPE_TTL_MS: Millis = 7 * 24 * 3_600_000;

/**
 * The part of a bus that {@link subscribeExactlyOnce} uses. The client has it, and so does `EventBus` of `@prombus/client/promethean`.
 */
export interface SubscribableBus<Context, Options, Result> {
  subscribe(
    topic: string,
    group: string,
    handler: (event: EventRecord, ctx: Context) => Promise<void>,
    opts?: Options,
  ): Promise<Result>;
}

/**
 * Subscribes a handler and skips events that are marked in `store`. A mark consists of the event's topic, the group and the event's
 * id, and is kept for `ttlMs` (default seven days). If `topic` is not the event's own topic (because it is a pattern, or the group
 * reads further topics), the group is written as `<topic>/<group>`, so that groups with the same name on different subscriptions do
 * not share marks. Returns the result of `bus.subscribe`.
 */
export function subscribeExactlyOnce<Context, Options, Result, T = unknown>(
  bus: SubscribableBus<Context, Options, Result>,
  topic: string,
  group: string,
  store: DedupeStore,
  handler: (event: EventRecord<T>, ctx: Context) => unknown,
  opts?: Options & { ttlMs?: Millis },
): Promise<Result> {
  const { ttlMs = DEDUPE_TTL_MS, ...rest } = (opts ?? {}) as { ttlMs?: Millis };
  const handleOnce = async (event: EventRecord, ctx: Context): Promise<void> => {
    const consumer = event.topic === topic ? group : `${topic}/${group}`;
    if (await store.seen(event.topic, consumer, event.id)) return;
    await handler(event as EventRecord<T>, ctx);
    await store.mark(event.topic, consumer, event.id, ttlMs);
  };
  // `manualAck: false`: the bus must send the ack, after the handler has returned and the mark is stored.
  return bus.subscribe(topic, group, handleOnce, { ...rest, manualAck: false } as Options);
}

/** Keeps marks in memory, at most `capacity` of them. They are lost when the process ends. */
export class MemoryDedupe implements DedupeStore {
  readonly #capacity: number;
  /** When each mark expires, in insertion order. */
  readonly #marks = new Map<string, Millis>();

  constructor(capacity = 100_000) {
    this.#capacity = Math.max(1, capacity);
  }

  get size(): number {
    return this.#marks.size;
  }

  async seen(topic: string, group: string, id: string): Promise<boolean> {
    return this.#isLive(key(topic, group, id), Date.now());
  }

  async mark(topic: string, group: string, id: string, ttlMs: Millis = DEDUPE_TTL_MS): Promise<void> {
    const now = Date.now();
    const name = key(topic, group, id);
    if (this.#isLive(name, now)) return;
    this.#marks.delete(name);
    for (const [oldest, expires] of this.#marks) {
      if (expires > now && this.#marks.size < this.#capacity) break;
      this.#marks.delete(oldest);
    }
    this.#marks.set(name, now + ttlMs);
  }

  #isLive(name: string, now: Millis): boolean {
    return (this.#marks.get(name) ?? -Infinity) > now;
  }
}

/** The key of a mark. It is unique, because names of topics and groups contain no spaces. */
function key(topic: string, group: string, id: string): string {
  return `${topic} ${group} ${id}`;
}
