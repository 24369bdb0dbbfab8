// Runs the kill workload in a page. The page calls `startKillWorkload` and reads `killResult`.
import { countLeftovers } from "../support/leftovers.mjs";
import { runKillWorkload } from "./kill-workload.mjs";

const unhandled = [];
globalThis.addEventListener("unhandledrejection", ({ reason }) => unhandled.push(String(reason?.stack ?? reason)));
globalThis.addEventListener("error", ({ message }) => unhandled.push(message));

globalThis.startKillWorkload = async ({ url, seed, events }) => {
  // Not earlier: Playwright adds listeners of its own. The client is loaded after it, so that it gets the functions that count.
  const leftovers = countLeftovers();
  const { connect, NackError } = await import("@prombus/client");
  const result = await runKillWorkload({ connect, NackError, url, seed, events, onProgress: globalThis.reportProgress });
  return { ...result, runtime: navigator.userAgent, unhandled, leftovers: leftovers() };
};
