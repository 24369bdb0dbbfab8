/** The helpers accept a typed client, a client with schemas, and the sketch's bus. Checked by the compiler (`npm run check`). */
import { expectTypeOf, test } from "vitest";
import { z } from "zod";
import { type Client, connect } from "../src/client.js";
import { type DedupeStore, subscribeExactlyOnce } from "../src/exactly-once.js";
import { type OutboxStore, runOutboxDrainer } from "../src/outbox.js";
import { Projector } from "../src/projector.js";
import type { EventBus } from "../src/promethean/index.js";
import type { DeliveryContext, EventRecord } from "../src/types.js";
import type { Subscription } from "../src/subscription.js";

interface Order {
  total: number;
}

// Never called: the compiler checks its types.
export async function typed(store: DedupeStore, outbox: OutboxStore<Order>, bus: EventBus): Promise<void> {
  const client: Client<{ "orders.new": Order }> = connect("ws://127.0.0.1:8090");
  const checked = connect("ws://127.0.0.1:8090", { topics: { "orders.new": z.object({ total: z.number() }) } });

  const subscription = await subscribeExactlyOnce(client, "orders.new", "g", store, async (event: EventRecord<Order>, ctx) => {
    expectTypeOf(event.payload.total).toBeNumber();
    expectTypeOf(ctx).toEqualTypeOf<DeliveryContext>();
  }, { from: "earliest", ttlMs: 1_000, concurrency: 4 });
  expectTypeOf(subscription).toEqualTypeOf<Subscription>();
  // @ts-expect-error: no such start
  await subscribeExactlyOnce(client, "orders.new", "g", store, async () => {}, { from: "nowhere" });

  await subscribeExactlyOnce(checked, "orders.new", "g", store, (event) => expectTypeOf(event.payload).toBeUnknown());
  const unsubscribe = await subscribeExactlyOnce(bus, "orders.new", "g", store, async () => {}, { maxAttempts: 3 });
  expectTypeOf(unsubscribe).toEqualTypeOf<() => Promise<void>>();

  await runOutboxDrainer(outbox, client);
  await runOutboxDrainer(outbox, checked, 250);
  await runOutboxDrainer(outbox, bus, { batchSize: 10 });

  await Projector.open<number, Order>(client, { input: "orders.new", output: "totals", group: "g" }, {
    fold: (event, states) => states.set("all", (states.get("all") ?? 0) + event.payload.total),
  });
}

test("the types are checked by the compiler", () => {
  expectTypeOf(typed).toBeFunction();
});
