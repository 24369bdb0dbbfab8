import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { ClosedError } from "../../src/index.js";
import { connectTo, failure, FakeServer, settle, until } from "../support/fake-server.js";

let server: FakeServer;
beforeEach(async () => { server = await FakeServer.start(); });
afterEach(() => { vi.useRealTimers(); });

/** The client's timers, without those of `ws` and of the test. */
function countTimers(): { left: () => number } {
  const active = new Set<unknown>();
  const { setTimeout: set, clearTimeout: clear } = globalThis;
  vi.stubGlobal("setTimeout", (run: () => void, ms: number) => {
    const isClients = new Error().stack?.includes("/src/") === true;
    const handle = set(() => {
      active.delete(handle);
      run();
    }, ms);
    if (isClients) active.add(handle);
    return handle;
  });
  vi.stubGlobal("clearTimeout", (handle: ReturnType<typeof setTimeout>) => {
    active.delete(handle);
    clear(handle);
  });
  return { left: () => active.size };
}
afterEach(() => { vi.unstubAllGlobals(); });

describe("draining", () => {
  test("waits for answers and handlers, then closes the connection with 1000", async () => {
    const answers: (() => void)[] = [];
    server.script.PUBLISH = (_, __, usual) => { answers.push(usual); };
    const client = connectTo(server);
    let end: (() => void) | undefined;
    await client.subscribe("t", "g", () => new Promise<void>((resolve) => { end = resolve; }));
    server.last.deliver("t", "g", "e1");
    await until(() => end !== undefined);
    const published = client.publish("t", 1);
    await server.got("PUBLISH");
    let isClosed = false;
    const closed = client.close().then(() => { isClosed = true; });
    await settle();
    expect(isClosed).toBe(false);
    expect(client.status).toBe("connected");
    end?.();
    answers[0]?.();
    await Promise.all([published, closed]);
    await until(() => server.last.closedWith !== undefined);
    expect(server.last.closedWith).toBe(1000);
    expect(server.of("ACK")).toHaveLength(1);
    expect(client.status).toBe("closed");
  });

  test("an event that a draining handler publishes without await is still stored", async () => {
    const client = connectTo(server);
    let end: (() => void) | undefined;
    let result: Promise<unknown> | undefined;
    await client.subscribe("t", "g", async () => {
      await new Promise<void>((resolve) => { end = resolve; });
      result = client.publish("done", 1).catch((error: unknown) => error);
    });
    server.script.PUBLISH = (_, __, usual) => { setTimeout(usual, 20); };
    server.last.deliver("t", "g", "e1");
    await until(() => end !== undefined);
    const closed = client.close();
    await settle(5);
    end?.();
    await closed;
    expect(await result).toMatchObject({ seq: 1 });
  });

  test("unanswered publishes reject with closed after the timeout", async () => {
    server.script.PUBLISH = () => {};
    server.script.CURSOR = () => {};
    const client = connectTo(server);
    await client.ready();
    const calls = [client.publish("t", 1), client.publishMany("t", [1]), client.cursor("t", "g")].map(failure);
    await server.got("CURSOR");
    await client.close({ timeoutMs: 20 });
    for (const error of await Promise.all(calls)) {
      expect(error).toBeInstanceOf(ClosedError);
      expect(error).toMatchObject({ code: "closed", isRetryable: false });
    }
    expect(client.pendingPublishes).toBe(0);
  });

  test("a server that does not answer the close frame is abandoned after a second", async () => {
    const client = connectTo(server);
    await client.ready();
    server.last.freeze();
    const before = performance.now();
    await client.close();
    expect(performance.now() - before).toBeLessThan(2_000);
  });
});

describe("at any time", () => {
  test("right after the start", async () => {
    const client = connectTo(server);
    await client.close();
    await settle();
    expect(client.status).toBe("closed");
    expect(server.connections).toHaveLength(0);
  });

  test("while connecting, if the upgrade or the answer to AUTH is missing", async () => {
    server.refuse = 0;
    const first = connectTo(server);
    await settle();
    await first.close();
    server.refuse = undefined;
    server.script.AUTH = () => {};
    const second = connectTo(server);
    const ready = failure(second.ready());
    await server.got("AUTH");
    const states: string[] = [];
    second.on("connected", () => states.push("connected"));
    await second.close();
    expect(await ready).toBeInstanceOf(ClosedError);
    expect(states).toEqual([]);
  });

  test("while reconnecting: no further attempt is made", async () => {
    server.refuse = 503;
    const client = connectTo(server, { backoff: { minMs: 20, maxMs: 20 } });
    await new Promise<void>((resolve) => { client.on("reconnecting", () => resolve()); });
    await client.close();
    server.refuse = undefined;
    await settle(50);
    expect(server.connections).toHaveLength(0);
  });

  test("while the token function hangs: a token that it returns later is not used", async () => {
    let give: ((token: string) => void) | undefined;
    const client = connectTo(server, { token: () => new Promise((resolve) => { give = resolve; }) });
    await until(() => give !== undefined);
    await client.close();
    give?.("late");
    await settle();
    expect(server.connections).toHaveLength(0);
  });

  test("while a token function is running that fails later", async () => {
    let fail: ((error: unknown) => void) | undefined;
    const client = connectTo(server, { token: () => new Promise((_, reject) => { fail = reject; }) });
    await until(() => fail !== undefined);
    await client.close();
    fail?.(new Error("late"));
    await settle(50);
    expect(client.status).toBe("closed");
    expect(server.connections).toHaveLength(0);
  });

  test("twice, one after the other and at the same time", async () => {
    const client = connectTo(server);
    let count = 0;
    client.on("closed", () => { count += 1; });
    await client.ready();
    await Promise.all([client.close(), client.close()]);
    await client.close();
    expect(count).toBe(1);
  });

  test("calls after close reject with closed", async () => {
    const client = connectTo(server);
    await client.close();
    const calls = [
      client.publish("t", 1), client.publishMany("t", [1]), client.subscribe("t", "g", () => {}), client.cursor("t", "g"),
      client.seek("t", "g", "latest"), client.ready(),
    ];
    for (const error of await Promise.all(calls.map(failure))) expect(error).toBeInstanceOf(ClosedError);
    expect(() => client.consume("t", "g")).toThrow(ClosedError);
    await client.whenWritable();
  });

  test("await using closes", async () => {
    const client = connectTo(server);
    await client.ready();
    await client[Symbol.asyncDispose]();
    expect(client.status).toBe("closed");
  });
});

