/**
 * Projectors fold the events of one topic into states by key, and publish each state that changed to another topic.
 *
 * The states live in the output topic: the newest event of a key is its state, `null` is none. A projector reads them when it
 * opens, so it needs no other storage.
 *
 * Each input changes the states once, also over crashes and reconnects. A batch of inputs is folded, the states that changed are
 * published, then the inputs are acked. The last state event of a batch carries the header `projector-position`: the last input
 * that the states contain. Inputs up to there that are redelivered are only acked. The other events of a batch carry the header
 * `projector-pending` and count when the last one follows: after a crash in between, the projector ignores them and folds the
 * inputs again. Readers of the output topic may then see a key return to an older state for a moment.
 *
 * One projector may run per group, and it must be the only writer of its output topic. The output topic should be compacted, not cut
 * by age.
 */
import { Backoff } from "./backoff.js";
import { messageOf, PrombusError } from "./errors.js";
import type { Delivery, Millis, PublishOptions, Start, StoredEvent, SubscribeOptions } from "./types.js";
import { uuidv7 } from "./uuid.js";

/** Group, input topic, seq and id of the last input that the states contain. */
export const POSITION_HEADER = "projector-position";
/** Marks a state event that counts only if a later event of the same batch follows. */
export const PENDING_HEADER = "projector-pending";

/** How events become states. */
export interface Projection<S, T = unknown> {
  /**
   * Folds an event in. Every state that it sets is published; every key that it removes gets a `null`. If it throws, the event
   * changes nothing and goes to `dlq.<topic>`.
   */
  fold(event: StoredEvent<T>, states: States<S>): void;
  /** Changes states because time has passed. It is not called before everything that was there at the start is folded. */
  tick?(now: Millis, states: States<S>): void;
}

export interface ProjectorOptions {
  /** The topic that is folded; not a pattern. */
  input: string;
  /** The topic of the states. */
  output: string;
  group: string;
  /** Where a new group starts; default `"earliest"`. */
  from?: "earliest" | "latest";
  /** Events that are folded together; default 100. */
  batchSize?: number;
  /** How often `tick` is called; default never. */
  tickMs?: Millis;
  /** Gets failures that are retried, and the one that ends the projector. Default: `console.warn`. */
  onError?: (error: unknown) => void;
}

/** What a projector did so far. */
export interface ProjectorCounts {
  folded: number;
  /** Redelivered inputs that the states contain already. */
  skipped: number;
  /** Inputs that went to the dead letters. */
  rejected: number;
  published: number;
}

/** What a projector needs of a client. */
export interface ProjectorClient {
  publish(topic: string, payload: unknown, options?: PublishOptions): Promise<unknown>;
  consume(topic: string, group: string, options?: SubscribeOptions): ProjectorConsumer;
  cursor(topic: string, group: string): Promise<{ lastId?: string } | null>;
  seek(topic: string, group: string, to: Start): Promise<unknown>;
  replay(topic: string, options?: { from?: "latest"; fromSeq?: number; limit?: number }): AsyncIterable<StoredEvent>;
}

export interface ProjectorConsumer {
  join(): Promise<unknown>;
  next(): Promise<IteratorResult<Delivery, undefined>>;
  close(): Promise<void>;
}

/** States by key. Changes that an event made before it was rejected are undone. */
export class States<S> {
  readonly #states = new Map<string, S>();
  /** What the changed keys had before. */
  readonly #before = new Map<string, S | undefined>();

  get(key: string): S | undefined {
    return this.#states.get(key);
  }

  /** Sets a state, to be published. Do not change an object that was set before: set a new one. */
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

