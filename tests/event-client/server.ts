// Runs the real binary on a free port, with its own data folder.
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";

export const BINARY = resolve(process.env.PROMBUS_BIN ?? join(import.meta.dirname, "../../target/debug/prombus"));

/** How long the server may take to start, and to stop. */
const PATIENCE_MS = 15_000;

export interface ServerOptions {
  /** `host:port`; default: a free port of this machine. */
  listen?: string;
  /** More environment variables, e.g. `PROMBUS_HTTP_CORS_ORIGINS`. */
  variables?: Record<string, string>;
}

export class Server {
  /** E.g. `ws://127.0.0.1:40123`. */
  readonly url: string;
  private readonly child: ChildProcessWithoutNullStreams;
  private readonly log: () => string;
  private readonly exited: Promise<number | null>;

  private constructor(url: string, child: ChildProcessWithoutNullStreams, log: () => string) {
    this.url = url;
    this.child = child;
    this.log = log;
    this.exited = new Promise((exit) => child.once("exit", (code) => exit(code)));
  }

  /** Starts a server. Without a token, every client on this machine has access. */
  static async start(data: string, token?: string, options: ServerOptions = {}): Promise<Server> {
    if (!existsSync(BINARY)) {
      throw new Error(`${BINARY} does not exist: run cargo build, or set PROMBUS_BIN`);
    }
    const ours = /^(PROMBUS_|WS_|HTTP_PORT$)/;
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !ours.test(name)));
    // Runs the same tests with another engine. The name of the data folder is the name of the database.
    const store = process.env.PROMBUS_TEST_STORE;
    const place = store === undefined ? ["--data", data] : ["--store", store];
    if (store !== undefined) env.PROMBUS_MONGODB_DATABASE = basename(data);
    const child = spawn(BINARY, ["serve", "--listen", options.listen ?? "127.0.0.1:0", ...place], {
      env: { ...env, ...(token === undefined ? {} : { WS_TOKEN: token }), ...options.variables },
    });
    let stdout = "";
    let stderr = "";
    child.stderr.on("data", (piece: Buffer) => { stderr += piece.toString(); });
    const url = await new Promise<string>((found, failed) => {
      const late = setTimeout(() => {
        child.kill("SIGKILL");
        failed(new Error(`the server did not start in time: ${stdout}${stderr}`));
      }, PATIENCE_MS);
      child.once("error", failed);
      child.once("exit", (code) => failed(new Error(`the server exited with code ${code}: ${stderr}`)));
      child.stdout.on("data", (piece: Buffer) => {
        stdout += piece.toString();
        const address = /^listen: +(ws:\S+)/m.exec(stdout)?.[1];
        // `try:` is the last line that the server prints when it is ready.
        if (address !== undefined && /^try:.*\n/m.test(stdout)) {
          clearTimeout(late);
          found(address);
        }
      });
    });
    return new Server(url, child, () => stderr);
  }

  /** Stops the server. Returns its exit code, or `null` if the signal killed it. */
  async stop(signal: "SIGTERM" | "SIGKILL" = "SIGTERM"): Promise<number | null> {
    if (this.child.exitCode !== null) return this.child.exitCode;
    this.child.kill(signal);
    const late = setTimeout(() => {
      console.error(`the server did not stop in time: ${this.log()}`);
      this.child.kill("SIGKILL");
    }, PATIENCE_MS);
    const code = await this.exited;
    clearTimeout(late);
    return code;
  }
}

export class DataFolder {
  readonly path: string;

  private constructor(path: string) {
    this.path = path;
  }

  static async make(): Promise<DataFolder> {
    return new DataFolder(await mkdtemp(join(tmpdir(), "prombus-event-client-")));
  }

  async remove(): Promise<void> {
    await rm(this.path, { recursive: true, force: true });
  }
}
