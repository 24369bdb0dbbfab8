/** Errors of the client. Every one is a {@link PrombusError} with a `code` for programs and a `message` for people. */
import type { Millis } from "./types.js";

/** Codes that the server sends; `docs/protocol.md` describes each. */
export type ServerErrorCode =
  | "bad_json" | "bad_request" | "bad_topic" | "unauthorized" | "bad_token" | "forbidden" | "already_subscribed"
  | "not_subscribed" | "unknown_id" | "group_conflict" | "not_found" | "method_not_allowed" | "limit_reached"
  | "rate_limited" | "too_large" | "storage_full" | "unavailable" | "publish_failed" | "ack_failed" | "internal";

/** Codes of errors that arise in the client itself. */
export type ClientErrorCode =
  /** The connection broke and the call does not outlive a connection. */
  | "connection_lost"
  /** The client was closed. */
  | "closed"
  /** The call took longer than its limit. */
  | "timeout"
  /** The caller's AbortSignal ended the call. */
  | "aborted"
  /** Too many publishes are waiting for an answer. */
  | "queue_full"
  /** A payload does not match the schema of its topic, or cannot be written as JSON. */
  | "invalid_payload"
  /** This runtime has no WebSocket. */
  | "no_websocket"
  /** The URL does not name a server. */
  | "bad_url"
  /** The answer is not one of a prombus server. */
  | "bad_answer";

/** All codes of {@link PrombusError}. */
export type ErrorCode = ServerErrorCode | ClientErrorCode;

const RETRYABLE: ReadonlySet<string> = new Set<ErrorCode>([
  "rate_limited", "storage_full", "unavailable", "connection_lost", "timeout", "queue_full",
]);

/** What a {@link PrombusError} has besides its code and message. */
export interface ErrorDetails {
  retryAfterMs?: Millis | undefined;
  /** HTTP status, if the answer came over HTTP. */
  status?: number | undefined;
  cause?: unknown;
}

/** An error with a code. */
export class PrombusError extends Error {
  override readonly name: string = "PrombusError";
  /** For programs; never changes. Newer servers may send codes that this version does not list. */
  readonly code: ErrorCode;
  /** When the server would accept the call, if it said so. */
  declare readonly retryAfterMs?: Millis;
  /** HTTP status, if the answer came over HTTP. */
  declare readonly status?: number;

  constructor(code: ErrorCode, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = code;
    if (details.retryAfterMs !== undefined) this.retryAfterMs = details.retryAfterMs;
    if (details.status !== undefined) this.status = details.status;
  }

  /** Whether the same call may succeed later without a change. A publish is safe to repeat with the same id. */
  get isRetryable(): boolean {
    return RETRYABLE.has(this.code);
  }
}

/** The connection to the server failed or broke. */
export class ConnectionError extends PrombusError {
  override readonly name: string = "ConnectionError";

  constructor(message: string, cause?: unknown, code: ErrorCode = "connection_lost") {
    super(code, message, { cause });
  }
}

/** The token is missing, wrong, expired, or grants too little. */
export class AuthError extends PrombusError {
  override readonly name: string = "AuthError";
}

/** The client is closed. */
export class ClosedError extends PrombusError {
  override readonly name: string = "ClosedError";

  constructor(message = "the client is closed", cause?: unknown) {
    super("closed", message, { cause });
  }
}

/** One finding of a schema. */
export interface ValidationIssue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

/** A payload that does not match the schema of its topic. */
export class ValidationError extends PrombusError {
  override readonly name: string = "ValidationError";
  readonly issues: readonly ValidationIssue[];

  constructor(topic: string, issues: readonly ValidationIssue[]) {
    super("invalid_payload", `payload of ${topic}: ${issues.map(describe).join("; ")}`);
    this.issues = issues;
  }
}

function describe({ message, path }: ValidationIssue): string {
  if (path === undefined || path.length === 0) return message;
  const keys = path.map((step) => String(typeof step === "object" ? step.key : step));
  return `${keys.join(".")}: ${message}`;
}

/** Thrown by a handler: nacks the event and redelivers it after `delayMs` instead of the server's backoff. */
export class NackError extends Error {
  override readonly name: string = "NackError";
  declare readonly delayMs?: Millis;

  constructor(message: string, options: Millis | { delayMs?: Millis; cause?: unknown } = {}) {
    const { delayMs, ...rest } = typeof options === "number" ? { delayMs: options } : options;
    super(message, rest);
    if (delayMs !== undefined) this.delayMs = delayMs;
  }
}

/** Thrown by a handler: gives the event up at once. It goes to `dlq.<topic>` with the message. */
export class RejectError extends Error {
  override readonly name: string = "RejectError";

  constructor(message: string, options: { cause?: unknown } = {}) {
    super(message, options);
  }
}

/** Whether the server may do later what it refused. With a good token it will: the connection gets one. */
export function isPassing(error: PrombusError): boolean {
  return error.isRetryable || error.code === "unauthorized";
}

/** The error for a code that the server sent. */
export function serverError(code: string, message: string, details: ErrorDetails = {}): PrombusError {
  switch (code) {
    case "unauthorized":
    case "bad_token":
    case "forbidden":
      return new AuthError(code, message, details);
    default:
      // A newer server may know more codes; programs get them as they are.
      return new PrombusError(code as ErrorCode, message, details);
  }
}

/** Any thrown value as a text. */
export function messageOf(thrown: unknown): string {
  try {
    return thrown instanceof Error ? String(thrown.message || thrown.name) : String(thrown);
  } catch {
    // E.g. an object without a prototype.
    return "an error without a message";
  }
}
