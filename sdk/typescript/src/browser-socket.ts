/** In browsers: the WebSocket is there, and nothing can be done about its writes. */
import type { WebSocketConstructor } from "./socket.js";

export function findWebSocket(): WebSocketConstructor {
  return WebSocket as unknown as WebSocketConstructor;
}

export function gatherWrites(): void {}
