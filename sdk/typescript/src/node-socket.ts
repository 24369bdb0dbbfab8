/**
 * What the WebSocket of Node needs. In the build for browsers `browser-socket.ts` takes the place of this module.
 */
import { PrombusError } from "./errors.js";
import type { WebSocketConstructor, WebSocketLike } from "./socket.js";

declare const setImmediate: ((callback: () => void) => unknown) | undefined;

/** The TCP socket below a WebSocket of the package `ws`. */
interface GatheringSocket {
  cork(): void;
  uncork(): void;
}

/** The WebSocket of the runtime, or that of the package `ws` where there is none (Node 20 and 21). */
export async function findWebSocket(): Promise<WebSocketConstructor> {
  const own = (globalThis as { WebSocket?: WebSocketConstructor }).WebSocket;
  if (own !== undefined) return own;
  // A variable keeps bundlers from looking for the package.
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

/** Makes the messages of this turn of the event loop leave in one write. Only `ws` gives access to what that takes. */
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
