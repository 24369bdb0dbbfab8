/**
 * Projectors fold the events of one topic into states by key, and publish each changed state to another topic.
 *
 * The states are stored in the output topic: the newest event of a key is its state; `null` means that the key has no state. A
 * projector reads the states when it opens, so it needs no other storage.
 *
 * Each input event changes the states exactly once, even after crashes and reconnects. The projector folds a batch of inputs,
 * publishes the changed states, then acks the inputs. The last state event of a batch has the header `projector-position`, which
 * names the last input that the states contain. Redelivered inputs up to that position are acked without being folded. The other
 * state events of the batch have the header `projector-pending`: they are valid only if the last event of the batch follows. After
 * a crash in between, the projector ignores them and folds the inputs again, so readers of the output topic may briefly see a
 * key return to an older state.
 *
 * Only one projector may run per group, and it must be the only publisher of its output topic. The output topic should be compacted,
 * without retention by age.
 */
import { Backoff } from "./backoff.js";
import { messageOf, PrombusError } from "./errors.js";
import type { Delivery, Millis, PublishOptions, Start, StoredEvent, SubscribeOptions } from "./types.js";
import { uuidv7 } from "./uuid.js";

/** The header that contains group, input topic, seq and id of the last input that the states contain. */
export const POSITION_HEADER = "projector-position";
/** The header of a state event that is valid only if the last event of its batch follows. */
export const PENDING_HEADER = "projector-pending";

/** The user's functions that turn events into states. */
export interface Projection<S, T = unknown> {
  /**
   * Folds an event into the states. Every state that `fold` sets is published; for every key that it removes, `null` is published. If
   * `fold` throws, the event changes nothing and goes to `dlq.<topic>`.
   */
  fold(event: StoredEvent<T>, states: States<S>): void;
  /** Changes states because time has passed. Called only after all events that existed at the start are folded. */
  tick?(now: Millis, states: States<S>): void;
}

export interface ProjectorOptions {
  /** The topic to fold; not a pattern. */
  input: string;
  /** The topic that the states are published to. */
  output: string;
  group: string;
  /** Where a new group starts; default `"earliest"`. */
  from?: "earliest" | "latest";
  /** Maximum number of events per batch; default 100. */
  batchSize?: number;
  /** How often `tick` is called; default never. */
  tickMs?: Millis;
  /** Called with failures that are retried, and with the failure that ends the projector. Default: `console.warn`. */
  onError?: (error: unknown) => void;
}

/** Counters of a projector. */
export interface ProjectorCounts {
  folded: number;
  /** Redelivered inputs that the states already contained. */
  skipped: number;
  /** Inputs that became dead letters. */
  rejected: number;
  published: number;
}

/** The part of a client that a projector uses. */
export interface ProjectorClient {
  publish(topic: string, payload: unknown, options?: PublishOptions): Promise<unknown>;
  consume(topic: string, group: string, options?: SubscribeOptions): ProjectorConsumer;
  cursor(topic: string, group: string): Promise<{ lastId?: string } | null>;
  seek(topic: string, group: string, to: Start): Promise<unknown>;
  replay(topic: string, options?: { from?: "latest"; afterId?: string; fromSeq?: number; order?: "desc"; limit?: number }): AsyncIterable<StoredEvent>;
}

export interface ProjectorConsumer {
  join(): Promise<unknown>;
  next(): Promise<IteratorResult<Delivery, undefined>>;
  close(): Promise<void>;
}

/** States by key. If folding an event fails, the changes that it made are undone. */
export class States<S> {
  readonly #states = new Map<string, S>();
  /** The previous states of the changed keys. */
  readonly #before = new Map<string, S | undefined>();

  get(key: string): S | undefined {
    return this.#states.get(key);
  }

  /** Sets a state, which will be published. Do not modify an object that was set before: set a new object. */
  set(key: string, state: S): void {
    this.#remember(key);
    this.#states.set(key, state);
  }

