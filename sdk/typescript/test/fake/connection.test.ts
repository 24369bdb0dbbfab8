import { createServer, type Server, type Socket } from "node:net";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { AuthError, type ClientEvents, ConnectionError, type PrombusError } from "../../src/index.js";
import { connectTo, failure, FakeServer, HAS_DETAILS, settle, statesOf, until } from "../support/fake-server.js";

let server: FakeServer;
beforeEach(async () => { server = await FakeServer.start(); });
afterEach(() => { vi.useRealTimers(); });

/** Stops timers and the clock; sockets continue to work. */
function stopTime(): void {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "Date"] });
}

describe("states", () => {
  test("connecting, connected, reconnecting, connecting, connected, closed", async () => {
    const client = connectTo(server);
    const states = statesOf(client);
    expect(client.status).toBe("connecting");
    await client.ready();
    expect(client.status).toBe("connected");
    server.last.cut();
    await until(() => client.status === "reconnecting");
    await client.ready();
    await client.close();
    expect(client.status).toBe("closed");
    expect(states).toEqual(["connecting", "connected", "reconnecting", "connecting", "connected", "closed"]);
  });

  test("calls wait for the first connection", async () => {
    const { port } = server;
    await server.stop();
    const client = connectTo({ url: `ws://127.0.0.1:${port}` });
    const published = client.publish("t", 1);
    const subscribed = client.subscribe("t", "g", () => {});
    const cursor = client.cursor("t", "g");
    await new Promise<void>((resolve) => { client.on("reconnecting", () => resolve()); });
    server = await FakeServer.start(port);
    await Promise.all([published, subscribed, cursor]);
  });

  test("a listener that throws does not break the connection", async () => {
    const log = vi.spyOn(console, "error").mockImplementation(() => {});
    const client = connectTo(server);
    client.on("connected", () => { throw new Error("oops"); });
    await client.publish("t", 1);
    expect(log).toHaveBeenCalledOnce();
    log.mockRestore();
  });

  test("reconnect: false ends the client with the reason", async () => {
    const client = connectTo(server, { reconnect: false });
    await client.ready();
    const closed = new Promise<ClientEvents["closed"]>((resolve) => { client.on("closed", resolve); });
    server.last.close(1001, "bye");
    expect((await closed).error).toMatchObject({ code: "connection_lost", message: expect.stringContaining("bye") as string });
    expect(await failure(client.publish("t", 1))).toBeInstanceOf(ConnectionError);
  });

  test("ready() rejects with the reason", async () => {
    server.refuse = 503;
    const client = connectTo(server);
    await until(() => client.status === "reconnecting");
    const error = await failure(client.ready({ timeoutMs: 20 })) as PrombusError;
    expect(error).toMatchObject({ code: "timeout", isRetryable: true });
    expect(error.message).toMatch(HAS_DETAILS ? /503.*prombus serve/ : /prombus serve/);
  });
});

