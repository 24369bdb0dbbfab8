import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import type WebSocket from "ws";
import { type Answer, EventClient, type EventRecord, type Handler } from "./event-client.js";
import { DataFolder, Server } from "./server.js";

const TOKEN = "a token for the tests, not a secret";

let folder: DataFolder;
let server: Server;
let opened: EventClient[] = [];
let topics = 0;

/** The client's private socket: tests need it to wait until it is open, and to close it. */
function socketOf(client: EventClient): WebSocket {
  return (client as unknown as { ws: WebSocket }).ws;
}

/** A client that has sent AUTH. The server handles frames in order, so there is no need to wait for the answer. */
async function connect(token = TOKEN): Promise<EventClient> {
  const client = new EventClient(server.url, token);
  opened.push(client);
  await new Promise((open, failed) => socketOf(client).once("open", open).once("error", failed));
  return client;
}

/** Sends a close frame and waits for the answer. */
async function close(client: EventClient): Promise<void> {
  const socket = socketOf(client);
  if (socket.readyState === socket.CLOSED) return;
  const closed = new Promise((closed) => socket.once("close", closed));
  socket.close();
  await closed;
}

function sleep(ms: number): Promise<void> {
  return new Promise((over) => setTimeout(over, ms));
}

function freshTopic(): string {
  topics += 1;
  return `heartbeat.test-${topics}`;
}

type Delivery = { event: EventRecord; attempt: number };

/** Provides a handler that records its deliveries, and waits for them. */
class Deliveries {
  readonly seen: Delivery[] = [];
  private waiting: (() => void)[] = [];

  handler(work: Handler = () => {}): Handler {
    return async (event, ctx) => {
      this.seen.push({ event, attempt: ctx.attempt });
      this.waiting.splice(0).forEach((wake) => wake());
      await work(event, ctx);
    };
  }

  async count(count: number): Promise<Delivery[]> {
    while (this.seen.length < count) await new Promise<void>((wake) => this.waiting.push(wake));
    return this.seen;
  }

  payloads(): unknown[] {
    return this.seen.map(({ event }) => event.payload);
  }
}

beforeAll(async () => {
  folder = await DataFolder.make();
  server = await Server.start(folder.path, TOKEN);
});

afterEach(async () => {
  await Promise.all(opened.map(close));
  opened = [];
});

afterAll(async () => {
  const code = await server?.stop();
  await folder?.remove();
  expect(code).toBe(0);
});

test("a publish is answered with id and seq", async () => {
  const client = await connect();
  const topic = freshTopic();
  const first = await client.publish(topic, { pid: 1 });
  expect(first).toMatchObject({ op: "OK", seq: 1 });
  expect(first?.id).toMatch(/^[0-9a-f-]{36}$/);
  expect(await client.publish(topic, { pid: 2 })).toMatchObject({ op: "OK", seq: 2 });
  expect(await client.publish(topic, { pid: 2 }, { id: first?.id })).toMatchObject({ seq: 1, duplicate: true });
});

test("a subscriber receives published events", async () => {
  const client = await connect();
  const topic = freshTopic();
  const deliveries = new Deliveries();
  expect(await client.subscribe(topic, "ops", deliveries.handler())).toMatchObject({ op: "OK", created: true });
  const published = await client.publish(topic, { pid: 1, name: "größe" });
  const [delivery] = await deliveries.count(1);
  expect(delivery?.event).toMatchObject({ id: published?.id, seq: 1, topic, payload: { pid: 1, name: "größe" } });
  expect(delivery?.attempt).toBe(1);
});

test("unacked events are delivered again, acked events are not", async () => {
  const topic = freshTopic();
  const before = new Deliveries();
  const first = await connect();
  // The second event is never settled: its handler never returns.
  const handler = before.handler((event) => (event.seq === 2 ? new Promise(() => {}) : undefined));
  await first.subscribe(topic, "ops", handler);
  await first.publish(topic, "acked");
  await first.publish(topic, "not acked");
  await before.count(2);
  await close(first);
  const after = new Deliveries();
  const second = await connect();
  await second.subscribe(topic, "ops", after.handler());
  await second.publish(topic, "new");
  await after.count(2);
  expect(after.payloads().sort()).toEqual(["new", "not acked"]);
});

