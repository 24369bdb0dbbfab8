import { describe, expect, test, vi } from "vitest";
import { Backoff } from "../../src/backoff.js";
import { Emitter } from "../../src/emitter.js";
import {
  AuthError, ClosedError, ConnectionError, type ErrorCode, messageOf, NackError, PrombusError, RejectError, serverError, ValidationError,
} from "../../src/errors.js";
import { expiryOf, refreshDelay } from "../../src/token.js";
import { uuidv7 } from "../../src/uuid.js";

describe("ids", () => {
  test("are UUIDv7 with the current time, unique, and increase within a millisecond and when the clock is set back", () => {
    const now = Date.now() + 10_000;
    const ids = Array.from({ length: 20_000 }, (_, at) => uuidv7(at % 3 === 0 ? now : now - at));
    for (const id of ids) expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    expect([...ids].sort()).toEqual(ids);
    expect(new Set(ids).size).toBe(ids.length);
    const ms = parseInt((ids[0] as string).replace("-", "").slice(0, 12), 16);
    expect(ms).toBe(now);
  });
});

describe("backoff delays", () => {
  test("double from the minimum to the maximum, with jitter between half and all of the delay", () => {
    const random = vi.spyOn(Math, "random");
    for (const value of [0, 0.5, 0.999999]) {
      random.mockReturnValue(value);
      const backoff = new Backoff(100, 5_000);
      for (let attempt = 0; attempt < 100; attempt++) {
        const full = Math.min(5_000, 100 * 2 ** Math.min(attempt, 20));
        expect(backoff.attempt).toBe(attempt);
        const wait = backoff.next();
        expect(wait).toBeGreaterThanOrEqual(full / 2);
        expect(wait).toBeLessThanOrEqual(full);
      }
      backoff.reset();
      expect(backoff.next()).toBeLessThanOrEqual(100);
    }
    random.mockRestore();
  });

  test("differ from client to client", () => {
    expect(new Set(Array.from({ length: 50 }, () => new Backoff(100, 5_000).next())).size).toBeGreaterThan(40);
  });
});

describe("tokens", () => {
  const jwt = (claims: unknown): string => `x.${Buffer.from(JSON.stringify(claims)).toString("base64url")}.x`;

  test("the expiry of a JWT is found, even with text that is not ASCII", () => {
    expect(expiryOf(jwt({ exp: 1700000000, name: "Žofie ÿ?>" }))).toBe(1700000000_000);
  });

  test.each(["", "opaque", "a.b", "a.b.c", "a.!!!.c", jwt(null), jwt(17), jwt({}), jwt({ exp: "soon" }), jwt([])])("%j does not expire", (token) => {
    expect(expiryOf(token)).toBeUndefined();
    expect(refreshDelay(token)).toBeUndefined();
  });

  test.each([
    [3600, 3540_000], [300, 240_000], [100, 80_000], [10, 8_000], [1, 800], [0.1, 500], [0, 500], [-10, 500], [1e9, 0x7fffffff],
  ])("a token with %d s left is replaced after %d ms", (seconds, delay) => {
    const now = 1_700_000_000_000;
    expect(refreshDelay(jwt({ exp: now / 1000 + seconds }), now)).toBeCloseTo(delay, -1);
  });
});

describe("errors", () => {
  const retryable = ["rate_limited", "storage_full", "unavailable", "connection_lost", "timeout", "queue_full"];
  const codes: ErrorCode[] = [
    "bad_json", "bad_request", "bad_topic", "unauthorized", "bad_token", "forbidden", "already_subscribed", "not_subscribed",
    "unknown_id", "group_conflict", "not_found", "method_not_allowed", "limit_reached", "rate_limited", "too_large",
    "storage_full", "unavailable", "publish_failed", "ack_failed", "internal", "connection_lost", "closed", "timeout", "aborted",
    "queue_full", "invalid_payload", "no_websocket", "bad_url", "bad_answer",
  ];

  test.each(codes)("%s", (code) => {
    const error = serverError(code, "why", { retryAfterMs: 5, status: 400, cause: "c" });
    expect(error).toBeInstanceOf(PrombusError);
    expect(error instanceof AuthError).toBe(["unauthorized", "bad_token", "forbidden"].includes(code));
    expect(error).toMatchObject({ code, message: "why", retryAfterMs: 5, status: 400, cause: "c" });
    expect(error.isRetryable).toBe(retryable.includes(code));
    expect(error.name).toBe(error instanceof AuthError ? "AuthError" : "PrombusError");
  });

  test("omitted details are absent", () => {
    const error = new PrombusError("internal", "x");
    expect("retryAfterMs" in error || "status" in error || "cause" in error).toBe(false);
    expect("delayMs" in new NackError("x")).toBe(false);
  });

  test("classes have their names and codes", () => {
    expect(new ConnectionError("x")).toMatchObject({ name: "ConnectionError", code: "connection_lost", isRetryable: true });
    expect(new ClosedError()).toMatchObject({ name: "ClosedError", code: "closed", message: "the client is closed" });
    expect(new NackError("x", { delayMs: 0, cause: 1 })).toMatchObject({ name: "NackError", delayMs: 0, cause: 1 });
    expect(new RejectError("x")).toMatchObject({ name: "RejectError" });
    const issues = [{ message: "wrong", path: ["a", { key: 0 }, Symbol("s")] }, { message: "odd" }];
    expect(new ValidationError("t", issues).message).toBe("payload of t: a.0.Symbol(s): wrong; odd");
  });

  test("any thrown value has a message", () => {
    expect(messageOf(new Error("x"))).toBe("x");
    expect(messageOf(new RangeError())).toBe("RangeError");
    expect(messageOf({ toString: () => { throw new Error(); } })).toBe("an error without a message");
  });
});

describe("listeners", () => {
  test("are called in order, can be removed even while they are called, and do not affect each other", () => {
    const log = vi.spyOn(console, "error").mockImplementation(() => {});
    const emitter = new Emitter<{ a: number; b: string }>();
    const calls: unknown[] = [];
    const off = emitter.on("a", (value) => { calls.push(["first", value]); off(); });
    emitter.on("a", () => { throw new Error("oops"); });
    emitter.on("a", (value) => calls.push(["third", value]));
    emitter.emit("a", 1);
    emitter.emit("a", 2);
    emitter.emit("b", "unknown");
    expect(calls).toEqual([["first", 1], ["third", 1], ["third", 2]]);
    expect(log).toHaveBeenCalledTimes(2);
    emitter.clear();
    emitter.emit("a", 3);
    expect(calls).toHaveLength(3);
    log.mockRestore();
  });
});
