/** Helpers for HTTP tests: publishing with fetch, a scriptable server, and an `Http` without a WebSocket connection. */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { Http } from "../../src/http.js";

/** An `Http` and its `close()`. */
export function httpOf(base: string, token?: string): { http: Http; close: () => void } {
  const closed = new AbortController();
  return { http: new Http(base, async () => token, closed.signal), close: () => closed.abort() };
}

/** Publishes payloads as one commit. */
export async function publish(base: string, topic: string, payloads: unknown[], query = "", token?: string): Promise<string[]> {
  const response = await fetch(`${base}/publish/${topic}${query}`, {
    method: "POST",
    headers: { "content-type": "application/x-ndjson", ...(token === undefined ? {} : { authorization: `Bearer ${token}` }) },
    body: payloads.map((payload) => JSON.stringify(payload)).join("\n"),
  });
  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
  const { events } = (await response.json()) as { events: { id: string }[] };
  return events.map(({ id }) => id);
}

/** Publishes whole records: `{ payload, key?, ts?, tags?, headers? }`. */
export function publishRecords(base: string, topic: string, records: object[]): Promise<string[]> {
  return publish(base, topic, records, "?envelope=1");
}

export interface FakeServer {
  readonly url: string;
  readonly requests: IncomingMessage[];
  close(): Promise<void>;
}

/** A scriptable HTTP server. `attempt` counts from 1. */
export async function fakeServer(
  answer: (request: IncomingMessage, response: ServerResponse, attempt: number) => void,
): Promise<FakeServer> {
  const requests: IncomingMessage[] = [];
  const server = createServer((request, response) => {
    requests.push(request);
    answer(request, response, requests.length);
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    requests,
    close: () => new Promise((done) => {
      server.close(() => done());
      server.closeAllConnections();
    }),
  };
}

export async function collect<T>(items: AsyncIterable<T>, limit = Infinity): Promise<T[]> {
  const found: T[] = [];
  if (limit === 0) return found;
  for await (const item of items) {
    found.push(item);
    if (found.length >= limit) break;
  }
  return found;
}

/** Polls until `isTrue` holds. */
export async function until(isTrue: () => boolean, what = "the condition", limitMs = 15_000): Promise<void> {
  const end = Date.now() + limitMs;
  while (!isTrue()) {
    if (Date.now() > end) throw new Error(`${what} did not become true within ${limitMs} ms`);
    await new Promise((done) => setTimeout(done, 5));
  }
}

/** The running timers of this process. */
export function timers(): number {
  return process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
}

/** A signal that counts its listeners. */
export function countedSignal(): { controller: AbortController; listeners: () => number } {
  const controller = new AbortController();
  let count = 0;
  const { signal } = controller;
  const add = signal.addEventListener.bind(signal);
  const remove = signal.removeEventListener.bind(signal);
  const known = new Set<unknown>();
  signal.addEventListener = ((name: "abort", listener: () => void, options?: AddEventListenerOptions) => {
    if (!known.has(listener)) count += 1;
    known.add(listener);
    add(name, listener, options);
  }) as typeof signal.addEventListener;
  signal.removeEventListener = ((name: "abort", listener: () => void) => {
    if (known.delete(listener)) count -= 1;
    remove(name, listener);
  }) as typeof signal.removeEventListener;
  return { controller, listeners: () => count };
}
