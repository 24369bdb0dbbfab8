/** Starts a real prombus server on a free port, with its own data folder. */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

/** The program `prombus`. */
export const BINARY = resolve(process.env["PROMBUS_BIN"] ?? join(import.meta.dirname, "../../../../target/debug/prombus"));
/** Timeout of a start and of a stop. */
const TIMEOUT_MS = 20_000;
/** Environment variables of the caller's own server must not configure the server under test. */
const SETTINGS = /^(PROMBUS_|WS_|HTTP_PORT$)/;

export interface ServerOptions {
  /** Clients need this token. Without it, every client of this machine has access. */
  token?: string;
  /** More environment variables, e.g. `PROMBUS_HTTP_CORS_ORIGINS`. */
  env?: Record<string, string>;
  /** Data folder; a new one in the temporary folder if absent. */
  data?: string;
  /** `host:port`; a free port of 127.0.0.1 if absent. */
  listen?: string;
}

export interface TestServer {
  /** E.g. `ws://127.0.0.1:40123`. */
  readonly ws: string;
  /** E.g. `http://127.0.0.1:40123`. */
  readonly http: string;
  readonly data: string;
  /** Log of the running process. */
  log(): string;
  /** Stops the server and starts it on the same port and data. */
  restart(signal?: "SIGTERM" | "SIGKILL"): Promise<void>;
  /** Starts it on the same port and data after a `stop`. */
  start(): Promise<void>;
  stop(signal?: "SIGTERM" | "SIGKILL"): Promise<void>;
  /** Stops the server and deletes its data. */
  remove(): Promise<void>;
}

interface Running {
  address: string;
  log(): string;
  stop(signal: "SIGTERM" | "SIGKILL"): Promise<void>;
}

export async function startServer(options: ServerOptions = {}): Promise<TestServer> {
  const data = options.data ?? await mkdtemp(join(tmpdir(), "prombus-sdk-"));
  let running: Running | undefined = await run(data, options.listen ?? "127.0.0.1:0", options);
  const { address } = running;
  const server: TestServer = {
    ws: `ws://${address}`,
    http: `http://${address}`,
    data,
    log: () => running?.log() ?? "",
    async restart(signal = "SIGTERM") {
      await server.stop(signal);
      await server.start();
    },
    async start() {
      running ??= await run(data, address, options);
    },
    async stop(signal = "SIGTERM") {
      const stopping = running;
      running = undefined;
      await stopping?.stop(signal);
    },
    async remove() {
      await server.stop("SIGKILL");
      await rm(data, { recursive: true, force: true });
    },
  };
  return server;
}

async function run(data: string, listen: string, { token, env }: ServerOptions): Promise<Running> {
  if (!existsSync(BINARY)) throw new Error(`${BINARY} does not exist: run cargo build, or set PROMBUS_BIN`);
  const inherited = Object.fromEntries(Object.entries(process.env).filter(([name]) => !SETTINGS.test(name)));
  const child = spawn(BINARY, ["serve", "--listen", listen, "--data", data], {
    env: { ...inherited, ...(token === undefined ? {} : { WS_TOKEN: token }), ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const kill = (): void => void child.kill("SIGKILL");
  process.once("exit", kill);
  const exited = new Promise<void>((done) => child.once("close", () => {
    process.off("exit", kill);
    done();
  }));
  let log = "";
  child.stderr.on("data", (piece: Buffer) => (log += piece.toString()));
  const address = await within(started(child, () => log), () => {
    kill();
    return `the server printed no address: ${log}`;
  });
  return {
    address,
    log: () => log,
    async stop(signal) {
      child.kill(signal);
      await within(exited, () => {
        kill();
        return `the server did not stop: ${log}`;
      });
    },
  };
}

/** Waits for the server's banner, whose last line begins with `try:`, and returns `host:port`. */
function started(child: ChildProcess, log: () => string): Promise<string> {
  return new Promise((done, failed) => {
    let banner = "";
    child.once("error", failed);
    child.once("close", (code) => failed(new Error(`the server ended with status ${code}: ${log()}`)));
    child.stdout?.on("data", (piece: Buffer) => {
      banner += piece.toString();
      const address = /^listen: +wss?:\/\/([^\s/]+)/m.exec(banner)?.[1];
      if (address !== undefined && /^try:.*\n/m.test(banner)) done(address);
    });
  });
}

async function within<T>(work: Promise<T>, late: () => string): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(late())), TIMEOUT_MS);
  });
  try {
    return await Promise.race([work, timeout]);
  } finally {
    clearTimeout(timer);
  }
}