  /** @internal Keys of the current change. */
  changed(): string[] {
    return [...this.#before.keys()];
  }

  /** @internal Ends the current change; undoes it unless it is kept. */
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
/** Limits of the server. */
const MAX_STATE_BYTES = 1 << 20;
const MAX_KEY_BYTES = 1024;

/**
 * A projector at work.
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
   * Resolves when the projector has ended: with undefined after `stop()` or the end of the client, with an error if it could not
   * continue. Never rejects.
   */
  readonly finished: Promise<unknown>;
  readonly #client: ProjectorClient;
  readonly #options: ProjectorOptions;
  readonly #projection: Projection<S, T>;
  #position: Position | undefined;
  /** Seq of the newest input when this was opened. */
  #endAtOpen = 0;
  /** Keys whose states changed and are not published, with the input that changed them last. */
  readonly #changed = new Map<string, string | undefined>();
  #isStopped = false;
  #wake: () => void = () => {};

  /** Reads the states, joins the group, and works until `stop()`. */
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

  /** Finishes the batch that is being folded, leaves the group, and throws the error that ended the projector before, if any. */
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
        // An input is missing: another member, or this one's last connection, still has it.
        await consumer.close();
        pull = undefined;
        consumer = await this.#retry(() => this.#join());
      }
    } finally {
      await consumer.close();
    }
  }

  /** Collects the deliveries that are there already. Returns the pull that waits for the next one. */
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

  /** Folds inputs in order, publishes what changed, and acks. False: an input is left out, and has to be delivered again. */
  async #apply(batch: Delivery[]): Promise<boolean> {
    const done: Delivery[] = [];
    let isInOrder = true;
    for (const delivery of batch) {
      const { event } = delivery;
      if (event.seq <= (this.#position?.seq ?? 0)) {
        this.counts.skipped += 1;
        done.push(delivery);
        continue;
      }
      if (!(await this.#isNext(event.seq))) {
        isInOrder = false;
        break;
      }
      const error = this.#change(event.id, () => this.#projection.fold(event as StoredEvent<T>, this.states));
      if (error === undefined) {
        this.counts.folded += 1;
        done.push(delivery);
      } else {
        // Before the position passes it: a crash must not lose the letter.
        if (!(await this.#bury(delivery, error))) {
          isInOrder = false;
          break;
        }
        this.counts.rejected += 1;
      }
      this.#position = { seq: event.seq, id: event.id };
    }
    await this.#flush();
    await Promise.all(done.map((delivery) => this.#ack(delivery)));
    return isInOrder;
  }

  /** False: it is not known to be in the dead letters. If it comes again and is there, no second letter is made. */
  async #bury(delivery: Delivery, reason: string): Promise<boolean> {
    try {
      return (await delivery.nack(reason, { dead: true })) === "settled";
    } catch (thrown) {
      if (!isFull(thrown)) throw thrown;
      this.#report(thrown);
      return false;
    }
  }

  /** An ack that a full disk cannot keep applies. If a crash loses it, the input is redelivered and skipped. */
  async #ack(delivery: Delivery): Promise<void> {
    try {
      await delivery.ack();
    } catch (thrown) {
      if (!isFull(thrown)) throw thrown;
      this.#report(thrown);
    }
  }

  /** Whether no earlier input is left out. Cleaning makes gaps, so a gap alone says nothing. */
  async #isNext(seq: number): Promise<boolean> {
    if (this.#position === undefined && this.#options.from === "latest") return true;
    const expected = (this.#position?.seq ?? 0) + 1;
    if (seq === expected) return true;
    const first = await this.#retry(() => firstOf(this.#client.replay(this.#options.input, { fromSeq: expected, limit: 1 })));
    return first === undefined || first.seq >= seq;
  }

  async #tick(): Promise<void> {
    const error = this.#change(undefined, () => this.#projection.tick?.(Date.now(), this.states));
    if (error !== undefined) this.#report(new Error(`a tick is left out: ${error}`));
    await this.#flush();
  }

  /** Runs a change of the states; returns why it was undone. */
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

  /** Publishes the states that changed; the last one makes the others count. */
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
    this.#endAtOpen = (await firstOf(this.#client.replay(input, { from: "latest", limit: 1 })))?.seq ?? 0;
    if (this.#position !== undefined && !(await this.#isOfInput(this.#position))) this.#position = undefined;
  }

  /** Whether the input topic has this event there. One that was deleted and created again has not. */
  async #isOfInput({ seq, id }: Position): Promise<boolean> {
    if (this.#endAtOpen < seq) return false;
    const found = await firstOf(this.#client.replay(this.#options.input, { fromSeq: seq, limit: 1 }));
    return found === undefined || found.seq > seq || found.id === id;
  }

  /** Joins the group so that the input after the position is the next one. */
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

  /** Voids the leases of a member that is gone, so that all inputs come in order. */
  async #seek(start: Start): Promise<void> {
    const { input, group } = this.#options;
    await orFromEarliest(start, (to) => this.#client.seek(input, group, to));
  }

  /** Repeats a call until it succeeds or can never succeed. */
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
      // A mistake in the caller's report must not stop the projector.
    }
  }
}

interface StateRecord {
  payload: unknown;
  options: PublishOptions;
}

/** A call of `next()`, whose outcome can be asked for. */
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

/** After an id that was cleaned away, from the first event: what the states contain is skipped. */
async function orFromEarliest<R>(start: Start, act: (start: Start) => Promise<R>): Promise<R> {
  try {
    return await act(start);
  } catch (thrown) {
    if (!(thrown instanceof PrombusError) || thrown.code !== "unknown_id") throw thrown;
    return act("earliest");
  }
}

/** Throws if the server would refuse a state. */
function check(key: string, state: unknown): void {
  if (key === "" || bytes(key) > MAX_KEY_BYTES) throw new Error(`a key has 1 to ${MAX_KEY_BYTES} bytes`);
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
