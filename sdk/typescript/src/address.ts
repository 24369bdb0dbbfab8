/** The address of a server: one address for WebSocket and HTTP. */
import { PrombusError } from "./errors.js";

const DEFAULT_PORT = ":8090";

export interface Address {
  /** E.g. `ws://127.0.0.1:8090/ws`. */
  readonly ws: string;
  /** E.g. `http://127.0.0.1:8090`, without a slash at the end. */
  readonly http: string;
}

/**
 * Parses a server URL. `ws://` and `http://` are equivalent, and so are `wss://` and `https://`; the default is `ws://`. A path
 * is kept as a prefix, for servers behind a proxy; `/ws` at its end is removed.
 */
export function parseAddress(text: string): Address {
  const [, tls, host, path = ""] = /^(?:(?:ws|http)(s?):\/\/)?([^/?#@\s]+)(\/[^?#\s]*)?$/i.exec(text.trim()) ?? [];
  const isTls = tls?.toLowerCase() === "s";
  const place = `${host}${isTls || /:\d+$/.test(host ?? "") ? "" : DEFAULT_PORT}${path.replace(/\/*(\/ws)?\/*$/, "")}`;
  const http = `http${isTls ? "s" : ""}://${place}`;
  let isUrl = host !== undefined;
  try {
    new URL(http);
  } catch {
    isUrl = false;
  }
  if (!isUrl) {
    // The error does not contain the URL, because the URL may contain a secret.
    throw new PrombusError(
      "bad_url",
      "not a server URL: expected e.g. ws://127.0.0.1:8090; pass a token as `token`",
    );
  }
  return { ws: `${http.replace("http", "ws")}/ws`, http };
}

/** A hint for error messages in pages: browsers do not tell a page that the server refused its origin. */
export function originHint(): string {
  return typeof location === "object" && location.origin !== "null"
    ? ` (does http.cors_origins of the server list ${location.origin}?)`
    : "";
}
