// Runs the kill workload in Node: node kill-worker.mjs <client module> <ws url> <seed> <events> <file for the result>
//
// Prints its progress as lines of JSON. It does not call process.exit, so anything that the client leaves behind keeps it running.
import { writeFileSync } from "node:fs";
import { countLeftovers } from "../support/leftovers.mjs";
import { runKillWorkload } from "./kill-workload.mjs";

const [clientModule, url, seed, events, resultFile] = process.argv.slice(2);
const unhandled = [];
process.on("unhandledRejection", (reason) => unhandled.push(String(reason?.stack ?? reason)));
process.on("warning", (warning) => unhandled.push(String(warning)));

// Node's fetch keeps idle connections open with timers that do not keep the process alive. It also adds listeners to
// signals and removes them only when they are garbage-collected.
const leftovers = countLeftovers({ listeners: false, ignore: /node:internal\/deps\/undici/ });
const listenersBefore = process.eventNames().map((name) => [String(name), process.listenerCount(name)]);
const hasWebSocket = typeof globalThis.WebSocket === "function";

const { connect, NackError } = await import(clientModule);
const result = await runKillWorkload({
  connect,
  NackError,
  url,
  seed: Number(seed),
  events: Number(events),
  onProgress: (progress) => process.stdout.write(`${JSON.stringify(progress)}\n`),
});

// Callbacks of closed sockets run in the next turns of the event loop.
await new Promise((done) => setImmediate(() => setImmediate(done)));
// Pipes belong to the standard streams of this process.
const resources = process.getActiveResourcesInfo().filter((name) => name !== "PipeWrap");
const listenersAfter = process.eventNames().map((name) => [String(name), process.listenerCount(name)]);
writeFileSync(resultFile, JSON.stringify({
  ...result,
  runtime: `Node ${process.version}, ${hasWebSocket ? "global WebSocket" : "ws"}`,
  hasWebSocket,
  unhandled,
  leftovers: leftovers(),
  resources,
  processListeners: [listenersBefore, listenersAfter],
}));
process.stdout.write(`${JSON.stringify({ closed: true })}\n`);
