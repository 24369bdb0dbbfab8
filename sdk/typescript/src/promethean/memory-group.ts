/**
 * One consumer group in memory: leases, attempts, redelivery, and a floor for each topic that the group reads.
 *
 * A floor is a position in a topic: all events up to the floor are settled, so it never passes an unsettled event. Each topic is a
 * source, whose entries are the events above its floor, in commit order. Settled entries are removed from the front.
 */
import { verdictOf } from "../subscription.js";
import type { CursorPosition, DeadLetter, EventRecord, Millis, NackOptions, StoredEvent, UUID } from "../types.js";
import type { CursorStore, EventHandler, EventStore, SubscribeOptions } from "./types.js";

/** The parts of the bus that a group uses. */
export interface GroupTools {
  store: EventStore;
  cursors: CursorStore;
  retryDelayMs: (attempt: number) => Millis;
  /** Publishes a dead letter. */
  publishDeadLetter: (letter: DeadLetter) => Promise<void>;
}

export interface Member {
  handler: EventHandler;
  options: Omit<SubscribeOptions, "group">;
  inFlight: number;
  isGone: boolean;
}

interface Source {
  topic: string;
  /** The topic name under which the source's cursor is stored. */
  cursorTopic: string;
  /** The last event that was read. If undefined, reading starts at the time `ts`, or at the first event if `ts` is undefined too. */
  afterId?: UUID;
  ts?: Millis;
  entries: Entry[];
  floor: CursorPosition;
  isDirty: boolean;
}

interface Entry {
  event: EventRecord;
  source: Source;
  attempt: number;
  state: "ready" | "leased" | "waiting" | "settled";
  member?: Member;
  /** Fires when the lease expires (`leased`), or when the redelivery is due (`waiting`). */
  timer?: ReturnType<typeof setTimeout>;
}

const LEASE_MS = 30_000;
const MAX_ATTEMPTS = 5;
const MAX_IN_FLIGHT = 1000;
const BATCH_SIZE = 100;
/** How long running handlers may take after their member has left. */
const DRAIN_MS = 30_000;
const READ_RETRY_MS = 100;
/** A server has the same limit. */
const MAX_DELAY_MS = 3_600_000;

