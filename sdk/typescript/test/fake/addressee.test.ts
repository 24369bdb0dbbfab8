/** Tests that folds over events ignore events for one group (with an `addressee`). */
import { describe, expect, test } from "vitest";
import { PENDING_HEADER, POSITION_HEADER, type Projection, Projector, type ProjectorOptions } from "../../src/projector.js";
import type { StoredEvent } from "../../src/types.js";
import { connectTo, FakeServer, type Frame, settle, until } from "../support/fake-server.js";

const OTHER = { subscription: "payments", group: "billing" };
const OWN = { subscription: "payments", group: "totals" };
const OPTIONS: ProjectorOptions = { input: "payments", output: "totals", group: "totals" };

const totals: Projection<number, number> = {
  fold: (event, states) => states.set("all", (states.get("all") ?? 0) + event.payload),
};

/** The stored events of each topic; seq and id are the position in the topic. */
type Stored = Record<string, Partial<StoredEvent>[]>;

const stored = (topic: string, at: number, event: Partial<StoredEvent>): StoredEvent =>
  ({ id: `${at + 1}`, seq: at + 1, ts: 1, topic, payload: at + 1, ...event });

/** A server that has these events. Records the queries of `/replay`. */
async function serverWith(topics: Stored): Promise<{ server: FakeServer; replays: URLSearchParams[] }> {
  const server = await FakeServer.start();
  const replays: URLSearchParams[] = [];
  server.http = ({ searchParams: query }, response) => {
    replays.push(query);
    const topic = query.get("topic") ?? "";
    const limit = Number(query.get("limit"));
    const all = (topics[topic] ?? []).map((event, at) => stored(topic, at, event));
    const found = all.filter(({ seq }) => seq >= Number(query.get("fromSeq") ?? 0));
    if (query.get("order") === "desc") found.reverse();
    const events = query.get("from") === "latest" ? found.slice(-limit) : found.slice(0, limit);
    response.end(JSON.stringify({ events, next: null }));
  };
  return { server, replays };
}

function deliver(server: FakeServer, topics: Stored, seq: number): void {
  const event = stored("payments", seq - 1, topics["payments"]?.[seq - 1] ?? {});
  server.last.deliver("payments", "totals", event.id, { event });
}

async function open(server: FakeServer, options: Partial<ProjectorOptions> = {}, more: Partial<Projection<number, number>> = {}) {
  return Projector.open<number, number>(connectTo(server), { ...OPTIONS, ...options }, { ...totals, ...more });
}

