/** One WebSocket, of any runtime. */
import { gatherWrites } from "./node-socket.js";

/** The part of a WebSocket that is used here. Browsers, Node 22, Bun, Deno and `ws` have it. */
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

/** What `ws` has beyond the standard. */
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
    // Details come only from `ws` and Node; a browser tells a page nothing.
    socket.onerror = (event: { message?: string }) => { this.#error = event.message ?? ""; };
    socket.onclose = (event: { code: number; reason: string }) => {
      this.#end(event.code, event.reason || this.#error);
    };
  }

  /** Sends a message. Messages of one turn of the event loop leave in one write where the runtime can do that. */
  send(text: string): void {
    if (this.#socket.readyState !== 1) return;
    gatherWrites(this.#socket);
    this.#socket.send(text);
  }

  /** Sends a close frame. Leases go back to the group without counting as an attempt. */
  close(): void {
    this.#socket.close(1000);
  }

  /** Ends the connection at once, for a peer that does not answer. */
  abandon(reason = ""): void {
    const socket = this.#socket as WebSocketLike & NodeSocket;
    // Before the socket says the same without a reason: Node's own calls `onclose` at once while it connects.
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
