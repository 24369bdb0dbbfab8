/**
 * The outbox drainer: publishes the rows that a service wrote to its own database, in the same transaction as its business data.
 *
 * The order is: claim rows, publish them, mark them as sent. The row's id is the event's id, so a crash between publish and mark does
 * not create a second event: the row is published again and the server answers `duplicate`.
 */
import { Backoff } from "./backoff.js";
import { messageOf, PrombusError } from "./errors.js";
import type { Millis, UUID } from "./types.js";

/** A row of an outbox: an event to publish. */
export interface OutboxRecord<T = unknown> {
  /** A UUID becomes the event's id; the server derives the id from any other text (1 to 255 bytes). */
  id: UUID;
  topic: string;
  payload: T;
  headers?: Record<string, string>;
  key?: string;
  /** When the event happened; default: the time of the insert. */
  ts?: Millis;
  /** Failed attempts so far, if the store counts them. */
  attempts?: number;
}

/** Stores the rows. The first four methods are required; the drainer uses the others if the store has them. */
export interface OutboxStore<T = unknown> {
  /** Adds a row. Stores with synchronous drivers may return `void`, so that this can be part of a transaction. */
  add(rec: OutboxRecord<T>): Promise<void> | void;
  /** Claims up to `n` rows that are due, in insertion order. No other drainer gets them while they are claimed. */
  claimBatch(n: number): Promise<OutboxRecord<T>[]>;
  markSent(id: UUID): Promise<void>;
  /** Records a failed attempt. The store should make the row due again after a backoff, or never if `isPermanent`. */
  markError(id: UUID, err: string, isPermanent?: boolean): Promise<void>;
  /** Like `markSent`, for many rows in one transaction. */
  markSentBatch?(ids: UUID[]): Promise<void>;
  /** Makes rows due again without counting an attempt, because the server was unavailable. */
  release?(ids: UUID[], reason: string): Promise<void>;
  /** Makes rows due again whose lease has expired. Returns how many rows it changed. */
  requeueExpired?(): Promise<number>;
  /** Deletes rows that were sent long ago. Returns how many it deleted. */
  purgeSent?(): Promise<number>;
  /**
   * Resolves when a row may be due, and at once when `signal` aborts. The drainer calls this instead of waiting for `intervalMs`, so
   * the promise may resolve before or after that time.
   */
  waitForRows?(intervalMs: Millis, signal: AbortSignal): Promise<void>;
}

/** The part of a bus that the drainer uses. The client has it, and so does `EventBus` of `@prombus/client/promethean`. */
export interface OutboxBus {
  publish(topic: string, payload: unknown, opts?: OutboxPublishOptions): Promise<unknown>;
  /**
   * Resolves when the bus has room for another publish. A bus with this method sends publishes in the order of the calls, so the
   * drainer does not await each publish before the next one. With any other bus, it publishes the rows of a topic one at a time.
   */
  whenWritable?(): Promise<void>;
  /** `"closed"` means that nothing can be published any more. */
  readonly status?: string;
}

export interface OutboxPublishOptions {
  id?: UUID;
  idempotencyKey?: string;
  headers?: Record<string, string>;
  key?: string;
  ts?: Millis;
  timeoutMs?: Millis;
}

/** Options of `runOutboxDrainer`. */
export interface DrainerOptions {
  /** How long to wait when no row is due; default 250. A store with `waitForRows` decides itself. */
  intervalMs?: Millis;
  /** Maximum number of rows per claim; default 100. */
  batchSize?: number;
  /** Stops the drainer. Rows whose publish has not been answered are published again later, with the same id. */
  signal?: AbortSignal;
  /** Called with every failure, and with the row if the failure concerns a single row. Default: `console.warn`. */
  onError?: (error: unknown, row?: OutboxRecord) => void;
}

/** Error codes of rows that can never be published. */
const PERMANENT: ReadonlySet<unknown> = new Set(["bad_json", "bad_request", "bad_topic", "too_large", "invalid_payload"]);
/** Error codes that do not concern the row: no attempt is counted. Retryable errors are handled in the same way. */
const UNAVAILABLE: ReadonlySet<unknown> = new Set(["aborted", "bad_token", "closed", "no_websocket", "unauthorized"]);
const UUID_TEXT = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
/** Must be shorter than the lease of a row, so that no other drainer claims the row during the publish. */
const PUBLISH_TIMEOUT_MS = 15_000;
const PURGE_INTERVAL_MS = 60_000;
/** How often a waiting drainer checks whether the bus is closed. */
const CHECK_MS = 250;