describe("a faulty server", () => {
  test.each([1000, 1001, 1006, 1008, 1009, 1012, 1013, 4000])("close code %i: the client connects again and sends unanswered publishes again", async (code) => {
    const client = connectTo(server);
    const errors: PrombusError[] = [];
    client.on("reconnecting", ({ error }) => errors.push(error));
    await client.ready();
    const first = server.last;
    server.script.PUBLISH = (_, from, usual) => {
      if (from !== first) usual();
      else if (code === 1006) from.cut();
      else from.close(code, code === 1012 ? "restart" : "");
    };
    // A large publish, so that 1009 fails this one and not the other.
    const large = client.publish("t", "x".repeat(500)).catch((error: unknown) => error);
    expect(await client.publish("t", 1)).toHaveProperty("seq");
    if (code === 1009) expect(await large).toMatchObject({ code: "too_large" });
    else expect(await large).toHaveProperty("seq");
    expect(errors[0]).toBeInstanceOf(ConnectionError);
    expect(errors[0]).toMatchObject({ code: "connection_lost", isRetryable: true });
    expect(errors[0]?.message).toContain(code === 1012 ? "restart" : code === 1009 ? "1009" : String(code));
  });

  test.each([401, 403, 503])("an upgrade refused with %i is retried", async (status) => {
    server.refuse = status;
    const client = connectTo(server);
    const errors: PrombusError[] = [];
    client.on("reconnecting", ({ error }) => errors.push(error));
    await until(() => errors.length >= 3);
    expect(errors[0]?.message).toContain(String(HAS_DETAILS ? status : 1006));
    server.refuse = undefined;
    await client.ready();
  });

  test.each([
    ["text that is not JSON", "hello"],
    ["half a frame", '{"op":"OK","corr":'],
    ["null", "null"],
    ["an EVENT without an event", '{"op":"EVENT","topic":"t","group":"g"}'],
    ["an EVENT without a context", '{"op":"EVENT","topic":"t","group":"g","event":{"id":"x"}}'],
  ])("%s ends the connection; the next one continues", async (_, text) => {
    const client = connectTo(server);
    await client.subscribe("t", "g", () => {});
    const first = server.last;
    server.script.PUBLISH = (__, from, usual) => { if (from === first) from.text(text); else usual(); };
    await client.publish("t", 1);
    expect(server.connections).toHaveLength(2);
    await server.got("SUBSCRIBE", 2);
  });

  test("frames that a newer server may send are ignored", async () => {
    const client = connectTo(server);
    const errors: unknown[] = [];
    client.on("error", (error) => errors.push(error));
    await client.ready();
    const { last } = server;
    last.binary(new Uint8Array([1, 2, 3]));
    last.send({ op: "DANCE", corr: 1 });
    last.send({ op: "OK" });
    last.send({ op: "OK", corr: 999_999, id: "x", seq: 1 });
    last.send({ op: "ERR", corr: 999_999, code: "internal", msg: "whose?" });
    last.send({ op: "OK", corr: "text" });
    last.send({ op: "EVENT", topic: "unknown", group: "here", event: { id: "x" }, ctx: {} });
    last.send([1, 2, 3]);
    await client.publish("t", 1);
    expect(server.connections).toHaveLength(1);
    expect(errors).toEqual([]);
  });

  test("an ERR without corr, or with corr null, is an error event", async () => {
    const client = connectTo(server);
    const errors: PrombusError[] = [];
    client.on("error", (error) => errors.push(error));
    await client.ready();
    server.last.send({ op: "ERR", code: "bad_request", msg: "what?" });
    server.last.send({ op: "ERR", code: "internal", msg: "oh", corr: null });
    await until(() => errors.length === 2);
    expect(errors.map(({ code, message }) => [code, message])).toEqual([["bad_request", "what?"], ["internal", "oh"]]);
    expect(client.status).toBe("connected");
  });

  test("a socket that the server half-closes without a close frame is abandoned", async () => {
    const client = connectTo(server);
    await client.ready();
    server.last.halfClose();
    await server.connected(2);
    await client.publish("t", 1);
  });

  test("a connection to a server that accepts TCP and never answers is abandoned after 10 s", async () => {
    stopTime();
    server.refuse = 0;
    const client = connectTo(server);
    const errors: PrombusError[] = [];
    client.on("reconnecting", ({ error }) => errors.push(error));
    await settle();
    await vi.advanceTimersByTimeAsync(9_900);
    await settle();
    expect(errors).toEqual([]);
    server.refuse = undefined;
    await vi.advanceTimersByTimeAsync(200);
    expect(errors[0]?.message).toContain("no answer");
    await until(() => client.status === "connected");
  });

  test("a connection to a server that never answers AUTH is abandoned after 10 s", async () => {
    stopTime();
    server.script.AUTH = (_, __, usual) => { if (server.connections.length > 1) usual(); };
    const client = connectTo(server);
    await server.got("AUTH");
    await vi.advanceTimersByTimeAsync(10_000);
    await until(() => client.status === "reconnecting");
    await vi.advanceTimersByTimeAsync(20);
    await until(() => client.status === "connected");
  });

  test("a connection to a server without WebSocket is retried", async () => {
    const sockets = new Set<Socket>();
    const http: Server = await new Promise((resolve) => {
      const it = createServer((socket) => {
        sockets.add(socket);
        socket.on("error", () => {});
        socket.write("SSH-2.0-x\r\n");
      }).listen(0, "127.0.0.1", () => resolve(it));
    });
    const client = connectTo({ url: `ws://127.0.0.1:${(http.address() as { port: number }).port}` });
    const errors: PrombusError[] = [];
    client.on("reconnecting", ({ error }) => errors.push(error));
    await until(() => errors.length >= 2);
    await client.close();
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => { http.close(resolve); });
  });

  test("delays grow when the server accepts connections and breaks them at once", async () => {
    server.script.SUBSCRIBE = (_, from) => from.cut();
    const client = connectTo(server, { backoff: { minMs: 8, maxMs: 1000 } });
    const delays: number[] = [];
    client.on("reconnecting", ({ delayMs }) => delays.push(delayMs));
    client.subscribe("t", "g", () => {}).catch(() => {});
    await until(() => delays.length >= 8);
    expect(Math.max(...delays)).toBeGreaterThan(100);
  });

  test("delays start at the minimum again after a connection that lasted", async () => {
    const client = connectTo(server, { backoff: { minMs: 20, maxMs: 1000 } });
    const delays: number[] = [];
    client.on("reconnecting", ({ delayMs }) => delays.push(delayMs));
    for (let count = 1; count <= 4; count++) {
      await server.connected(count);
      await client.ready();
      await settle(30);
      server.last.cut();
      await until(() => delays.length === count);
    }
    for (const delay of delays) expect(delay).toBeLessThanOrEqual(20);
  });
});

