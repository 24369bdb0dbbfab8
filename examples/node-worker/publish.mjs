// @ts-check
// Publishes orders: node node-worker/publish.mjs [customer=total ...]
import { connect } from "@prombus/client";

const bus = connect(process.env.PROMBUS_URL ?? "ws://127.0.0.1:8090", { token: process.env.PROMBUS_TOKEN });

const args = process.argv.slice(2);
const orders = (args.length > 0 ? args : ["ada=12", "flaky=7", "busy=5", "blocked=9", "eve=-1"]).map((text) => {
  const [customer = "", total] = text.split("=");
  return { customer, total: Number(total) };
});

// Resolves when all orders are durable. The client gives each order an id, so an order that is sent again after a reconnect is stored
// once.
const results = await bus.publishMany("orders.new", orders);
for (const [index, { seq }] of results.entries()) console.log(`order ${seq}: ${orders[index]?.customer}`);
await bus.close();
