/**
 * The connection to the server: a state machine that connects, authenticates, checks that the server is alive, and connects
 * again after a failure. A request and its answer have the same number, `corr`, which is unique over the life of the client.
 */
import { originHint } from "./address.js";
import { Backoff } from "./backoff.js";
import type { Emitter } from "./emitter.js";
import { AuthError, ClosedError, ConnectionError, messageOf, type PrombusError, serverError } from "./errors.js";
import type { ErrFrame, EventFrame, OkFrame, ServerFrame, Waiter } from "./frames.js";
import { findWebSocket } from "./node-socket.js";
import { Socket, type WebSocketConstructor } from "./socket.js";
import { MAX_DELAY_MS, refreshDelay, type Token } from "./token.js";
import type { Millis } from "./types.js";

/** `connecting` before the first connection, `reconnecting` after a connection failed or was lost, `closed` for good. */
export type ConnectionState = "connecting" | "connected" | "reconnecting" | "closed";

/** The events of a client. */
export interface ClientEvents {
  connecting: { url: string };
  connected: { url: string };
  /** The connection is down; the next attempt follows after `delayMs`. */
  reconnecting: { attempt: number; delayMs: Millis; error: PrombusError };
  /** The client has stopped for good: `close()` was called, or `error` is the reason, e.g. the server refused the token. */
  closed: { error?: PrombusError };
  /** A failure that no call can report, e.g. the server ended a subscription. */
  error: PrombusError;
  /** A handler threw; its event is nacked. */
  nack: { error: unknown; topic: string; group: string; id: string; attempt: number };
}

/** How the client connects. */
export interface ConnectionOptions {
  /**
   * A token, or a function that returns one. The function is called for each connection and HTTP request, and before a JWT expires.
   */
  token?: Token | undefined;
  /** Whether to connect again after a failure; default true. */
  reconnect?: boolean | undefined;
  /** The wait between attempts to connect doubles from `minMs` (100) to `maxMs` (5,000), with jitter. */
  backoff?: { minMs?: Millis; maxMs?: Millis } | undefined;
  /**
   * Checks the connection after this time without a frame, and drops it if no answer arrives within the same time; default 10,000.
   */
  heartbeatMs?: Millis | undefined;
  /** A WebSocket class to use instead of the runtime's own. */
  WebSocket?: WebSocketConstructor | undefined;
}

/** The callbacks of a connection. */
export interface ConnectionUser {
  connected(): void;
  /** Called when the connection is lost, after all waiters have been notified. */
  lost(): void;
  event(frame: EventFrame): void;
  /** Called with an ERR frame without `corr`: it is not the answer to a request. */
  error(error: PrombusError): void;
  /** Called when the server refused a frame because of its size and closed the connection. */
  frameTooLarge(error: PrombusError): void;
  closed(error: PrombusError): void;
}

/** The maximum time from the start of an attempt to connect until the answer to AUTH. */
const OPEN_TIMEOUT_MS = 10_000;
const CLOSE_TIMEOUT_MS = 1_000;
/**
 * After this number of refused tokens from a function, the client gives up. A single refused token may just have expired on the way.
 */
const MAX_REFUSALS = 3;
const FRAME_TOO_LARGE = 1009;
/** The connection could not be opened, or broke without a close frame. */
const ABNORMAL = 1006;

export class Connection {
  readonly #url: string;
  readonly #options: ConnectionOptions;
  readonly #emitter: Emitter<ClientEvents>;
  readonly #user: ConnectionUser;
  readonly #backoff: Backoff;
  readonly #waiters = new Map<number, Waiter>();
  #state: ConnectionState = "connecting";
  #socket: Socket | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #refreshTimer: ReturnType<typeof setTimeout> | undefined;
  #token = "";
  #refusals = 0;
  #corr = 0;
  #epoch = 0;
  #hasHeard = false;
  #isRefreshing = false;
  #upSince: Millis | undefined;
  #delayMs: Millis = 0;
  #lastError: PrombusError | undefined;
  #onSocketEnd: (() => void) | undefined;
  #closing: Promise<void> | undefined;

