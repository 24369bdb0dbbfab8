/**
 * A scriptable server. Without a script it behaves like a small prombus: it answers AUTH, stores publishes in
 * memory by id, and accepts every subscription and ack. A script replaces the answer to one type of frame.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { Duplex } from "node:stream";
import { afterEach, expect } from "vitest";
import WebSocket, { WebSocketServer } from "ws";
import { Client, type ConnectOptions, type ConnectionState } from "../../src/index.js";

/** A frame as the server receives or sends it. */
export interface Frame {
  op: string;
  corr?: number;
  topic?: string;
  group?: string;
  id?: string;
  token?: string;
  payload?: unknown;
  reason?: string;
  delay_ms?: number;
  dead?: boolean;
  extend_ms?: number;
  opts?: Record<string, unknown>;
  [field: string]: unknown;
}

/** Replaces the answer to a frame. `usual` sends the answer that the server would have sent. */
export type Answer = (frame: Frame, from: FakeConnection, usual: () => void) => void;

// Saved before a test can replace them: waiting for I/O needs real time even under fake timers.
const immediate = setImmediate;
const now = performance.now.bind(performance);

/** Lets I/O run until the condition holds. */
export async function until(condition: () => boolean, what: string | (() => string) = "the condition", limitMs = 5_000): Promise<void> {
  const limit = now() + limitMs;
  while (!condition()) {
    if (now() > limit) throw new Error(`waited ${limitMs} ms for ${typeof what === "string" ? what : what()}`);
    await new Promise<void>((resolve) => { immediate(resolve); });
  }
}

/** Waits until everything that was sent over loopback has arrived. */
export async function settle(ms = 20): Promise<void> {
  const limit = now() + ms;
  await until(() => now() > limit);
}

/** One connection of a client, seen from the server. */
export class FakeConnection {
  readonly received: Frame[] = [];
  /** The code of the close frame that the client sent, or 1006. */
  closedWith: number | undefined;
  onClosed: (() => void) | undefined;
  readonly #socket: WebSocket;
  readonly tcp: Socket;

  constructor(socket: WebSocket, tcp: Socket) {
    this.#socket = socket;
    this.tcp = tcp;
    socket.on("close", (code) => {
      this.closedWith = code;
      this.onClosed?.();
    });
    socket.on("error", () => {});
  }

  send(frame: object): void {
    this.#socket.send(JSON.stringify(frame));
  }

  ok(to: Frame, fields: object = {}): void {
    this.send({ op: "OK", corr: to.corr, ...fields });
  }

  err(to: Frame, code: string, fields: object = {}): void {
    this.send({ op: "ERR", corr: to.corr, code, msg: `${code} by script`, ...fields });
  }

  /** Sends an EVENT for a subscription. */
  deliver(topic: string, group: string, id: string, more: { event?: object; ctx?: object } = {}): void {
    this.send({
      op: "EVENT", topic, group,
      event: { id, seq: 1, ts: 1, topic, payload: id, ...more.event },
      ctx: { attempt: 1, ack_deadline_ms: 30_000, max_attempts: 5, ...more.ctx },
    });
  }

  text(text: string): void {
    this.#socket.send(text);
  }

  binary(bytes: Uint8Array): void {
    this.#socket.send(bytes);
  }

  close(code?: number, reason?: string): void {
    this.#socket.close(code, reason);
  }

  /** Breaks the TCP connection. */
  cut(): void {
    this.tcp.destroy();
  }

  /** Ends the server's half of the TCP connection, without a close frame. */
  halfClose(): void {
    this.tcp.end();
  }

  /** Stops reading, so that the client's send buffers fill up. */
  freeze(): void {
    this.tcp.pause();
  }

  of(op: string): Frame[] {
    return this.received.filter((frame) => frame.op === op);
  }
}

export class FakeServer {
  readonly connections: FakeConnection[] = [];
  /** Answers that replace the usual ones, by `op`. */
  readonly script: Record<string, Answer> = {};
  /** Refuses upgrades with this status; 0 accepts the TCP connection and never answers. */
  refuse: number | undefined;
  /** Answers HTTP requests; without it, the answer is 404. */
  http: ((url: URL, response: ServerResponse) => void) | undefined;
  readonly stored = new Map<string, number>();
  readonly #http: Server;
  readonly #sockets = new WebSocketServer({ noServer: true });
  readonly #tcp = new Set<Duplex>();
  #port = 0;

