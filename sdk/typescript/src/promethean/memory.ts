/** The sketch's bus in memory, for tests: behaves like a server, without needing one. */
import { messageOf, PrombusError } from "../errors.js";
import type { Addressee, CursorPosition, DeadLetter, EventRecord, Millis, UUID } from "../types.js";
import { uuidv7 } from "../uuid.js";
import { MemoryGroup } from "./memory-group.js";
import { InMemoryCursorStore, InMemoryEventStore } from "./memory-stores.js";
import { isPattern, matchesTopic } from "./topics.js";
import {
  type Ack, type CursorStore, type EventBus, type EventHandler, type EventStore, type PublishOptions, retryDelayMs,
  type SubscribeOptions,
} from "./types.js";

export { InMemoryCursorStore, InMemoryEventStore } from "./memory-stores.js";

export interface InMemoryEventBusOptions {
  /** Returns the wait after a failed attempt; default 20 ms after the first, 200 ms after the second, then doubling up to 30 s. */
  retryDelayMs?: (attempt: number) => Millis;
}

interface GroupEntry {
  /** The topics and patterns that the group reads; the first one is part of the group's identity. */
  subscriptions: string[];
  group: Promise<MemoryGroup>;
  made?: MemoryGroup;
}

const PAGE = 1000;

/**
 * An `EventBus` in memory. Delivery is at least once with leases, attempts and dead letters, as with a server: an ack never moves
 * the cursor past an unsettled event, and each event goes to one member of each group.
 *
 * The stores can be replaced. With durable stores, groups survive a restart, but attempts are counted from 1 again.
 */
export class InMemoryEventBus implements EventBus {
  readonly #store: EventStore;
  readonly #cursors: CursorStore;
  readonly #retryDelayMs: (attempt: number) => Millis;
  readonly #groups = new Map<string, GroupEntry>();
  #isClosed = false;

  constructor(
    store: EventStore = new InMemoryEventStore(),
    cursors: CursorStore = new InMemoryCursorStore(),
    options: InMemoryEventBusOptions = {},
  ) {
    this.#store = store;
    this.#cursors = cursors;
    this.#retryDelayMs = options.retryDelayMs ?? retryDelayMs;
  }

