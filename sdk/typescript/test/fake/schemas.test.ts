import { type } from "arktype";
import * as v from "valibot";
import { beforeEach, describe, expect, test } from "vitest";
import { z } from "zod";
import { type Client, type StandardSchema, ValidationError } from "../../src/index.js";
import { connectTo, failure, FakeServer, settle } from "../support/fake-server.js";

let server: FakeServer;
beforeEach(async () => { server = await FakeServer.start(); });

/** A validator that is asynchronous and may throw. */
const slow: StandardSchema<{ total: number }> = {
  "~standard": {
    version: 1,
    vendor: "test",
    validate: async (value) => {
      await settle(1);
      const { total } = value as { total: unknown };
      if (total === "down") throw new Error("the validator is down");
      return typeof total === "number" ? { value: { total } } : { issues: [{ message: "not a number", path: ["total"] }] };
    },
  },
};

const schemas = {
  zod: z.object({ total: z.number() }),
  valibot: v.object({ total: v.number() }),
  arktype: type({ total: "number" }),
  async: slow,
};

describe.each(Object.keys(schemas) as (keyof typeof schemas)[])("a schema of %s", (vendor) => {
  function connected(): Client {
    return connectTo(server, { topics: { "orders.new": schemas[vendor] as StandardSchema } });
  }

  test("a payload that does not match is not sent", async () => {
    const client = connected();
    const error = await failure(client.publish("orders.new", { total: "12" })) as ValidationError;
    expect(error).toBeInstanceOf(ValidationError);
    expect(error).toMatchObject({ code: "invalid_payload", isRetryable: false });
    expect(error.issues).toHaveLength(1);
    expect(error.message).toMatch(/^payload of orders\.new: .*total/);
    expect(await client.publish("orders.new", { total: 12 })).toMatchObject({ seq: 1 });
    expect(await client.publish("other", "anything")).toMatchObject({ seq: 2 });
    expect(server.of("PUBLISH").map(({ payload }) => payload)).toEqual([{ total: 12 }, "anything"]);
  });

  test("publishMany stops at an invalid payload", async () => {
    const client = connected();
    expect(await failure(client.publishMany("orders.new", [{ total: 1 }, { total: "2" }, { total: 3 }]))).toBeInstanceOf(ValidationError);
    expect(server.of("PUBLISH")).toHaveLength(1);
  });

  test("an event that does not match becomes a dead letter at once, and the handler does not run", async () => {
    const client = connected();
    const nacks: unknown[] = [];
    client.on("nack", ({ error }) => nacks.push(error));
    const payloads: unknown[] = [];
    await client.subscribe("orders.*", "g", ({ payload }) => payloads.push(payload));
    server.last.deliver("orders.*", "g", "e1", { event: { topic: "orders.new", payload: { total: "12" } } });
    server.last.deliver("orders.*", "g", "e2", { event: { topic: "orders.new", payload: { total: 12 } } });
    server.last.deliver("orders.*", "g", "e3", { event: { topic: "orders.old", payload: "anything" } });
    await server.got("ACK", 2);
    expect(server.of("NACK")).toMatchObject([{ id: "e1", dead: true, reason: expect.stringContaining("total") as string }]);
    expect(payloads).toEqual([{ total: 12 }, "anything"]);
    expect(nacks[0]).toBeInstanceOf(ValidationError);
  });

  test("consume skips an event that does not match", async () => {
    const client = connected();
    const consumer = client.consume("orders.new", "g");
    await consumer.join();
    server.last.deliver("orders.new", "g", "e1", { event: { payload: {} } });
    server.last.deliver("orders.new", "g", "e2", { event: { payload: { total: 1 } } });
    expect((await consumer.next()).value?.event.id).toBe("e2");
    expect(await server.got("NACK")).toMatchObject([{ id: "e1", dead: true }]);
  });
});

test("with a schema that converts, the input is sent and handlers get the output", async () => {
  const client = connectTo(server, { topics: { t: z.object({ at: z.string().transform((text) => new Date(text)) }) as StandardSchema } });
  const payloads: unknown[] = [];
  await client.subscribe("t", "g", ({ payload }) => payloads.push(payload));
  await client.publish("t", { at: "2026-01-01T00:00:00Z" });
  expect(server.of("PUBLISH")[0]?.payload).toEqual({ at: "2026-01-01T00:00:00Z" });
  server.last.deliver("t", "g", "e1", { event: { payload: { at: "2026-01-01T00:00:00Z" } } });
  await server.got("ACK");
  expect(payloads).toEqual([{ at: new Date("2026-01-01T00:00:00Z") }]);
});

test("a validator that throws nacks the event, which is redelivered", async () => {
  const client = connectTo(server, { topics: { t: slow as StandardSchema } });
  expect(await failure(client.publish("t", { total: "down" }))).toEqual(new Error("the validator is down"));
  await client.subscribe("t", "g", () => {});
  server.last.deliver("t", "g", "e1", { event: { payload: { total: "down" } } });
  const [nack] = await server.got("NACK");
  expect(nack).toMatchObject({ reason: "the validator is down" });
  expect(nack).not.toHaveProperty("dead");
});

test("publishMany with a slow validator takes items only while the queue has room, and keeps the order", async () => {
  const client = connectTo(server, { topics: { t: slow as StandardSchema }, maxQueued: 4 });
  let taken = 0;
  let most = 0;
  function* source(): Generator<{ total: number }> {
    while (taken < 40) {
      most = Math.max(most, taken - server.stored.size);
      yield { total: taken++ };
    }
  }
  await client.publishMany("t", source());
  expect(server.of("PUBLISH").map(({ payload }) => (payload as { total: number }).total)).toEqual(Array.from({ length: 40 }, (_, n) => n));
  expect(most).toBeLessThanOrEqual(8);
});

test("names of Object.prototype are not topics of a schema map", async () => {
  const client = connectTo(server, { topics: { t: schemas.zod as StandardSchema } });
  await client.publish("constructor", 1);
  await client.publish("toString", 1);
  expect(server.stored.size).toBe(2);
});