describe("silence", () => {
  test("after 10 s of silence the client sends AUTH, and after 10 s more it connects again and resends", async () => {
    stopTime();
    const client = connectTo(server);
    await client.ready();
    const first = server.last;
    // From now on the server reads everything and sends nothing.
    server.script.AUTH = (_, from, usual) => { if (from !== first) usual(); };
    server.script.PUBLISH = (_, from, usual) => { if (from !== first) usual(); };
    const published = client.publish("t", 1);
    await server.got("PUBLISH");
    await vi.advanceTimersByTimeAsync(9_900);
    await settle();
    expect(first.of("AUTH")).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(5_200);
    await until(() => first.of("AUTH").length === 2);
    await vi.advanceTimersByTimeAsync(9_000);
    expect(client.status).toBe("connected");
    await vi.advanceTimersByTimeAsync(1_100);
    await until(() => client.status === "reconnecting");
    await vi.advanceTimersByTimeAsync(20);
    expect(await published).toMatchObject({ seq: 1 });
  });

  test("in real time: a connection to a server that stops reading is abandoned", async () => {
    const client = connectTo(server, { heartbeatMs: 60 });
    await client.ready();
    server.last.freeze();
    const reasons: string[] = [];
    client.on("reconnecting", ({ error }) => reasons.push(error.message));
    const before = performance.now();
    await client.publish("t", 1);
    expect(reasons[0]).toContain("no answer for 120 ms");
    expect(performance.now() - before).toBeGreaterThan(90);
  });

  test("a silent connection that answers the heartbeat is kept; the heartbeat contains the token", async () => {
    const client = connectTo(server, { heartbeatMs: 20, token: "secret" });
    await client.ready();
    await server.got("AUTH", 4);
    expect(server.connections).toHaveLength(1);
    expect(server.of("AUTH").every(({ token }) => token === "secret")).toBe(true);
    await client.close();
    const asked = server.of("AUTH").length;
    await settle(60);
    expect(server.of("AUTH")).toHaveLength(asked);
  });

  test("any frame counts as a sign of life, even if the answer to the heartbeat is late", async () => {
    const client = connectTo(server, { heartbeatMs: 40 });
    await client.ready();
    server.script.AUTH = () => {};
    await server.got("AUTH", 2);
    const chatter = setInterval(() => server.last.send({ op: "OK" }), 10);
    await settle(200);
    clearInterval(chatter);
    expect(server.connections).toHaveLength(1);
  });

  test("a thread that was blocked reads its messages before it abandons the connection", async () => {
    const client = connectTo(server, { heartbeatMs: 40 });
    await client.ready();
    await server.got("AUTH", 2);
    for (let round = 0; round < 3; round++) {
      const limit = performance.now() + 150;
      while (performance.now() < limit);
      await settle(5);
    }
    await client.publish("t", 1);
    expect(server.connections).toHaveLength(1);
  });

  test("a token that is refused at a heartbeat leads to a new connection", async () => {
    let isRevoked = false;
    const tokens = ["old", "new"];
    server.script.AUTH = (frame, from, usual) => {
      if (isRevoked && frame.token === "old") from.err(frame, "bad_token");
      else usual();
    };
    const client = connectTo(server, { heartbeatMs: 20, token: () => tokens.shift() ?? "new" });
    await client.ready();
    isRevoked = true;
    await server.connected(2);
    await client.publish("t", 1);
    expect(server.last.of("AUTH")[0]?.token).toBe("new");
  });
});

