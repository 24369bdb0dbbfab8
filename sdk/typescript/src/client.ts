/// <reference lib="esnext.disposable" preserve="true" />
/** The client of one server: keeps one WebSocket connection open, and uses the server's HTTP routes. */
import { type Address, parseAddress } from "./address.js";
import { type ClientEvents, Connection, type ConnectionOptions, type ConnectionState } from "./connection.js";
import { Consumer } from "./consumer.js";
import { Emitter } from "./emitter.js";
import { ClosedError, ConnectionError, PrombusError } from "./errors.js";
import {
  exportEvents, type ExportOptions, exportStream, last, replay, type ReplayOptions, tail, type TailOptions, ticketUrl,
} from "./history.js";
import { Http } from "./http.js";
import { groups, topics } from "./lists.js";
import type { Membership } from "./membership.js";
import { Publisher, type PublisherOptions } from "./publisher.js";
import { StateView } from "./state.js";
import { Subscription } from "./subscription.js";
import type { Telemetry } from "./telemetry.js";
import {
  type Inputs, type Outputs, type PayloadOf, type Schemas, type SubscriptionOf, type TopicMap, type TopicOf, validate,
} from "./topics.js";
import type {
  CursorPosition, GroupInfo, Handler, HandlerOptions, Millis, PublishOptions, PublishResult, Start, StoredEvent,
  SubscribeOptions, TopicInfo,
} from "./types.js";

/** Options of `connect`. */
export interface ConnectOptions<S extends Schemas = Schemas> extends ConnectionOptions, PublisherOptions {
  /** Validators of payloads by topic: zod, valibot, arktype, or any other Standard Schema. */
  topics?: S | undefined;
  /** Tracing, e.g. `openTelemetry()` of `@prombus/client/opentelemetry`. */
  telemetry?: Telemetry | undefined;
  /** A `fetch` to use instead of the runtime's own. */
  fetch?: typeof fetch | undefined;
}

/** One event of `publishMany`. */
export interface PublishRecord<P = unknown> extends PublishOptions {
  topic: string;
  payload: P;
  /** The options of `publish`. They can also be fields of the record itself; `opts` takes precedence. */
  opts?: PublishOptions | undefined;
}

/** The records that a client with the topics `In` can publish. */
export type PublishRecordOf<In> = { [K in TopicOf<In>]: PublishRecord<In[K]> & { topic: K } }[TopicOf<In>];

const CLOSE_TIMEOUT_MS = 30_000;
const READY_TIMEOUT_MS = 30_000;

/**
 * Connects to a server. Returns at once and connects in the background: calls wait for the connection. `ready()` rejects if the
 * connection does not come up in time or the server refuses the token.
 *
 * ```ts
 * const bus = connect("ws://127.0.0.1:8090");
 * await bus.subscribe("orders.*", "billing", async (event) => console.log(event.payload));
 * await bus.publish("orders.new", { total: 12 }); // on disk now
 * ```
 */
export function connect<S extends Schemas>(
  url: string,
  options: ConnectOptions<S> & { topics: S },
): Client<Inputs<S>, Outputs<S>>;
export function connect<M extends object = TopicMap>(url: string, options?: Omit<ConnectOptions, "topics">): Client<M>;
export function connect(url: string, options: ConnectOptions = {}): Client {
  return new Client(url, options);
}

/**
 * A client of one server. `In` maps topics to the payload types that can be published, `Out` to those that handlers receive.
 *
 * ```ts
 * const bus: Client<{ "orders.new": Order }> = connect("ws://127.0.0.1:8090");
 * ```
 */
export class Client<In extends object = TopicMap, Out extends object = In> {
  /** Sends requests to HTTP routes for which the client has no method. */
  readonly http: Http;
  readonly #address: Address;
  readonly #emitter = new Emitter<ClientEvents>();
  readonly #connection: Connection;
  readonly #publisher: Publisher;
  readonly #schemas: Schemas | undefined;
  readonly #telemetry: Telemetry | undefined;
  readonly #members = new Map<string, Membership>();
  readonly #ended = new AbortController();
  #closing: Promise<void> | undefined;
  #closedBy: PrombusError | undefined;

