// @ts-check
// A shop that writes orders to SQLite and publishes them through an outbox.
//
//   node outbox-sqlite/shop.mjs 3          sells three items, publishes all pending rows, and exits
//
// Needs Node 22.5 or newer (node:sqlite), or better-sqlite3.
import { connect, runOutboxDrainer, uuidv7 } from "@prombus/client";
import { openDatabase, SqliteOutbox } from "@prombus/client/sqlite";

const count = Number(process.argv[2] ?? 3);
const database = await openDatabase(process.env.SHOP_DB ?? "shop.db");
database.exec("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, item TEXT NOT NULL)");
const outbox = new SqliteOutbox(database);

// Order and event are written in one transaction: after a crash, both exist or neither does. Without an outbox, publishing after the
// commit could lose the event, and publishing before the commit could announce an order that does not exist.
for (let n = 1; n <= count; n++) {
  const id = uuidv7();
  database.exec("BEGIN IMMEDIATE");
  try {
    database.prepare("INSERT INTO orders (id, item) VALUES (?, ?)").run(id, `item ${n}`);
    outbox.add({ id, topic: "orders.new", payload: { order: id, item: `item ${n}` } });
    database.exec("COMMIT");
  } catch (error) {
    database.exec("ROLLBACK");
    throw error;
  }
}
console.log(`sold ${count}; in the outbox: ${describe()}`);

// For tests: the process dies between the commit and the publish.
if (process.env.DIE_BEFORE_PUBLISH !== undefined) process.kill(process.pid, "SIGKILL");

// The row's id is the event's id. If a drainer dies after the publish and before it has marked the row as sent, the row is published
// again and the server adds nothing: each order becomes one event.
const bus = connect(process.env.PROMBUS_URL ?? "ws://127.0.0.1:8090", { token: process.env.PROMBUS_TOKEN });
const stop = new AbortController();
const draining = runOutboxDrainer(outbox, bus, {
  signal: stop.signal,
  intervalMs: 50,
  onError: (error, row) => console.error(`outbox${row === undefined ? "" : `, row ${row.id}`}: ${error}`),
});
for (const signal of /** @type {const} */ (["SIGTERM", "SIGINT"])) process.once(signal, () => stop.abort());

// A service would run the drainer until it stops. This program exits when no row is left to publish.
while (!stop.signal.aborted && waiting() > 0) await new Promise((resolve) => setTimeout(resolve, 20));
stop.abort();
await draining;
await bus.close();
console.log(`in the outbox: ${describe()}`);
database.close();

function waiting() {
  const { pending = 0, claimed = 0, error = 0 } = outbox.counts();
  return pending + claimed + error;
}

function describe() {
  return Object.entries(outbox.counts()).map(([status, n]) => `${n} ${status}`).join(", ");
}