describe("a missing WebSocket", () => {
  test("without WebSocket and without the package ws, the error says what to do", async () => {
    vi.stubGlobal("WebSocket", undefined);
    vi.doMock("ws", () => { throw new Error("Cannot find package 'ws'"); });
    vi.resetModules();
    try {
      const { connect } = await import("../../src/index.js");
      const client = connect(server.url);
      const error = await failure(client.ready()) as PrombusError;
      expect(error).toMatchObject({ code: "no_websocket", isRetryable: false });
      expect(error.message).toMatch(/npm install ws.*Node 22/);
      expect(client.status).toBe("closed");
      expect(await failure(client.publish("t", 1))).toMatchObject({ code: "no_websocket" });
      await client.close();
    } finally {
      vi.doUnmock("ws");
      vi.unstubAllGlobals();
      vi.resetModules();
    }
  });

  test("the package ws is used if the runtime has no WebSocket", async () => {
    vi.stubGlobal("WebSocket", undefined);
    const client = connectTo(server, { WebSocket: undefined });
    await client.publish("t", 1);
    vi.unstubAllGlobals();
  });

  test("a WebSocket class that throws is reported and retried", async () => {
    class Broken {
      constructor() {
        throw new Error("not allowed here");
      }
    }
    const client = connectTo(server, { WebSocket: Broken as never });
    const errors: PrombusError[] = [];
    client.on("reconnecting", ({ error }) => errors.push(error));
    await until(() => errors.length >= 2);
    expect(errors[0]?.message).toContain("not allowed here");
  });
});