describe("Projector", () => {
  test.each([1, 2, 3, 1_000])("passes over %i events for other groups between two inputs", async (count) => {
    // A group with the same name on a pattern is another group.
    const other = (n: number): Partial<StoredEvent> => ({ addressee: n % 2 === 0 ? OTHER : { subscription: "*", group: "totals" } });
    const topics = { payments: [{}, ...Array.from({ length: count }, (_, n) => other(n)), {}] };
    const { server, replays } = await serverWith(topics);
    const projector = await open(server);
    deliver(server, topics, 1);
    await until(() => projector.counts.folded === 1, "the first input");
    replays.length = 0;
    deliver(server, topics, count + 2);
    await until(() => projector.counts.folded === 2, "the second input");
    expect(projector.states.get("all")).toBe(1 + count + 2);
    expect(server.of("SUBSCRIBE")).toHaveLength(1);
    // Pages of 1, 2, 4 … 256 events.
    expect(replays.length).toBeLessThan(14);
    await projector.stop();
  });

  test("waits for a missing input that is addressed to its own group", async () => {
    const topics = { payments: [{}, { addressee: OTHER }, { addressee: OWN }, {}] };
    const { server } = await serverWith(topics);
    const projector = await open(server);
    deliver(server, topics, 1);
    await until(() => projector.counts.folded === 1, "the first input");
    deliver(server, topics, 4);
    await server.got("SUBSCRIBE", 2);
    expect(projector.counts.folded).toBe(1);
    deliver(server, topics, 3);
    deliver(server, topics, 4);
    await until(() => projector.counts.folded === 3, "all inputs");
    expect(projector.states.get("all")).toBe(1 + 3 + 4);
    await projector.stop();
  });

  test("does not restore states from copies for groups of the output topic", async () => {
    const position = (seq: number): Record<string, string> => ({ [POSITION_HEADER]: `totals payments ${seq} ${seq}` });
    const readers = { subscription: "totals", group: "readers" };
    const topics = {
      payments: [{}, {}, {}],
      totals: [
        { key: "a", payload: 1, headers: { [PENDING_HEADER]: "totals" } },
        { key: "b", payload: 1, headers: position(1) },
        { key: "a", payload: 2, headers: { [PENDING_HEADER]: "totals" } },
        { key: "b", payload: 2, headers: position(2) },
        { key: "a", payload: 1, headers: position(1), addressee: readers },
        { key: "b", payload: null, headers: position(3), addressee: readers },
        { key: "c", payload: 1, addressee: readers },
      ],
    };
    const { server } = await serverWith(topics);
    const projector = await open(server);
    expect(Object.fromEntries(projector.states.entries())).toEqual({ a: 2, b: 2 });
    // The position is that of the last state, so input 3 is the next.
    deliver(server, topics, 2);
    deliver(server, topics, 3);
    await until(() => projector.counts.folded === 1, "input 3");
    expect(projector.counts.skipped).toBe(1);
    await projector.stop();
  });

  test("ticks although the newest inputs are for another group", async () => {
    const topics = { payments: [{}, {}, { addressee: OTHER }, { addressee: OTHER }] };
    const { server } = await serverWith(topics);
    const sums: unknown[] = [];
    const projector = await open(server, { tickMs: 1 }, { tick: (_now, states) => { sums.push(states.get("all")); } });
    await settle();
    expect(sums).toEqual([]);
    deliver(server, topics, 1);
    deliver(server, topics, 2);
    await until(() => sums.length > 0, "a tick");
    expect(sums[0]).toBe(3);
    await projector.stop();
  });

  test("keeps its position if only events for another group are left of its input", async () => {
    const topics: Stored = {
      payments: [{}, {}, { addressee: OTHER }],
      totals: [{ key: "all", payload: 3, headers: { [POSITION_HEADER]: "totals payments 2 2" } }],
    };
    const { server } = await serverWith(topics);
    const usual = server.http;
    // Retention has removed the first two inputs.
    server.http = (url, response) => {
      if (url.searchParams.get("topic") !== "payments") return usual?.(url, response);
      response.end(JSON.stringify({ events: [stored("payments", 2, { addressee: OTHER })], next: null }));
    };
    const projector = await open(server);
    deliver(server, topics, 2);
    await until(() => projector.counts.skipped === 1, "the input that is known");
    expect(projector.states.get("all")).toBe(3);
    await projector.stop();
  });
});

describe("StateView", () => {
  test("an event for one group neither sets nor deletes its key, and the view continues after it", async () => {
    const server = await FakeServer.start();
    const event = (at: number, fields: Partial<StoredEvent>): StoredEvent => stored("moods", at - 1, fields);
    const readers = { subscription: "moods", group: "readers" };
    const live = [
      event(3, { key: "ada", payload: "old", addressee: readers }),
      event(4, { key: "bob", payload: null, addressee: readers }),
      event(5, { key: "eve", payload: "old", addressee: readers }),
    ];
    server.http = ({ pathname }, response) => {
      if (pathname === "/state/moods") {
        const events = [event(1, { key: "ada", payload: "busy" }), event(2, { key: "bob", payload: "tired" })];
        response.end(JSON.stringify({ position: { id: "2", seq: 2 }, events, next: null }));
        return;
      }
      response.writeHead(200, { "content-type": "text/event-stream" });
      for (const one of live) response.write(`id: ${one.id}\ndata: ${JSON.stringify(one)}\n\n`);
      setTimeout(() => response.write(`id: 6\ndata: ${JSON.stringify(event(6, { key: "ada", payload: "calm" }))}\n\n`), 30);
    };
    const view = await connectTo(server).state("moods");
    const changes = view[Symbol.asyncIterator]();
    await until(() => view.position?.seq === 5, "the events for one group");
    expect([...view.entries()].map(([key, { seq, payload }]) => [key, seq, payload])).toEqual([["ada", 1, "busy"], ["bob", 2, "tired"]]);
    const { value } = await changes.next();
    expect([value.key, value.event?.payload, value.previous?.payload]).toEqual(["ada", "calm", "busy"]);
    view.close();
  });
});

describe("publish", () => {
  test("sends the addressee as an option of PUBLISH", async () => {
    const server = await FakeServer.start();
    await connectTo(server).publish("payments", 1, { addressee: OTHER });
    const [frame] = await server.got("PUBLISH") as [Frame];
    expect(frame.opts).toEqual({ id: expect.any(String), addressee: OTHER });
  });
});
