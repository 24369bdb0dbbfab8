/** HTTP requests: adds the token, maps error codes, and reads responses in chunks. */
import { originHint } from "./address.js";
import type { Backoff } from "./backoff.js";
import { ClosedError, ConnectionError, type ErrorCode, messageOf, PrombusError, serverError } from "./errors.js";
import type { Millis } from "./types.js";

/** Returns the token for a request; undefined if the server needs none. */
export type TokenSource = () => Promise<string | undefined>;

export type QueryValue = string | number | Date | readonly string[] | undefined;

/** Query parameters. Undefined values are omitted; a list becomes one parameter per item. */
export type Query = Readonly<Record<string, QueryValue>>;

/** Options of a request. */
export interface RequestOptions {
  query?: Query;
  /** Sent as JSON. */
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** Fails with `timeout` after this time without data from the server; default 45,000. */
  idleMs?: Millis | undefined;
}

/** An idle stream of the server sends a comment every 15 s, so this is three missed comments. */
const SILENCE_MS = 45_000;

/** Requests to the HTTP routes of the server, with the token of the client. */
export class Http {
  /** Aborts when the client is closed. */
  readonly closed: AbortSignal;
  /**
   * @internal Callbacks that cancel the running requests. They share one listener of `closed`, because Node warns about more than ten.
   */
  readonly stops = new Set<() => void>();
  readonly #base: string;
  readonly #token: TokenSource;
  readonly #fetch: typeof fetch;

  constructor(base: string, token: TokenSource, closed: AbortSignal, fetchFn: typeof fetch = fetch) {
    this.#base = base;
    this.#token = token;
    this.closed = closed;
    this.#fetch = fetchFn;
    onAbort(closed, () => {
      for (const stop of this.stops) stop();
    });
  }

  url(path: string, query: Query = {}): string {
    const pairs = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
      for (const one of [value].flat()) {
        if (one !== undefined) pairs.append(name, `${one instanceof Date ? +one : one}`);
      }
    }
    const text = `${pairs}`;
    return this.#base + path + (text && `?${text}`);
  }

  /** Sends a request and waits for the response headers. Throws if the status is not 2xx. */
  async open(method: string, path: string, options: RequestOptions = {}): Promise<Exchange> {
    const { query, body, signal, idleMs = SILENCE_MS } = options;
    const headers = { ...options.headers };
    const text = JSON.stringify(body) as string | undefined;
    if (text !== undefined) headers["content-type"] = "application/json";
    // The `fetch` of browsers must not be called as a method of this object.
    const fetchFn = this.#fetch;
    const exchange = new Exchange(this, `${method} ${path}`, signal, idleMs);
    await exchange.start(async (stop) => {
      const token = await this.#token();
      if (token) headers["authorization"] = `Bearer ${token}`;
      return fetchFn(this.url(path, query), { method, headers, body: text ?? null, signal: stop });
    });
    if (!exchange.head.ok) throw await errorOf(exchange);
    return exchange;
  }

  /** Sends a request and parses the JSON of its response. */
  async json<T>(method: string, path: string, options?: RequestOptions): Promise<T> {
    const exchange = await this.open(method, path, options);
    return parseJson<T>(await exchange.text(), path);
  }

  /**
   * Waits before a request is repeated. Throws `error` if it is not retryable, has no 5xx status, and does not have the code
   * `expected`. Returns early when a signal aborts.
   */
  async retryAfter(error: unknown, backoff: Backoff, signal?: AbortSignal, expected?: ErrorCode): Promise<void> {
    const { code, isRetryable, status = 0, retryAfterMs = 0 } = error as Partial<PrombusError>;
    if (!isRetryable && status < 500 && (!expected || code !== expected)) throw error;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let release: (() => void) | undefined;
    await new Promise<void>((wake) => {
      timer = setTimeout(wake, Math.max(backoff.next(), retryAfterMs));
      release = this.watch(signal, wake);
    });
    clearTimeout(timer);
    release?.();
  }

  /** @internal Calls `stop` when the client is closed or the signal aborts. Returns a function that removes this callback. */
  watch(signal: AbortSignal | undefined, stop: () => void): () => void {
    const release = onAbort(signal, stop);
    this.stops.add(stop);
    if (this.closed.aborted) stop();
    return () => {
      release();
      this.stops.delete(stop);
    };
  }
}

/** A request and its response. It ends when the body has been read completely, when it fails, or when it is closed. */
export class Exchange {
  head!: Response;
  readonly #name: string;
  readonly #http: Http;
  readonly #signal: AbortSignal | undefined;
  readonly #idleMs: Millis | undefined;
  readonly #stop = new AbortController();
  readonly #release: () => void;
  #reader: ReadableStreamDefaultReader<Uint8Array> | undefined;

