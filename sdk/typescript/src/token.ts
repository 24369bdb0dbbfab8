/** Tokens, and when the client replaces them. */
import type { Millis } from "./types.js";

/** A token, or a function that returns a fresh one. */
export type Token = string | (() => string | Promise<string>);

/** The longest delay of a JavaScript timer. */
export const MAX_DELAY_MS = 0x7fffffff;
/** A token is replaced this long before it expires, or after four fifths of its remaining time if that is later. */
const LEAD_MS = 60_000;
const MIN_DELAY_MS = 500;

/** When a JWT expires, by its `exp`; undefined for other tokens. */
export function expiryOf(token: string): Millis | undefined {
  const body = token.split(".")[1];
  if (body === undefined) return undefined;
  try {
    const claims = JSON.parse(atob(body.replace(/-/g, "+").replace(/_/g, "/"))) as { exp?: unknown };
    return typeof claims.exp === "number" ? claims.exp * 1000 : undefined;
  } catch {
    return undefined;
  }
}

/** How long to wait before a token is replaced; undefined if it does not expire. */
export function refreshDelay(token: string, now: Millis = Date.now()): Millis | undefined {
  const expiry = expiryOf(token);
  if (expiry === undefined) return undefined;
  const left = expiry - now;
  return Math.min(Math.max(left - LEAD_MS, left * 0.8, MIN_DELAY_MS), MAX_DELAY_MS);
}
