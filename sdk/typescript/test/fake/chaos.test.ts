/**
 * Random histories with a small broker that has one group, loses, repeats and refuses answers, and breaks connections. The name
 * of each test contains its seed; `CHAOS_SEED` repeats a run, `CHAOS_RUNS` sets the number of runs.
 */
import { beforeEach, expect, test } from "vitest";
import { NackError } from "../../src/index.js";
import { connectTo, type FakeConnection, FakeServer, until } from "../support/fake-server.js";
import { randomFrom } from "../support/random.mjs";

let server: FakeServer;
beforeEach(async () => { server = await FakeServer.start(); });

interface Stored {
  id: string;
  payload: number;
  attempt: number;
  reason?: string;
  holder?: FakeConnection;
  isSettled: boolean;
  acks: number;
}

const seeds = process.env.CHAOS_SEED === undefined
  ? Array.from({ length: Number(process.env.CHAOS_RUNS ?? 12) }, (_, at) => (Date.now() % 1_000_000) * 100 + at)
  : [Number(process.env.CHAOS_SEED)];

test.each(seeds)("seed %i: every publish is stored once, and every event is handled and settled", async (seed) => {
  const next = randomFrom(seed);
  const random = (below: number): number => Math.floor(next() * below);
  const events: Stored[] = [];
  const subscribers = new Set<FakeConnection>();
  let isCalm = false;
  const isChance = (oneIn: number): boolean => !isCalm && random(oneIn) === 0;

  const giveBack = (from: FakeConnection): void => {
    subscribers.delete(from);
    for (const event of events) {
      if (event.holder !== from) continue;
      delete event.holder;
      event.attempt += 1;
      event.reason = "member_lost";
    }
  };
  const breakIt = (from: FakeConnection): void => {
    giveBack(from);
    if (random(2) === 0) from.cut();
    else from.close(1012);
  };
  const pump = (): void => {
    const [to] = subscribers;
    if (to === undefined) return;
    let held = events.filter(({ holder }) => holder === to).length;
    for (const event of events) {
      if (event.isSettled || event.holder !== undefined || held >= 20) continue;
      event.holder = to;
      held += 1;
      to.deliver("t", "g", event.id, {
        event: { payload: event.payload }, ctx: { attempt: event.attempt, ...(event.reason === undefined ? {} : { reason: event.reason }) },
      });
    }
  };

  server.script.PUBLISH = (frame, from) => {
    const id = String(frame.opts?.id);
    if (isChance(60)) return breakIt(from); // before the event is stored
    if (isChance(30)) return from.err(frame, "rate_limited", { retry_after_ms: random(5) });
    let at = events.findIndex((event) => event.id === id);
    const isDuplicate = at >= 0;
    if (!isDuplicate) at = events.push({ id, payload: frame.payload as number, attempt: 1, isSettled: false, acks: 0 }) - 1;
    pump();
    if (isChance(60)) return breakIt(from); // after the event is stored
    const ok = { id, seq: at + 1, ...(isDuplicate ? { duplicate: true } : {}) };
    from.ok(frame, ok);
    if (isChance(20)) from.ok(frame, ok);
    if (isChance(500)) from.text("garbage");
  };
  server.script.SUBSCRIBE = (frame, from, usual) => {
    if (isChance(10)) return from.err(frame, "unavailable", { retry_after_ms: 1 });
    usual();
    // Also applies if the client abandons the connection, or if the close frame was sent before this frame arrived.
    from.onClosed = () => {
      giveBack(from);
      pump();
    };
    subscribers.clear();
    subscribers.add(from);
    pump();
  };
  const settleEvent = (from: FakeConnection, id: unknown, act: (event: Stored) => void): void => {
    if (isChance(40)) return breakIt(from); // the frame is lost with the connection
    const event = events.find((it) => it.id === id && it.holder === from);
    if (event !== undefined) {
      delete event.holder;
      act(event);
    }
    if (isChance(60)) breakIt(from);
    pump();
  };
  server.script.ACK = (frame, from) => settleEvent(from, frame.id, (event) => { event.isSettled = true; event.acks += 1; });
  server.script.NACK = (frame, from) => settleEvent(from, frame.id, (event) => { event.attempt += 1; event.reason = "nacked"; });

  const client = connectTo(server, { backoff: { minMs: 1, maxMs: 4 } });
  client.on("error", () => {});
  const running = new Set<string>();
  const succeeded = new Map<string, number>();
  const faults: string[] = [];
  await client.subscribe("t", "g", async ({ id }) => {
    if (running.has(id)) faults.push(`${id} runs twice at the same time`);
    running.add(id);
    if (random(3) === 0) await new Promise((resolve) => { setTimeout(resolve, random(8)); });
    running.delete(id);
    if (random(10) === 0) throw new NackError("by chance");
    succeeded.set(id, (succeeded.get(id) ?? 0) + 1);
  }, { concurrency: 4 });

  const results = await Promise.all(Array.from({ length: 400 }, async (_, n) => {
    if (n % 7 === 0) await new Promise((resolve) => { setTimeout(resolve, random(60)); });
    return { n, ...(await client.publish("t", n)) };
  }));
  isCalm = true;
  await until(() => events.every(({ isSettled }) => isSettled), () => `${events.filter((it) => !it.isSettled).length} events to be settled, seed ${seed}`);

  expect(faults).toEqual([]);
  expect(events).toHaveLength(400);
  expect(new Set(events.map(({ payload }) => payload)).size).toBe(400);
  for (const { n, id, seq } of results) expect(events[seq - 1]).toMatchObject({ id, payload: n });
  // No event was acked before its handler had succeeded, and no handler ran again when only its ack had to be repeated.
  for (const { id, acks } of events) expect([acks, succeeded.get(id)]).toEqual([1, 1]);
  expect(client.pendingPublishes).toBe(0);
}, 20_000);
