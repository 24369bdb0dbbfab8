/** HTTP requests: the token, error codes, and responses that are read piece by piece. */
import type { Backoff } from "./backoff.js";
import { ClosedError, ConnectionError, messageOf, PrombusError, serverError } from "./errors.js";
import type { Millis } from "./types.js";

/** Gets the token for a request; undefined where the server needs none. */
export type TokenSource = () => Promise<string | undefined>;

/** Parameters of a request. Undefined ones are left out, and a list repeats its name. */
export type Query = Readonly<Record<string, string | number | Date | readonly string[] | undefined>>;

export interface RequestOptions {
  query?: Query;
  /** Sent as JSON. */
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** Fails with `timeout` after this time in which the server sent nothing. */
  idleMs?: Millis;
}

export class Http {
  /** Aborts when the client is closed. */
  readonly closed: AbortSignal;
  readonly #base: string;
  readonly #token: TokenSource;
  readonly #fetch: typeof fetch;

  constructor(base: string, token: TokenSource, closed: AbortSignal, fetchFn: typeof fetch = fetch) {
    this.#base = base;
    this.#token = token;
    this.closed = closed;
    this.#fetch = fetchFn;
  }

  url(path: string, query: Query = {}): string {
    const pairs = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
      for (const one of Array.isArray(value) ? value : [value]) {
        if (one !== undefined) pairs.append(name, `${one instanceof Date ? one.getTime() : one}`);
      }
    }
    const text = `${pairs}`;
    return this.#base + path + (text && `?${text}`);
  }

  /** Sends a request and waits for the head of the response. Throws if its status is not 2xx. */
  async open(method: string, path: string, options: RequestOptions = {}): Promise<Exchange> {
    const { query, body, signal, idleMs } = options;
    this.#check(signal);
    const headers: Record<string, string> = { ...options.headers };
    const init: RequestInit = { method, headers };
    if (body !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(body);
    }
    const exchange = new Exchange(`${method} ${path}`, idleMs);
    exchange.watch(this.closed, () => new ClosedError());
    exchange.watch(signal, () => abortedBy(signal));
    // Called without `this`: the `fetch` of browsers insists on it.
    const fetchFn = this.#fetch;
    await exchange.start(async (stop) => {
      const token = await this.#token();
      if (token !== undefined) headers["authorization"] = `Bearer ${token}`;
      return fetchFn(this.url(path, query), { ...init, signal: stop });
    });
    if (!exchange.head.ok) throw await errorOf(exchange);
    return exchange;
  }

  /** The response with its body as a stream. */
  async request(method: string, path: string, options?: RequestOptions): Promise<Response> {
    const exchange = await this.open(method, path, options);
    const { status, statusText, headers } = exchange.head;
    return new Response(exchange.head.body === null ? null : exchange.stream(), { status, statusText, headers });
  }

  async json<T>(method: string, path: string, options?: RequestOptions): Promise<T> {
    const exchange = await this.open(method, path, options);
    return parseJson<T>(await exchange.text(), `${method} ${path}`);
  }

  /** Waits before a request is repeated. Throws `error` if repeating it cannot help. Ends early when a signal aborts. */
  async retryAfter(error: unknown, backoff: Backoff, signal?: AbortSignal): Promise<void> {
    if (!(error instanceof PrombusError) || !(error.isRetryable || (error.status ?? 0) >= 500)) throw error;
    await this.sleep(Math.max(backoff.next(), error.retryAfterMs ?? 0), signal);
  }

  /** Waits. Ends early when the client is closed or the signal aborts. */
  sleep(ms: Millis, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const signals = [this.closed, signal];
      const wake = (): void => {
        clearTimeout(timer);
        for (const one of signals) one?.removeEventListener("abort", wake);
        resolve();
      };
      const timer = setTimeout(wake, ms);
      for (const one of signals) one?.addEventListener("abort", wake);
      if (signals.some((one) => one?.aborted)) wake();
    });
  }

  #check(signal: AbortSignal | undefined): void {
    if (this.closed.aborted) throw new ClosedError();
    if (signal?.aborted) throw abortedBy(signal);
  }
}

/** A request and its response. Ends when it was read to its end, fails, or is closed. */
export class Exchange {
  head!: Response;
  readonly #name: string;
  readonly #idleMs: Millis | undefined;
  readonly #controller = new AbortController();
  readonly #unwatch: (() => void)[] = [];
  #reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  #failure: PrombusError | undefined;

  constructor(name: string, idleMs: Millis | undefined) {
    this.#name = name;
    this.#idleMs = idleMs;
  }

  /** Fails with `why()` when the signal aborts. */
  watch(signal: AbortSignal | undefined, why: () => PrombusError): void {
    const stop = (): void => this.#fail(why());
    signal?.addEventListener("abort", stop);
    this.#unwatch.push(() => signal?.removeEventListener("abort", stop));
  }