  constructor(url: string, options: ConnectionOptions, emitter: Emitter<ClientEvents>, user: ConnectionUser) {
    this.#url = url;
    this.#options = options;
    this.#emitter = emitter;
    this.#user = user;
    this.#backoff = new Backoff(options.backoff?.minMs, options.backoff?.maxMs);
    // Connects in a microtask, so that the caller can add listeners before the first event.
    queueMicrotask(() => void this.#open());
  }

  get state(): ConnectionState {
    return this.#state;
  }

  /** The number of the connection, incremented with each new one. A lease is valid only on the connection that delivered its event. */
  get epoch(): number {
    return this.#epoch;
  }

  /** Why the last attempt failed. */
  get lastError(): PrombusError | undefined {
    return this.#lastError;
  }

  nextCorr(): number {
    return ++this.#corr;
  }

  /** Sends a frame whose answer goes to `waiter`. Must be connected. */
  sendFor(corr: number, text: string, waiter: Waiter): void {
    this.#waiters.set(corr, waiter);
    this.#socket?.send(text);
  }

  /** Sends a frame that the server answers only on error. Must be connected. */
  send(text: string): void {
    this.#socket?.send(text);
  }

  /** Sends a frame and waits for its answer. Rejects with `connection_lost` if there is no connection or it breaks. */
  request(frame: Record<string, unknown>, onOk?: () => void): Promise<OkFrame> {
    if (this.#state === "closed") return Promise.reject(new ClosedError());
    if (this.#state !== "connected") return Promise.reject(this.#lost());
    return this.#ask(frame, onOk);
  }

  /** Ends the connection for good. Sends a close frame, so that returned leases do not count as an attempt. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const socket = this.#socket;
    if (socket !== undefined) {
      await new Promise<void>((ended) => {
        const late = setTimeout(() => socket.abandon(), CLOSE_TIMEOUT_MS);
        this.#onSocketEnd = () => {
          clearTimeout(late);
          ended();
        };
        socket.close();
      });
    }
    this.#finish(undefined);
  }

  #ask(frame: Record<string, unknown>, onOk?: () => void): Promise<OkFrame> {
    const corr = this.nextCorr();
    return new Promise((resolve, reject) => {
      this.sendFor(corr, JSON.stringify({ ...frame, corr }), {
        ok: (answer) => {
          onOk?.();
          resolve(answer);
        },
        err: (error) => reject(asError(error)),
        lost: () => reject(this.#lost()),
      });
    });
  }

  #lost(): PrombusError {
    return new ConnectionError(
      `not connected to ${this.#url}${this.#lastError === undefined ? "" : `: ${this.#lastError.message}`}`,
    );
  }

  async #open(): Promise<void> {
    if (this.#state === "closed") return;
    this.#emitter.emit("connecting", { url: this.#url });
    let constructor: WebSocketConstructor;
    try {
      constructor = this.#options.WebSocket ?? (await findWebSocket());
    } catch (error) {
      return this.#finish(error as PrombusError);
    }
    try {
      this.#token = await this.token();
    } catch (thrown) {
      return this.#retry(new ConnectionError(`cannot get a token: ${messageOf(thrown)}`, thrown));
    }
    // `close()` may have been called in the meantime.
    if (this.state === "closed") return;
    this.#timer = setTimeout(() => this.#socket?.abandon("no answer to AUTH in time"), OPEN_TIMEOUT_MS);
    try {
      this.#socket = new Socket(constructor, this.#url, {
        opened: () => void this.#authenticate(),
        message: (text) => this.#receive(text),
        closed: (code, reason) => this.#ended(code, reason),
      });
    } catch (thrown) {
      this.#retry(new ConnectionError(messageOf(thrown), thrown));
    }
  }

  /** The token for AUTH and HTTP; empty if none is configured. */
  async token(): Promise<string> {
    const { token } = this.#options;
    return typeof token === "function" ? await token() : token ?? "";
  }

  async #authenticate(): Promise<void> {
    try {
      await this.#ask({ op: "AUTH", token: this.#token });
    } catch (thrown) {
      const error = thrown as PrombusError;
      if (!(error instanceof AuthError)) {
        // If the connection was lost, `#ended` has been called and there is nothing to abandon.
        if (error.code !== "connection_lost") this.#socket?.abandon(error.message);
        return;
      }
      this.#refusals += 1;
      const isFinal = typeof this.#options.token !== "function" || this.#refusals >= MAX_REFUSALS;
      if (isFinal) this.#finish(this.#token === "" ? new AuthError(error.code, "no token: pass `token` to connect") : error);
      else this.#socket?.abandon(error.message);
      return;
    }
    // `close()` may have been called in the meantime.
    if (this.#onSocketEnd !== undefined) return;
    clearTimeout(this.#timer);
    this.#refusals = 0;
    this.#lastError = undefined;
    this.#state = "connected";
    this.#epoch += 1;
    this.#upSince = Date.now();
    this.#isRefreshing = false;
    this.#scheduleRefresh();
    this.#startHeartbeat();
    this.#user.connected();
    this.#emitter.emit("connected", { url: this.#url });
  }

  #receive(text: string): void {
    this.#hasHeard = true;
    try {
      this.#dispatch(JSON.parse(text) as ServerFrame);
    } catch {
      // The frames that follow cannot be trusted either. A new connection resends unanswered publishes.
      this.#socket?.abandon("invalid frame");
    }
  }

  #dispatch(frame: ServerFrame): void {
    if (frame.op === "EVENT") return this.#user.event(frame);
    if (frame.op !== "OK" && frame.op !== "ERR") return;
    if (frame.corr === undefined || frame.corr === null) {
      if (frame.op === "ERR") this.#strayError(frame);
      return;
    }
    const waiter = this.#waiters.get(frame.corr);
    if (waiter === undefined) return;
    this.#waiters.delete(frame.corr);
    if (frame.op === "OK") waiter.ok(frame);
    else waiter.err(frame);
  }

  #strayError(frame: ErrFrame): void {
    const error = asError(frame);
    // If the server then closes the connection, the close frame has only a code, so this error is kept as the reason. Errors with
    // one of these two codes concern only a subscription.
    if (error.code !== "not_subscribed" && error.code !== "forbidden") this.#lastError = error;
    this.#user.error(error);
  }

  #ended(code: number, reason: string): void {
    // The ERR that this connection received, if any. A ConnectionError describes the end of an earlier connection.
    const receivedError = this.#lastError instanceof ConnectionError ? undefined : this.#lastError;
    this.#socket = undefined;
    this.#stopTimers();
    const onSocketEnd = this.#onSocketEnd;
    if (code === FRAME_TOO_LARGE) {
      this.#user.frameTooLarge(serverError("too_large", receivedError?.message || reason || "a frame is too large"));
    }
    this.#loseWaiters();
    if (this.#state === "closed" || onSocketEnd !== undefined) {
      onSocketEnd?.();
      return;
    }
    const why = reason || receivedError?.message || `close code ${code}${code === ABNORMAL ? originHint() : ""}`;
    this.#retry(new ConnectionError(`the connection to ${this.#url} ended: ${why}`, receivedError));
  }

