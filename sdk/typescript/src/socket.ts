/** A WebSocket connection that works with the WebSocket class of any runtime. */
import { gatherWrites } from "./node-socket.js";

/** The part of a WebSocket that the client uses. Browsers, Node 22, Bun, Deno and `ws` have it. */
export interface WebSocketLike {
  readonly readyState: number;
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  send(data: string): void;
  close(code?: number, reason?: string): void;
}

/** The class of a WebSocket, e.g. that of the package `ws`. */
export type WebSocketConstructor = new (url: string) => WebSocketLike;

/** Methods that `ws` has in addition to the standard. */
interface NodeSocket {
  /** Ends the connection without a closing handshake, which a dead peer would never answer. */
  terminate?(): void;
}

/** The handlers of a {@link Socket}. Nothing is called after `closed`. */
export interface SocketEvents {
  opened(): void;
  message(text: string): void;
  closed(code: number, reason: string): void;
}

/** One WebSocket connection. */
export class Socket {
  readonly #socket: WebSocketLike;
  #events: SocketEvents | undefined;
  #error = "";

  constructor(constructor: WebSocketConstructor, url: string, events: SocketEvents) {
    this.#events = events;
    const socket = new constructor(url);
    this.#socket = socket;
    socket.onopen = () => this.#events?.opened();
    socket.onmessage = (event: { data: unknown }) => {
      // Binary messages are not part of the protocol.
      if (typeof event.data === "string") this.#events?.message(event.data);
    };
    // Only `ws` and Node report details; a browser tells a page nothing.
    socket.onerror = (event: { message?: string }) => { this.#error = event.message ?? ""; };
    socket.onclose = (event: { code: number; reason: string }) => {
      this.#end(event.code, event.reason || this.#error);
    };
  }

  /** Sends a message. All messages of one event-loop turn are sent in one write where the runtime allows it. */
  send(text: string): void {
    if (this.#socket.readyState !== 1) return;
    gatherWrites(this.#socket);
    this.#socket.send(text);
  }

  /** Sends a close frame, so that returned leases do not count as an attempt. */
  close(): void {
    this.#socket.close(1000);
  }

  /** Ends the connection at once, without waiting for the peer. */
  abandon(reason = ""): void {
    const socket = this.#socket as WebSocketLike & NodeSocket;
    // Must come first: if Node's own WebSocket is still connecting, its `close()` calls `onclose`, without the reason.
    this.#end(1006, reason);
    if (socket.terminate !== undefined) socket.terminate();
    else socket.close();
  }

  #end(code: number, reason: string): void {
    const events = this.#events;
    this.#events = undefined;
    events?.closed(code, reason);
  }
}
