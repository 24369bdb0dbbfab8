/** Replaces `node-socket.ts` in browsers, which have a WebSocket class but give no control over when it writes. */
import type { WebSocketConstructor } from "./socket.js";

export function findWebSocket(): WebSocketConstructor {
  return WebSocket as unknown as WebSocketConstructor;
}

export function gatherWrites(): void {}