  private constructor() {
    this.#http = createServer((request, response) => {
      if (this.http === undefined) response.writeHead(404).end("{}");
      else this.http(new URL(request.url ?? "/", "http://127.0.0.1"), response);
    });
    this.#http.on("connection", (tcp) => {
      this.#tcp.add(tcp);
      tcp.on("error", () => {});
      tcp.on("close", () => this.#tcp.delete(tcp));
    });
    this.#http.on("upgrade", (request, tcp, head) => this.#upgrade(request, tcp as Socket, head));
  }

  static async start(port = 0): Promise<FakeServer> {
    const server = new FakeServer();
    await new Promise<void>((resolve) => { server.#http.listen(port, "127.0.0.1", resolve); });
    server.#port = (server.#http.address() as AddressInfo).port;
    running.add(server);
    return server;
  }

  get port(): number {
    return this.#port;
  }

  get url(): string {
    return `ws://127.0.0.1:${this.#port}`;
  }

  /** The newest connection. */
  get last(): FakeConnection {
    return this.connections.at(-1) as FakeConnection;
  }

  /** All frames with this `op`, over all connections. */
  of(op: string): Frame[] {
    return this.connections.flatMap((connection) => connection.of(op));
  }

  /** Waits until `count` frames with this `op` have arrived. */
  async got(op: string, count = 1): Promise<Frame[]> {
    await until(() => this.of(op).length >= count, () => `${count} ${op}; there are ${this.of(op).length}`);
    return this.of(op);
  }

  /** Waits until the client has connected `count` times and sent AUTH. */
  async connected(count = 1): Promise<FakeConnection> {
    await until(() => this.connections.length >= count && this.last.of("AUTH").length > 0, `connection ${count}`);
    return this.last;
  }

  async stop(): Promise<void> {
    running.delete(this);
    for (const tcp of this.#tcp) tcp.destroy();
    this.#sockets.close();
    await new Promise<void>((resolve) => { this.#http.close(() => resolve()); });
  }

  #upgrade(request: IncomingMessage, tcp: Socket, head: Buffer): void {
    if (this.refuse === 0) return;
    if (this.refuse !== undefined) {
      tcp.end(`HTTP/1.1 ${this.refuse} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`);
      return;
    }
    this.#sockets.handleUpgrade(request, tcp, head, (socket) => {
      const connection = new FakeConnection(socket, tcp);
      this.connections.push(connection);
      socket.on("message", (data: Buffer) => {
        const frame = JSON.parse(data.toString()) as Frame;
        connection.received.push(frame);
        const usual = (): void => this.#answer(frame, connection);
        const scripted = this.script[frame.op];
        if (scripted === undefined) usual();
        else scripted(frame, connection, usual);
      });
    });
  }

  #answer(frame: Frame, to: FakeConnection): void {
    if (frame.op === "AUTH") return to.ok(frame, { protocol: 1 });
    if (frame.op === "PUBLISH") {
      const id = String(frame.opts?.id ?? frame.opts?.idempotencyKey);
      const seq = this.stored.get(id);
      if (seq !== undefined) return to.ok(frame, { id, seq, duplicate: true });
      this.stored.set(id, this.stored.size + 1);
      return to.ok(frame, { id, seq: this.stored.size });
    }
    if (frame.op === "SUBSCRIBE") return to.ok(frame, { created: true });
    // ACK and NACK without `corr` are answered only on error.
    if (frame.corr !== undefined) to.ok(frame);
  }
}

const running = new Set<FakeServer>();
const clients = new Set<Client>();
const unhandled: unknown[] = [];
process.on("unhandledRejection", (reason) => unhandled.push(reason));
process.on("uncaughtException", (error) => unhandled.push(error));

/** Whether errors contain the reason why a connection was refused: a standard WebSocket does not report it. */
export const HAS_DETAILS = process.env.FAKE_WEBSOCKET !== "own";

/** A client that connects again at once, and is closed at the end of the test. */
export function connectTo(server: { url: string }, options: ConnectOptions = {}): Client {
  const client = new Client(server.url, {
    // FAKE_WEBSOCKET=own runs the tests with the WebSocket of the runtime: Node 22 and newer have one.
    WebSocket: HAS_DETAILS ? WebSocket as never : undefined,
    backoff: { minMs: 1, maxMs: 20 },
    ...options,
  });
  // Without a listener, these events are printed.
  client.on("nack", () => {});
  client.on("error", () => {});
  clients.add(client);
  return client;
}

/** The names of the states, in the order of their events. */
export function statesOf(client: Client): ConnectionState[] {
  const states: ConnectionState[] = [];
  for (const name of ["connecting", "connected", "reconnecting", "closed"] as const) client.on(name, () => states.push(name));
  return states;
}

/** The error that a promise rejects with. */
export async function failure(promise: Promise<unknown>): Promise<unknown> {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("it did not reject");
}

afterEach(async () => {
  await Promise.all([...clients].map((client) => client.close({ timeoutMs: 0 })));
  clients.clear();
  await Promise.all([...running].map((server) => server.stop()));
  await settle(0);
  expect(unhandled.splice(0)).toEqual([]);
});