export class MemoryGroup {
  readonly #tools: GroupTools;
  readonly #subscription: string;
  readonly #group: string;
  readonly #sources = new Map<string, Source>();
  /** Unsettled entries, by topic and id. */
  readonly #entries = new Map<string, Entry>();
  readonly #members: Member[] = [];
  #redeliveries: Entry[] = [];
  #fresh: Entry[] = [];
  #isPumping = false;
  #mustPumpAgain = false;
  /** After `close`, results of running handlers still apply, but nothing is retried: no timer may keep the process running. */
  #isClosed = false;
  #saving: Promise<void> | undefined;
  #readTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(tools: GroupTools, subscription: string, group: string) {
    this.#tools = tools;
    this.#subscription = subscription;
    this.#group = group;
  }

  get group(): string {
    return this.#group;
  }

  /** Adds a topic that the group reads from the position `cursor`. */
  addSource(topic: string, cursorTopic: string, cursor: CursorPosition): void {
    if (this.#sources.has(topic)) return;
    const source: Source = { topic, cursorTopic, entries: [], floor: { ...cursor, topic }, isDirty: false };
    place(source, cursor);
    this.#sources.set(topic, source);
  }

  /** Adds a member. Returns a function that removes it. */
  join(handler: EventHandler, options: Omit<SubscribeOptions, "group">): () => Promise<void> {
    const member: Member = { handler, options, inFlight: 0, isGone: false };
    // The new member goes first: the others have received events already.
    this.#members.unshift(member);
    this.pump();
    return async () => this.#leave(member);
  }

  /** Whether an event is leased or waits for redelivery. */
  holds(topic: string, id: UUID): boolean {
    return this.#find(topic, id) !== undefined;
  }

  /** Settles an event. Returns false if the group does not hold it, e.g. because it is already settled. */
  async ack(topic: string, id: UUID): Promise<boolean> {
    const entry = this.#find(topic, id);
    if (entry === undefined) return false;
    this.#settle(entry);
    await this.save();
    return true;
  }

  /** Fails the current attempt of an event. Returns false if no member has a lease on the event. */
  async nack(topic: string, id: UUID, reason: string | undefined): Promise<boolean> {
    const entry = this.#find(topic, id);
    if (entry?.state !== "leased") return false;
    await this.#fail(entry, { reason });
    return true;
  }

  /** The group's position. If the group reads several topics, this is the floor with the latest time. */
  cursor(): CursorPosition {
    let newest: CursorPosition = { topic: this.#subscription };
    for (const { floor } of this.#sources.values()) {
      if ((floor.lastTs ?? 0) > (newest.lastTs ?? 0)) newest = floor;
    }
    return { ...newest, topic: this.#subscription };
  }

  /** Moves the group. All leases become void. */
  async seek(cursor: CursorPosition): Promise<void> {
    const one = this.#sources.get(cursor.topic);
    const sources = one === undefined ? [...this.#sources.values()] : [one];
    if (cursor.lastId !== undefined) {
      const [only] = sources;
      if (only === undefined || sources.length > 1) throw new Error("name the topic of lastId in cursor.topic");
      // Rejects an unknown id before anything changes.
      await this.#tools.store.scan(only.topic, { afterId: cursor.lastId, limit: 1 });
    }
    for (const source of sources) {
      for (const entry of source.entries) this.#forget(entry);
      source.entries = [];
      place(source, cursor);
      source.floor = { ...cursor, topic: source.topic };
      source.isDirty = true;
    }
    const isKept = ({ source }: Entry): boolean => !sources.includes(source);
    this.#redeliveries = this.#redeliveries.filter(isKept);
    this.#fresh = this.#fresh.filter(isKept);
    await this.save();
    this.pump();
  }

  /** Delivers as many events as members have room for. */
  pump(): void {
    this.#mustPumpAgain = true;
    if (this.#isPumping) return;
    this.#isPumping = true;
    void this.#run();
  }

  /** Stores the cursors that have moved. */
  save(): Promise<void> {
    this.#saving ??= this.#saveAll().finally(() => { this.#saving = undefined; });
    return this.#saving;
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#readTimer);
    for (const member of this.#members.splice(0)) member.isGone = true;
    for (const entry of this.#entries.values()) clearTimeout(entry.timer);
  }

  async #run(): Promise<void> {
    while (this.#mustPumpAgain) {
      this.#mustPumpAgain = false;
      try {
        await this.#handOut();
      } catch {
        // The store failed: retry later.
        clearTimeout(this.#readTimer);
        if (!this.#isClosed) this.#readTimer = setTimeout(() => this.pump(), READ_RETRY_MS);
        this.#mustPumpAgain = false;
      }
    }
    this.#isPumping = false;
  }

  async #handOut(): Promise<void> {
    for (;;) {
      const at = this.#members.findIndex((member) => member.inFlight < (member.options.maxInFlight ?? MAX_IN_FLIGHT));
      const member = this.#members[at];
      if (member === undefined) return;
      const entry = this.#redeliveries.shift() ?? this.#fresh.shift();
      if (entry !== undefined) {
        if (entry.state !== "ready" || !this.#entries.has(keyOf(entry.event))) continue;
        // Members take turns.
        this.#members.push(...this.#members.splice(at, 1));
        this.#deliver(entry, member);
      } else if ((await this.#read(member.options.batchSize ?? BATCH_SIZE)) === 0) {
        return;
      }
    }
  }

  async #read(limit: number): Promise<number> {
    let count = 0;
    for (const source of this.#sources.values()) {
      const { afterId, ts } = source;
      const from = afterId !== undefined ? { afterId } : ts !== undefined ? { ts } : {};
      const events = await this.#tools.store.scan(source.topic, { ...from, limit });
      // A seek may have moved the source in the meantime.
      if (source.afterId !== afterId || source.ts !== ts) continue;
      for (const event of events) {
        const entry: Entry = { event, source, attempt: 0, state: "ready" };
        source.entries.push(entry);
        source.afterId = event.id;
        this.#entries.set(keyOf(event), entry);
        this.#fresh.push(entry);
      }
      count += events.length;
    }
    return count;
  }

  #deliver(entry: Entry, member: Member): void {
    entry.state = "leased";
    entry.attempt += 1;
    entry.member = member;
    member.inFlight += 1;
    const { manualAck = false, ackTimeoutMs } = member.options;
    if (manualAck || ackTimeoutMs !== undefined) this.#startLease(entry, ackTimeoutMs ?? LEASE_MS);
    void this.#handle(entry, member, entry.attempt);
  }

  async #handle(entry: Entry, member: Member, attempt: number): Promise<void> {
    const { filter, manualAck = false, maxAttempts = MAX_ATTEMPTS } = member.options;
    const isHeld = (): boolean => entry.attempt === attempt && this.#isUnsettled(entry);
    try {
      if (this.#receives(entry.event) && accepts(filter, entry.event)) {
        await member.handler(entry.event, { attempt, maxAttempts, cursor: { ...entry.source.floor } });
        if (manualAck) return;
      }
      // If the lease has expired, the result still applies, unless the event was delivered again.
      if (isHeld()) this.#settle(entry);
    } catch (thrown) {
      const verdict = verdictOf(thrown);
      if (!verdict.ok && isHeld() && entry.state === "leased") await this.#fail(entry, verdict).catch(() => {});
    }
    // If this fails, the cursor is stored when the next event is settled.
    await this.save().catch(() => {});
  }

  /** Whether an event is addressed to this group or to none. The group settles other events without a delivery. */
  #receives({ addressee }: EventRecord): boolean {
    return addressee === undefined || (addressee.subscription === this.#subscription && addressee.group === this.#group);
  }

  #startLease(entry: Entry, ms: Millis): void {
    clearTimeout(entry.timer);
    entry.timer = setTimeout(() => void this.#expire(entry), ms);
    unref(entry.timer);
  }

  async #expire(entry: Entry): Promise<void> {
    if (entry.state !== "leased") return;
    if (entry.attempt >= maxAttemptsOf(entry)) return this.#giveUp(entry, "the lease expired");
    this.#release(entry);
    this.#enqueue(entry);
  }

  async #fail(entry: Entry, { reason, dead = false, delayMs }: NackOptions & { reason?: string | undefined }): Promise<void> {
    if (dead || entry.attempt >= maxAttemptsOf(entry)) return this.#giveUp(entry, reason);
    this.#release(entry);
    entry.state = "waiting";
    if (this.#isClosed) return;
    const waitMs = Math.min(delayMs ?? this.#tools.retryDelayMs(entry.attempt), MAX_DELAY_MS);
    entry.timer = setTimeout(() => this.#enqueue(entry), waitMs);
    this.pump();
  }

  /**
   * Gives an event up: publishes its dead letter, then settles the event. A failure between the two steps does not lead to a second
   * dead letter, because the dead letter's id is derived from the event.
   */
  async #giveUp(entry: Entry, reason: string | undefined): Promise<void> {
    const { event, attempt } = entry;
    this.#release(entry);
    entry.state = "waiting";
    if (this.#isClosed) return;
    try {
      // A dead letter that fails is only settled: it stays in its dead-letter topic.
      if (!event.topic.startsWith("dlq.")) {
        await this.#tools.publishDeadLetter({
          topic: event.topic,
          group: this.#group,
          original: event as StoredEvent,
          err: reason ?? "",
          attempts: attempt,
          ts: Date.now(),
          subscription: this.#subscription,
        });
      }
    } catch {
      // A seek may have voided the lease in the meantime.
      if (this.#isClosed || !this.#isUnsettled(entry)) return;
      entry.timer = setTimeout(() => void this.#giveUp(entry, reason), READ_RETRY_MS);
      return;
    }
    if (this.#isUnsettled(entry)) this.#settle(entry);
    await this.save().catch(() => {});
  }

  #settle(entry: Entry): void {
    this.#release(entry);
    entry.state = "settled";
    this.#entries.delete(keyOf(entry.event));
    const { source } = entry;
    let settled = 0;
    while (source.entries[settled]?.state === "settled") settled += 1;
    if (settled > 0) {
      const { id, ts } = (source.entries[settled - 1] as Entry).event;
      source.entries.splice(0, settled);
      source.floor = { topic: source.topic, lastId: id, lastTs: ts };
      source.isDirty = true;
    }
    this.pump();
  }

  /** Ends the lease. */
  #release(entry: Entry): void {
    clearTimeout(entry.timer);
    if (entry.state === "leased" && entry.member !== undefined) entry.member.inFlight -= 1;
    entry.state = "ready";
  }

  #enqueue(entry: Entry): void {
    if (this.#isClosed || !this.#isUnsettled(entry)) return;
    entry.state = "ready";
    this.#redeliveries.push(entry);
    this.pump();
  }

  #forget(entry: Entry): void {
    this.#release(entry);
    entry.state = "settled";
    this.#entries.delete(keyOf(entry.event));
  }

  #leave(member: Member): void {
    if (member.isGone) return;
    member.isGone = true;
    const at = this.#members.indexOf(member);
    if (at >= 0) this.#members.splice(at, 1);
    for (const entry of this.#entries.values()) {
      if (entry.state !== "leased" || entry.member !== member) continue;
      if (member.options.manualAck === true) this.#giveBack(entry);
      else {
        clearTimeout(entry.timer);
        entry.timer = setTimeout(() => this.#giveBack(entry), member.options.ackTimeoutMs ?? DRAIN_MS);
        unref(entry.timer);
      }
    }
    this.pump();
  }

  /** Returns the event of a member that has left. This delivery does not count as an attempt. */
  #giveBack(entry: Entry): void {
    if (entry.state !== "leased") return;
    this.#release(entry);
    entry.attempt -= 1;
    this.#enqueue(entry);
  }

  #isUnsettled(entry: Entry): boolean {
    return this.#entries.get(keyOf(entry.event)) === entry;
  }

  #find(topic: string, id: UUID): Entry | undefined {
    const entry = this.#entries.get(`${topic} ${id}`);
    if (entry !== undefined) return entry.attempt > 0 ? entry : undefined;
    if (topic !== this.#subscription) return undefined;
    for (const source of this.#sources.keys()) {
      const found = this.#entries.get(`${source} ${id}`);
      if (found !== undefined && found.attempt > 0) return found;
    }
    return undefined;
  }

  async #saveAll(): Promise<void> {
    for (;;) {
      const source = [...this.#sources.values()].find(({ isDirty }) => isDirty);
      if (source === undefined) return;
      source.isDirty = false;
      try {
        await this.#tools.cursors.set(source.cursorTopic, this.#group, source.floor);
      } catch (thrown) {
        source.isDirty = true;
        throw thrown;
      }
    }
  }
}

function place(source: Source, { lastId, lastTs }: CursorPosition): void {
  delete source.afterId;
  delete source.ts;
  if (lastId !== undefined) source.afterId = lastId;
  else if (lastTs !== undefined) source.ts = lastTs;
}

function accepts(filter: SubscribeOptions["filter"], event: EventRecord): boolean {
  if (filter === undefined) return true;
  if (typeof filter === "function") return filter(event);
  const { key, tag, header = {} } = filter;
  return (key === undefined || event.key === key) &&
    (tag === undefined || event.tags?.includes(tag) === true) &&
    Object.entries(header).every(([name, value]) => event.headers?.[name] === value);
}

function maxAttemptsOf(entry: Entry): number {
  return entry.member?.options.maxAttempts ?? MAX_ATTEMPTS;
}

function keyOf(event: EventRecord): string {
  return `${event.topic} ${event.id}`;
}

/** Lets a Node process end although the timer is running: a lease alone must not keep the process running. */
function unref(timer: unknown): void {
  (timer as { unref?: () => void }).unref?.();
}