  /** Removes a key: `null` is published for it. */
  remove(key: string): void {
    if (!this.#states.has(key)) return;
    this.#remember(key);
    this.#states.delete(key);
  }

  entries(): IterableIterator<[string, S]> {
    return this.#states.entries();
  }

  get size(): number {
    return this.#states.size;
  }

  /** @internal The keys that the current change has set or removed. */
  changed(): string[] {
    return [...this.#before.keys()];
  }

  /** @internal Completes the current change, or undoes it if `isKept` is false. */
  end(isKept: boolean): void {
    if (!isKept) {
      for (const [key, state] of this.#before) {
        if (state === undefined) this.#states.delete(key);
        else this.#states.set(key, state);
      }
    }
    this.#before.clear();
  }

  #remember(key: string): void {
    if (!this.#before.has(key)) this.#before.set(key, this.#states.get(key));
  }
}

interface Position {
  seq: number;
  id: string;
}

const MAX_ATTEMPTS = 1000;
/** Maximum number of events per request when the next input is searched. */
const SEARCH_LIMIT = 256;
/** The default payload limit of a server, and its limit for keys. */
const MAX_STATE_BYTES = 1 << 20;
const MAX_KEY_BYTES = 1024;

/**
 * A running projector.
 *
 * ```ts
 * const totals = await Projector.open<number, number>(client, { input: "payments", output: "totals", group: "totals" }, {
 *   fold(event, states) {
 *     if (event.key === undefined) throw new Error("a payment needs a key");
 *     states.set(event.key, (states.get(event.key) ?? 0) + event.payload);
 *   },
 * });
 * totals.states.get("alice");
 * await totals.stop();
 * ```
 */
export class Projector<S, T = unknown> {
  readonly states = new States<S>();
  readonly counts: ProjectorCounts = { folded: 0, skipped: 0, rejected: 0, published: 0 };
  /**
   * Resolves when the projector has ended: with undefined after `stop()` or when the client was closed, with an error if the projector
   * could not continue. Never rejects.
   */
  readonly finished: Promise<unknown>;
  readonly #client: ProjectorClient;
  readonly #options: ProjectorOptions;
  readonly #projection: Projection<S, T>;
  #position: Position | undefined;
  /** The event after which the group was moved. Without a position, the input after it is the next one. */
  #startsAfter: string | undefined;
  /** Seq of the newest input for this group when the projector was opened. */
  #endAtOpen = 0;
  /** Keys with unpublished states, and the id of the input that changed each of them last; undefined if `tick` did. */
  readonly #changed = new Map<string, string | undefined>();
  #isStopped = false;
  #wake: () => void = () => {};

  /** Reads the states, joins the group, and runs until `stop()`. */
  static async open<S, T = unknown>(
    client: ProjectorClient,
    options: ProjectorOptions,
    projection: Projection<S, T>,
  ): Promise<Projector<S, T>> {
    const projector = new Projector(client, options, projection);
    await projector.#restore();
    projector.#start(await projector.#join());
    return projector;
  }

  private constructor(client: ProjectorClient, options: ProjectorOptions, projection: Projection<S, T>) {
    this.#client = client;
    this.#options = options;
    this.#projection = projection;
    this.finished = new Promise((resolve) => { this.#finish = resolve; });
  }

  #finish!: (error: unknown) => void;

  /** Finishes the current batch and leaves the group. Throws the error that ended the projector, if it had failed before. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#wake();
    const error = await this.finished;
    if (error !== undefined) throw error;
  }

  #start(first: ProjectorConsumer): void {
    const { tickMs } = this.#options;
    let isTickDue = false;
    const timer = tickMs === undefined ? undefined : setInterval(() => {
      isTickDue = true;
      this.#wake();
    }, tickMs);
    const takeTick = (): boolean => {
      const isTaken = isTickDue && (this.#position?.seq ?? 0) >= this.#endAtOpen;
      if (isTaken) isTickDue = false;
      return isTaken;
    };
    this.#run(first, takeTick).then(() => undefined, (error: unknown) => {
      if (error instanceof PrombusError && error.code === "closed") return undefined;
      this.#report(error);
      return error;
    }).then((error) => {
      clearInterval(timer);
      this.#finish(error);
    });
  }

  async #run(first: ProjectorConsumer, takeTick: () => boolean): Promise<void> {
    let consumer = first;
    let pull: Pull | undefined;
    try {
      while (!this.#isStopped) {
        if (takeTick()) {
          await this.#tick();
          continue;
        }
        pull ??= new Pull(consumer, () => this.#wake());
        if (!pull.isOver) await new Promise<void>((resolve) => { this.#wake = resolve; });
        if (!pull.isOver) continue;
        const batch: Delivery[] = [];
        pull = await this.#gather(consumer, pull, batch);
        if (await this.#apply(batch)) continue;
        // An input is missing, because another member or a lost connection of this member still has its lease; or a failed input
        // could not be made a dead letter.
        await consumer.close();
        pull = undefined;
        consumer = await this.#retry(() => this.#join());
      }
    } finally {
      await consumer.close();
    }
  }

  /** Collects the deliveries that have already arrived. Returns the pull that waits for the next one. */
  async #gather(consumer: ProjectorConsumer, first: Pull, batch: Delivery[]): Promise<Pull> {
    const later = new Promise<void>((resolve) => setTimeout(resolve, 0));
    let pull = first;
    while (pull.isOver && batch.length < (this.#options.batchSize ?? 100)) {
      batch.push(pull.take());
      pull = new Pull(consumer, () => this.#wake());
      await Promise.race([pull.ended, later]);
    }
    return pull;
  }

  /** Folds inputs in order, publishes the changed states, and acks. Returns false if an input was not folded and must be redelivered. */
  async #apply(batch: Delivery[]): Promise<boolean> {
    const done: Delivery[] = [];
    let isComplete = true;
    for (const delivery of batch) {
      const { event } = delivery;
      if (event.seq <= (this.#position?.seq ?? 0)) {
        this.counts.skipped += 1;
        done.push(delivery);
        continue;
      }
      if (!(await this.#isNext(event.seq))) {
        isComplete = false;
        break;
      }
      const error = this.#change(event.id, () => this.#projection.fold(event as StoredEvent<T>, this.states));
      if (error === undefined) {
        this.counts.folded += 1;
        done.push(delivery);
      } else {
        // The dead letter must be durable before the position passes this input: a crash must not lose the input.
        if (!(await this.#makeDeadLetter(delivery, error))) {
          isComplete = false;
          break;
        }
        this.counts.rejected += 1;
      }
      this.#position = { seq: event.seq, id: event.id };
    }
    await this.#flush();
    await Promise.all(done.map((delivery) => this.#ack(delivery)));
    return isComplete;
  }

  /**
   * Makes an input a dead letter. Returns false if the server has not confirmed the dead letter as stored. A repetition after
   * redelivery does not create a second dead letter.
   */
  async #makeDeadLetter(delivery: Delivery, reason: string): Promise<boolean> {
    try {
      return (await delivery.nack(reason, { dead: true })) === "settled";
    } catch (thrown) {
      if (!isFull(thrown)) throw thrown;
      this.#report(thrown);
      return false;
    }
  }

  /**
   * Acks an input. On a full disk the server reports an error, but the ack still applies; it is not durable. If a crash loses the
   * ack, the input is redelivered and skipped.
   */
  async #ack(delivery: Delivery): Promise<void> {
    try {
      await delivery.ack();
    } catch (thrown) {
      if (!isFull(thrown)) throw thrown;
      this.#report(thrown);
    }
  }

  /**
   * Whether this seq is the next stored input after the position. Retention, compaction and events for other groups leave gaps in
   * the delivered seqs, so after a gap the stored events in between are read. Without a position, another member of the group may
   * have received the first input.
   */
  async #isNext(seq: number): Promise<boolean> {
    const startsAfter = this.#position === undefined ? this.#startsAfter : undefined;
    if (this.#position === undefined && startsAfter === undefined && this.#options.from === "latest") return true;
    let next = (this.#position?.seq ?? 0) + 1;
    let start: { fromSeq: number } | { afterId: string } = startsAfter === undefined ? { fromSeq: next } : { afterId: startsAfter };
    // Usually the first stored event decides. A redrive may have added many events for another group.
    let limit = 1;
    const search = this.#retry(async () => {
      while (next < seq) {
        let count = 0;
        for await (const event of this.#client.replay(this.#options.input, { ...start, limit })) {
          if (event.seq >= seq) return true;
          if (this.#receives(event)) return false;
          next = event.seq + 1;
          start = { fromSeq: next };
          count += 1;
        }
        if (count < limit) return true;
        limit = Math.min(2 * limit, SEARCH_LIMIT);
      }
      return true;
    });
    return search.catch((thrown: unknown) => {
      // The event at which the group was moved has been removed since.
      if (startsAfter === undefined || !(thrown instanceof PrombusError) || thrown.code !== "unknown_id") throw thrown;
      return true;
    });
  }

  /** Whether the server delivers this input to the group: it is addressed to this group or to none. */
  #receives({ addressee }: StoredEvent): boolean {
    const { input, group } = this.#options;
    return addressee === undefined || (addressee.subscription === input && addressee.group === group);
  }

  async #tick(): Promise<void> {
    const error = this.#change(undefined, () => this.#projection.tick?.(Date.now(), this.states));
    if (error !== undefined) this.#report(new Error(`tick failed and was skipped: ${error}`));
    await this.#flush();
  }

  /** Runs a change of the states. If it fails, undoes it and returns the reason. */
  #change(cause: string | undefined, change: () => void): string | undefined {
    try {
      change();
      const keys = this.states.changed();
      for (const key of keys) check(key, this.states.get(key));
      this.states.end(true);
      for (const key of keys) this.#changed.set(key, cause);
      return undefined;
    } catch (thrown) {
      this.states.end(false);
      return messageOf(thrown);
    }
  }

  /** Publishes the changed states; the last one makes the others valid. */
  async #flush(): Promise<void> {
    const records = [...this.#changed].map(([key, cause]) => this.#record(key, cause));
    const last = records.pop();
    if (last === undefined) return;
    const { output } = this.#options;
    const publish = (record: StateRecord, header: Record<string, string>): Promise<unknown> =>
      this.#retry(() => this.#client.publish(output, record.payload, { ...record.options, headers: header }));
    const pending = { [PENDING_HEADER]: this.#options.group };
    await Promise.all(records.map((record) => publish(record, pending)));
    await publish(last, this.#position === undefined ? {} : { [POSITION_HEADER]: this.#header(this.#position) });
    this.counts.published += this.#changed.size;
    this.#changed.clear();
  }

  #record(key: string, cause: string | undefined): StateRecord {
    const options = { id: uuidv7(), key, ...(cause === undefined ? {} : { caused_by: [cause] }) };
    return { payload: this.states.get(key) ?? null, options };
  }

  #header({ seq, id }: Position): string {
    return `${this.#options.group} ${this.#options.input} ${seq} ${id}`;
  }

  async #restore(): Promise<void> {
    const { input, output, group } = this.#options;
    if (input.includes("*")) throw new PrombusError("bad_topic", "a projector reads one topic, not a pattern");
    let pending: StoredEvent[] = [];
    for await (const event of this.#client.replay(output)) {
      // An event for one group of the output topic is a copy for that group, not a state. It may have the headers of a state.
      if (event.addressee !== undefined) continue;
      pending.push(event);
      if (event.headers?.[PENDING_HEADER] === group) continue;
      for (const { key, payload } of pending) {
        if (key === undefined) continue;
        if (payload === null) this.states.remove(key);
        else this.states.set(key, payload as S);
      }
      pending = [];
      const [ofGroup, ofInput, seq, id] = event.headers?.[POSITION_HEADER]?.split(" ") ?? [];
      if (ofGroup === group && ofInput === input && id !== undefined) this.#position = { seq: Number(seq), id };
    }
    this.states.end(true);
    const newest = await firstOf(this.#client.replay(input, { from: "latest", limit: 1 }));
    if (this.#position !== undefined && !(await this.#isOfInput(this.#position, newest?.seq ?? 0))) this.#position = undefined;
    this.#endAtOpen = newest === undefined || this.#receives(newest) ? newest?.seq ?? 0 : await this.#newestSeq();
  }

  /** Seq of the newest input that the group receives; 0 if there is none. */
  async #newestSeq(): Promise<number> {
    for await (const event of this.#client.replay(this.#options.input, { order: "desc" })) {
      if (this.#receives(event)) return event.seq;
    }
    return 0;
  }

  /** Whether the position belongs to this input topic. It does not if the topic was deleted and created again. */
  async #isOfInput({ seq, id }: Position, newestSeq: number): Promise<boolean> {
    if (newestSeq < seq) return false;
    const found = await firstOf(this.#client.replay(this.#options.input, { fromSeq: seq, limit: 1 }));
    return found === undefined || found.seq > seq || found.id === id;
  }

  /**
   * Joins the group so that the input after the position is delivered first. Without a position, the group continues after its
   * cursor; a new group starts at `from`.
   */
  async #join(): Promise<ProjectorConsumer> {
    const { input, group, from = "earliest", batchSize = 100 } = this.#options;
    const cursor = await this.#client.cursor(input, group);
    const afterId = this.#position?.id ?? cursor?.lastId;
    const start: Start = afterId === undefined ? (cursor === null ? from : "earliest") : { afterId };
    if (cursor !== null) await this.#seek(start);
    const consume = async (from: Start): Promise<ProjectorConsumer> => {
      const options = { from, batchSize, maxInFlight: 2 * batchSize, maxAttempts: MAX_ATTEMPTS };
      const consumer = this.#client.consume(input, group, options);
      await consumer.join();
      return consumer;
    };
    return orFromEarliest(start, consume);
  }

  /** Moves the group. This voids the leases of members that lost their connection, so that all inputs are delivered in order. */
  async #seek(start: Start): Promise<void> {
    const { input, group } = this.#options;
    await orFromEarliest(start, async (to) => {
      await this.#client.seek(input, group, to);
      this.#startsAfter = typeof to === "object" && "afterId" in to ? to.afterId : undefined;
    });
  }

  /** Repeats a call while it fails with a retryable error, until `stop()`. */
  async #retry<R>(call: () => Promise<R>): Promise<R> {
    const backoff = new Backoff(100, 5_000);
    for (;;) {
      try {
        return await call();
      } catch (thrown) {
        if (this.#isStopped || !(thrown instanceof PrombusError) || !thrown.isRetryable) throw thrown;
        this.#report(thrown);
        await new Promise((resolve) => setTimeout(resolve, backoff.next()));
      }
    }
  }

  #report(error: unknown): void {
    const { onError, group } = this.#options;
    try {
      if (onError === undefined) console.warn(`projector ${group}: ${messageOf(error)}`);
      else onError(error);
    } catch {
      // An `onError` that throws must not stop the projector.
    }
  }
}

interface StateRecord {
  payload: unknown;
  options: PublishOptions;
}

/** A pending call of `next()` whose state can be checked without waiting. */
class Pull {
  isOver = false;
  readonly ended: Promise<void>;
  #result: IteratorResult<Delivery, undefined> | undefined;
  #error: unknown;

  constructor(consumer: ProjectorConsumer, wake: () => void) {
    this.ended = consumer.next().then(
      (result) => { this.#result = result; },
      (error: unknown) => { this.#error = error; },
    ).then(() => {
      this.isOver = true;
      wake();
    });
  }

  take(): Delivery {
    if (this.#result?.done === false) return this.#result.value;
    throw this.#error ?? new PrombusError("closed", "the subscription of the projector ended");
  }
}

function isFull(thrown: unknown): boolean {
  return thrown instanceof PrombusError && thrown.code === "storage_full";
}

/**
 * Calls `act` with `start`, or with `"earliest"` if the id in `start` is unknown because retention or compaction removed its event.
 * The projector then skips the inputs that the states already contain.
 */
async function orFromEarliest<R>(start: Start, act: (start: Start) => Promise<R>): Promise<R> {
  try {
    return await act(start);
  } catch (thrown) {
    if (!(thrown instanceof PrombusError) || thrown.code !== "unknown_id") throw thrown;
    return act("earliest");
  }
}

/** Throws if a server with default limits would refuse the state. */
function check(key: string, state: unknown): void {
  if (key === "" || bytes(key) > MAX_KEY_BYTES) throw new Error(`a key must have 1 to ${MAX_KEY_BYTES} bytes`);
  const size = bytes(JSON.stringify(state) ?? "null");
  if (size > MAX_STATE_BYTES) throw new Error(`the state of ${key} has ${size} bytes; at most ${MAX_STATE_BYTES} are allowed`);
}

function bytes(text: string): number {
  return new TextEncoder().encode(text).length;
}

async function firstOf<T>(items: AsyncIterable<T>): Promise<T | undefined> {
  for await (const item of items) return item;
  return undefined;
}