  #loseWaiters(): void {
    const waiters = [...this.#waiters.values()];
    this.#waiters.clear();
    for (const waiter of waiters) waiter.lost();
    this.#user.lost();
  }

  #retry(error: PrombusError): void {
    this.#stopTimers();
    this.#lastError = error;
    if (this.#state === "closed") return;
    if (this.#options.reconnect === false) return this.#finish(error);
    this.#state = "reconnecting";
    // The backoff is reset only if the connection lasted as long as the last delay. So the delays grow if a server breaks every
    // connection soon.
    if (this.#upSince !== undefined && Date.now() - this.#upSince >= this.#delayMs) this.#backoff.reset();
    this.#upSince = undefined;
    const delayMs = this.#backoff.next();
    this.#delayMs = delayMs;
    this.#timer = setTimeout(() => void this.#open(), delayMs);
    this.#emitter.emit("reconnecting", { attempt: this.#backoff.attempt, delayMs, error });
  }

  #finish(error: PrombusError | undefined): void {
    if (this.#state === "closed") return;
    this.#state = "closed";
    this.#stopTimers();
    this.#socket?.abandon();
    this.#user.closed(error ?? new ClosedError());
    this.#emitter.emit("closed", error === undefined ? {} : { error });
  }

  #stopTimers(): void {
    clearTimeout(this.#timer);
    clearTimeout(this.#refreshTimer);
  }

  /**
   * Browsers cannot send pings, so the client repeats AUTH when no frame has arrived for `heartbeatMs`: AUTH is cheap, and the
   * server answers it in every state. Any frame counts as an answer. There are several short waits instead of one long wait: after
   * a handler has blocked the thread, messages that arrived in the meantime are read before the next wait ends.
   */
  #startHeartbeat(): void {
    const { heartbeatMs = 10_000 } = this.#options;
    let quietTicks = 0;
    const schedule = (): void => {
      this.#timer = setTimeout(tick, Math.min(Math.max(heartbeatMs / 2, 5), MAX_DELAY_MS));
    };
    const tick = (): void => {
      quietTicks = this.#hasHeard ? 0 : quietTicks + 1;
      this.#hasHeard = false;
      if (quietTicks >= 4) return this.#socket?.abandon(`no answer for ${2 * heartbeatMs} ms`);
      if (quietTicks === 2) void this.#probe();
      schedule();
    };
    schedule();
  }

  async #probe(): Promise<void> {
    // The answer to the new token's AUTH will show that the server is alive. The old token must not be sent after the new one.
    if (this.#isRefreshing) return;
    const socket = this.#socket;
    try {
      await this.#ask({ op: "AUTH", token: this.#token });
    } catch (thrown) {
      // The token was revoked: reconnecting asks for a new one.
      if (thrown instanceof AuthError) socket?.abandon(thrown.message);
    }
  }

  /** Schedules the replacement of a token that expires, over the same connection. */
  #scheduleRefresh(): void {
    if (typeof this.#options.token !== "function") return;
    const delay = refreshDelay(this.#token);
    if (delay === undefined) return;
    this.#refreshTimer = setTimeout(() => void this.#refresh(), delay);
  }

  async #refresh(): Promise<void> {
    const socket = this.#socket;
    try {
      const token = await this.token();
      if (socket === undefined || socket !== this.#socket) return;
      this.#isRefreshing = true;
      await this.#ask({ op: "AUTH", token });
      this.#token = token;
    } catch (thrown) {
      // The next connection gets a new token anyway.
      if (socket !== this.#socket) return;
      this.#emitter.emit("error", new AuthError("unauthorized", `cannot refresh the token: ${messageOf(thrown)}`, { cause: thrown }));
    }
    this.#isRefreshing = false;
    if (socket === this.#socket && this.#state === "connected") this.#scheduleRefresh();
  }
}

/** Converts an ERR frame to an error. */
export function asError(frame: ErrFrame): PrombusError {
  return serverError(frame.code, frame.msg, { retryAfterMs: frame.retry_after_ms });
}
