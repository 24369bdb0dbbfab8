/** Tests projectors with a real server that crashes in between. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { type Client, connect } from "../src/client.js";
import { PrombusError, RejectError } from "../src/errors.js";
import { PENDING_HEADER, POSITION_HEADER, type Projection, Projector, type ProjectorClient, States } from "../src/projector.js";
import type { Delivery, DeadLetter, StoredEvent } from "../src/types.js";
import { runOk } from "./support/run.js";
import { BINARY, startServer, type TestServer } from "./support/server.js";

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

async function until(isTrue: () => boolean | Promise<boolean>, what: string, ms = 20_000): Promise<void> {
  const end = Date.now() + ms;
  while (!(await isTrue())) {
    if (Date.now() > end) throw new Error(`in vain: ${what}`);
    await sleep(5);
  }
}

let server: TestServer;
beforeAll(async () => { server = await startServer(); });
afterAll(async () => { await server.remove(); });

const cleanups: (() => unknown)[] = [];
afterEach(async () => { for (const cleanup of cleanups.splice(0).reverse()) await cleanup(); });

function client(): Client {
  const made = connect(server.ws, { backoff: { minMs: 20, maxMs: 200 } });
  cleanups.push(() => made.close({ timeoutMs: 500 }));
  return made;
}

let used = 0;
const names = (): { input: string; output: string; group: string } => {
  used += 1;
  return { input: `payments.${used}`, output: `totals.${used}`, group: "totals" };
};

/** Adds the payload to the totals of all keys that `event.key` lists. */
const totals: Projection<number, number> = {
  fold(event, states) {
    if (event.key === undefined) throw new Error("a payment needs a key");
    for (const key of event.key.split(",")) states.set(key, (states.get(key) ?? 0) + event.payload);
  },
};

async function events(bus: Client, topic: string): Promise<StoredEvent[]> {
  const found: StoredEvent[] = [];
  for await (const event of bus.replay(topic)) found.push(event);
  return found;
}

/** The states as a reader of the output topic sees them. */
async function latest(bus: Client, topic: string): Promise<Record<string, unknown>> {
  const states: Record<string, unknown> = {};
  for (const { key, payload } of await events(bus, topic)) {
    if (key === undefined) continue;
    if (payload === null) delete states[key];
    else states[key] = payload;
  }
  return states;
}

async function hasFolded(bus: Client, { input, group }: { input: string; group: string }, lastId: string): Promise<boolean> {
  return (await bus.cursor(input, group))?.lastId === lastId;
}

describe("States", () => {
  test("undo restores the state before several sets and removals of the same key", () => {
    const states = new States<number>();
    states.set("a", 1);
    states.set("b", 2);
    states.end(true);
    states.set("a", 10);
    states.remove("a");
    states.set("a", 11);
    states.set("c", 3);
    states.remove("c");
    states.remove("b");
    states.remove("not there");
    expect(states.changed()).toEqual(["a", "c", "b"]);
    states.end(false);
    expect(Object.fromEntries(states.entries())).toEqual({ a: 1, b: 2 });
    expect(states.size).toBe(2);
  });
});

