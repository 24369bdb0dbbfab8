/**
 * Publishes: a bounded queue, a window of frames that wait for their answers, and resends.
 *
 * Every publish has an id or an idempotency key before it is first sent. So a publish whose answer was lost is sent again over
 * the next connection, and the server stores it once.
 */
import { Backoff } from "./backoff.js";
import { asError, type Connection } from "./connection.js";
import { isPassing, PrombusError } from "./errors.js";
import type { Waiter } from "./frames.js";
import { MAX_DELAY_MS } from "./token.js";
import type { Millis, PublishOptions, PublishResult } from "./types.js";
import { uuidv7 } from "./uuid.js";

/** Limits of publishes. */
export interface PublisherOptions {
  /** Publishes that may wait for an answer; default 65,536. One more is rejected with `queue_full`. */
  maxQueued?: number | undefined;
  /** Characters of their frames; default 64 Mi. */
  maxQueuedBytes?: number | undefined;
  /** How long a publish is tried; default 60,000. */
  publishTimeoutMs?: Millis | undefined;
}

/** One publish, from its call to its answer. */
interface Publish extends Waiter {
  readonly corr: number;
  /** Its id or idempotency key. */
  readonly name: string | undefined;
  readonly frame: string;
  readonly deadline: Millis;
  /** Why the server would not take it, the last time that it was sent. */
  lastError?: PrombusError;
  fail(error: unknown): void;
}

/** What may be sent and unanswered: enough for any round trip, and less than a server holds back. */
const WINDOW = 16_384;
const WINDOW_BYTES = 2 << 20;

export class Publisher {
  readonly #connection: Connection;
  readonly #options: PublisherOptions;
  readonly #backoff = new Backoff();
  /** Not sent yet, or to be sent again; in the order of the calls, unless `#isUnsorted`. */
  #queued = new Set<Publish>();
  #isUnsorted = false;
  readonly #sent = new Set<Publish>();
  #sentBytes = 0;
  #bytes = 0;
  #isFlushing = false;
  #pauseTimer: ReturnType<typeof setTimeout> | undefined;
  #deadlineTimer: ReturnType<typeof setTimeout> | undefined;
  #nextDeadline = Infinity;
  #waiting: { isMet: () => boolean; resolve: () => void }[] = [];
  /** What may be sent and unanswered now: one after a refusal, and twice as many with each OK. */
  #window = WINDOW;
  #closedBy: PrombusError | undefined;

  constructor(connection: Connection, options: PublisherOptions) {
    this.#connection = connection;
    this.#options = options;
  }

  /** Publishes that wait for an answer. */
  get pending(): number {
    return this.#queued.size + this.#sent.size;
  }

