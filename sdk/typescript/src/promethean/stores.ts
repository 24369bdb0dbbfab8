/** Implements the sketch's stores with a prombus server. */
import type { Client } from "../client.js";
import type { CursorPosition, EventRecord, Millis, StoredEvent, UUID } from "../types.js";
import { moveGroup, PrombusEventBus } from "./bus.js";
import type { CursorStore, EventStore } from "./types.js";

function clientOf(source: Client | PrombusEventBus): Client {
  return source instanceof PrombusEventBus ? source.client : source;
}

/** Events over HTTP: `scan` is `/replay`, `latestByKey` is `/state`, `insert` is a publish with the event's id. */
export class HttpEventStore implements EventStore {
  readonly #client: Client;

  constructor(source: Client | PrombusEventBus) {
    this.#client = clientOf(source);
  }

  /** Resolves when the event is durable. Adds nothing if the topic already has the id. */
  async insert<T>(e: EventRecord<T>): Promise<void> {
    const { topic, payload, partition: _, seq: __, ...options } = e;
    await this.#client.publish(topic, payload, options);
  }

  /** Returns events in commit order, at most 1,000 by default. */
  async scan(topic: string, params: { afterId?: UUID; ts?: Millis; limit?: number } = {}): Promise<EventRecord[]> {
    const { afterId, ts, limit = 1000 } = params;
    const from = afterId !== undefined ? { from: "afterId" as const, afterId } : ts !== undefined ? { from: "ts" as const, ts } : {};
    const events: EventRecord[] = [];
    for await (const event of this.#client.replay(topic, { ...from, limit })) events.push(event);
    return events;
  }

  /** The newest event of each of the given keys, or of all keys if none are given. Deleted keys have no event. */
  async latestByKey(topic: string, keys: string[] = []): Promise<Record<string, EventRecord | undefined>> {
    const found: [string, EventRecord | undefined][] = [];
    if (keys.length > 0) {
      await Promise.all(keys.map(async (key) => { found.push([key, await this.#latest(topic, key)]); }));
    } else {
      for await (const event of this.#all(topic)) found.push([event.key as string, event]);
    }
    return Object.fromEntries(found);
  }

  async #latest(topic: string, key: string): Promise<EventRecord | undefined> {
    try {
      return await this.#client.http.json<StoredEvent>("GET", `/state/${encodeURIComponent(topic)}`, { query: { key } });
    } catch (thrown) {
      if ((thrown as { code?: unknown }).code === "not_found") return undefined;
      throw thrown;
    }
  }

  async *#all(topic: string): AsyncGenerator<StoredEvent> {
    let next: string | undefined;
    do {
      const page = await this.#client.http.json<{ events: StoredEvent[]; next: string | null }>(
        "GET",
        `/state/${encodeURIComponent(topic)}`,
        { query: { next } },
      );
      yield* page.events;
      next = page.next ?? undefined;
    } while (next !== undefined);
  }
}

/** Cursors of the server's groups: `get` sends CURSOR, `set` sends SEEK, which voids all leases of the group. */
export class PrombusCursorStore implements CursorStore {
  readonly #source: Client | PrombusEventBus;

  constructor(source: Client | PrombusEventBus) {
    this.#source = source;
  }

  get(topic: string, group: string): Promise<CursorPosition | null> {
    return clientOf(this.#source).cursor(topic, group);
  }

  /** Creates the group if it does not exist. */
  async set(topic: string, group: string, cursor: CursorPosition): Promise<void> {
    if (this.#source instanceof PrombusEventBus) await this.#source.setCursor(topic, group, cursor);
    else await moveGroup(this.#source, topic, group, cursor);
  }
}
