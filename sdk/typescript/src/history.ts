/** Reads the history of topics and patterns: pages, exports, and live tails without a group. */
import { Backoff } from "./backoff.js";
import { ClosedError, ConnectionError, PrombusError, serverError } from "./errors.js";
import { closedBy, type Exchange, type Http, parseJson, type Query } from "./http.js";
import { LineSplitter, SseParser } from "./sse.js";
import type { HistoryFilter, Millis, StoredEvent, TimeLike } from "./types.js";

const PAGE_SIZE = 1_000;
const RETRY_MS = 1_000;
const MIN_RETRY_MS = 100;
const MAX_RETRY_MS = 30_000;

/** Where to start. `afterId` is the id of an event, or a position that a page or stream of a pattern returned. */
export interface StartOptions {
  /** `"ts"` needs `ts`, `"afterId"` needs `afterId`. Without `from`, the start is `afterId` if given, else `ts` if given. */
  from?: "earliest" | "latest" | "ts" | "afterId" | { ts: TimeLike } | { afterId: string } | undefined;
  ts?: TimeLike | undefined;
  afterId?: string | undefined;
}

/** Options of `replay`. */
export interface ReplayOptions extends StartOptions, HistoryFilter {
  /** Only events with this seq or a higher one. Not for patterns. */
  fromSeq?: number | undefined;
  /** Only events whose `ts` is this time or earlier. */
  toTs?: TimeLike | undefined;
  /** `"desc"` is newest first. Not for patterns. */
  order?: "asc" | "desc" | undefined;
  /** Maximum number of events. With `from: "latest"` in ascending order: how many of the newest events; default `pageSize`. */
  limit?: number | undefined;
  /** Events per request; default 1,000. */
  pageSize?: number | undefined;
  signal?: AbortSignal | undefined;
}

/** Options of `export`. */
export interface ExportOptions extends HistoryFilter {
  /** Only events whose `ts` is this time or later. */
  fromTs?: TimeLike | undefined;
  /** Only events whose `ts` is this time or earlier. */
  toTs?: TimeLike | undefined;
  signal?: AbortSignal | undefined;
}

/** Options of `last`. */
export interface LastOptions extends HistoryFilter {
  signal?: AbortSignal | undefined;
}

/** Options of `ticketUrl`. */
export interface TicketOptions extends StartOptions, HistoryFilter {
  signal?: AbortSignal | undefined;
}

/** Options of `tail`. A tail starts at `"latest"` by default. */
export interface TailOptions extends StartOptions, HistoryFilter {
  /** Called each time the stream is connected. */
  onOpen?: (() => void) | undefined;
  /** Reconnects after this time without data from the server; default 45,000. */
  silenceMs?: Millis | undefined;
  signal?: AbortSignal | undefined;
  /** @internal Resumes only after an event, never at a position that the server sent before the first event. */
  resumeAfterEvents?: boolean | undefined;
}

interface Page<T> {
  events: StoredEvent<T>[];
  next: string | null;
}

/** Yields stored events, which it requests in pages. Throws if the request of a page fails. */
export async function* replay<T = unknown>(
  http: Http,
  topic: string,
  options: ReplayOptions = {},
): AsyncGenerator<StoredEvent<T>, undefined> {
  const { pageSize = PAGE_SIZE, signal } = options;
  let query = queryOf(topic, options);
  const isLatest = query["from"] === "latest" && options.order !== "desc";
  let left = options.limit ?? (isLatest ? pageSize : Infinity);
  while (!(left <= 0)) {
    const limit = isLatest ? left : Math.min(left, pageSize);
    const page = await http.json<Page<T>>("GET", "/replay", { query: { ...query, limit }, signal });
    yield* page.events;
    if (!page.next) return;
    left -= page.events.length;
    query = { ...query, from: "afterId", afterId: page.next };
  }
}

/** Returns the newest `count` events of a topic, oldest first. */
export async function last<T = unknown>(
  http: Http,
  topic: string,
  count: number,
  options: LastOptions = {},
): Promise<StoredEvent<T>[]> {
  if (count <= 0) return [];
  const query = queryOf(topic, { ...options, from: "latest", limit: count });
  return (await http.json<Page<T>>("GET", "/replay", { query, signal: options.signal })).events;
}

/** Streams all events in constant memory. Throws if the response is cut off. */
export async function* exportEvents<T = unknown>(
  http: Http,
  topic: string,
  options: ExportOptions = {},
): AsyncGenerator<StoredEvent<T>, undefined> {
  const exchange = await openExport(http, topic, options);
  try {
    const lines = new LineSplitter();
    for (let piece; (piece = await exchange.read());) {
      for (const line of lines.push(piece)) yield parseJson<StoredEvent<T>>(line, "/export");
    }
    // Not every runtime reports a response that was cut off. An incomplete last line shows that the response was cut off.
    if (lines.rest !== "") throw new ConnectionError("/export: the response broke off");
  } finally {
    exchange.close();
  }
}