/**
 * Publishes the rows of an outbox until `signal` aborts or the bus is closed. It never rejects: it reports failures of the store or
 * the server to `onError`, and continues after a backoff.
 *
 * A single drainer publishes the rows of a topic in order, except for rows that are retried. Several drainers share the work and do
 * not keep the order. While the server cannot be reached or its disk is full, rows wait, and no attempt is counted.
 */
export async function runOutboxDrainer<T>(
  outbox: OutboxStore<T>,
  bus: OutboxBus,
  options: Millis | DrainerOptions = {},
): Promise<void> {
  const settings = typeof options === "number" ? { intervalMs: options } : options;
  await new Drainer(outbox, bus, settings).run();
}

class Drainer<T> {
  readonly #outbox: OutboxStore<T>;
  readonly #bus: OutboxBus;
  readonly #options: DrainerOptions;
  /** Rows that could not be published because the server was unavailable. Used only if the store has no `release`. */
  #held: OutboxRecord<T>[] = [];
  #nextPurge = 0;
  /** Whether a publish was refused because the bus is closed. */
  #isRefused = false;

  constructor(outbox: OutboxStore<T>, bus: OutboxBus, options: DrainerOptions) {
    this.#outbox = outbox;
    this.#bus = bus;
    this.#options = options;
  }

