/** Replaces `node-socket.ts` in browsers, which have a WebSocket and no control over its writes. */
import type { WebSocketConstructor } from "./socket.js";

export function findWebSocket(): WebSocketConstructor {
  return WebSocket as unknown as WebSocketConstructor;
}

export function gatherWrites(): void {}
