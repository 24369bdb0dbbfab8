// Runs the kill workload in a page: /?url=<ws url>&seed=<seed>&events=<events>
//
// Posts its progress to /progress and its result to /result.
import { countLeftovers } from "../support/leftovers.mjs";
import { runKillWorkload } from "./kill-workload.mjs";

const unhandled = [];
globalThis.addEventListener("unhandledrejection", ({ reason }) => unhandled.push(String(reason?.stack ?? reason)));
globalThis.addEventListener("error", ({ message }) => unhandled.push(message));
const leftovers = countLeftovers();

const post = (path, value) => fetch(path, { method: "POST", body: JSON.stringify(value) });
const options = new URLSearchParams(location.search);
try {
  // Loaded only now, so that it uses the counting functions.
  const { connect, NackError } = await import("@prombus/client");
  const result = await runKillWorkload({
    connect,
    NackError,
    url: options.get("url"),
    seed: Number(options.get("seed")),
    events: Number(options.get("events")),
    onProgress: (progress) => void post("/progress", progress),
  });
  const runtime = /Chrome\/[\d.]+/.exec(navigator.userAgent)?.[0] ?? navigator.userAgent;
  await post("/result", { ...result, runtime, unhandled, leftovers: leftovers() });
} catch (thrown) {
  await post("/failure", String(thrown?.stack ?? thrown));
}
