/**
 * Publishes: a bounded queue, a window of frames that wait for their answers, and resends.
 *
 * Every publish has an id or an idempotency key before it is first sent. So a publish whose answer was lost is sent again over
 * the next connection, and the server stores it once.
 */
import { Backoff } from "./backoff.js";
import { asError, type Connection } from "./connection.js";
import { isPassing, PrombusError } from "./errors.js";
import type { ErrFrame, OkFrame, Waiter } from "./frames.js";
import type { Millis, PublishOptions, PublishResult } from "./types.js";
import { uuidv7 } from "./uuid.js";

export interface PublisherLimits {
  /** Publishes that may wait for an answer, sent or not. */
  maxQueued: number;
  /** Bytes of their frames, about. */
  maxQueuedBytes: number;
  timeoutMs: Millis;
}

/** What may be sent and unanswered: enough for any round trip, and less than a server holds back. */
const WINDOW = 16_384;
const WINDOW_BYTES = 2 << 20;

export class Publisher {
  readonly #connection: Connection;
  readonly #limits: PublisherLimits;
  readonly #backoff = new Backoff(100, 5_000);
  /** Not sent yet, or to be sent again; the first `#head` of them are gone. */
  #queue: Publish[] = [];
  #head = 0;
  /** Publishes in the queue that gave up. */
  #overQueued = 0;
  readonly #sent = new Set<Publish>();
  #sentBytes = 0;
  #count = 0;
  #bytes = 0;
  #isFlushing = false;
  #pauseTimer: ReturnType<typeof setTimeout> | undefined;
  #deadlineTimer: ReturnType<typeof setTimeout> | undefined;
  #nextDeadline = Infinity;
  #roomWaiters: (() => void)[] = [];
  #idleWaiters: (() => void)[] = [];
  #closedBy: PrombusError | undefined;

  constructor(connection: Connection, limits: PublisherLimits) {
    this.#connection = connection;
    this.#limits = limits;
  }

  /** Publishes that wait for an answer. */
  get pending(): number {
    return this.#count;
  }