test("an event whose handler throws is redelivered", async () => {
  const client = await connect();
  const topic = freshTopic();
  const deliveries = new Deliveries();
  await client.subscribe(topic, "ops", deliveries.handler((_event, ctx) => {
    if (ctx.attempt === 1) throw new Error("not yet");
  }));
  await client.publish(topic, { pid: 1 });
  const seen = await deliveries.count(2);
  expect(seen.map(({ attempt }) => attempt)).toEqual([1, 2]);
  expect(seen[0]?.event.id).toBe(seen[1]?.event.id);
  await sleep(500);
  expect(seen).toHaveLength(2);
});

test("a lease expires unless it is extended", async () => {
  const client = await connect();
  const topic = freshTopic();
  const silent = new Deliveries();
  const extended = new Deliveries();
  const opts = { ackTimeoutMs: 400 };
  await client.subscribe(topic, "silent", silent.handler((_event, ctx) => ctx.attempt === 1 ? sleep(1_500) : undefined), opts);
  await client.subscribe(topic, "extended", extended.handler((event) => {
    client.modAck(topic, "extended", event.id, 10_000);
    return sleep(1_500);
  }), opts);
  await client.publish(topic, { pid: 1 });
  expect((await silent.count(2)).map(({ attempt }) => attempt)).toEqual([1, 2]);
  await sleep(1_500);
  expect(extended.seen.map(({ attempt }) => attempt)).toEqual([1]);
});

test("after an unsubscribe no more events arrive", async () => {
  const client = await connect();
  const topic = freshTopic();
  const deliveries = new Deliveries();
  await client.subscribe(topic, "ops", deliveries.handler());
  await client.publish(topic, 1);
  await deliveries.count(1);
  expect(await client.unsubscribe(topic, "ops")).toMatchObject({ op: "OK" });
  await client.publish(topic, 2);
  await expect(client.unsubscribe(topic, "ops")).rejects.toMatchObject({ op: "ERR", code: "not_subscribed" });
  await sleep(200);
  expect(deliveries.payloads()).toEqual([1]);
  // The group is durable: it continues at its position.
  await client.subscribe(topic, "ops", deliveries.handler());
  await deliveries.count(2);
  expect(deliveries.payloads()).toEqual([1, 2]);
});

test("a second subscription to the same group is refused, and the first continues", async () => {
  const client = await connect();
  const topic = freshTopic();
  const deliveries = new Deliveries();
  await client.subscribe(topic, "ops", deliveries.handler());
  await expect(client.subscribe(topic, "ops", deliveries.handler())).rejects.toMatchObject({
    op: "ERR",
    code: "already_subscribed",
  });
  await client.publish(topic, 1);
  await deliveries.count(1);
});

test("a wrong token is refused, and no call works without a valid one", async () => {
  // The client ignores the promise of its AUTH, so the refusal becomes an unhandled rejection. During this test, the listener below
  // replaces those of the test runner.
  const others = process.listeners("unhandledRejection");
  process.removeAllListeners("unhandledRejection");
  try {
    const refused = new Promise<Answer>((refused) => {
      process.once("unhandledRejection", (reason) => refused(reason as Answer));
    });
    const client = await connect("wrong");
    expect(await refused).toMatchObject({ op: "ERR", code: "bad_token" });
    await expect(client.publish(freshTopic(), 1)).rejects.toMatchObject({ op: "ERR", code: "unauthorized" });
    await expect(client.subscribe(freshTopic(), "ops", () => {})).rejects.toMatchObject({ code: "unauthorized" });
  } finally {
    for (const listener of others) process.on("unhandledRejection", listener);
  }
});

test("groups continue at their positions after a restart of the server", async () => {
  const data = await DataFolder.make();
  const topic = freshTopic();
  const shared = server;
  try {
    server = await Server.start(data.path, TOKEN);
    const first = await connect();
    const before = new Deliveries();
    await first.subscribe(topic, "ops", before.handler());
    await first.publish(topic, "acked");
    await before.count(1);
    const closed = new Promise<number>((closed) => socketOf(first).once("close", closed));
    expect(await server.stop()).toBe(0);
    expect(await closed).toBe(1001);
    server = await Server.start(data.path, TOKEN);
    const second = await connect();
    const after = new Deliveries();
    await second.subscribe(topic, "ops", after.handler());
    await second.publish(topic, "new");
    await after.count(1);
    expect(after.payloads()).toEqual(["new"]);
    await close(second);
    expect(await server.stop()).toBe(0);
  } finally {
    server = shared;
    await data.remove();
  }
});
