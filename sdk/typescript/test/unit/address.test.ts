import { expect, test } from "vitest";
import { parseAddress } from "../../src/address.js";

test.each([
  ["ws://127.0.0.1:8090", "ws://127.0.0.1:8090/ws", "http://127.0.0.1:8090"],
  ["ws://127.0.0.1:8090/ws", "ws://127.0.0.1:8090/ws", "http://127.0.0.1:8090"],
  ["http://localhost", "ws://localhost:8090/ws", "http://localhost:8090"],
  ["http://localhost:80", "ws://localhost:80/ws", "http://localhost:80"],
  ["localhost", "ws://localhost:8090/ws", "http://localhost:8090"],
  ["localhost:9000/", "ws://localhost:9000/ws", "http://localhost:9000"],
  [" localhost:80 ", "ws://localhost:80/ws", "http://localhost:80"],
  ["[::1]", "ws://[::1]:8090/ws", "http://[::1]:8090"],
  ["ws://[::1]:80/", "ws://[::1]:80/ws", "http://[::1]:80"],
  ["wss://bus.example.com", "wss://bus.example.com/ws", "https://bus.example.com"],
  ["https://example.com/bus/", "wss://example.com/bus/ws", "https://example.com/bus"],
  ["wss://example.com/bus/ws", "wss://example.com/bus/ws", "https://example.com/bus"],
  ["wss://example.com/news", "wss://example.com/news/ws", "https://example.com/news"],
  ["http://example.com/a:80", "ws://example.com:8090/a:80/ws", "http://example.com:8090/a:80"],
  ["HTTP://EXAMPLE.com:8080", "ws://EXAMPLE.com:8080/ws", "http://EXAMPLE.com:8080"],
])("%s", (text, ws, http) => {
  expect(parseAddress(text)).toEqual({ ws, http });
});

test.each(["", "ftp://host", "ws://", "ws://host:99999", "ws://ho st", "://x"])("%j is bad_url", (text) => {
  expect(() => parseAddress(text)).toThrow(expect.objectContaining({ code: "bad_url", isRetryable: false }) as Error);
});

test.each(["ws://user:geheim@host", "ws://host?token=geheim", "ws://host/#geheim", "ws://user:geheim@ho st", "user:geheim@host"])(
  "%s is refused without showing the secret",
  (text) => {
    let message = "";
    try {
      parseAddress(text);
    } catch (error) {
      message = (error as Error).message;
    }
    expect(message).toContain("not a server URL");
    expect(message).not.toContain("geheim");
  },
);