describe("refused tokens", () => {
  test.each(["unauthorized", "bad_token", "forbidden"])("ERR %s to a static token is final: everything pending rejects", async (code) => {
    server.script.AUTH = (frame, from) => from.err(frame, code);
    const client = connectTo(server, { token: "wrong" });
    const states = statesOf(client);
    const errors: unknown[] = [];
    client.on("error", (error) => errors.push(error));
    const calls = [
      client.publish("t", 1), client.publishMany("t", [1, 2]), client.subscribe("t", "g", () => {}), client.cursor("t", "g"),
      client.seek("t", "g", "latest"), client.ready(), client.consume("t", "c").next(),
    ];
    for (const call of await Promise.all(calls.map(failure))) {
      expect(call).toBeInstanceOf(AuthError);
      expect(call).toMatchObject({ code, isRetryable: false });
    }
    expect(client.status).toBe("closed");
    expect(states).toEqual(["connecting", "closed"]);
    expect(errors).toEqual([]);
    expect(await failure(client.publish("t", 1))).toBeInstanceOf(AuthError);
    await settle(30);
    expect(server.connections).toHaveLength(1);
  });

  test("a client without a token gets an error that asks for one", async () => {
    server.script.AUTH = (frame, from) => from.err(frame, "bad_token");
    const error = await failure(connectTo(server).ready()) as PrombusError;
    expect(error.message).toContain("pass `token`");
  });

  test("a token function is called again after a refusal", async () => {
    server.script.AUTH = (frame, from, usual) => { if (frame.token === "3") usual(); else from.err(frame, "bad_token"); };
    let count = 0;
    const client = connectTo(server, { token: async () => String(++count) });
    await client.publish("t", 1);
    expect(server.of("AUTH").map(({ token }) => token)).toEqual(["1", "2", "3"]);
  });

  test("three refused tokens of a token function in a row are final", async () => {
    server.script.AUTH = (frame, from) => from.err(frame, "bad_token");
    const client = connectTo(server, { token: () => "bad" });
    expect(await failure(client.ready())).toBeInstanceOf(AuthError);
    expect(server.connections).toHaveLength(3);
    expect(client.status).toBe("closed");
  });

  test("a token function that throws is called again, with the reason in the event", async () => {
    let count = 0;
    const client = connectTo(server, {
      token: () => {
        if (++count < 3) throw new Error("login is down");
        return "good";
      },
    });
    const reasons: string[] = [];
    client.on("reconnecting", ({ error }) => reasons.push(error.message));
    await client.publish("t", 1);
    expect(reasons).toEqual(["cannot get a token: login is down", "cannot get a token: login is down"]);
  });

  test("an ERR to AUTH that does not concern the token is retried", async () => {
    server.script.AUTH = (frame, from, usual) => { if (server.connections.length > 2) usual(); else from.err(frame, "unavailable"); };
    const client = connectTo(server, { token: "good" });
    await client.publish("t", 1);
    expect(server.connections).toHaveLength(3);
  });
});

