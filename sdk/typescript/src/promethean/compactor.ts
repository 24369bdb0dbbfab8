/** The sketch's compactor: publishes the newest event of each key to a snapshot topic. A prombus server can do this by itself. */
import { messageOf } from "../errors.js";
import type { EventRecord, Millis, UUID } from "../types.js";
import type { EventBus, EventStore } from "./types.js";

export interface CompactorOptions {
  topic: string;
  snapshotTopic: string;
  /** Returns the key of an event that has none. If this function is given, the whole topic is scanned. */
  keySource?: (e: EventRecord) => string | undefined;
  /** Default 30,000. */
  intervalMs?: Millis;
  /** The keys to publish snapshots of; default all. */
  batchKeys?: string[];
  /** Default: `console.warn`. */
  onError?: (error: unknown) => void;
}

const PAGE = 1000;

/**
 * Every `intervalMs`, publishes a snapshot `{ key, payload, ts }` of each changed key, and `null` for each deleted key. Each state is
 * published only once, even after a restart. For a key that is deleted while the compactor is not running, no `null` is published.
 * Returns a function that stops the compactor.
 */
export function startCompactor(store: EventStore, bus: EventBus, opts: CompactorOptions): () => void {
  const { topic, snapshotTopic, keySource, intervalMs = 30_000, batchKeys } = opts;
  const onError = opts.onError ?? ((error: unknown) => console.warn(`compactor of ${topic}: ${messageOf(error)}`));
  /** The id of the event in each key's last snapshot. */
  const done = new Map<string, UUID>();
  const scanned = new Map<string, EventRecord>();
  let scannedTo: UUID | undefined;
  let isStopped = false;
  let timer: ReturnType<typeof setTimeout> | undefined;

  async function latestByScan(source: (e: EventRecord) => string | undefined): Promise<Map<string, EventRecord>> {
    for (;;) {
      const page = await store.scan(topic, { ...(scannedTo === undefined ? {} : { afterId: scannedTo }), limit: PAGE });
      for (const event of page) {
        scannedTo = event.id;
        // An event for one group is not a state.
        if (event.addressee !== undefined) continue;
        const key = event.key ?? source(event);
        if (key === undefined || (batchKeys !== undefined && !batchKeys.includes(key))) continue;
        if (event.payload === null) scanned.delete(key);
        else scanned.set(key, event);
      }
      if (page.length === 0) return scanned;
    }
  }

  async function latest(): Promise<Map<string, EventRecord>> {
    if (keySource !== undefined) return latestByScan(keySource);
    if (store.latestByKey === undefined) throw new Error("the store has no latestByKey; pass keySource");
    const found = Object.entries(await store.latestByKey(topic, batchKeys));
    return new Map(found.filter((entry): entry is [string, EventRecord] => entry[1] !== undefined));
  }

  async function snapshot(): Promise<void> {
    const states = await latest();
    for (const [key, event] of states) {
      if (isStopped) return;
      if (done.get(key) === event.id) continue;
      const opts = { key, idempotencyKey: `snapshot ${event.id}` };
      await bus.publish(snapshotTopic, { key, payload: event.payload, ts: event.ts }, opts);
      done.set(key, event.id);
    }
    for (const key of done.keys()) {
      if (isStopped) return;
      if (states.has(key)) continue;
      await bus.publish(snapshotTopic, null, { key });
      done.delete(key);
    }
  }

  async function loop(): Promise<void> {
    await snapshot().catch(onError);
    if (!isStopped) timer = setTimeout(() => void loop(), intervalMs);
  }

  void loop();
  return () => {
    isStopped = true;
    clearTimeout(timer);
  };
}
