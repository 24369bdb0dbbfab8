/**
 * Finds a WebSocket class in Node, and combines writes to a WebSocket. In the build for browsers, `browser-socket.ts` replaces this
 * module.
 */
import { PrombusError } from "./errors.js";
import type { WebSocketConstructor, WebSocketLike } from "./socket.js";

declare const setImmediate: ((callback: () => void) => unknown) | undefined;

/** The TCP socket of a WebSocket of the package `ws`. */
interface GatheringSocket {
  cork(): void;
  uncork(): void;
}

/** The WebSocket class of the runtime, or that of the package `ws` in runtimes without one (Node 20 and 21). */
export async function findWebSocket(): Promise<WebSocketConstructor> {
  const own = (globalThis as { WebSocket?: WebSocketConstructor }).WebSocket;
  if (own !== undefined) return own;
  // The name is in a variable so that bundlers do not try to resolve this optional package.
  const name = "ws";
  try {
    const module = (await import(/* @vite-ignore */ /* webpackIgnore: true */ name)) as
      { WebSocket?: WebSocketConstructor; default: WebSocketConstructor };
    return module.WebSocket ?? module.default;
  } catch (cause) {
    throw new PrombusError(
      "no_websocket",
      "this runtime has no WebSocket: install the package `ws` (npm install ws), pass one as connect(url, { WebSocket }), " +
        "or use Node 22 or newer",
      { cause },
    );
  }
}

const gathering = new WeakSet<GatheringSocket>();

/**
 * Makes a WebSocket send all messages of this event-loop turn in one write. Has an effect only with `ws`, which exposes its TCP
 * socket.
 */
export function gatherWrites(socket: WebSocketLike): void {
  const below = (socket as { _socket?: Partial<GatheringSocket> | null })._socket;
  if (typeof below?.cork !== "function" || typeof below.uncork !== "function" || typeof setImmediate === "undefined") return;
  const tcp = below as GatheringSocket;
  if (gathering.has(tcp)) return;
  gathering.add(tcp);
  tcp.cork();
  setImmediate(() => {
    gathering.delete(tcp);
    tcp.uncork();
  });
}
