// Compares this client with plain `ws` sending the same frames to the same server: publishing with 1,000 in flight, and consuming with
// acks. The runs alternate. Plain `ws` sends prebuilt frames and parses as little as possible, so the ratio shows the cost of promises,
// ids, resends and leases.
//
//   npm run build && node bench/throughput.mjs [--binary ../../target/release/prombus] [--count 100000] [--rounds 3]
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import WebSocket from "ws";
import { connect, uuidv7 } from "../dist/esm/index.js";

const { values } = parseArgs({
  options: {
    binary: { type: "string", default: join(import.meta.dirname, "../../../target/release/prombus") },
    count: { type: "string", default: "100000" },
    rounds: { type: "string", default: "3" },
    /** The exit code is 1 if a ratio is lower. */
    least: { type: "string", default: "0" },
  },
});
const COUNT = Number(values.count);
const IN_FLIGHT = 1_000;
const PAYLOAD = { text: "x".repeat(240) };

const data = await mkdtemp(join(tmpdir(), "prombus-bench-"));
const server = spawn(values.binary, ["serve", "--listen", "127.0.0.1:0", "--data", data], { stdio: ["ignore", "pipe", "inherit"] });
process.on("exit", () => server.kill("SIGKILL"));
const url = await new Promise((found, failed) => {
  let text = "";
  server.once("exit", (code) => failed(new Error(`the server ended with ${code}`)));
  server.stdout.on("data", (piece) => {
    text += piece;
    const address = /^listen: +(ws:\S+)/m.exec(text)?.[1];
    if (address !== undefined && /^try:.*\n/m.test(text)) found(address);
  });
});

/** Runs `run`, which sends or receives `COUNT` events, and returns events per second. */
async function rate(run) {
  const startedAt = performance.now();
  await run();
  return COUNT / ((performance.now() - startedAt) / 1000);
}

async function plainSocket() {
  const socket = new WebSocket(new URL("/ws", url));
  await new Promise((opened, failed) => socket.on("open", opened).on("error", failed));
  return socket;
}

async function publishPlain(topic) {
  const socket = await plainSocket();
  const frames = Array.from({ length: COUNT }, (_, corr) =>
    JSON.stringify({ op: "PUBLISH", corr, topic, payload: PAYLOAD, opts: { id: uuidv7() } }));
  const result = await rate(() => new Promise((done, failed) => {
    let sent = 0;
    let answered = 0;
    socket.on("message", (data) => {
      if (JSON.parse(data.toString()).op !== "OK") return failed(new Error(data.toString()));
      answered += 1;
      if (sent < COUNT) socket.send(frames[sent++]);
      else if (answered === COUNT) done();
    });
    while (sent < Math.min(IN_FLIGHT, COUNT)) socket.send(frames[sent++]);
  }));
  socket.close();
  return result;
}

async function publishClient(topic) {
  const client = connect(url);
  await client.ready();
  const result = await rate(async () => {
    let sent = 0;
    const worker = async () => {
      while (sent < COUNT) {
        sent += 1;
        await client.publish(topic, PAYLOAD);
      }
    };
    await Promise.all(Array.from({ length: IN_FLIGHT }, worker));
  });
  await client.close();
  return result;
}

async function consumePlain(topic, group) {
  const socket = await plainSocket();
  const result = await rate(() => new Promise((done, failed) => {
    let seen = 0;
    socket.on("message", (data) => {
      const frame = JSON.parse(data.toString());
      if (frame.op === "ERR") return failed(new Error(frame.msg));
      if (frame.op !== "EVENT") return;
      socket.send(JSON.stringify({ op: "ACK", topic, group, id: frame.event.id }));
      seen += 1;
      if (seen === COUNT) done();
    });
    socket.send(JSON.stringify({ op: "SUBSCRIBE", topic, group, opts: { from: "earliest", maxInFlight: IN_FLIGHT } }));
  }));
  socket.close();
  return result;
}

async function consumeClient(topic, group) {
  const client = connect(url);
  await client.ready();
  const result = await rate(() => new Promise((done) => {
    let seen = 0;
    void client.subscribe(topic, group, () => {
      seen += 1;
      if (seen === COUNT) done();
    }, { from: "earliest", maxInFlight: IN_FLIGHT });
  }));
  await client.close();
  return result;
}

const median = (list) => list.toSorted((a, b) => a - b)[Math.floor(list.length / 2)];
const rates = { publish: { plain: [], client: [] }, consume: { plain: [], client: [] } };
for (let round = 0; round < Number(values.rounds); round += 1) {
  // The order alternates between rounds, so that neither side always runs on the warmer machine.
  const order = round % 2 === 0 ? ["plain", "client"] : ["client", "plain"];
  for (const who of order) {
    rates.publish[who].push(await (who === "plain" ? publishPlain : publishClient)(`bench.${who}.${round}`));
  }
  for (const who of order) {
    rates.consume[who].push(await (who === "plain" ? consumePlain : consumeClient)(`bench.plain.${round}`, who));
  }
}
server.removeAllListeners("exit");
server.kill("SIGTERM");
await new Promise((ended) => server.once("exit", ended));
await rm(data, { recursive: true, force: true });

console.log(`Node ${process.version}, ${COUNT} events of ${JSON.stringify(PAYLOAD).length} bytes, ${IN_FLIGHT} in flight, median of ${values.rounds}`);
let isTooSlow = false;
for (const [name, { plain, client }] of Object.entries(rates)) {
  const ratio = median(client.map((rate, round) => rate / plain[round]));
  isTooSlow ||= ratio < Number(values.least);
  console.log(
    `${name}: plain ws ${Math.round(median(plain))}/s, client ${Math.round(median(client))}/s, ` +
      `ratio ${(100 * ratio).toFixed(0)} % (${client.map((rate, round) => (100 * rate / plain[round]).toFixed(0)).join(", ")})`,
  );
}
process.exitCode = isTooSlow ? 1 : 0;
