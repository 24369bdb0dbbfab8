/** Errors of the client: {@link PrombusError} with a `code` for programs and a `message` for people, and its subclasses. */
import type { Millis } from "./types.js";

/** Codes that the server sends; `docs/protocol.md` describes each. */
export type ServerErrorCode =
  | "bad_json" | "bad_request" | "bad_topic" | "unauthorized" | "bad_token" | "forbidden" | "already_subscribed"
  | "not_subscribed" | "unknown_id" | "group_conflict" | "not_found" | "method_not_allowed" | "limit_reached"
  | "rate_limited" | "too_large" | "storage_full" | "unavailable" | "publish_failed" | "ack_failed" | "internal";

/** Codes of errors that arise in the client itself. */
export type ClientErrorCode =
  /** The connection broke during a call that the client does not repeat by itself. */
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
  /** The URL is not a server URL. */
  | "bad_url"
  /** The response is not from a prombus server. */
  | "bad_answer";

/** All codes of {@link PrombusError}. */
export type ErrorCode = ServerErrorCode | ClientErrorCode;

const RETRYABLE: ReadonlySet<string> = new Set<ErrorCode>([
  "rate_limited", "storage_full", "unavailable", "connection_lost", "timeout", "queue_full",
]);

/** Optional fields of a {@link PrombusError}. */
export interface ErrorDetails {
  retryAfterMs?: Millis | undefined;
  /** HTTP status, if the answer came over HTTP. */
  status?: number | undefined;
  cause?: unknown;
}

/** The error class of the client. */
export class PrombusError extends Error {
  override readonly name: string = "PrombusError";
  /** For programs: codes are stable. Newer servers may send codes that this version does not list. */
  readonly code: ErrorCode;
  /** The server asked to wait this long before the call is repeated. */
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

/** One problem that a schema found in a payload. */
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

/** Thrown by a handler: gives the event up at once. The event goes to `dlq.<topic>` with the error's message. */
export class RejectError extends Error {
  override readonly name: string = "RejectError";

  constructor(message: string, options: { cause?: unknown } = {}) {
    super(message, options);
  }
}

/** Whether the server may accept the same call later. This includes `unauthorized`, because the connection will get a new token. */
export function isTemporary(error: PrombusError): boolean {
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
      // A newer server may send further codes; they are passed on unchanged.
      return new PrombusError(code as ErrorCode, message, details);
  }
}

/** The message of any thrown value. */
export function messageOf(thrown: unknown): string {
  try {
    return thrown instanceof Error ? String(thrown.message || thrown.name) : String(thrown);
  } catch {
    // E.g. an object without a prototype.
    return "an error without a message";
  }
}