  /** See {@link connect}. */
  constructor(url: string, options: ConnectOptions = {}) {
    this.#address = parseAddress(url);
    this.#schemas = options.topics;
    this.#telemetry = options.telemetry;
    this.#connection = new Connection(
      this.#address.ws,
      options,
      this.#emitter,
      {
        connected: () => {
          for (const member of this.#members.values()) member.connected();
          this.#publisher.flush();
        },
        lost: () => {
          this.#publisher.lost();
          for (const member of this.#members.values()) member.lost();
        },
        event: (frame) => this.#members.get(memberKey(frame.topic, frame.group))?.event(frame),
        error: (error) => this.#strayError(error),
        frameTooLarge: (error) => this.#publisher.frameTooLarge(error),
        closed: (error) => this.#end(error),
      },
    );
    this.#publisher = new Publisher(this.#connection, options);
    this.http = new Http(this.#address.http, () => this.#connection.token(), this.#ended.signal, options.fetch);
  }

  /** `connecting`, `connected`, `reconnecting` or `closed`. */
  get status(): ConnectionState {
    return this.#connection.state;
  }

  /** The number of unanswered publishes. */
  get pendingPublishes(): number {
    return this.#publisher.pending;
  }

  /** Adds a listener for state changes, or for errors that no call can report. Returns a function that removes the listener. */
  on<K extends keyof ClientEvents>(name: K, listener: (value: ClientEvents[K]) => void): () => void {
    return this.#emitter.on(name, listener);
  }

  off<K extends keyof ClientEvents>(name: K, listener: (value: ClientEvents[K]) => void): void {
    this.#emitter.off(name, listener);
  }

  /** Resolves when the connection is up; rejects after `timeoutMs` (default 30,000), or when the server refuses the token. */
  ready(options: { timeoutMs?: Millis } = {}): Promise<void> {
    return new Promise((resolve, reject) => {
      const settle = (): void => {
        if (this.status === "connected") resolve();
        else if (this.#closedBy) reject(this.#closedBy);
        else return;
        stop();
      };
      const stop = (): void => {
        clearTimeout(late);
        this.off("connected", settle);
        this.off("closed", settle);
      };
      const late = setTimeout(() => {
        stop();
        const { lastError } = this.#connection;
        const why = lastError?.message ?? "no answer";
        reject(new ConnectionError(`cannot connect to ${this.#address.ws}: ${why}; is \`prombus serve\` running?`, lastError, "timeout"));
      }, options.timeoutMs ?? READY_TIMEOUT_MS);
      this.on("connected", settle);
      this.on("closed", settle);
      settle();
    });
  }

  /**
   * Publishes an event; resolves when the event is durable. Every publish has an id, so it can be sent again after a reconnect
   * and is still stored only once. `idempotencyKey` does the same for business ids: two publishes with the same key are one event.
   *
   * Waits and retries on a rate limit, a full disk and an unavailable server, for up to `timeoutMs`. Later publishes may be stored
   * before one that is retried: await each publish where order matters more than speed. While `maxQueued` publishes are
   * unanswered, a further publish is rejected with `queue_full`: await earlier ones, use `publishMany`, or wait for
   * `whenWritable()`.
   */
  async publish<K extends TopicOf<In>>(topic: K, payload: In[K], options: PublishOptions = {}): Promise<PublishResult> {
    const valid = this.#schemas === undefined ? undefined : validate(this.#schemas, topic, payload);
    // Without an asynchronous schema nothing is awaited, so that publishes are sent in the order of the calls.
    if (valid instanceof Promise) await valid;
    return this.#publishValid(topic, payload, options);
  }

  #publishValid(topic: string, payload: unknown, options: PublishOptions): Promise<PublishResult> {
    if (this.#telemetry === undefined) return this.#publisher.publish(topic, payload, options);
    return this.#telemetry.publish(topic, options.headers, (headers) =>
      this.#publisher.publish(topic, payload, headers === undefined ? options : { ...options, headers }));
  }

  /**
   * Publishes many events. Takes the next item of `payloads` or `records` only when the queue has room, so a stream of any length
   * needs bounded memory, apart from one result per event. If a publish fails, waits for the answers to all publishes that were
   * sent and rejects with the first error.
   */
  publishMany<K extends TopicOf<In>>(
    topic: K,
    payloads: Iterable<In[K]> | AsyncIterable<In[K]>,
    options?: Omit<PublishOptions, "id" | "idempotencyKey">,
  ): Promise<PublishResult[]>;
  publishMany(records: Iterable<PublishRecordOf<In>> | AsyncIterable<PublishRecordOf<In>>): Promise<PublishResult[]>;
  async publishMany(
    first: string | Iterable<PublishRecord> | AsyncIterable<PublishRecord>,
    payloads?: Iterable<unknown> | AsyncIterable<unknown>,
    shared: PublishOptions = {},
  ): Promise<PublishResult[]> {
    const answers: Promise<PublishResult>[] = [];
    let hasFailed = false;
    try {
      for await (const item of typeof first === "string" ? payloads ?? [] : first) {
        const { topic, payload, opts, ...options } = typeof first === "string"
          ? { topic: first, payload: item, opts: shared }
          : (item as PublishRecord);
        await validate(this.#schemas, topic, payload);
        // Other callers wait for the same room: check again after each wait.
        while (!hasFailed && !this.#publisher.isWritable) await this.#publisher.whenWritable();
        if (hasFailed) break;
        const answer = this.#publishValid(topic, payload, { ...options, ...opts });
        answer.catch(() => { hasFailed = true; });
        answers.push(answer);
      }
    } finally {
      await Promise.allSettled(answers);
    }
    return Promise.all(answers);
  }

  /** Resolves when the queue has room for another publish. */
  whenWritable(): Promise<void> {
    return this.#publisher.whenWritable();
  }

  /**
   * Joins a group on a topic or pattern, and creates the group if it does not exist. Resolves when the server has confirmed the
   * subscription.
   *
   * The handler runs for one event at a time, or for up to `concurrency` events. Returning acks the event. Throwing nacks it with
   * the error's message: the event is redelivered after a backoff ({@link NackError} sets the delay), and goes to `dlq.<topic>`
   * after `maxAttempts`, or at once with {@link RejectError}. The client extends the leases of the events that it holds.
   * `ctx.signal` aborts when the lease is lost.
   *
   * If an event is redelivered after a reconnect while its handler is still running, the handler continues with the new lease and
   * does not run twice. The result of a handler that ended in the meantime is sent when the event is redelivered. Another member
   * may have received the event in the meantime: delivery is at least once.
   */
  async subscribe<P extends SubscriptionOf<Out>, T extends PayloadOf<Out, P> = PayloadOf<Out, P>>(
    topic: P,
    group: string,
    handler: Handler<T>,
    options: HandlerOptions = {},
  ): Promise<Subscription> {
    const tools = { schemas: this.#schemas, telemetry: this.#telemetry, emitter: this.#emitter };
    const subscription = new Subscription(
      this.#connection, topic, group, handler as Handler, options, tools, (member) => this.#forget(member),
    );
    this.#remember(subscription.member);
    subscription.created = await subscription.member.join();
    return subscription;
  }

  /**
   * Returns the events of a group as an async iterator; the caller settles each one with `ack()` or `nack()`.
   *
   * ```ts
   * for await (const delivery of bus.consume("orders.new", "billing")) {
   *   console.log(delivery.event.payload);
   *   await delivery.ack();
   * }
   * ```
   */
  consume<P extends SubscriptionOf<Out>>(topic: P, group: string, options: SubscribeOptions = {}): Consumer<PayloadOf<Out, P>> {
    const consumer = new Consumer<PayloadOf<Out, P>>(
      this.#connection, topic, group, options, this.#schemas, (member) => this.#forget(member),
    );
    this.#remember(consumer.member);
    return consumer;
  }

  /** The position of a group; null if the group does not exist. */
  async cursor(topic: string, group: string): Promise<CursorPosition | null> {
    return (await this.#request({ op: "CURSOR", topic, group })).cursor ?? null;
  }

  /** Moves a group. All its leases become void. */
  async seek(topic: string, group: string, to: Start): Promise<CursorPosition> {
    const member = this.#members.get(memberKey(topic, group));
    // The callback runs before the frames after the OK are handled, because these may deliver the same events again.
    return (await this.#request({ op: "SEEK", topic, group, to }, () => member?.forgetHeld())).cursor ?? { topic };
  }

  /** Stops deliveries to this client's subscription. */
  async pause(topic: string, group: string): Promise<void> {
    await this.#member(topic, group).pause(true);
  }

  async resume(topic: string, group: string): Promise<void> {
    await this.#member(topic, group).pause(false);
  }

  /** Yields the stored events of a topic or pattern, which it requests in pages. */
  replay<P extends SubscriptionOf<Out>>(topic: P, options?: ReplayOptions): AsyncIterableIterator<StoredEvent<PayloadOf<In, P>>> {
    return replay(this.http, topic, options);
  }

  /** Yields all events of a topic or pattern from one stream, in constant memory. Throws if the stream is cut off. */
  export<P extends SubscriptionOf<Out>>(topic: P, options?: ExportOptions): AsyncIterableIterator<StoredEvent<PayloadOf<In, P>>> {
    return exportEvents(this.http, topic, options);
  }

  /** Like `export`, as NDJSON bytes, e.g. for a file. */
  exportStream(topic: SubscriptionOf<Out>, options?: ExportOptions): Promise<ReadableStream<Uint8Array>> {
    return exportStream(this.http, topic, options);
  }

  /** The newest `n` events of a topic, oldest first. */
  last<P extends TopicOf<In>>(topic: P, n: number): Promise<StoredEvent<PayloadOf<In, P>>[]> {
    return last(this.http, topic, n);
  }

  /** Yields events of a topic or pattern as they are published, without a group. Resumes without a gap after a reconnect. */
  tail<P extends SubscriptionOf<Out>>(topic: P, options?: TailOptions): AsyncIterableIterator<StoredEvent<PayloadOf<In, P>>> {
    return tail(this.http, topic, options);
  }

  /** Returns a URL for `new EventSource(…)`. The URL contains a ticket, because an `EventSource` cannot send a token. */
  ticketUrl(topic: SubscriptionOf<Out>, options?: TailOptions): Promise<string> {
    return ticketUrl(this.http, topic, options);
  }

  /** Loads a view of the newest event of each key, which is kept up to date. */
  state<P extends TopicOf<In>>(topic: P, options?: { signal?: AbortSignal }): Promise<StateView<PayloadOf<In, P>>> {
    return StateView.load(this.http, topic, options);
  }

  /** The topics that the token may read. */
  topics(options?: { prefix?: string; signal?: AbortSignal }): Promise<TopicInfo[]> {
    return topics(this.http, options);
  }

  /** The groups that the token may join. */
  groups(options?: { topic?: string; prefix?: string; signal?: AbortSignal }): Promise<GroupInfo[]> {
    return groups(this.http, options);
  }

  /**
   * Waits until running handlers have settled their events and publishes are answered, for at most `timeoutMs` (default 30,000),
   * then closes the client. Publishes that are still unanswered reject with `closed`.
   */
  close(options: { timeoutMs?: Millis } = {}): Promise<void> {
    this.#closing ??= this.#close(options.timeoutMs ?? CLOSE_TIMEOUT_MS);
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(timeoutMs: Millis): Promise<void> {
    // Closing the connection ends the waits below.
    const late = setTimeout(() => void this.#connection.close(), timeoutMs);
    await Promise.all([...this.#members.values()].map((member) => member.drain(timeoutMs)));
    // Waits for publishes last: handlers may have published while they were drained.
    await this.#publisher.whenIdle();
    clearTimeout(late);
    await this.#connection.close();
    this.#emitter.clear();
  }

  #end(error: PrombusError): void {
    this.#closedBy = error;
    this.#publisher.close(error);
    for (const member of [...this.#members.values()]) member.end(error);
    this.#ended.abort(error);
  }

  /** Sends a request when there is a connection, and repeats it if the connection breaks, for up to 30 s. */
  async #request(frame: Record<string, unknown>, onOk?: () => void): ReturnType<Connection["request"]> {
    const until = Date.now() + READY_TIMEOUT_MS;
    for (;;) {
      await this.ready({ timeoutMs: Math.max(until - Date.now(), 0) });
      try {
        return await this.#connection.request(frame, onOk);
      } catch (thrown) {
        if (!(thrown instanceof ConnectionError) || Date.now() >= until) throw thrown;
      }
    }
  }

  #strayError(error: PrombusError): void {
    // The error may have ended a subscription; the frame does not say which one.
    for (const member of [...this.#members.values()]) void member.probe(error);
    if (error.code !== "not_subscribed" && error.code !== "forbidden") this.#emitter.emit("error", error);
  }

  #remember(member: Membership): void {
    if (this.#closing || this.#closedBy) throw this.#closedBy ?? new ClosedError();
    const { topic, group } = member;
    const key = memberKey(topic, group);
    if (this.#members.has(key)) {
      throw new PrombusError("already_subscribed", `already subscribed to ${topic} as group ${group}`);
    }
    this.#members.set(key, member);
  }

  #forget(member: Membership): void {
    const key = memberKey(member.topic, member.group);
    if (this.#members.get(key) === member) this.#members.delete(key);
  }

  #member(topic: string, group: string): Membership {
    const member = this.#members.get(memberKey(topic, group));
    if (member) return member;
    throw new PrombusError("not_subscribed", `not subscribed to ${topic} as group ${group}`);
  }
}

function memberKey(topic: string, group: string): string {
  return `${topic} ${group}`;
}