  publish(topic: string, payload: unknown, options: PublishOptions): Promise<PublishResult> {
    return new Promise((resolve, reject) => {
      if (this.#closedBy !== undefined) throw this.#closedBy;
      if (this.#isFull()) {
        throw new PrombusError(
          "queue_full",
          `${this.#count} publishes wait for an answer (maxQueued, maxQueuedBytes); await earlier ones, use publishMany, or ` +
            "wait for whenWritable()",
        );
      }
      if (options.signal?.aborted) throw new PrombusError("aborted", "the publish was aborted", { cause: options.signal.reason });
      const corr = this.#connection.nextCorr();
      const frame = encode(corr, topic, payload, options);
      const deadline = Date.now() + (options.timeoutMs ?? this.#limits.timeoutMs);
      const publish = new Publish(this, corr, frame, deadline, resolve, reject, options.signal);
      this.#count += 1;
      this.#bytes += frame.length;
      this.#queue.push(publish);
      this.#watch(deadline);
      this.flush();
    });
  }

  get isWritable(): boolean {
    return this.#closedBy !== undefined || !this.#isFull();
  }

  /** Resolves when there is room for another publish. */
  whenWritable(): Promise<void> {
    if (this.isWritable) return Promise.resolve();
    return new Promise((resolve) => { this.#roomWaiters.push(resolve); });
  }

  /** Resolves when every publish is answered. */
  whenIdle(): Promise<void> {
    if (this.#count === 0) return Promise.resolve();
    return new Promise((resolve) => { this.#idleWaiters.push(resolve); });
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
    if (this.#sent.size === 0) return;
    this.#queue = [...this.#sent, ...this.#queue.slice(this.#head)].sort((one, other) => one.corr - other.corr);
    this.#head = 0;
    this.#sent.clear();
    this.#sentBytes = 0;
  }

  /** The server closed the connection because of a large frame: sending it again would only repeat that. */
  frameTooLarge(error: PrombusError): void {
    let largest: Publish | undefined;
    for (const publish of this.#sent) {
      if (largest === undefined || publish.frame.length > largest.frame.length) largest = publish;
    }
    largest?.fail(error);
  }

  close(error: PrombusError): void {
    this.#closedBy = error;
    clearTimeout(this.#pauseTimer);
    for (const publish of [...this.#sent, ...this.#queue.slice(this.#head)]) publish.fail(error);
    this.#wake(this.#roomWaiters.splice(0));
  }

  /** A publish is over. */
  settled(publish: Publish): void {
    if (this.#sent.delete(publish)) this.#sentBytes -= publish.frame.length;
    else this.#forgetQueued();
    this.#count -= 1;
    this.#bytes -= publish.frame.length;
    if (this.#roomWaiters.length > 0 && this.#count <= this.#limits.maxQueued / 2 && this.#bytes <= this.#limits.maxQueuedBytes / 2) {
      this.#wake(this.#roomWaiters.splice(0));
    }
    if (this.#count === 0) {
      clearTimeout(this.#deadlineTimer);
      this.#nextDeadline = Infinity;
      this.#wake(this.#idleWaiters.splice(0));
    }
  }

  answered(publish: Publish): void {
    this.#backoff.reset();
    this.settled(publish);
    if (this.#head < this.#queue.length) this.flush();
  }

  /** The server would not take the publish now. */
  retry(publish: Publish, delayMs: Millis | undefined): void {
    this.#sent.delete(publish);
    this.#sentBytes -= publish.frame.length;
    // Refusals come in the order of the publishes: each goes behind those that were refused before it.
    let at = this.#head;
    while (at < this.#queue.length && (this.#queue[at] as Publish).corr < publish.corr) at += 1;
    this.#queue.splice(at, 0, publish);
    this.#pauseTimer ??= setTimeout(() => {
      this.#pauseTimer = undefined;
      this.flush();
    }, delayMs ?? this.#backoff.next());
  }

  /** While there is no connection nothing leaves the queue at its head: publishes that gave up must not pile up in it. */
  #forgetQueued(): void {
    this.#overQueued += 1;
    if (this.#overQueued < 64 || this.#overQueued * 2 < this.#queue.length - this.#head) return;
    this.#queue = this.#queue.slice(this.#head).filter((publish) => !publish.isOver);
    this.#head = 0;
    this.#overQueued = 0;
  }

  #isFull(): boolean {
    return this.#count >= this.#limits.maxQueued || this.#bytes >= this.#limits.maxQueuedBytes;
  }

  #sendQueued(): void {
    if (this.#pauseTimer !== undefined || this.#connection.state !== "connected") return;
    while (this.#head < this.#queue.length) {
      const publish = this.#queue[this.#head] as Publish;
      if (!publish.isOver) {
        const size = publish.frame.length;
        if (this.#sent.size > 0 && (this.#sent.size >= WINDOW || this.#sentBytes + size > WINDOW_BYTES)) break;
        this.#sent.add(publish);
        this.#sentBytes += size;
        this.#connection.sendFor(publish.corr, publish.frame, publish);
      } else {
        this.#overQueued -= 1;
      }
      this.#head += 1;
    }
    if (this.#head === this.#queue.length) {
      this.#queue = [];
      this.#head = 0;
    } else if (this.#head > 1024) {
      this.#queue = this.#queue.slice(this.#head);
      this.#head = 0;
    }
  }

  #watch(deadline: number): void {
    if (deadline >= this.#nextDeadline || deadline === Infinity) return;
    this.#nextDeadline = deadline;
    clearTimeout(this.#deadlineTimer);
    this.#deadlineTimer = setTimeout(() => this.#expire(), Math.min(Math.max(deadline - Date.now(), 0), 0x7fffffff));
  }

  #expire(): void {
    const now = Date.now();
    let next = Infinity;
    for (const publish of [...this.#sent, ...this.#queue.slice(this.#head)]) {
      if (publish.isOver) continue;
      if (publish.deadline <= now) {
        const cause = publish.lastError ?? this.#connection.lastError;
        const why = cause === undefined ? "" : `: ${cause.message}`;
        publish.fail(new PrombusError("timeout", `no OK for the publish in time${why}; repeat it with the same id`, { cause }));
      } else {
        next = Math.min(next, publish.deadline);
      }
    }
    this.#nextDeadline = Infinity;
    this.#watch(next);
  }

  #wake(waiters: (() => void)[]): void {
    for (const wake of waiters) wake();
  }
}

/** One publish, from its call to its answer. */
class Publish implements Waiter {
  isOver = false;
  lastError: PrombusError | undefined;
  readonly #publisher: Publisher;
  readonly corr: number;
  readonly frame: string;
  readonly deadline: number;
  readonly #resolve: (result: PublishResult) => void;
  readonly #reject: (error: unknown) => void;
  readonly #signal: AbortSignal | undefined;

  constructor(
    publisher: Publisher,
    corr: number,
    frame: string,
    deadline: number,
    resolve: (result: PublishResult) => void,
    reject: (error: unknown) => void,
    signal: AbortSignal | undefined,
  ) {
    this.#publisher = publisher;
    this.corr = corr;
    this.frame = frame;
    this.deadline = deadline;
    this.#resolve = resolve;
    this.#reject = reject;
    this.#signal = signal;
    signal?.addEventListener("abort", this.#onAbort);
  }

  ok(frame: OkFrame): void {
    if (!this.#end()) return;
    this.#publisher.answered(this);
    const { id, seq } = frame;
    if (id === undefined || seq === undefined) {
      this.#reject(new PrombusError("bad_answer", "the server answered a publish with an OK that has no id and seq"));
    } else {
      this.#resolve(frame.duplicate === true ? { id, seq, duplicate: true } : { id, seq });
    }
  }

  err(frame: ErrFrame): void {
    if (this.isOver) return;
    const error = asError(frame);
    if (isPassing(error)) {
      this.lastError = error;
      this.#publisher.retry(this, frame.retry_after_ms);
    } else {
      this.#end();
      this.#publisher.answered(this);
      this.#reject(error);
    }
  }

  lost(): void {
    // The publisher takes back all that was sent, in order.
  }

  fail(error: unknown): void {
    if (!this.#end()) return;
    this.#publisher.settled(this);
    this.#reject(error);
  }

  readonly #onAbort = (): void => {
    this.fail(new PrombusError("aborted", "the publish was aborted; the event may be stored", { cause: this.#signal?.reason }));
  };

  #end(): boolean {
    if (this.isOver) return false;
    this.isOver = true;
    this.#signal?.removeEventListener("abort", this.#onAbort);
    return true;
  }
}

/** The options that the server knows. */
const WIRE_OPTIONS = ["idempotencyKey", "ts", "key", "headers", "tags", "caused_by", "sid"] as const;

function encode(corr: number, topic: string, payload: unknown, options: PublishOptions): string {
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
  const sent: Record<string, unknown> = {};
  // Both would be refused; a publish without either could not be repeated.
  if (options.id !== undefined) sent.id = options.id;
  else if (options.idempotencyKey === undefined) sent.id = uuidv7();
  for (const name of WIRE_OPTIONS) {
    if (options[name] !== undefined) sent[name] = options[name];
  }
  return `{"op":"PUBLISH","corr":${corr},"topic":${JSON.stringify(topic)},"payload":${json},"opts":${JSON.stringify(sent)}}`;
}