  async publish<T>(topic: string, payload: T, opts: PublishOptions = {}): Promise<EventRecord<T>> {
    if (this.#isClosed) throw new PrombusError("closed", "the bus is closed");
    if (!/^[A-Za-z0-9._:-]{1,255}$/.test(topic)) throw new PrombusError("bad_topic", `${topic} is not a topic`);
    const event: EventRecord<T> = {
      id: opts.id ?? (opts.idempotencyKey === undefined ? uuidv7() : derivedId(opts.idempotencyKey)),
      ts: opts.ts ?? Date.now(),
      topic,
      payload: asStored(topic, payload),
    };
    for (const name of ["key", "headers", "tags", "caused_by", "sid", "addressee"] as const) {
      if (opts[name] !== undefined) Object.assign(event, { [name]: opts[name] });
    }
    if (opts.addressee !== undefined) await this.#check(opts.addressee, topic);
    await this.#store.insert(event);
    for (const { subscriptions, made } of this.#groups.values()) {
      if (made === undefined || !subscriptions.some((subscription) => matchesTopic(subscription, topic))) continue;
      // A group reads a topic that is new to its pattern from the first event.
      made.addSource(topic, cursorTopic(subscriptions[0] as string, topic), { topic });
      made.pump();
    }
    const stored = this.#store instanceof InMemoryEventStore ? this.#store.find(topic, event.id) : undefined;
    return (stored as EventRecord<T> | undefined) ?? event;
  }

  async subscribe(
    topic: string,
    group: string,
    handler: EventHandler,
    opts: Omit<SubscribeOptions, "group"> = {},
  ): Promise<() => Promise<void>> {
    if (this.#isClosed) throw new PrombusError("closed", "the bus is closed");
    const key = `${topic}::${group}`;
    let entry = this.#groups.get(key);
    if (entry === undefined) {
      const subscriptions = [topic, ...(opts.topics ?? [])];
      const made: GroupEntry = { subscriptions, group: this.#open(topic, group, opts) };
      this.#groups.set(key, (entry = made));
      made.group.then(
        (opened) => {
          made.made = opened;
          // Adds topics that were created while the group was being opened.
          for (const name of this.#matching(subscriptions)) opened.addSource(name, cursorTopic(topic, name), { topic: name });
        },
        // If opening fails, e.g. because of an unknown start position, the group does not exist.
        () => this.#groups.delete(key),
      );
    }
    const opened = await entry.group;
    if (this.#isClosed) throw new PrombusError("closed", "the bus is closed");
    return opened.join(handler, opts);
  }

  async ack(topic: string, group: string, id: UUID): Promise<Ack> {
    return this.#settle(topic, group, id, (found) => found.ack(topic, id));
  }

  async nack(topic: string, group: string, id: UUID, reason?: string): Promise<Ack> {
    const ack = await this.#settle(topic, group, id, (found) => found.nack(topic, id, reason));
    return ack.err === undefined && reason !== undefined ? { ...ack, err: reason } : ack;
  }

  async getCursor(topic: string, group: string): Promise<CursorPosition | null> {
    const found = await this.#groups.get(`${topic}::${group}`)?.group;
    return found === undefined ? this.#cursors.get(topic, group) : found.cursor();
  }

  /** Moves a group to after `lastId`, or else to the first event at or after `lastTs`, or else to the first event. All leases become void. */
  async setCursor(topic: string, group: string, cursor: CursorPosition): Promise<void> {
    const found = await this.#groups.get(`${topic}::${group}`)?.group;
    if (found === undefined) await this.#cursors.set(topic, group, cursor);
    else await found.seek(cursor);
  }

  /** Stops all deliveries. Does not wait for running handlers. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const { made } of this.#groups.values()) made?.close();
  }

  /** Rejects if the addressee of an event does not exist or does not read the topic. A group that another process created is known by its cursor. */
  async #check({ subscription, group }: Addressee, topic: string): Promise<void> {
    const known = this.#groups.get(`${subscription}::${group}`);
    const subscriptions = known?.subscriptions ?? [subscription];
    if (!subscriptions.some((it) => matchesTopic(it, topic))) {
      throw new PrombusError("not_found", `the event is addressed to the group "${group}" on "${subscription}", which does not read ${topic}`);
    }
    if (known !== undefined) return;
    if ((await this.#cursors.get(cursorTopic(subscription, topic), group)) !== null) return;
    throw new PrombusError("not_found", `the event is addressed to the group "${group}" on "${subscription}", which does not exist`);
  }

  async #settle(topic: string, group: string, id: UUID, act: (found: MemoryGroup) => Promise<boolean>): Promise<Ack> {
    const named = this.#groups.get(`${topic}::${group}`);
    // The sketch acks with the event's own topic, which differs from the subscription if that is a pattern.
    const others = [...this.#groups.values()].filter(({ made }) => made?.group === group && made.holds(topic, id));
    const found = await (named ?? others[0])?.group;
    if (found === undefined) return { id, ok: false, err: `no group ${group} on ${topic}` };
    try {
      return (await act(found)) ? { id, ok: true } : { id, ok: true, err: "stale" };
    } catch (thrown) {
      return { id, ok: false, err: messageOf(thrown) };
    }
  }

  async #open(topic: string, group: string, opts: Omit<SubscribeOptions, "group">): Promise<MemoryGroup> {
    const made = new MemoryGroup(
      {
        store: this.#store,
        cursors: this.#cursors,
        retryDelayMs: this.#retryDelayMs,
        publishDeadLetter: (letter) => this.#publishDeadLetter(letter),
      },
      topic,
      group,
    );
    const subscriptions = [topic, ...(opts.topics ?? [])];
    const topics = subscriptions.filter((subscription) => !isPattern(subscription));
    for (const name of new Set([...topics, ...this.#matching(subscriptions)])) {
      const keptAs = cursorTopic(topic, name);
      let cursor = await this.#cursors.get(keptAs, group);
      if (cursor === null) {
        cursor = await this.#start(name, opts);
        await this.#cursors.set(keptAs, group, cursor);
      }
      made.addSource(name, keptAs, cursor);
    }
    return made;
  }

  #matching(subscriptions: string[]): string[] {
    const topics = this.#store instanceof InMemoryEventStore ? this.#store.topics() : [];
    return topics.filter((topic) => subscriptions.some((subscription) => matchesTopic(subscription, topic)));
  }

  async #start(topic: string, { from = "latest", ts, afterId }: Omit<SubscribeOptions, "group">): Promise<CursorPosition> {
    switch (from) {
      case "earliest":
        return { topic };
      case "latest":
        return this.#end(topic);
      case "ts": {
        if (ts === undefined) throw new PrombusError("bad_request", "from \"ts\" needs ts");
        const [first] = await this.#store.scan(topic, { ts, limit: 1 });
        // No event has that time or a later one yet: start at the end, so that new events are delivered whatever their time is.
        return first === undefined ? this.#end(topic) : { topic, lastTs: ts };
      }
      case "afterId": {
        if (afterId === undefined) throw new PrombusError("bad_request", "from \"afterId\" needs afterId");
        await this.#store.scan(topic, { afterId, limit: 1 });
        return { topic, lastId: afterId };
      }
    }
  }

  async #end(topic: string): Promise<CursorPosition> {
    let cursor: CursorPosition = { topic };
    for (;;) {
      const after = cursor.lastId === undefined ? {} : { afterId: cursor.lastId };
      const page = await this.#store.scan(topic, { ...after, limit: PAGE });
      const last = page.at(-1);
      if (last === undefined) return cursor;
      cursor = { topic, lastId: last.id, lastTs: last.ts };
    }
  }

  async #publishDeadLetter(letter: DeadLetter): Promise<void> {
    const id = derivedId(`${letter.topic} ${letter.subscription} ${letter.group} ${letter.original.id}`);
    await this.publish(`dlq.${letter.topic}`, letter, { id });
  }
}

/** The name under which a group's cursor in one of its topics is stored. */
function cursorTopic(subscription: string, topic: string): string {
  return subscription === topic ? topic : `${subscription}>${topic}`;
}

/** The payload as a server would store it. */
function asStored<T>(topic: string, payload: T): T {
  let json: string | undefined;
  let cause: unknown;
  try {
    json = JSON.stringify(payload);
  } catch (thrown) {
    cause = thrown;
  }
  if (json === undefined) {
    throw new PrombusError("invalid_payload", `the payload for ${topic} cannot be written as JSON`, { cause });
  }
  return JSON.parse(json) as T;
}

/** Derives an id from a text; a UUID is kept. A server derives a different id from the same text. */
function derivedId(text: string): UUID {
  if (/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text)) return text.toLowerCase();
  let hex = "";
  for (let part = 0; part < 4; part += 1) {
    // FNV-1a with a different seed for each part, followed by a mixing step.
    let hash = 0x811c9dc5 ^ Math.imul(part + 1, 0x9e3779b1);
    for (let at = 0; at < text.length; at += 1) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
    hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
    hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
    hex += ((hash ^ (hash >>> 16)) >>> 0).toString(16).padStart(8, "0");
  }
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20)}`;
}
