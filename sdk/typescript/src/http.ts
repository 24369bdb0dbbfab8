/** HTTP requests: the token, error codes, and responses that are read piece by piece. */
import { originHint } from "./address.js";
import type { Backoff } from "./backoff.js";
import { ClosedError, ConnectionError, type ErrorCode, messageOf, PrombusError, serverError } from "./errors.js";
import type { Millis } from "./types.js";

/** Gets the token for a request; undefined where the server needs none. */
export type TokenSource = () => Promise<string | undefined>;

export type QueryValue = string | number | Date | readonly string[] | undefined;

/** Parameters of a request. Undefined ones are left out, and a list repeats its name. */
export type Query = Readonly<Record<string, QueryValue>>;

/** Options of a request. */
export interface RequestOptions {
  query?: Query;
  /** Sent as JSON. */
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** Fails with `timeout` after this time in which the server sent nothing; default 45,000. */
  idleMs?: Millis | undefined;
}

/** The server sends a comment every 15 s where it has nothing else to send. */
const SILENCE_MS = 45_000;

/** Requests to the HTTP routes of the server, with the token of the client. */
export class Http {
  /** Aborts when the client is closed. */
  readonly closed: AbortSignal;
  /** @internal Ends what runs now. They share one listener of `closed`: Node warns of more than ten. */
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

  /** Sends a request and waits for the head of the response. Throws if its status is not 2xx. */
  async open(method: string, path: string, options: RequestOptions = {}): Promise<Exchange> {
    const { query, body, signal, idleMs = SILENCE_MS } = options;
    const headers = { ...options.headers };
    const text = JSON.stringify(body) as string | undefined;
    if (text !== undefined) headers["content-type"] = "application/json";
    // Called without `this`: the `fetch` of browsers insists on it.
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
   * Waits before a request is repeated. Throws `error` if repeating it cannot help, unless it has the code `expected`. Ends
   * early when a signal aborts.
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

  /** @internal Calls `stop` when the client is closed or the signal aborts. The function that it returns ends that. */
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

/** A request and its response. Ends when it was read to its end, fails, or is closed. */
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
    // `send` may wait for a token, which the signal cannot end.
    const stopped = new Promise<never>((_, reject) => { stop.onabort = reject; });
    this.head = await this.#guard(() => Promise.race([send(stop), stopped]));
    this.#reader = this.head.body?.getReader();
  }

  /** The next piece of the body; undefined at its end. */
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

  /** The body as a stream. One that breaks off ends with an error. */
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
/** Why the client was closed. */
export function closedBy({ reason }: AbortSignal): PrombusError {
  return reason instanceof PrombusError ? reason : new ClosedError();
}

/** Calls `act` when the signal aborts, at once if it has. The function that it returns removes the listener. */
export function onAbort(signal: AbortSignal | undefined, act: () => void): () => void {
  if (signal?.aborted) act();
  else signal?.addEventListener("abort", act, { once: true });
  return () => signal?.removeEventListener("abort", act);
}

/** A JSON text of the server. */
export function parseJson<T>(text: string, path: string): T {
  try {
    return JSON.parse(text) as T;
  } catch (cause) {
    throw new PrombusError("bad_answer", `${path}: not JSON`, { cause });
  }
}

/** The error of a response that is not 2xx. A proxy's has no code: its status must do. */
async function errorOf(exchange: Exchange): Promise<PrombusError> {
  const { status } = exchange.head;
  const text = await exchange.text();
  let body: { error?: unknown; code?: unknown; retry_after_ms?: unknown } = {};
  try {
    body = Object(JSON.parse(text));
  } catch {
    // Not of a prombus server.
  }
  const code = body.code ?? CODES[status] ?? (status < 500 ? "bad_answer" : "unavailable");
  const retryAfterMs = Number(body.retry_after_ms) || undefined;
  return serverError(String(code), String(body.error ?? `status ${status}`), { status, retryAfterMs });
}

const CODES: Readonly<Record<number, ErrorCode>> = {
  401: "unauthorized", 403: "forbidden", 404: "not_found", 408: "unavailable", 429: "rate_limited",
};