  async run(): Promise<void> {
    const { intervalMs = 250 } = this.#options;
    const backoff = new Backoff(100, 30_000);
    while (!this.#isOver()) {
      try {
        const pass = await this.#pass();
        if (pass === "empty") await this.#waitForRows(intervalMs);
        backoff.reset();
        if (pass === "failed") await this.#sleep(intervalMs);
      } catch (error) {
        if (this.#isStopped() || this.#isRefused) return;
        this.#report(error);
        await this.#sleep(backoff.next());
      }
    }
  }

  /** Waits until a row may be due or the drainer must end. */
  async #waitForRows(intervalMs: Millis): Promise<void> {
    const outbox = this.#outbox;
    if (outbox.waitForRows === undefined) return this.#sleep(intervalMs);
    const { signal } = this.#options;
    const over = new AbortController();
    const stop = (): void => over.abort();
    const check = setInterval(() => this.#isOver() && stop(), CHECK_MS);
    signal?.addEventListener("abort", stop);
    if (this.#isOver()) stop();
    try {
      await unlessAborted(outbox.waitForRows(intervalMs, over.signal), over.signal);
    } finally {
      clearInterval(check);
      signal?.removeEventListener("abort", stop);
    }
  }

  /** Waits for `ms`, or until the drainer must end. */
  async #sleep(ms: Millis): Promise<void> {
    // Sleeps at least once, so that an interval of 0 lets other tasks run.
    let left = ms;
    do {
      await sleep(Math.min(left, CHECK_MS), this.#options.signal);
      left -= CHECK_MS;
    } while (left > 0 && !this.#isOver());
  }

  /** Publishes one batch. */
  async #pass(): Promise<Pass> {
    const outbox = this.#outbox;
    if (outbox.purgeSent !== undefined && Date.now() >= this.#nextPurge) {
      this.#nextPurge = Date.now() + PURGE_INTERVAL_MS;
      await outbox.purgeSent();
    }
    await outbox.requeueExpired?.();
    const rows = this.#held.length > 0 ? this.#held : await outbox.claimBatch(this.#options.batchSize ?? 100);
    this.#held = [];
    if (rows.length === 0) return "empty";
    return this.#settle(rows, await this.#publish(rows));
  }

  /** Publishes rows. Returns one outcome per row: `undefined` if the event is stored. */
  async #publish(rows: OutboxRecord<T>[]): Promise<(Failure | undefined)[]> {
    const isPipelined = this.#bus.whenWritable !== undefined;
    const lastOfTopic = new Map<string, Promise<Failure | undefined>>();
    // The default outcome, for rows that were unanswered when the drainer was stopped.
    const outcomes = rows.map((): Failure | undefined => ({ kind: "unavailable", error: new Error("the drainer was stopped") }));
    const publishAll = async (): Promise<void> => {
      const answers: Promise<void>[] = [];
      for (const [index, row] of rows.entries()) {
        await this.#bus.whenWritable?.();
        if (this.#isStopped()) return;
        const before = isPipelined ? undefined : lastOfTopic.get(row.topic);
        const outcome = before === undefined
          ? this.#publishRow(row)
          // If the server was unavailable for an earlier row of the topic, this row must wait too: the order is kept.
          : before.then((failure) => (failure?.kind === "unavailable" ? failure : this.#publishRow(row)));
        lastOfTopic.set(row.topic, outcome);
        answers.push(outcome.then((failure) => { outcomes[index] = failure; }));
      }
      await Promise.all(answers);
    };
    await unlessAborted(publishAll(), this.#options.signal);
    return [...outcomes];
  }

  async #publishRow(row: OutboxRecord<T>): Promise<Failure | undefined> {
    const { id, topic, payload, headers, key, ts } = row;
    const options: OutboxPublishOptions = UUID_TEXT.test(id) ? { id } : { idempotencyKey: id };
    if (headers !== undefined) options.headers = headers;
    if (key !== undefined) options.key = key;
    if (ts !== undefined) options.ts = ts;
    if (this.#bus.whenWritable !== undefined) options.timeoutMs = PUBLISH_TIMEOUT_MS;
    try {
      await this.#bus.publish(topic, payload, options);
      return undefined;
    } catch (error) {
      this.#isRefused ||= (error as Partial<PrombusError> | undefined)?.code === "closed";
      return { kind: kindOf(error), error };
    }
  }

  async #settle(rows: OutboxRecord<T>[], outcomes: (Failure | undefined)[]): Promise<Pass> {
    const outbox = this.#outbox;
    const sent: UUID[] = [];
    const waiting: OutboxRecord<T>[] = [];
    const settling: Promise<void>[] = [];
    let unavailable: Failure | undefined;
    rows.forEach((row, index) => {
      const failure = outcomes[index];
      if (failure === undefined) {
        sent.push(row.id);
      } else if (failure.kind === "unavailable") {
        unavailable ??= failure;
        waiting.push(row);
      } else {
        this.#report(failure.error, row);
        settling.push(outbox.markError(row.id, messageOf(failure.error), failure.kind === "permanent"));
      }
    });
    if (outbox.markSentBatch === undefined) settling.push(...sent.map((id) => outbox.markSent(id)));
    else if (sent.length > 0) settling.push(outbox.markSentBatch(sent));
    if (unavailable !== undefined) {
      if (outbox.release === undefined) this.#held = waiting;
      else settling.push(outbox.release(waiting.map((row) => row.id), messageOf(unavailable.error)));
    }
    const failed = (await Promise.allSettled(settling)).find((result) => result.status === "rejected");
    if (failed !== undefined) throw failed.reason;
    if (unavailable !== undefined) throw unavailable.error;
    return sent.length > 0 ? "sent" : "failed";
  }

  #isStopped(): boolean {
    return this.#options.signal?.aborted === true;
  }

  #isOver(): boolean {
    return this.#isStopped() || this.#isRefused || this.#bus.status === "closed";
  }

  #report(error: unknown, row?: OutboxRecord): void {
    const { onError } = this.#options;
    try {
      if (onError === undefined) console.warn(`outbox${row === undefined ? "" : `: row ${row.id}`}: ${messageOf(error)}`);
      else onError(error, row);
    } catch {
      // An `onError` that throws must not stop the drainer.
    }
  }
}

/** The result of a pass: no row was due, at least one row was published, or every row failed. */
type Pass = "empty" | "sent" | "failed";

interface Failure {
  /** `permanent`: the row can never be published. `refused` counts as an attempt; `unavailable` does not. */
  kind: "permanent" | "refused" | "unavailable";
  error: unknown;
}

function kindOf(error: unknown): Failure["kind"] {
  const { code, isRetryable } = (error ?? {}) as Partial<PrombusError>;
  if (isRetryable === true || UNAVAILABLE.has(code)) return "unavailable";
  return PERMANENT.has(code) ? "permanent" : "refused";
}

function sleep(ms: Millis, signal: AbortSignal | undefined): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const over = new Promise<void>((resolve) => { timer = setTimeout(resolve, ms); });
  return unlessAborted(over, signal).finally(() => clearTimeout(timer));
}

/** Resolves when `work` does, or when the signal aborts. */
function unlessAborted(work: Promise<void>, signal: AbortSignal | undefined): Promise<void> {
  if (signal === undefined) return work;
  return new Promise((resolve, reject) => {
    const stop = (): void => resolve();
    signal.addEventListener("abort", stop);
    if (signal.aborted) stop();
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}
