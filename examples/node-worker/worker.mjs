// @ts-check
// A worker: bills orders, retries failures, gives up orders that cannot succeed, and stops cleanly on SIGTERM.
//
//   node node-worker/worker.mjs            in one terminal, or in several: the workers share the orders
//   node node-worker/publish.mjs           in another terminal
import { setTimeout as sleep } from "node:timers/promises";
import { connect, NackError, RejectError } from "@prombus/client";

/** @typedef {{ customer: string, total: number }} Order */
/** @typedef {{ order: string, customer: string, total: number }} Invoice */

/** @type {import("@prombus/client").Client<{ "orders.new": Order, "invoices.new": Invoice }>} */
const bus = connect(process.env.PROMBUS_URL ?? "ws://127.0.0.1:8090", { token: process.env.PROMBUS_TOKEN });

// Without these listeners a worker that cannot reach its server would be silent.
bus.on("reconnecting", ({ error, delayMs }) => console.error(`${error.message}; next attempt in ${Math.round(delayMs)} ms`));
bus.on("nack", ({ id, attempt, error }) => console.error(`order ${id}, attempt ${attempt}: ${error}`));
// The token was refused, or the server ended a subscription: exit, so that the supervisor restarts the worker.
bus.on("closed", ({ error }) => { if (error !== undefined) fail(error); });
bus.on("error", fail);

await bus.subscribe("orders.new", "billing", async (event, ctx) => {
  const order = event.payload;
  // A retry cannot help: make the event a dead letter at once.
  if (!(order.total > 0)) throw new RejectError("the total must be positive");

  await charge(order, ctx);

  // The handler may run twice for one order, e.g. if the process dies before the ack. Because the key is derived from the event, the
  // second run adds no second invoice. `caused_by` links the invoice to its order.
  const invoice = { order: event.id, customer: order.customer, total: order.total };
  await bus.publish("invoices.new", invoice, { idempotencyKey: `invoice for ${event.id}`, caused_by: [event.id] });
  console.log(`billed ${order.customer}: ${order.total} (attempt ${ctx.attempt})`);
}, {
  from: "earliest", // a new group starts with the oldest order; an existing group continues at its position
  concurrency: 4,
  maxAttempts: 3,
});

// Dead letters are ordinary events, so a group can read them. This group only reports them. After a fix, publish
// `letter.original.payload` again with a new id.
await bus.subscribe("dlq.orders.new", "billing-report", (event) => {
  const letter = event.payload;
  console.log(`gave up ${letter.original.payload.customer} after ${letter.attempts} attempts: ${letter.err}`);
}, { from: "earliest" });

console.log("worker is ready");

for (const signal of /** @type {const} */ (["SIGTERM", "SIGINT"])) {
  process.once(signal, async () => {
    console.log("stopping: waiting for running handlers");
    // Running handlers finish and their events are acked. Events that are still waiting for a handler go to other members at once,
    // which does not count as an attempt.
    await bus.close({ timeoutMs: 10_000 });
    console.log("stopped");
  });
}

/**
 * Simulates a payment provider.
 * @param {Order} order
 * @param {import("@prombus/client").DeliveryContext} ctx
 */
async function charge(order, ctx) {
  // `ctx.signal` aborts when the lease is lost: another worker may have the order, so stop working on it.
  await sleep(order.customer === "slow" ? 500 : 10, undefined, { signal: ctx.signal });
  // The provider asked for a retry after a delay. Without a delay the server uses its backoff: 100 ms, doubling to 30 s.
  if (order.customer === "busy" && ctx.attempt === 1) throw new NackError("provider is busy", { delayMs: 300 });
  if (order.customer === "flaky" && ctx.attempt === 1) throw new Error("provider timed out");
  if (order.customer === "blocked") throw new Error("card refused");
}

/** @param {unknown} error */
function fail(error) {
  console.error(error);
  process.exitCode = 1;
  void bus.close();
}
