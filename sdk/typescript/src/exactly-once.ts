/**
 * At least once with deduplication: a mark says that an event was handled, and a handled event is not handled again.
 *
 * The order is handler, mark, ack. A crash between the handler's end and the mark repeats the handler, so its effect should do
 * no harm when repeated.
 */
import type { EventRecord, Millis } from "./types.js";

/** Remembers which events a group has handled. Members of one group must share the store. */
export interface DedupeStore {
  /** Whether there is a mark that has not expired. */
  seen(topic: string, group: string, id: string): Promise<boolean>;
  /** Adds a mark; an existing mark stays as it is. */
  mark(topic: string, group: string, id: string, ttlMs?: Millis): Promise<void>;
}

/** How long a mark lives: seven days. */
export const DEDUPE_TTL_MS: Millis = 7 * 24 * 3_600_000;

/** What {@link subscribeExactlyOnce} needs of a bus; the client and the sketch's `EventBus` have it. */
export interface SubscribableBus<Context, Options, Result> {
  subscribe(
    topic: string,
    group: string,
    handler: (event: EventRecord, ctx: Context) => Promise<void>,
    opts?: Options,
  ): Promise<Result>;
}

/**
 * Subscribes a handler that skips events which `store` has a mark for. Marks are kept by the event's own topic, the group and the
 * event's id, for `ttlMs` (seven days). If the subscription is not the event's own topic (a pattern), the group is written as
 * `<subscription>/<group>`: groups of one name on different subscriptions do not share marks. Resolves with what
 * `bus.subscribe` resolves with.
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
  // The ack follows the mark, so the bus has to send it.
  return bus.subscribe(topic, group, handleOnce, { ...rest, manualAck: false } as Options);
}

/** Marks in memory: bounded, and gone with the process. */
export class MemoryDedupe implements DedupeStore {
  readonly #capacity: number;
  /** When each mark expires; in the order in which they were added. */
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

/** Names of topics and groups contain no space. */
function key(topic: string, group: string, id: string): string {
  return `${topic} ${group} ${id}`;
}