  async start(send: (stop: AbortSignal) => Promise<Response>): Promise<void> {
    const stop = this.#controller.signal;
    // `send` may wait for a token, which the signal cannot end.
    const stopped = new Promise<never>((_, reject) => stop.addEventListener("abort", reject));
    this.head = await this.#guard(() => Promise.race([send(stop), stopped]));
    this.#reader = this.head.body?.getReader();
  }

  /** The next piece of the body; undefined at its end. */
  async read(): Promise<Uint8Array | undefined> {
    const piece = await this.#guard(async () => this.#reader?.read());
    if (piece?.value === undefined) this.#release();
    return piece?.value;
  }

  async text(): Promise<string> {
    const decoder = new TextDecoder();
    let text = "";
    for (let piece; (piece = await this.read()) !== undefined;) text += decoder.decode(piece, { stream: true });
    return text + decoder.decode();
  }

  /** The body as a stream. One that breaks off ends with an error. */
  stream(): ReadableStream<Uint8Array> {
    return new ReadableStream<Uint8Array>({
      pull: async (controller) => {
        const piece = await this.read();
        if (piece === undefined) controller.close();
        else controller.enqueue(piece);
      },
      cancel: () => this.close(),
    }, { highWaterMark: 0 });
  }

  /** Stops the request if it is still running. */
  close(): void {
    this.#release();
    this.#controller.abort();
    this.#reader?.cancel().catch(() => undefined);
  }

  #fail(failure: PrombusError): void {
    this.#failure ??= failure;
    this.close();
  }

  #release(): void {
    for (const unwatch of this.#unwatch.splice(0)) unwatch();
  }

  async #guard<R>(work: () => Promise<R>): Promise<R> {
    const idleMs = this.#idleMs;
    const timer = idleMs === undefined ? undefined : setTimeout(() => {
      this.#fail(new PrombusError("timeout", `${this.#name}: nothing came for ${idleMs} ms`));
    }, idleMs);
    try {
      const result = await work();
      if (this.#failure !== undefined) throw this.#failure;
      return result;
    } catch (thrown) {
      this.close();
      const cause = thrown instanceof Error ? thrown.cause ?? thrown : thrown;
      throw this.#failure ?? new ConnectionError(`${this.#name}: ${messageOf(cause)}`, "connection_lost", thrown);
    } finally {
      clearTimeout(timer);
    }
  }
}

/**
 * An iterator over what `run` yields. Its `return` also ends a `next` that is waiting; that of a plain generator waits for
 * it. `run` gets a signal for its requests.
 */
export function stoppable<T>(
  outer: AbortSignal | undefined,
  run: (signal: AbortSignal) => AsyncGenerator<T, void>,
): AsyncIterableIterator<T> {
  const own = new AbortController();
  const inner = run(own.signal);
  const follow = (): void => own.abort(outer?.reason);
  const end: IteratorResult<T> = { done: true, value: undefined };
  let isStopped = false;
  let isFollowing = false;
  return {
    async next() {
      if (!isFollowing) {
        isFollowing = true;
        if (outer?.aborted) follow();
        outer?.addEventListener("abort", follow);
      }
      try {
        const result = await inner.next();
        if (result.done) outer?.removeEventListener("abort", follow);
        return result.done ? end : result;
      } catch (error) {
        outer?.removeEventListener("abort", follow);
        if (isStopped) return end;
        throw error;
      }
    },
    async return() {
      isStopped = true;
      outer?.removeEventListener("abort", follow);
      own.abort();
      await inner.return();
      return end;
    },
    [Symbol.asyncIterator]() {
      return this;
    },
  };
}

/** A JSON text of the server. */
export function parseJson<T>(text: string, name: string): T {
  try {
    return JSON.parse(text) as T;
  } catch (cause) {
    throw new PrombusError("bad_answer", `${name}: the response is not JSON`, { cause });
  }
}

function abortedBy(signal: AbortSignal | undefined): PrombusError {
  return new PrombusError("aborted", "the call was aborted", { cause: signal?.reason });
}

/** The error of a response that is not 2xx. A proxy's has no code: its status must do. */
async function errorOf(exchange: Exchange): Promise<PrombusError> {
  const { status, statusText, headers } = exchange.head;
  const text = await exchange.text();
  let body: { error?: unknown; code?: unknown; retry_after_ms?: unknown } = {};
  try {
    body = Object(JSON.parse(text));
  } catch {
    // Not of a prombus server.
  }
  const { error = `status ${status} ${statusText}`, code = codeOf(status), retry_after_ms: ms } = body;
  const retryAfterMs = Number(ms ?? Number(headers.get("retry-after")) * 1000) || undefined;
  return serverError(String(code), String(error), { status, retryAfterMs });
}

function codeOf(status: number): string {
  if (status === 401) return "unauthorized";
  if (status === 403) return "forbidden";
  if (status === 404) return "not_found";
  if (status === 429) return "rate_limited";
  return status === 408 || status >= 500 ? "unavailable" : "bad_answer";
}
