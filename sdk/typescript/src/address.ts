/** Where a server is: one address for WebSocket and HTTP. */
import { PrombusError } from "./errors.js";

const DEFAULT_PORT = "8090";

export interface Address {
  /** E.g. `ws://127.0.0.1:8090/ws`. */
  readonly ws: string;
  /** E.g. `http://127.0.0.1:8090`, without a slash at the end. */
  readonly http: string;
}

/**
 * Reads an address. `ws://`, `wss://`, `http://` and `https://` name the same places, and without a scheme `ws://` applies. A
 * path is kept as a prefix for servers behind a proxy; `/ws` at its end is removed.
 */
export function parseAddress(text: string): Address {
  const url = asUrl(text);
  if (url.username !== "" || url.password !== "") throw bad(text, "it contains a user; pass `token` instead");
  if (url.search !== "" || url.hash !== "") throw bad(text, "it contains a query; pass `token` instead");
  const isTls = url.protocol === "wss:" || url.protocol === "https:";
  if (!isTls && url.protocol !== "ws:" && url.protocol !== "http:") {
    throw bad(text, "it must begin with ws://, wss://, http:// or https://");
  }
  const port = url.port === "" && !isTls && !/^(\w+:\/\/)?[^/]*:80(\/|$)/.test(text.trim()) ? `:${DEFAULT_PORT}` : "";
  const prefix = url.pathname.replace(/\/+$/, "").replace(/\/ws$/, "");
  const place = `${url.host}${port}${prefix}`;
  return { ws: `${isTls ? "wss" : "ws"}://${place}/ws`, http: `${isTls ? "https" : "http"}://${place}` };
}

/** For errors: browsers do not tell a page why it cannot connect, e.g. that the server refuses its origin. */
export function originHint(): string {
  const origin = typeof location === "object" ? location.origin : "null";
  return origin === "null" ? "" : ` (does http.cors_origins of the server list ${origin}?)`;
}

function asUrl(text: string): URL {
  const trimmed = text.trim();
  try {
    return new URL(trimmed.includes("://") ? trimmed : `ws://${trimmed}`);
  } catch {
    throw bad(text, "it is not a URL such as ws://127.0.0.1:8090");
  }
}

function bad(text: string, why: string): PrombusError {
  // What precedes and follows the host may be a secret.
  const shown = text.replace(/^(\w+:\/\/)?.*@/, "$1…@").replace(/[?#].*$/, "?…");
  return new PrombusError("bad_url", `cannot use ${JSON.stringify(shown)} as the address of a server: ${why}`);
}