describe("tokens that expire", () => {
  const jwt = (seconds: number, name = ""): string => {
    const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString("base64url");
    return `${part({ alg: "none" })}.${part({ exp: Date.now() / 1000 + seconds, name })}.x`;
  };

  test("a token is replaced over the same connection each time before it expires", async () => {
    stopTime();
    const lives = [300, 100, 1000];
    const sent: string[] = [];
    const client = connectTo(server, {
      heartbeatMs: 1e9,
      token: async () => {
        sent.push(jwt(lives[sent.length] ?? 10_000, String(sent.length)));
        return sent.at(-1) as string;
      },
    });
    await until(() => client.status === "connected");
    await vi.advanceTimersByTimeAsync(239_000);
    await settle();
    expect(server.of("AUTH")).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(1_000); // 60 s before the token expires
    await server.got("AUTH", 2);
    await settle();
    await vi.advanceTimersByTimeAsync(79_000);
    await settle();
    expect(server.of("AUTH")).toHaveLength(2);
    await vi.advanceTimersByTimeAsync(1_000); // four fifths of the shorter lifetime
    await server.got("AUTH", 3);
    expect(server.of("AUTH").map(({ token }) => token)).toEqual(sent);
    expect(server.connections).toHaveLength(1);
    expect(client.status).toBe("connected");
  });

  test("a token function that fails is called again before the token expires", async () => {
    stopTime();
    let count = 0;
    const client = connectTo(server, {
      heartbeatMs: 1e9,
      token: () => {
        count += 1;
        if (count === 2) throw new Error("login is down");
        return jwt(100);
      },
    });
    const errors: PrombusError[] = [];
    client.on("error", (error) => errors.push(error));
    await until(() => client.status === "connected");
    await vi.advanceTimersByTimeAsync(80_000);
    expect(errors.map(({ code, message }) => [code, message])).toEqual([
      ["unauthorized", "cannot refresh the token: login is down"],
    ]);
    await vi.advanceTimersByTimeAsync(16_100);
    await server.got("AUTH", 2);
    expect(server.connections).toHaveLength(1);
  });

  test("a refused new token is reported; heartbeats continue with the old token", async () => {
    const tokens = [jwt(1, "first"), "refused"];
    server.script.AUTH = (frame, from, usual) => { if (frame.token === "refused") from.err(frame, "bad_token"); else usual(); };
    const client = connectTo(server, { heartbeatMs: 40, token: () => tokens.shift() ?? jwt(1000, "later") });
    const errors: PrombusError[] = [];
    client.on("error", (error) => errors.push(error));
    await until(() => errors.length === 1);
    expect(errors[0]?.message).toContain("bad_token by script");
    const asked = server.of("AUTH").length;
    await server.got("AUTH", asked + 1);
    expect(server.of("AUTH")[asked]?.token).not.toBe("refused");
    expect(server.connections).toHaveLength(1);
  });

  test("no heartbeat sends the old token after the new one", async () => {
    stopTime();
    const tokens = [jwt(100, "old"), jwt(1000, "new")];
    const [old, successor] = tokens;
    const client = connectTo(server, { heartbeatMs: 30_000, token: () => tokens.shift() ?? "none" });
    await until(() => client.status === "connected");
    for (let seconds = 0; seconds < 79; seconds++) {
      await vi.advanceTimersByTimeAsync(1_000);
      await settle(1);
    }
    expect(server.of("AUTH").every(({ token }) => token === old)).toBe(true);
    server.script.AUTH = () => {};
    await vi.advanceTimersByTimeAsync(1_000);
    await until(() => server.of("AUTH").at(-1)?.token === successor);
    await vi.advanceTimersByTimeAsync(25_000); // the next heartbeat is due
    await settle();
    expect(server.of("AUTH").at(-1)?.token).toBe(successor);
    expect(client.status).toBe("connected");
  });

  test("an expired token that the server closes with 1008 is replaced", async () => {
    const tokens = ["first", "second"];
    const client = connectTo(server, { token: () => tokens.shift() ?? "third" });
    await client.ready();
    const reasons: string[] = [];
    client.on("reconnecting", ({ error }) => reasons.push(error.message));
    server.last.send({ op: "ERR", code: "unauthorized", msg: "the token has expired" });
    server.last.close(1008);
    await server.connected(2);
    await client.publish("t", 1);
    expect(server.last.of("AUTH")[0]?.token).toBe("second");
    expect(reasons[0]).toContain("the token has expired");
  });

  test("an expired static token ends the client", async () => {
    const client = connectTo(server, { token: "static" });
    await client.ready();
    server.script.AUTH = (frame, from) => from.err(frame, "bad_token");
    server.script.PUBLISH = (frame, from) => {
      from.err(frame, "unauthorized");
      from.send({ op: "ERR", code: "unauthorized", msg: "the token has expired" });
      from.close(1008);
    };
    expect(await failure(client.publish("t", 1))).toBeInstanceOf(AuthError);
    expect(client.status).toBe("closed");
  });

  test("an old error of a subscription is not reported as the reason of a later disconnect", async () => {
    const client = connectTo(server);
    await client.ready();
    server.last.send({ op: "ERR", code: "not_subscribed", msg: "group g on t: it was deleted" });
    await client.publish("t", 1);
    const reasons: string[] = [];
    client.on("reconnecting", ({ error }) => reasons.push(error.message));
    server.last.cut();
    await until(() => reasons.length === 1);
    expect(reasons[0]).not.toContain("deleted");
  });
});