/** Returns the bytes of an export, one event per line, e.g. for a file. The stream fails if the response is cut off. */
export async function exportStream(
  http: Http,
  topic: string,
  options: ExportOptions = {},
): Promise<ReadableStream<Uint8Array>> {
  return (await openExport(http, topic, options)).stream();
}

/**
 * Yields the events of a topic or pattern as they are published. A tail does not use a group, so nothing is acked. The first call of
 * `next` connects. While the server cannot be reached, the tail retries; then it resumes after the last event without a gap or a
 * duplicate. It ends when the client is closed, and throws if the server refuses the request.
 */
export async function* tail<T = unknown>(
  http: Http,
  topic: string,
  options: TailOptions = {},
): AsyncGenerator<StoredEvent<T>, undefined> {
  const { onOpen, signal, silenceMs: idleMs, resumeAfterEvents = false } = options;
  const path = pathOf(topic);
  const query = queryOf(undefined, options);
  let lastId = "";
  let backoff = retryBackoff();
  for (;;) {
    let failure: unknown = new ConnectionError("the stream ended");
    let exchange: Exchange | undefined;
    try {
      const headers: Record<string, string> = lastId === "" ? {} : { "last-event-id": lastId };
      exchange = await http.open("GET", path, { query, headers, signal, idleMs });
      // The response may come from a proxy, e.g. its login page.
      if (!/^text\/event-stream/.test(exchange.head.headers.get("content-type") ?? "")) {
        throw new PrombusError("bad_answer", `${path}: not an event stream`);
      }
      const parser = new SseParser(lastId);
      let isOpen = false;
      for (let piece; (piece = await exchange.read());) {
        for (const { id, event, data } of parser.push(piece)) {
          if (event === "error") {
            const { error, code } = parseJson<{ error: string; code: string }>(data ?? "", path);
            throw serverError(code, error);
          }
          if (!isOpen) {
            isOpen = true;
            backoff = retryBackoff(parser.retryMs);
            onOpen?.();
          }
          if (data !== undefined || !resumeAfterEvents) lastId = id;
          if (data !== undefined && event === "") yield parseJson<StoredEvent<T>>(data, path);
        }
      }
    } catch (thrown) {
      failure = thrown;
    } finally {
      exchange?.close();
    }
    if (http.closed.aborted) {
      const error = closedBy(http.closed);
      if (error instanceof ClosedError) return;
      throw error;
    }
    await http.retryAfter(failure, backoff, signal);
  }
}

/**
 * Returns a URL for `new EventSource(url)`. An `EventSource` cannot send a token, so the URL contains a ticket for this topic and
 * these options. The ticket must be used for the first time within 30 s, and can be used to reconnect for 24 h.
 */
export async function ticketUrl(http: Http, topic: string, options: TicketOptions = {}): Promise<string> {
  const query = queryOf(undefined, options);
  const body = { topic, query: http.url("", query).split("?")[1] ?? "" };
  const { ticket } = await http.json<{ ticket: string }>("POST", "/tickets", { body, signal: options.signal });
  return http.url(pathOf(topic), { ...query, ticket });
}

/** Creates the backoff between attempts, which starts at `minMs` (at least 100 ms) and grows with each failure. */
export function retryBackoff(minMs: Millis = RETRY_MS): Backoff {
  return new Backoff(Math.max(minMs, MIN_RETRY_MS), MAX_RETRY_MS);
}

function pathOf(topic: string): string {
  return `/subscribe/${encodeURIComponent(topic)}`;
}

function openExport(http: Http, topic: string, options: ExportOptions): Promise<Exchange> {
  return http.open("GET", "/export", { query: queryOf(topic, options), signal: options.signal });
}

type AnyOptions = ReplayOptions & ExportOptions & TailOptions;

/** Converts options to query parameters. */
function queryOf(topic: string | undefined, options: AnyOptions): Query {
  const { from, header = {}, pageSize, onOpen, silenceMs, resumeAfterEvents, signal, ...rest } = options;
  const query = {
    topic,
    ...rest,
    ...(typeof from === "object" ? from : {}),
    header: Object.entries(header).map(([name, value]) => `${name}:${value}`),
  };
  const start = query.afterId !== undefined ? "afterId" : query.ts !== undefined ? "ts" : undefined;
  return { ...query, from: typeof from === "string" ? from : start };
}