  publish(topic: string, payload: unknown, options: PublishOptions): Promise<PublishResult> {
    return new Promise((resolve, reject) => {
      if (this.#closedBy) throw this.#closedBy;
      if (!this.isWritable) {
        throw new PrombusError(
          "queue_full",
          `${this.pending} publishes wait for an answer: await them, or whenWritable()`,
        );
      }
      const { timeoutMs = this.#options.publishTimeoutMs ?? 60_000, ...wire } = options;
      const corr = this.#connection.nextCorr();
      const publish: Publish = {
        corr,
        frame: encode(corr, topic, payload, wire),
        name: wire.id ?? wire.idempotencyKey,
        deadline: Date.now() + timeoutMs,
        ok: ({ id, seq, duplicate }) => {
          if (!this.#remove(publish)) return;
          this.#answered();
          if (id && seq) resolve(duplicate ? { id, seq, duplicate } : { id, seq });
          else reject(new PrombusError("bad_answer", "the OK of a publish has no id or seq"));
        },
        err: (frame) => {
          const error = asError(frame);
          if (isPassing(error)) {
            this.#retry(publish, error);
          } else if (this.#remove(publish)) {
            this.#answered();
            reject(error);
          }
        },
        // `lost()` of the publisher takes back all that was sent.
        lost: () => {},
        fail: (error) => {
          if (this.#remove(publish)) reject(error);
        },
      };
      this.#queued.add(publish);
      this.#bytes += publish.frame.length;
      this.#watch(publish.deadline);
      this.flush();
    });
  }

  get isWritable(): boolean {
    return this.#hasRoom(1);
  }

  /** Resolves when half of the queue is free. */
  whenWritable(): Promise<void> {
    return this.isWritable ? Promise.resolve() : this.#until(() => this.#hasRoom(0.5));
  }

  /** Resolves when every publish is answered. */
  whenIdle(): Promise<void> {
    return this.#until(() => this.pending === 0);
  }

  /** Sends what the window allows, once in this turn. */
  flush(): void {
    if (this.#isFlushing) return;
    this.#isFlushing = true;
    queueMicrotask(() => {
      this.#isFlushing = false;
      this.#sendQueued();
    });
  }

  /** The connection broke: everything is sent again in the order of the calls, also what the server refused for now. */
  lost(): void {
    for (const publish of this.#sent) this.#queued.add(publish);
    this.#isUnsorted ||= this.#sent.size > 0;
    this.#sent.clear();
    this.#sentBytes = 0;
  }

  /** The server closed the connection because of a large frame: sending it again would only repeat that. */
  frameTooLarge(error: PrombusError): void {
    const [largest] = [...this.#sent].sort((one, other) => other.frame.length - one.frame.length);
    largest?.fail(error);
  }

  close(error: PrombusError): void {
    this.#closedBy = error;
    clearTimeout(this.#pauseTimer);
    for (const publish of this.#all()) publish.fail(error);
    this.#wake();
  }

  #all(): Publish[] {
    return [...this.#sent, ...this.#queued];
  }

  #hasRoom(part: number): boolean {
    const { maxQueued = 65_536, maxQueuedBytes = 64 << 20 } = this.#options;
    return this.#closedBy !== undefined || (this.pending < maxQueued * part && this.#bytes < maxQueuedBytes * part);
  }

  #until(isMet: () => boolean): Promise<void> {
    return new Promise((resolve) => {
      this.#waiting.push({ isMet, resolve });
      this.#wake();
    });
  }

  #wake(): void {
    this.#waiting = this.#waiting.filter(({ isMet, resolve }) => !isMet() || resolve());
  }

  /** A publish is over. False if it was before. */
  #remove(publish: Publish): boolean {
    const { length } = publish.frame;
    if (this.#sent.delete(publish)) this.#sentBytes -= length;
    else if (!this.#queued.delete(publish)) return false;
    this.#bytes -= length;
    if (this.#waiting.length > 0) this.#wake();
    if (this.pending === 0) {
      clearTimeout(this.#deadlineTimer);
      this.#nextDeadline = Infinity;
    }
    return true;
  }

  #answered(): void {
    this.#backoff.reset();
    this.#window = Math.min(this.#window * 2, WINDOW);
    if (this.#queued.size > 0) this.flush();
  }

  /** The server would not take the publish now. */
  #retry(publish: Publish, error: PrombusError): void {
    if (!this.#sent.delete(publish)) return;
    this.#sentBytes -= publish.frame.length;
    publish.lastError = error;
    this.#window = 1;
    this.#queued.add(publish);
    this.#isUnsorted = true;
    this.#pauseTimer ??= setTimeout(() => {
      this.#pauseTimer = undefined;
      this.flush();
    }, error.retryAfterMs ?? this.#backoff.next());
  }

  #sendQueued(): void {
    if (this.#pauseTimer !== undefined || this.#connection.state !== "connected") return;
    if (this.#isUnsorted) {
      this.#queued = new Set([...this.#queued].sort((one, other) => one.corr - other.corr));
      this.#isUnsorted = false;
    }
    for (const publish of this.#queued) {
      const { corr, frame } = publish;
      const isFull = this.#sent.size >= this.#window || this.#sentBytes + frame.length > WINDOW_BYTES;
      if (isFull && this.#sent.size > 0) break;
      this.#queued.delete(publish);
      this.#sent.add(publish);
      this.#sentBytes += frame.length;
      this.#connection.sendFor(corr, frame, publish);
    }
  }

  #watch(deadline: Millis): void {
    if (deadline >= this.#nextDeadline) return;
    this.#nextDeadline = deadline;
    clearTimeout(this.#deadlineTimer);
    this.#deadlineTimer = setTimeout(() => this.#expire(), Math.min(deadline - Date.now(), MAX_DELAY_MS));
  }

  #expire(): void {
    const now = Date.now();
    this.#nextDeadline = Infinity;
    for (const publish of this.#all()) {
      if (publish.deadline <= now) {
        const cause = publish.lastError ?? this.#connection.lastError;
        const why = cause ? `: ${cause.message}` : "";
        publish.fail(new PrombusError("timeout", `no OK for ${publish.name} in time${why}; repeat the publish with the same id`, { cause }));
      } else {
        this.#watch(publish.deadline);
      }
    }
  }
}

function encode(corr: number, topic: string, payload: unknown, wire: Omit<PublishOptions, "timeoutMs">): string {
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
  // A publish without an id could not be repeated.
  if (!wire.idempotencyKey) wire.id ??= uuidv7();
  return `{"op":"PUBLISH","corr":${corr},"topic":${JSON.stringify(topic)},"payload":${json},"opts":${JSON.stringify(wire)}}`;
}
