/**
 * Runs each program of `examples/` against the real server, and checks its output and its effects. `guide.test.ts`
 * type-checks them.
 */
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { cp, mkdir, readFile, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { Browser } from "playwright-core";
import { afterAll, afterEach, beforeAll, describe, expect, it, type TestContext } from "vitest";
import { launchBrowser } from "./support/browser.js";
import { fixedPort } from "./support/ports.js";
import { findRuntime } from "./support/runtimes.js";
import { type ServerOptions, startServer, type TestServer } from "./support/server.js";
import { killPrograms, makeWorkspace, type Program, REPOSITORY, runProgram, type Workspace } from "./support/workspace.js";

const TARGET = process.env["PROMBUS_BIN"] === undefined
  ? join(REPOSITORY, "target/debug")
  : dirname(process.env["PROMBUS_BIN"]);
const TOKEN = "examples-token";

let workspace: Workspace;
const servers: TestServer[] = [];

beforeAll(async () => {
  workspace = await makeWorkspace();
  await cp(join(REPOSITORY, "examples"), workspace.folder, {
    recursive: true,
    filter: (path) => !/\/(node_modules|\.venv|package(-lock)?\.json)$/.test(path),
  });
});

afterEach(async () => {
  killPrograms();
  await Promise.all(servers.splice(0).map((server) => server.remove()));
});

afterAll(() => workspace.remove());

/** A required runtime is missing: fails under CI, otherwise skips the test with a message. */
function missing(context: TestContext, why: string): never {
  if (process.env["CI"] === "true") throw new Error(why);
  console.error(`SKIPPED: ${why}`);
  context.skip(why);
  throw new Error("not reached");
}

async function serve(options: ServerOptions = {}): Promise<TestServer> {
  const server = await startServer({ token: TOKEN, listen: `127.0.0.1:${await fixedPort()}`, ...options });
  servers.push(server);
  return server;
}

/** Starts an example program with the server's URLs in its environment. */
function run(server: TestServer, command: string, args: string[], env: Record<string, string> = {}): Program {
  return runProgram(command, args, {
    cwd: workspace.folder,
    env: { PROMBUS_URL: server.ws, PROMBUS_HTTP: server.http, PROMBUS_TOKEN: TOKEN, ...env },
  });
}

async function get(server: TestServer, path: string): Promise<Response> {
  return await fetch(server.http + path, { headers: { authorization: `Bearer ${TOKEN}` } });
}

interface Stored {
  id: string;
  topic: string;
  payload: { text?: string; customer?: string; err?: string; attempts?: number; original?: Stored };
  caused_by?: string[];
}

async function stored(server: TestServer, topic: string): Promise<Stored[]> {
  const response = await get(server, `/export?topic=${topic}`);
  if (response.status === 404) return [];
  const text = await response.text();
  return text.split("\n").filter((line) => line !== "").map((line) => JSON.parse(line) as Stored);
}

async function group(server: TestServer, topic: string, name: string): Promise<{ lag: number; in_flight: number; members: number }> {
  return (await (await get(server, `/groups/${topic}/${name}`)).json()) as { lag: number; in_flight: number; members: number };
}

/** Polls the server. */
async function eventually(claim: () => Promise<void>): Promise<void> {
  const end = Date.now() + 15_000;
  for (;;) {
    try {
      return await claim();
    } catch (error) {
      if (Date.now() > end) throw error;
      await new Promise((done) => setTimeout(done, 50));
    }
  }
}

describe("examples", { timeout: 90_000 }, () => {
  it("node-worker retries, gives up, and finishes its work on SIGTERM", async () => {
    const server = await serve();
    const worker = run(server, process.execPath, ["node-worker/worker.mjs"]);
    await worker.saw("worker is ready");
    const published = run(server, process.execPath, ["node-worker/publish.mjs"]);
    expect(await published.ended).toBe(0);
    expect(published.lines).toEqual(["order 1: ada", "order 2: flaky", "order 3: busy", "order 4: blocked", "order 5: eve"]);

    await worker.saw("billed ada: 12 (attempt 1)");
    await worker.saw("billed flaky: 7 (attempt 2)");
    await worker.saw("billed busy: 5 (attempt 2)");
    await worker.saw("gave up eve after 1 attempts: the total must be positive");
    await worker.saw("gave up blocked after 3 attempts: card refused");
    const letters = await stored(server, "dlq.orders.new");
    expect(letters.map(({ payload }) => payload.original?.payload.customer)).toEqual(["eve", "blocked"]);

    // A handler that is running at SIGTERM finishes, and its order is acked.
    await run(server, process.execPath, ["node-worker/publish.mjs", "slow=3"]).ended;
    await eventually(async () => expect((await group(server, "orders.new", "billing")).in_flight).toBe(1));
    expect(await worker.stop()).toBe(0);
    expect(worker.lines.slice(-3)).toEqual([
      "stopping: waiting for running handlers", "billed slow: 3 (attempt 1)", "stopped",
    ]);
    expect(await group(server, "orders.new", "billing")).toMatchObject({ lag: 0, members: 0 });
    const orders = await stored(server, "orders.new");
    const invoices = await stored(server, "invoices.new");
    expect(invoices.map(({ payload }) => payload.customer).sort()).toEqual(["ada", "busy", "flaky", "slow"]);
    for (const invoice of invoices) expect(orders.map(({ id }) => id)).toContain(invoice.caused_by?.[0]);
  });

  it("agent-inbox keeps a question until an agent has answered it, even after a crash", async () => {
    const server = await serve();
    const asking = run(server, process.execPath, ["agent-inbox/ask.mjs", "bob", "ada", "who are you?"]);
    await asking.saw("asked ada");
    const first = run(server, process.execPath, ["agent-inbox/agent.mjs", "ada"], { THINK_MS: "60000" });
    await first.saw("bob asks: who are you? (attempt 1)");
    expect(await first.stop("SIGKILL")).toBe("SIGKILL");

    const second = run(server, process.execPath, ["agent-inbox/agent.mjs", "ada"]);
    await second.saw("bob asks: who are you? (attempt 2)");
    expect(await asking.ended).toBe(0);
    expect(asking.lines.at(-1)).toBe("ada replied: WHO ARE YOU?");
    await second.saw("replied to bob");
    await eventually(async () => expect(await group(server, "agents.ada.inbox", "ada")).toMatchObject({ lag: 0 }));
    expect(await second.stop()).toBe(0);
    const [question] = await stored(server, "agents.ada.inbox");
    const replies = await stored(server, "agents.bob.inbox");
    expect(replies).toHaveLength(1);
    expect(replies[0]?.caused_by).toEqual([question?.id]);
  });

  it("outbox-sqlite publishes every committed order once, including those of a process that died", async (context) => {
    const node = await findRuntime("node");
    if (node.missing !== undefined) missing(context, `outbox-sqlite needs a Node with node:sqlite: ${node.missing}`);
    const server = await serve();
    const env = { SHOP_DB: join(workspace.folder, "test-shop.db") };
    const dying = run(server, node.binary, ["outbox-sqlite/shop.mjs", "3"], { ...env, DIE_BEFORE_PUBLISH: "1" });
    expect(await dying.ended).toBe("SIGKILL");
    expect(await stored(server, "orders.new")).toEqual([]);

    const shop = run(server, node.binary, ["outbox-sqlite/shop.mjs", "2"], env);
    expect(await shop.ended, shop.output()).toBe(0);
    expect(shop.lines).toEqual(["sold 2; in the outbox: 5 pending", "in the outbox: 5 sent"]);
    expect(await stored(server, "orders.new")).toHaveLength(5);
  });

  describe("browser-page", () => {
    let browser: Browser | undefined;
    let why = "";
    beforeAll(async () => {
      browser = await launchBrowser().catch((error: Error) => { why = error.message; return undefined; });
    });
    afterAll(() => browser?.close());

    it("shows tasks of a durable group until they are done, even after reloads and a crash of the server", async (context) => {
      if (browser === undefined) return missing(context, `browser-page: ${why}`);
      const port = await fixedPort();
      const origin = `http://127.0.0.1:${port}`;
      const server = await serve({ env: { PROMBUS_HTTP_CORS_ORIGINS: origin } });
      const web = run(server, process.execPath, ["browser-page/serve.mjs"], { PORT: String(port) });
      await web.saw(`open ${origin}`);

      const page = await browser.newPage();
      const problems: string[] = [];
      page.on("pageerror", (error) => problems.push(error.message));
      await page.goto(origin);
      await page.locator("#status", { hasText: "connected" }).waitFor();
      await page.fill("#text", "water the plants");
      await page.click("#add button");
      await page.locator("li", { hasText: "water the plants" }).waitFor();

      // Unacked: the task is still there after a reload.
      await page.reload();
      await page.locator("li", { hasText: "water the plants" }).waitFor();

      // The page keeps the task when the server crashes, and shows it once.
      await server.restart("SIGKILL");
      await page.locator("#status", { hasText: /^connected$/ }).waitFor();
      await eventually(async () => expect(await group(server, "tasks.new", "desk")).toMatchObject({ in_flight: 1 }));
      expect(await page.locator("li").count()).toBe(1);
      await page.locator("li button").click();
      await eventually(async () => expect(await group(server, "tasks.new", "desk")).toMatchObject({ lag: 0 }));
      expect(await page.locator("li").count()).toBe(0);
      expect(problems).toEqual([]);
      await page.close();
      expect(await web.stop()).toBe(0);
    });
  });

  it("python publishes, acks, nacks and reconnects", async (context) => {
    const python = await pythonWithPackages().catch((error: Error) => missing(context, `python: ${error.message}`));
    const env = { WEBSOCKETS_BACKOFF_INITIAL_DELAY: "0.2", WEBSOCKETS_BACKOFF_MIN_DELAY: "0.2" };
    const server = await serve();
    const worker = run(server, python, ["python/worker.py"], env);
    await worker.saw("worker is ready");
    const published = run(server, python, ["python/publish.py"], env);
    expect(await published.ended, published.output()).toBe(0);
    expect(published.lines).toEqual(["order 1 is on disk", "order 2 is on disk", "order 3 is on disk"]);
    await worker.saw("handled ada (attempt 1)");
    await worker.saw("handled flaky (attempt 2)");
    await eventually(async () => expect(await group(server, "orders.new", "python")).toMatchObject({ lag: 0 }));
    const [letter, ...more] = await stored(server, "dlq.orders.new");
    expect(more).toEqual([]);
    expect(letter?.payload).toMatchObject({ err: "the total must be positive", attempts: 1, original: { payload: { customer: "eve" } } });

    // Both reconnect: the publisher is started while the server is down.
    await server.stop("SIGKILL");
    const late = run(server, python, ["python/publish.py", "late=1"], env);
    await worker.saw("connection lost");
    await server.start();
    expect(await late.ended, late.output()).toBe(0);
    await worker.saw("handled late (attempt 1)");
    await eventually(async () => expect(await group(server, "orders.new", "python")).toMatchObject({ lag: 0 }));
    expect(await worker.stop()).toBe(0);
    expect(worker.lines.at(-1)).toBe("stopped");
  });

  it("shell-worker continues after its stored position and sets failures aside", async (context) => {
    for (const tool of ["bash", "curl", "flock"]) {
      const found = await runProgram("sh", ["-c", `command -v ${tool}`]).ended;
      if (found !== 0) missing(context, `shell-worker: ${tool} is not installed`);
    }
    const server = await serve();
    const publish = async (customer: string): Promise<void> => {
      const publishing = run(server, "shell-worker/publish", ["orders.new", `{"customer":"${customer}"}`, `order of ${customer}`]);
      expect(await publishing.ended, publishing.output()).toBe(0);
    };
    const env = { POSITION_FILE: join(workspace.folder, "test.position"), ATTEMPTS: "2" };
    const start = (): Program => run(server, "shell-worker/worker", ["orders.new", "shell-worker/handle-order"], env);
    await publish("ada");
    await publish("ada");
    await publish("blocked");
    const first = start();
    await publish("bob");
    await first.saw("handled bob");
    // A second worker with the same file is refused.
    expect(await start().ended).toBe(1);
    expect(await first.stop()).toBe(0);
    expect(first.lines).toEqual(["handled ada", "handled bob", "stopped"]);
    const failed = await stored(server, "failed.orders.new");
    expect(failed.map(({ payload }) => (payload as unknown as Stored).payload.customer)).toEqual(["blocked"]);

    const second = start();
    await publish("eve");
    await second.saw("handled eve");
    await server.restart("SIGKILL");
    await publish("fay");
    await second.saw("handled fay");
    expect(await second.stop()).toBe(0);
    expect(second.lines).toEqual(["handled eve", "handled fay", "stopped"]);
  });

  it("the Rust example embeds the bus", async (context) => {
    const binary = join(TARGET, "examples/embed");
    if (!existsSync(binary)) missing(context, `${binary} does not exist: run cargo build -p prombus --example embed`);
    const embedded = runProgram(binary, []);
    expect(await embedded.ended, embedded.output()).toBe(0);
    expect(embedded.lines).toEqual([
      "published seq 1: ada", "published seq 2: flaky", "published seq 3: eve",
      "billed ada on attempt 1", "attempt 1 for flaky failed, retrying", "billed flaky on attempt 2",
      "dead letter: the total is negative",
    ]);
  });
});

/** Creates a virtual environment with the packages of the Python example, and keeps it for the next run. */
async function pythonWithPackages(): Promise<string> {
  const requirements = join(workspace.folder, "python/requirements.txt");
  const hash = createHash("sha256").update(await readFile(requirements)).digest("hex").slice(0, 12);
  const folder = join(TARGET, `examples-python-${hash}`);
  const python = join(folder, "bin/python");
  if (existsSync(python)) return python;
  // Created under another name and renamed, so that an interrupted run leaves no incomplete environment. Only its scripts contain the old name.
  const made = `${folder}.${process.pid}`;
  await mkdir(TARGET, { recursive: true });
  try {
    for (const [command, ...args] of [
      ["python3", "-m", "venv", made],
      [join(made, "bin/python"), "-m", "pip", "install", "--quiet", "--requirement", requirements],
    ] as [string, ...string[]][]) {
      const step = runProgram(command, args, { timeoutMs: 60_000 });
      if (await step.ended !== 0) throw new Error(`${command} ${args.join(" ")}: ${step.output()}`);
    }
    await rename(made, folder);
  } finally {
    await rm(made, { recursive: true, force: true });
  }
  return python;
}
