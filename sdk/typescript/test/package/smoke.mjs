// Publishes, subscribes, reads and closes in any runtime. Run in a project that has installed the package:
//   <runtime> smoke.mjs <ws url>
import { connect } from "@prombus/client";

const url = (globalThis.process?.argv ?? globalThis.Deno?.args).at(-1);
const bus = connect(url);
const received = [];
let finish;
const finished = new Promise((done) => { finish = done; });
await bus.subscribe("smoke", "workers", async (event) => {
  received.push(event.payload.n);
  if (received.length === 100) finish();
}, { from: "earliest", concurrency: 8 });
const results = await bus.publishMany("smoke", Array.from({ length: 100 }, (_, n) => ({ n })));
await finished;
const last = (await bus.last("smoke", 1))[0].seq;
await bus.close();
console.log(JSON.stringify({ seqs: results.length, last, sum: received.reduce((sum, n) => sum + n, 0), status: bus.status }));