describe("Projector", () => {
  test("folds events into states by key and publishes the changed states with the position", async () => {
    const bus = client();
    const options = names();
    await bus.publish(options.input, 5, { key: "alice" });
    const two = await bus.publish(options.input, 7, { key: "alice,bob" });
    const projector = await Projector.open(bus, options, totals);
    await until(() => hasFolded(bus, options, two.id), "both inputs");
    expect(Object.fromEntries(projector.states.entries())).toEqual({ alice: 12, bob: 7 });
    const published = await events(bus, options.output);
    expect(published.at(-1)?.headers).toEqual({ [POSITION_HEADER]: `totals ${options.input} 2 ${two.id}` });
    expect(published.at(-1)?.caused_by).toEqual([two.id]);
    expect(await latest(bus, options.output)).toEqual({ alice: 12, bob: 7 });
    await projector.stop();
    expect(await projector.finished).toBeUndefined();
  });

  test("an event that cannot be folded becomes a dead letter and changes nothing", async () => {
    const bus = client();
    const options = names();
    const odd: Projection<unknown, unknown> = {
      fold(event, states) {
        states.set("a", event.payload === "bigint" ? 1n : event.payload);
        states.set("b", event.payload === "huge" ? "x".repeat(1 << 20) : event.payload);
        if (event.payload === "bad") throw new Error("no sense");
      },
    };
    const projector = await Projector.open(bus, options, odd);
    await bus.publish(options.input, 1);
    await bus.publish(options.input, "bad");
    await bus.publish(options.input, "bigint");
    await bus.publish(options.input, "huge");
    const last = await bus.publish(options.input, 2);
    await until(() => hasFolded(bus, options, last.id), "all inputs");
    expect(projector.counts).toMatchObject({ folded: 2, rejected: 3 });
    expect(await latest(bus, options.output)).toEqual({ a: 2, b: 2 });
    const letters = (await events(bus, `dlq.${options.input}`)).map(({ payload }) => payload as DeadLetter);
    expect(letters.map((letter) => letter.original.seq)).toEqual([2, 3, 4]);
    expect(letters[0]?.err).toBe("no sense");
    await projector.stop();
  });

  test("removing a key publishes null, and a projector that opens later does not have the key", async () => {
    const bus = client();
    const options = names();
    const set: Projection<number, number> = {
      fold: (event, states) => (event.payload === 0 ? states.remove("a") : states.set("a", event.payload)),
    };
    const first = await Projector.open(bus, options, set);
    await bus.publish(options.input, 1);
    await until(() => first.states.get("a") === 1, "one");
    const last = await bus.publish(options.input, 0);
    await until(() => hasFolded(bus, options, last.id), "none");
    expect((await events(bus, options.output)).map((event) => event.payload)).toEqual([1, null]);
    await first.stop();
    const second = await Projector.open(bus, options, set);
    expect(second.states.size).toBe(0);
    await second.stop();
  });

  test("a projector that has no state yet continues after its cursor when it is opened again", async () => {
    const bus = client();
    const options = names();
    const folded: number[] = [];
    const silent: Projection<number, number> = { fold: (event) => void folded.push(event.payload) };
    for (const n of [1, 2]) {
      const projector = await Projector.open(bus, options, silent);
      const input = await bus.publish(options.input, n);
      await until(() => hasFolded(bus, options, input.id), `input ${n}`);
      await projector.stop();
    }
    expect(folded).toEqual([1, 2]);
  });

  test("each input is folded once, even if the server is killed and projectors are replaced", async () => {
    const own = await startServer();
    cleanups.push(() => own.remove());
    const open = (): Client => {
      const made = connect(own.ws, { backoff: { minMs: 20, maxMs: 100 } });
      cleanups.push(() => made.close({ timeoutMs: 200 }));
      return made;
    };
    const bus = open();
    const options = { ...names(), onError: () => {} };
    const expected: Record<string, number> = {};
    let lastId = "";
    const publish = async (count: number): Promise<void> => {
      const results = await Promise.all(Array.from({ length: count }, (_, n) => {
        const keys = n % 7 === 0 ? [`k${n % 5}`, "all"] : [`k${n % 5}`];
        for (const key of keys) expected[key] = (expected[key] ?? 0) + n;
        return bus.publish(options.input, n, { key: keys.join(",") });
      }));
      lastId = (results.at(-1) as { id: string }).id;
    };
    let reader = open();
    let projector = await Projector.open(reader, options, totals);
    for (let round = 0; round < 4; round += 1) {
      const publishing = publish(400);
      await sleep(5 + round * 10);
      await own.restart("SIGKILL");
      await publishing;
      if (round % 2 === 1) {
        // Simulates a projector that dies: no batch is finished or acked.
        await reader.close({ timeoutMs: 0 });
        reader = open();
        projector = await Projector.open(reader, options, totals);
      }
    }
    await until(() => hasFolded(bus, options, lastId), "all inputs");
    expect(Object.fromEntries(projector.states.entries())).toEqual(expected);
    expect(await latest(bus, options.output)).toEqual(expected);
    await projector.stop();
  });

  test("inputs whose acks were lost are only acked when they are redelivered", async () => {
    const bus = client();
    const options = names();
    const deaf = client();
    // Acks are never sent.
    const withoutAcks: ProjectorClient = {
      publish: (...args) => deaf.publish(...args),
      cursor: (...args) => deaf.cursor(...args),
      seek: (...args) => deaf.seek(...args),
      replay: (...args) => deaf.replay(...args),
      consume: (...args) => {
        const consumer = deaf.consume(...args);
        return {
          join: () => consumer.join(),
          close: () => consumer.close(),
          next: async () => {
            const result = await consumer.next();
            if (result.done !== true) Object.assign(result.value, { ack: async () => "settled" });
            return result;
          },
        };
      },
    };
    const first = await Projector.open(withoutAcks, options, totals);
    for (let n = 1; n <= 10; n += 1) await bus.publish(options.input, n, { key: "a" });
    await until(() => first.counts.folded === 10 && first.counts.published > 0, "ten");
    await until(async () => (await latest(bus, options.output))["a"] === 55, "the sum");
    await deaf.close({ timeoutMs: 0 });
    // Closing the client is not an error of the projector.
    expect(await first.finished).toBeUndefined();
    const second = await Projector.open(bus, options, totals);
    expect(second.states.get("a")).toBe(55);
    const last = await bus.publish(options.input, 1, { key: "a" });
    await until(() => hasFolded(bus, options, last.id), "the last input");
    expect(second.states.get("a")).toBe(56);
    expect(second.counts.folded).toBe(1);
    await second.stop();
  });

  /** A client with modified deliveries. */
  function altered(bus: Client, alter: (delivery: Delivery) => void): ProjectorClient {
    return {
      publish: (...args) => bus.publish(...args),
      cursor: (...args) => bus.cursor(...args),
      seek: (...args) => bus.seek(...args),
      replay: (...args) => bus.replay(...args),
      consume: (...args) => {
        const consumer = bus.consume(...args);
        return {
          join: () => consumer.join(),
          close: () => consumer.close(),
          next: async () => {
            const result = await consumer.next();
            if (result.done !== true) alter(result.value);
            return result;
          },
        };
      },
    };
  }

  test.each(["stale", "deferred", "storage_full"])("the position does not pass a rejected input whose nack is %s", async (outcome) => {
    const bus = client();
    const options = { ...names(), onError: () => {} };
    let nacks = 0;
    const lossy = altered(bus, (delivery) => {
      const nack = delivery.nack.bind(delivery);
      Object.assign(delivery, {
        nack: async (...args: Parameters<Delivery["nack"]>) => {
          nacks += 1;
          if (nacks > 1) return nack(...args);
          if (outcome === "storage_full") throw new PrombusError(outcome, "the disk is full");
          return outcome;
        },
      });
    });
    await bus.publish(options.input, 1, { key: "a" });
    await bus.publish(options.input, 2);
    const last = await bus.publish(options.input, 4, { key: "a" });
    const projector = await Projector.open(lossy, options, totals);
    await until(() => hasFolded(bus, options, last.id), "all inputs");
    const letters = (await events(bus, `dlq.${options.input}`)).map(({ payload }) => (payload as DeadLetter).original.seq);
    expect(letters).toEqual([2]);
    expect(projector.counts).toMatchObject({ folded: 2, rejected: 1 });
    expect(projector.states.get("a")).toBe(5);
    await projector.stop();
  });

  test("acks that fail because of a full disk do not end the projector; other failures do", async () => {
    const bus = client();
    const errors: unknown[] = [];
    const options = { ...names(), onError: (error: unknown) => errors.push(error) };
    let code: "storage_full" | "internal" = "storage_full";
    const full = altered(bus, (delivery) => {
      const ack = delivery.ack.bind(delivery);
      Object.assign(delivery, {
        ack: async () => {
          await ack();
          throw new PrombusError(code, "refused");
        },
      });
    });
    const projector = await Projector.open(full, options, totals);
    const one = await bus.publish(options.input, 1, { key: "a" });
    await until(() => hasFolded(bus, options, one.id), "one input");
    const two = await bus.publish(options.input, 2, { key: "a" });
    await until(() => hasFolded(bus, options, two.id), "two inputs");
    expect(projector.states.get("a")).toBe(3);
    // The ack is sent after the state is published, so it may be refused a moment after the state can be read.
    await until(() => errors.length >= 2, "two refused acks");
    expect(errors).toMatchObject([{ code: "storage_full" }, { code: "storage_full" }]);
    code = "internal";
    await bus.publish(options.input, 3, { key: "a" });
    expect(await projector.finished).toMatchObject({ code: "internal" });
  });

  test("a crash between the states of a batch repeats the batch", async () => {
    const bus = client();
    const options = { ...names(), onError: () => {} };
    const dying: ProjectorClient = {
      publish: async (topic, payload, opts) => {
        if (opts?.headers?.[PENDING_HEADER] === undefined) throw new Error("the process dies here");
        return bus.publish(topic, payload, opts);
      },
      cursor: (...args) => bus.cursor(...args),
      seek: (...args) => bus.seek(...args),
      replay: (...args) => bus.replay(...args),
      consume: (...args) => bus.consume(...args),
    };
    const input = await bus.publish(options.input, 5, { key: "a,b,c" });
    const first = await Projector.open(dying, options, totals);
    expect(await first.finished).toMatchObject({ message: "the process dies here" });
    await expect(first.stop()).rejects.toThrow("the process dies here");
    expect(await events(bus, options.output)).toHaveLength(2);
    const second = await Projector.open(bus, options, totals);
    await until(() => hasFolded(bus, options, input.id), "the input");
    expect(Object.fromEntries(second.states.entries())).toEqual({ a: 5, b: 5, c: 5 });
    await second.stop();
    const third = await Projector.open(bus, options, totals);
    expect(Object.fromEntries(third.states.entries())).toEqual({ a: 5, b: 5, c: 5 });
    await third.stop();
  });

  test("the position does not pass inputs that another member still holds", async () => {
    const bus = client();
    const options = names();
    for (let n = 1; n <= 5; n += 1) await bus.publish(options.input, n, { key: "a" });
    const other = client().consume(options.input, options.group, { from: "earliest", maxInFlight: 2 });
    await other.next();
    const projector = await Projector.open(bus, options, totals);
    const more = client().consume(options.input, options.group, { maxInFlight: 3 });
    await more.join();
    for (let n = 6; n <= 20; n += 1) await bus.publish(options.input, n, { key: "a" });
    await sleep(300);
    await other.close();
    await more.close();
    await until(() => projector.states.get("a") === 210, "all inputs, once");
    await sleep(100);
    expect(projector.states.get("a")).toBe(210);
    await projector.stop();
  });

  test("without a state, the first input after the cursor is folded first, although another member got it", async () => {
    const bus = client();
    const options = names();
    const folded: number[] = [];
    const silent: Projection<number, number> = { fold: (event) => void folded.push(event.payload) };
    const first = await Projector.open(bus, options, silent);
    const input = await bus.publish(options.input, 1);
    await until(() => hasFolded(bus, options, input.id), "the first input");
    await first.stop();
    // These ask before the projector does, so they get the next inputs.
    const others = await Promise.all([1, 2, 3].map(async () => {
      const other = client().consume(options.input, options.group, { maxInFlight: 1 });
      await other.join();
      return other;
    }));
    const projector = await Projector.open(bus, options, silent);
    for (let n = 2; n <= 12; n += 1) await bus.publish(options.input, n);
    await sleep(300);
    for (const other of others) await other.close();
    await until(() => folded.length >= 12, "all inputs");
    expect(folded).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    await projector.stop();
  });

  test("a redrive to another group does not stop projectors, and the addressee folds its own", async () => {
    const bus = client();
    bus.on("nack", () => {});
    const options = names();
    const dlq = `dlq.${options.input}`;
    const redrive = (group: string): Promise<string> =>
      runOk(BINARY, ["dlq", "redrive", options.input, "--group", group, "--yes", "--url", server.http]);
    let isBroken = true;
    const billed: number[] = [];
    await bus.subscribe(options.input, "billing", (event) => {
      if (isBroken) throw new RejectError("the cause is not fixed");
      billed.push(event.seq);
    }, { from: "earliest" });
    const projection: Projection<number, number> = {
      fold(event, states) {
        if (isBroken && event.payload === 2) throw new Error("not now");
        totals.fold(event, states);
      },
    };
    const projector = await Projector.open(bus, options, projection);
    for (const n of [1, 2, 3]) await bus.publish(options.input, n, { key: "a" });
    await until(async () => (await events(bus, dlq)).length === 4, "four dead letters");
    isBroken = false;

    await redrive("billing");
    await until(() => billed.length === 3, "three redriven events");
    const next = await bus.publish(options.input, 10, { key: "a" });
    await until(() => hasFolded(bus, options, next.id), "the input after the redriven events");
    expect(projector.states.get("a")).toBe(1 + 3 + 10);

    await redrive(options.group);
    await until(() => projector.counts.folded === 4, "the projector's own event");
    expect(projector.states.get("a")).toBe(1 + 2 + 3 + 10);
    await projector.stop();
    expect((await events(bus, options.input)).map((event) => event.addressee?.group)).toEqual([
      undefined, undefined, undefined, "billing", "billing", "billing", undefined, "totals",
    ]);

    // States that are restored ignore a redriven copy of a state.
    await bus.subscribe(options.output, "readers", (event) => {
      if (event.seq === 1) throw new RejectError("not now");
    }, { from: "earliest" });
    await until(async () => (await events(bus, `dlq.${options.output}`)).length === 1, "a dead letter of a state");
    await runOk(BINARY, ["dlq", "redrive", options.output, "--yes", "--url", server.http]);
    expect((await events(bus, options.output)).at(-1)).toMatchObject({ key: "a", addressee: { subscription: options.output, group: "readers" } });
    const again = await Projector.open(bus, options, projection);
    expect(again.states.get("a")).toBe(1 + 2 + 3 + 10);
    await again.stop();
    expect((await bus.state(options.output)).get("a")?.payload).toBe(1 + 2 + 3 + 10);
  });

  test("ticks change states, and start only after all events that existed at the start are folded", async () => {
    const bus = client();
    const errors: unknown[] = [];
    const options = { ...names(), tickMs: 10, onError: (error: unknown) => errors.push(error) };
    for (let n = 0; n < 50; n += 1) await bus.publish(options.input, 1, { key: "a" });
    const ticks: (number | undefined)[] = [];
    const projector = await Projector.open<number, number>(bus, options, {
      fold: totals.fold,
      tick(_now, states) {
        ticks.push(states.get("a"));
        if (ticks.length === 2) throw new Error("a tick that fails");
        if (ticks.length === 3) states.set("ticked", 1);
      },
    });
    await until(async () => (await latest(bus, options.output))["ticked"] === 1, "a state of a tick");
    expect(ticks[0]).toBe(50);
    expect(errors).toHaveLength(1);
    expect((await latest(bus, options.output))["a"]).toBe(50);
    await projector.stop();
    const count = ticks.length;
    await sleep(50);
    expect(ticks).toHaveLength(count);
  });

  test("a topic that was deleted and created again is folded from its start", async () => {
    const bus = client();
    const options = names();
    for (let n = 0; n < 5; n += 1) await bus.publish(options.input, 1, { key: "a" });
    const first = await Projector.open(bus, options, totals);
    await until(() => first.states.get("a") === 5, "five");
    await first.stop();
    await bus.http.json("DELETE", `/topics/${options.input}`);
    const last = await bus.publish(options.input, 10, { key: "a" });
    const second = await Projector.open(bus, options, totals);
    await until(() => hasFolded(bus, options, last.id), "the new input");
    expect(second.states.get("a")).toBe(15);
    await second.stop();
  });

  test("a deleted group ends the projector with an error", async () => {
    const bus = client();
    const options = { ...names(), onError: () => {} };
    const projector = await Projector.open(bus, options, totals);
    await bus.http.json("DELETE", `/groups/${options.input}/${options.group}`);
    await expect(projector.finished).resolves.toMatchObject({ code: "not_subscribed" });
    await expect(Projector.open(bus, { ...options, input: "a.*" }, totals)).rejects.toMatchObject({ code: "bad_topic" });
  });
});
