/**
 * Publishes events: a bounded queue, a window of unanswered frames, and resends.
 *
 * Every publish has an id or an idempotency key before it is sent for the first time. If its answer is lost, the client sends it
 * again over the next connection, and the server stores the event only once.
 */
import { Backoff } from "./backoff.js";
import { asError, type Connection } from "./connection.js";
import { isTemporary, PrombusError } from "./errors.js";
import type { Waiter } from "./frames.js";
import { MAX_DELAY_MS } from "./token.js";
import type { Millis, PublishOptions, PublishResult } from "./types.js";
import { uuidv7 } from "./uuid.js";

/** Limits of publishes. */
export interface PublisherOptions {
  /** Maximum number of unanswered publishes; default 65,536. Further publishes are rejected with `queue_full`. */
  maxQueued?: number | undefined;
  /** Maximum total size of the frames of unanswered publishes, in characters; default 64 Mi (2^26). */
  maxQueuedBytes?: number | undefined;
  /** How long a publish is retried; default 60,000. */
  publishTimeoutMs?: Millis | undefined;
}

/** A publish that is not answered yet. */
interface Publish extends Waiter {
  readonly corr: number;
  /** The event's id or idempotency key. */
  readonly name: string | undefined;
  readonly frame: string;
  readonly deadline: Millis;
  /** Why the server refused the last attempt, if it did. */
  lastError?: PrombusError;
  fail(error: unknown): void;
}

/** Limits of publishes that are sent and unanswered: enough for any round trip, and too few for the server to apply backpressure. */
const WINDOW = 16_384;
const WINDOW_BYTES = 2 << 20;

export class Publisher {
  readonly #connection: Connection;
  readonly #options: PublisherOptions;
  readonly #backoff = new Backoff();
  /** Publishes to send or to send again, in the order of the calls unless `#isUnsorted`. */
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
  /** How many publishes may be sent and unanswered: 1 after a temporary refusal, doubled with each final answer up to `WINDOW`. */
  #window = WINDOW;
  #closedBy: PrombusError | undefined;

  constructor(connection: Connection, options: PublisherOptions) {
    this.#connection = connection;
    this.#options = options;
  }

  /** The number of unanswered publishes. */
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
          if (isTemporary(error)) {
            this.#retry(publish, error);
          } else if (this.#remove(publish)) {
            this.#answered();
            reject(error);
          }
        },
        // The publisher's own `lost()` puts all sent publishes back into the queue.
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

  /** Resolves at once if the queue has room, otherwise when half of it is free. */
  whenWritable(): Promise<void> {
    return this.isWritable ? Promise.resolve() : this.#until(() => this.#hasRoom(0.5));
  }

  /** Resolves when every publish is answered. */
  whenIdle(): Promise<void> {
    return this.#until(() => this.pending === 0);
  }

  /** Sends as many publishes as the window allows, once per turn of the event loop. */
  flush(): void {
    if (this.#isFlushing) return;
    this.#isFlushing = true;
    queueMicrotask(() => {
      this.#isFlushing = false;
      this.#sendQueued();
    });
  }

  /** Called when the connection broke: queues all sent publishes, so that they are sent again in the order of the calls. */
  lost(): void {
    for (const publish of this.#sent) this.#queued.add(publish);
    this.#isUnsorted ||= this.#sent.size > 0;
    this.#sent.clear();
    this.#sentBytes = 0;
  }

  /**
   * Called when the server closed the connection because a frame was too large. Fails the largest sent publish, because sending it
   * again would have the same result.
   */
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

  /** Forgets a publish that has ended. Returns false if it had ended before. */
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

  /** Handles a temporary refusal: queues the publish again, and pauses all publishes. */
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
  // Without an id, a publish could not be repeated safely.
  if (!wire.idempotencyKey) wire.id ??= uuidv7();
  return `{"op":"PUBLISH","corr":${corr},"topic":${JSON.stringify(topic)},"payload":${json},"opts":${JSON.stringify(wire)}}`;
}
