import { type } from "arktype";
import * as v from "valibot";
import { describe, expect, expectTypeOf, test } from "vitest";
import { z } from "zod";
import {
  Client, type DeadLetter, type Delivery, type DeliveryContext, connect, type Handler, type PayloadOf, type PublishResult, type StoredEvent,
  type Subscription, type SubscriptionOf,
} from "../../src/index.js";
import { validate } from "../../src/topics.js";

interface Order { total: number }
interface Refund { order: string }
interface User { name: string }

interface Topics {
  orders: "root";
  "orders.new": Order;
  "orders.refunded": Refund;
  "orders.eu.new": "eu";
  "users.new": User;
}

/** Calls that are never made: only the compiler checks them. */
function onlyTypes(_: () => unknown): void {}

describe("types", () => {
  test("payloads of topics and patterns", () => {
    expectTypeOf<PayloadOf<Topics, "orders.new">>().toEqualTypeOf<Order>();
    expectTypeOf<PayloadOf<Topics, "orders.*">>().toEqualTypeOf<Order | Refund>();
    expectTypeOf<PayloadOf<Topics, "orders.**">>().toEqualTypeOf<"root" | "eu" | Order | Refund>();
    expectTypeOf<PayloadOf<Topics, "*.new">>().toEqualTypeOf<Order | User>();
    expectTypeOf<PayloadOf<Topics, "**.new">>().toEqualTypeOf<Order | User | "eu">();
    expectTypeOf<PayloadOf<Topics, "orders.*.new">>().toEqualTypeOf<"eu">();
    expectTypeOf<PayloadOf<Topics, "orders.**.new">>().toEqualTypeOf<Order | "eu">();
    expectTypeOf<PayloadOf<Topics, "*">>().toEqualTypeOf<"root">();
    expectTypeOf<PayloadOf<Topics, "**">>().toEqualTypeOf<Topics[keyof Topics]>();
    expectTypeOf<PayloadOf<Topics, "other.*">>().toEqualTypeOf<unknown>();
    expectTypeOf<PayloadOf<Topics, "dlq.orders.new">>().toEqualTypeOf<DeadLetter<Order>>();
    expectTypeOf<PayloadOf<Topics, "dlq.orders.*">>().toEqualTypeOf<DeadLetter<Order | Refund>>();
    expectTypeOf<PayloadOf<Topics, "dlq.**">>().toEqualTypeOf<DeadLetter<Topics[keyof Topics]>>();
    expectTypeOf<PayloadOf<Record<string, unknown>, "anything">>().toEqualTypeOf<unknown>();
    expectTypeOf<PayloadOf<Record<string, unknown>, "dlq.anything">>().toEqualTypeOf<unknown>();
  });

  test("topics of dead letters match only patterns that begin with dlq.", () => {
    type WithDlq = { a: 1; "dlq.a": DeadLetter<1> };
    expectTypeOf<PayloadOf<WithDlq, "**">>().toEqualTypeOf<1>();
    expectTypeOf<PayloadOf<WithDlq, "*">>().toEqualTypeOf<1>();
    expectTypeOf<PayloadOf<WithDlq, "dlq.a">>().toEqualTypeOf<DeadLetter<1>>();
  });

  test("topics and patterns that can be subscribed to", () => {
    expectTypeOf<"orders.new">().toExtend<SubscriptionOf<Topics>>();
    expectTypeOf<"orders.*">().toExtend<SubscriptionOf<Topics>>();
    expectTypeOf<"dlq.orders.new">().toExtend<SubscriptionOf<Topics>>();
    expectTypeOf<"orders.old">().not.toExtend<SubscriptionOf<Topics>>();
  });

  test("a typed client", () => {
    onlyTypes(() => {
      const client: Client<Topics> = connect("ws://localhost");
      const same = connect<Topics>("ws://localhost");
      expectTypeOf(same).toEqualTypeOf<Client<Topics, Topics>>();
      expectTypeOf(client.publish("orders.new", { total: 1 })).toEqualTypeOf<Promise<PublishResult>>();
      // @ts-expect-error: a topic that is not in the map
      void client.publish("orders.old", { total: 1 });
      // @ts-expect-error: a payload of another type
      void client.publish("orders.new", { total: "1" });
      // @ts-expect-error: a payload of another topic
      void client.publish("users.new", { total: 1 });
      // @ts-expect-error: an unknown option
      void client.publish("orders.new", { total: 1 }, { kee: "x" });
      void client.publishMany("orders.new", [{ total: 1 }]);
      // @ts-expect-error: one payload of another type
      void client.publishMany("orders.new", [{ total: 1 }, { total: "1" }]);

      const subscribed = client.subscribe("orders.new", "g", (event, ctx) => {
        expectTypeOf(event).toEqualTypeOf<StoredEvent<Order>>();
        expectTypeOf(ctx).toEqualTypeOf<DeliveryContext>();
      });
      expectTypeOf(subscribed).toEqualTypeOf<Promise<Subscription>>();
      void client.subscribe("orders.*", "g", ({ payload }) => { expectTypeOf(payload).toEqualTypeOf<Order | Refund>(); });
      void client.subscribe("**", "g", ({ payload }) => { expectTypeOf(payload).toEqualTypeOf<Topics[keyof Topics]>(); });
      void client.subscribe("dlq.orders.new", "g", ({ payload }) => {
        expectTypeOf(payload).toEqualTypeOf<DeadLetter<Order>>();
        expectTypeOf(payload.original.payload).toEqualTypeOf<Order>();
      });
      // @ts-expect-error: a topic that is not in the map
      void client.subscribe("orders.old", "g", () => {});
      // @ts-expect-error: a handler for another payload
      void client.subscribe("orders.new", "g", (event: StoredEvent<User>) => event);
      const handler: Handler<Order> = ({ payload }) => payload.total;
      void client.subscribe("orders.new", "g", handler);
      void client.subscribe("orders.new", "g", () => {}, { concurrency: 5, from: { afterId: "x" } });
      // @ts-expect-error: concurrency is an option of subscribe
      void client.consume("orders.new", "g", { concurrency: 5 });
      expectTypeOf(client.consume("orders.new", "g").next()).resolves.toEqualTypeOf<IteratorResult<Delivery<Order>, undefined>>();
      expectTypeOf(client.last("orders.new", 3)).resolves.toEqualTypeOf<StoredEvent<Order>[]>();
    });
  });

  test("a client without a map takes any topic and payload", () => {
    onlyTypes(() => {
      const client = connect("ws://localhost");
      void client.publish("anything", 1n);
      void client.subscribe("anything", "g", ({ payload }) => { expectTypeOf(payload).toEqualTypeOf<unknown>(); });
      // The caller may declare the payload type.
      void client.subscribe("anything", "g", ({ payload }: StoredEvent<Order>) => payload.total);
    });
  });

  test("schemas define the types: inputs for publish, outputs for handlers", () => {
    onlyTypes(() => {
      const client = connect("ws://localhost", {
        topics: {
          zod: z.object({ at: z.string().transform((text) => new Date(text)), note: z.string().default("") }),
          valibot: v.object({ count: v.pipe(v.string(), v.transform(Number)) }),
          arktype: type({ total: "number", "note?": "string" }),
        },
      });
      void client.publish("zod", { at: "2026-01-01" });
      void client.publish("valibot", { count: "1" });
      void client.publish("arktype", { total: 1 });
      // @ts-expect-error: the output is not the input
      void client.publish("zod", { at: new Date() });
      // @ts-expect-error: the output is not the input
      void client.publish("valibot", { count: 1 });
      // @ts-expect-error: a wrong type
      void client.publish("arktype", { total: "1" });
      // @ts-expect-error: a topic without a schema
      void client.publish("other", 1);
      void client.subscribe("zod", "g", ({ payload }) => { expectTypeOf(payload).toEqualTypeOf<{ at: Date; note: string }>(); });
      void client.subscribe("valibot", "g", ({ payload }) => { expectTypeOf(payload).toEqualTypeOf<{ count: number }>(); });
      void client.subscribe("arktype", "g", ({ payload }) => { expectTypeOf(payload).toEqualTypeOf<{ total: number; note?: string }>(); });
      void client.subscribe("dlq.valibot", "g", ({ payload }) => { expectTypeOf(payload).toEqualTypeOf<DeadLetter<{ count: number }>>(); });
    });
  });

  test("new Client and connect return the same types", () => {
    onlyTypes(() => { expectTypeOf(new Client<Topics>("ws://localhost")).toEqualTypeOf(connect<Topics>("ws://localhost")); });
  });
});

describe("validate", () => {
  test("is synchronous if the schema is", () => {
    expect(validate({ t: z.string() as never }, "t", "x")).toBe("x");
    expect(validate(undefined, "t", 1)).toBe(1);
    expect(validate({}, "t", 1)).toBe(1);
    expect(() => validate({ t: z.string() as never }, "t", 1)).toThrow("payload of t");
  });
});