test("close() waits for a delivery of consume() that is not settled yet, and ends the iterator", async () => {
  const client = connectTo(server);
  const consumer = client.consume("t", "g");
  const first = consumer.next();
  await server.got("SUBSCRIBE", 1);
  for (const id of ["e1", "e2"]) server.last.deliver("t", "g", id);
  const { value: delivery } = await first;
  let isClosed = false;
  const closed = client.close().then(() => { isClosed = true; });
  await server.got("PAUSE", 1);
  const second = consumer.next();
  await settle(5);
  expect(isClosed).toBe(false);
  expect(await delivery?.ack()).toBe("settled");
  await closed;
  expect(await second).toEqual({ done: true, value: undefined });
  expect(server.of("ACK").map(({ id }) => id)).toEqual(["e1"]);
});

describe("no timer is left", () => {
  test("after a client has used every feature", async () => {
    const timers = countTimers();
    const jwt = `x.${btoa(JSON.stringify({ exp: Date.now() / 1000 + 1000 }))}.x`;
    const client = connectTo(server, { token: () => jwt, heartbeatMs: 20 });
    await client.subscribe("t", "g", () => {});
    const consumer = client.consume("t", "c");
    const waiting = consumer.next();
    await server.got("SUBSCRIBE", 2);
    for (const group of ["g", "c"]) server.last.deliver("t", group, "e1");
    await (await waiting).value?.ack();
    await client.publish("t", 1);
    server.last.cut();
    await server.connected(2);
    await client.publish("t", 2);
    expect(timers.left()).toBeGreaterThan(0);
    await client.close();
    expect(timers.left()).toBe(0);
  });

  test("after a drain that timed out while a handler is still running", async () => {
    const timers = countTimers();
    const client = connectTo(server);
    let isRunning = false;
    await client.subscribe("t", "g", () => new Promise<void>(() => { isRunning = true; }));
    server.last.deliver("t", "g", "e1");
    await until(() => isRunning);
    await client.close({ timeoutMs: 30 });
    expect(timers.left()).toBe(0);
  });

  test("after close() ends before a longer unsubscribe(), which ends as well", async () => {
    const timers = countTimers();
    const client = connectTo(server);
    let isRunning = false;
    const subscription = await client.subscribe("t", "g", () => new Promise<void>(() => { isRunning = true; }));
    server.last.deliver("t", "g", "e1");
    await until(() => isRunning);
    const left = subscription.unsubscribe({ timeoutMs: 60_000 });
    await client.close({ timeoutMs: 20 });
    await left;
    expect(timers.left()).toBe(0);
  });

  test("with unanswered publishes, and refused publishes and subscriptions that wait for a retry", async () => {
    const timers = countTimers();
    server.script.PUBLISH = (frame, from) => from.err(frame, "unavailable", { retry_after_ms: 10_000 });
    server.script.SUBSCRIBE = (frame, from) => from.err(frame, "unavailable", { retry_after_ms: 10_000 });
    const client = connectTo(server);
    const calls = [client.publish("t", 1), client.subscribe("t", "g", () => {}), client.ready({ timeoutMs: 10_000 })];
    const settled = Promise.allSettled(calls);
    await server.got("PUBLISH");
    await server.got("SUBSCRIBE");
    await settle();
    await client.close({ timeoutMs: 10 });
    await settled;
    expect(timers.left()).toBe(0);
  });

  test("while connecting and reconnecting, and after a refused token", async () => {
    const timers = countTimers();
    server.refuse = 0;
    const first = connectTo(server);
    await settle();
    await first.close();
    server.refuse = 503;
    const second = connectTo(server);
    const published = failure(second.publish("t", 1));
    await new Promise<void>((resolve) => { second.on("reconnecting", () => resolve()); });
    await second.close({ timeoutMs: 10 });
    await published;
    server.refuse = undefined;
    server.script.AUTH = (frame, from) => from.err(frame, "bad_token");
    await failure(connectTo(server, { token: "bad" }).ready());
    expect(timers.left()).toBe(0);
  });

  test("no handle of the client keeps the process alive", async () => {
    const before = process.getActiveResourcesInfo().filter((it) => it === "TCPSocketWrap" || it === "Timeout").length;
    const client = connectTo(server);
    await client.subscribe("t", "g", () => {});
    await client.publish("t", 1);
    await client.close();
    await until(() => process.getActiveResourcesInfo().filter((it) => it === "TCPSocketWrap" || it === "Timeout").length <= before);
  });
});
