/** The frames that the server sends. `docs/protocol.md` describes them. */
import type { CursorPosition, RedeliveryReason, StoredEvent } from "./types.js";

export interface OkFrame {
  op: "OK";
  corr?: number;
  id?: string;
  seq?: number;
  duplicate?: boolean;
  created?: boolean;
  stale?: boolean;
  cursor?: CursorPosition;
  protocol?: number;
}

export interface ErrFrame {
  op: "ERR";
  code: string;
  msg: string;
  corr?: number;
  retry_after_ms?: number;
}

export interface EventFrame {
  op: "EVENT";
  /** The subscription's topic or pattern. */
  topic: string;
  group: string;
  event: StoredEvent;
  ctx: {
    attempt: number;
    ack_deadline_ms: number;
    max_attempts: number;
    reason?: RedeliveryReason;
    last_error?: string;
  };
}

export type ServerFrame = OkFrame | ErrFrame | EventFrame;

/** The callbacks of a request that waits for its answer. */
export interface Waiter {
  ok(frame: OkFrame): void;
  err(frame: ErrFrame): void;
  /** Called if the connection broke before the answer arrived. */
  lost(): void;
}
