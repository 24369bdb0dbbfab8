/**
 * Kills and restarts the server five times while two clients publish and consume: nothing is lost, nothing is stored
 * twice, everything is acked, and the clients leave nothing behind. Runs in this Node with `ws`, in the newest Node and in Chromium.
 *
 * `KILL_SEED` repeats a run; the moments of the kills still depend on the machine.
 */
import { spawn } from "node:child_process";
import { readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { expect, test, type TestContext } from "vitest";
import { skipsChromium, startOrigin, withPage } from "../support/browser.js";
import { bundleForBrowser, bundleForNode, cacheFolder, emptyFolder } from "../support/bundle.js";
import { fixedPort } from "../support/ports.js";
import { randomFrom } from "../support/random.mjs";
import { findRuntime } from "../support/runtimes.js";
import { startServer, type TestServer } from "../support/server.js";

const EVENTS = Number(process.env["KILL_EVENTS"] ?? 20_000);
const KILLS = 5;
const TIMEOUT_MS = 180_000;
/** A program that has closed its clients must end by itself within this time. */
const EXIT_TIMEOUT_MS = 10_000;

interface Progress {
  published: number;
  handled: number;
  /** Whether both clients are connected. */
  isConnected: boolean;
  /** How often each client has reconnected, at least. */
  reconnects: number;
}

/** The result of `kill-workload.mjs`, and the fields that the program around it adds. */
interface Result {
  published: { n: number; topic: string; id: string; seq: number; duplicate: boolean }[];
  errors: string[];
  reconnects: number[];
  groups: { topic: string; group: string; lag: number }[];
  states: string[];
  audited: number;
  handled: { workers: number; audit: number };
  handledTwice: { workers: number; audit: number };
  runtime: string;
  unhandled: string[];
  leftovers: string[];
}

interface NodeResult extends Result {
  hasWebSocket: boolean;
  resources: string[];
  processListeners: [unknown, unknown];
}

/** Runs the workload in some runtime; must call `onProgress` with its progress. */
type RunWorkload<R> = (server: TestServer, seed: number, onProgress: (progress: Progress) => void) => Promise<R>;

test("Node 20 with ws: five kills lose nothing and duplicate nothing", { timeout: TIMEOUT_MS }, async () => {
  const folder = await cacheFolder("kill");
  try {
    const result = await killTest({}, runInNode(process.execPath, folder));
    expect(result.hasWebSocket).toBe(Number(process.versions.node.split(".")[0]) >= 22);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});

test("the newest Node without ws: five kills lose nothing and duplicate nothing", { timeout: TIMEOUT_MS }, async (context) => {
  const binary = await newestNode(context);
  const folder = await emptyFolder("kill");
  try {
    const result = await killTest({}, runInNode(binary, folder));
    expect(result.hasWebSocket).toBe(true);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});

test.skipIf(skipsChromium)("Chromium: five kills lose nothing and duplicate nothing", { timeout: TIMEOUT_MS }, async () => {
  const script = await bundleForBrowser("test/real/kill-page.mjs");
  let onPost: (path: string, body: string) => void = () => {};
  const origin = await startOrigin({
    scripts: { "/kill.js": script },
    html: '<script type="module" src="/kill.js"></script>',
    onPost: (path, body) => onPost(path, body),
  });
  try {
    await killTest({ PROMBUS_HTTP_CORS_ORIGINS: origin.url }, (server, seed, onProgress) => {
      const result = new Promise<Result>((done, failed) => {
        onPost = (path, body) => {
          if (path === "/progress") onProgress(JSON.parse(body) as Progress);
          else if (path === "/result") done(JSON.parse(body) as Result);
          else failed(new Error(body));
        };
      });
      const query = new URLSearchParams({ url: server.ws, seed: String(seed), events: String(EVENTS) });
      return withPage(`${origin.url}/?${query}`, result);
    });
  } finally {
    await origin.stop();
  }
});

async function newestNode(context: TestContext): Promise<string> {
  const runtime = await findRuntime("node");
  if (runtime.missing !== undefined) {
    if (process.env["CI"] === "true") throw new Error(runtime.missing);
    return context.skip(runtime.missing);
  }
  expect(Number(runtime.version.split(".")[0])).toBeGreaterThanOrEqual(22);
  return runtime.binary;
}

/** Runs the workload, kills the server during it, and checks the result against the stored events. */
async function killTest<R extends Result>(env: Record<string, string>, work: RunWorkload<R>): Promise<R> {
  const seed = Number(process.env["KILL_SEED"] ?? Math.floor(Math.random() * 2 ** 32));
  console.log(`seed: KILL_SEED=${seed}`);
  const server = await startServer({ listen: `127.0.0.1:${await fixedPort()}`, env });
  try {
    const startedAt = Date.now();
    const killer = new Killer(server, seed);
    const result = await work(server, seed, (progress) => killer.progress(progress));
    const kills = await killer.finish();
    const { runtime, reconnects, handledTwice } = result;
    const resent = result.published.filter(({ duplicate }) => duplicate).length;
    console.log(
      `${runtime}: ${EVENTS} events and ${kills} kills in ${Date.now() - startedAt} ms; ` +
        `${reconnects.join(" and ")} reconnects, ` +
        `${resent} resent publishes were stored before, ${handledTwice.workers + handledTwice.audit} events were handled again`,
    );
    expect(kills).toBe(KILLS);
    await checkResult(server, result);
    return result;
  } finally {
    await server.remove();
  }
}

async function checkResult(server: TestServer, result: Result): Promise<void> {
  expect(result.errors).toEqual([]);
  expect(result.unhandled).toEqual([]);
  expect(result.states).toEqual(["closed", "closed"]);
  expect(result.leftovers).toEqual([]);
  for (const count of result.reconnects) expect(count).toBeGreaterThanOrEqual(KILLS);
  expect(result.handled).toEqual({ workers: EVENTS, audit: result.audited });
  const lags = result.groups.map(({ topic, group, lag }) => `${topic} ${group} ${lag}`).sort();
  expect(lags).toEqual(["kill.* workers 0", "kill.1 audit 0"]);

  const stored = await exported(server, "kill.*");
  expect(stored.length).toBe(EVENTS);
  const byNumber = new Map(stored.map((event) => [event.payload.n, event]));
  expect(byNumber.size).toBe(EVENTS);
  expect(result.published.length).toBe(EVENTS);
  const wrong = result.published.filter(({ n, topic, id, seq }) => {
    const event = byNumber.get(n);
    return event === undefined || event.topic !== topic || event.id !== id || event.seq !== seq;
  });
  expect(wrong).toEqual([]);
  expect(await exported(server, "dlq.**")).toEqual([]);
  const groups = await (await fetch(`${server.http}/groups`)).json() as { groups: { lag: number; members: number }[] };
  expect(groups.groups.map(({ lag, members }) => ({ lag, members }))).toEqual([{ lag: 0, members: 0 }, { lag: 0, members: 0 }]);
}

interface Stored {
  id: string;
  seq: number;
  topic: string;
  payload: { n: number };
}

async function exported(server: TestServer, pattern: string): Promise<Stored[]> {
  const response = await fetch(`${server.http}/export?topic=${encodeURIComponent(pattern)}`);
  if (!response.ok) throw new Error(`export: ${response.status} ${await response.text()}`);
  return (await response.text()).split("\n").filter((line) => line !== "").map((line) => JSON.parse(line) as Stored);
}

/** Kills the server with SIGKILL five times during the work, and restarts it at once. */
class Killer {
  readonly #server: TestServer;
  /** Sums of published and handled events at which the server is killed next. */
  readonly #moments: number[];
  #restarting: Promise<void> | undefined;
  #kills = 0;
  #failure: unknown;

  constructor(server: TestServer, seed: number) {
    this.#server = server;
    const random = randomFrom(seed + 1);
    this.#moments = Array.from({ length: KILLS }, (_, index) => (2 * EVENTS * (index + 0.2 + 0.6 * random())) / (KILLS + 0.5));
  }

  progress({ published, handled, isConnected, reconnects }: Progress): void {
    const moment = this.#moments[0];
    if (moment === undefined || published + handled < moment) return;
    // Both clients must notice each kill.
    if (this.#restarting !== undefined || !isConnected || reconnects < this.#kills) return;
    this.#moments.shift();
    this.#kills += 1;
    this.#restarting = this.#server.restart("SIGKILL").then(
      () => { this.#restarting = undefined; },
      (error: unknown) => { this.#failure = error; },
    );
  }

  /** The number of kills. */
  async finish(): Promise<number> {
    await this.#restarting;
    if (this.#failure !== undefined) throw this.#failure;
    return this.#kills;
  }
}

/** Runs `kill-worker.mjs` with a Node; the client is bundled into `folder`. */
function runInNode(binary: string, folder: string): RunWorkload<NodeResult> {
  return async (server, seed, onProgress) => {
    const client = await bundleForNode(folder);
    const resultFile = join(folder, "result.json");
    const worker = spawn(
      binary,
      [join(import.meta.dirname, "kill-worker.mjs"), client, server.ws, String(seed), String(EVENTS), resultFile],
      { stdio: ["ignore", "pipe", "pipe"] },
    );
    let log = "";
    worker.stderr.on("data", (piece: Buffer) => (log += piece.toString()));
    let late: NodeJS.Timeout | undefined;
    let isLate = false;
    createInterface({ input: worker.stdout }).on("line", (line) => {
      const message = JSON.parse(line) as Progress | { closed: true };
      if (!("closed" in message)) return onProgress(message);
      late = setTimeout(() => {
        isLate = true;
        worker.kill("SIGKILL");
      }, EXIT_TIMEOUT_MS);
    });
    const status = await new Promise((done, failed) => {
      worker.once("error", failed);
      worker.once("close", (code, signal) => done(code ?? signal));
    }).finally(() => {
      clearTimeout(late);
      worker.kill("SIGKILL");
    });
    expect(isLate ? "did not exit by itself" : status, log).toBe(0);
    expect(log).toBe("");
    const result = JSON.parse(await readFile(resultFile, "utf8")) as NodeResult;
    expect(result.resources).toEqual([]);
    expect(result.processListeners[1]).toEqual(result.processListeners[0]);
    return result;
  };
}