  constructor(http: Http, name: string, signal: AbortSignal | undefined, idleMs: Millis | undefined) {
    this.#http = http;
    this.#name = name;
    this.#signal = signal;
    this.#idleMs = idleMs;
    this.#release = http.watch(signal, () => this.#cancel());
  }

  async start(send: (stop: AbortSignal) => Promise<Response>): Promise<void> {
    const stop = this.#stop.signal;
    // `send` may wait for a token, and the signal cannot abort that wait.
    const stopped = new Promise<never>((_, reject) => { stop.onabort = reject; });
    this.head = await this.#guard(() => Promise.race([send(stop), stopped]));
    this.#reader = this.head.body?.getReader();
  }

  /** The next chunk of the body; undefined at its end. */
  async read(): Promise<Uint8Array | undefined> {
    const piece = await this.#guard(async () => this.#reader?.read());
    if (!piece?.value) this.#release();
    return piece?.value;
  }

  async text(): Promise<string> {
    const decoder = new TextDecoder();
    let text = "";
    for (let piece; (piece = await this.read());) text += decoder.decode(piece, { stream: true });
    return text + decoder.decode();
  }

  /** The body as a stream, which fails if the response is cut off. */
  stream(): ReadableStream<Uint8Array> {
    return new ReadableStream<Uint8Array>({
      pull: async (controller) => {
        const piece = await this.read();
        if (piece) controller.enqueue(piece);
        else controller.close();
      },
      cancel: () => this.close(),
    }, { highWaterMark: 0 });
  }

  /** Stops the request if it is still running. */
  close(): void {
    this.#release();
    this.#cancel();
  }

  #cancel(reason?: PrombusError): void {
    this.#stop.abort(reason);
    this.#reader?.cancel().catch(() => undefined);
  }

  async #guard<R>(work: () => Promise<R>): Promise<R> {
    const { signal } = this.#stop;
    const idleMs = this.#idleMs;
    const timer = idleMs && setTimeout(() => {
      this.#cancel(new PrombusError("timeout", `${this.#name}: no data for ${idleMs} ms`));
    }, idleMs);
    try {
      signal.throwIfAborted();
      const result = await work();
      signal.throwIfAborted();
      return result;
    } catch (thrown) {
      const { reason } = signal as { reason: unknown };
      this.close();
      if (this.#http.closed.aborted) throw closedBy(this.#http.closed);
      if (this.#signal?.aborted) throw new PrombusError("aborted", "the call was aborted", { cause: this.#signal.reason });
      if (reason instanceof PrombusError) throw reason;
      const cause = (thrown as Error | undefined)?.cause ?? thrown;
      throw new ConnectionError(`${this.#name}: ${messageOf(cause)}${originHint()}`, thrown);
    } finally {
      clearTimeout(timer);
    }
  }
}

/** Why the client was closed, e.g. because the server refused its token. */
export function closedBy({ reason }: AbortSignal): PrombusError {
  return reason instanceof PrombusError ? reason : new ClosedError();
}

/** Calls `act` when the signal aborts, or at once if it has already aborted. Returns a function that removes the listener. */
export function onAbort(signal: AbortSignal | undefined, act: () => void): () => void {
  if (signal?.aborted) act();
  else signal?.addEventListener("abort", act, { once: true });
  return () => signal?.removeEventListener("abort", act);
}

/** Parses JSON that the server sent. */
export function parseJson<T>(text: string, path: string): T {
  try {
    return JSON.parse(text) as T;
  } catch (cause) {
    throw new PrombusError("bad_answer", `${path}: not JSON`, { cause });
  }
}

/** The error for a response that is not 2xx. A proxy's response has no error code, so the code is derived from its status. */
async function errorOf(exchange: Exchange): Promise<PrombusError> {
  const { status } = exchange.head;
  const text = await exchange.text();
  let body: { error?: unknown; code?: unknown; retry_after_ms?: unknown } = {};
  try {
    body = Object(JSON.parse(text));
  } catch {
    // Not a response of a prombus server.
  }
  const code = body.code ?? CODES[status] ?? (status < 500 ? "bad_answer" : "unavailable");
  const retryAfterMs = Number(body.retry_after_ms) || undefined;
  return serverError(String(code), String(body.error ?? `status ${status}`), { status, retryAfterMs });
}

const CODES: Readonly<Record<number, ErrorCode>> = {
  401: "unauthorized", 403: "forbidden", 404: "not_found", 408: "unavailable", 429: "rate_limited",
};
