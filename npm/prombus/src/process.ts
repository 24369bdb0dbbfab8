/** One run of `prombus serve` as a child process: starts it, reads its banner, and waits for its exit. */
import { type ChildProcessByStdio, spawn } from "node:child_process";
import { once } from "node:events";
import type { Socket } from "node:net";
import type { Readable } from "node:stream";
import { cannotExecute } from "./binary.js";
import { killAtExit } from "./cleanup.js";
import { LaunchError, type LaunchErrorCode } from "./errors.js";
import type { ServerExit, StopSignal } from "./server.js";

export interface ProcessOptions {
  readonly binary: string;
  readonly args: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  readonly timeoutMs: number;
  /** A folder to remove if this process is killed; the server is ended then too. */
  readonly temporaryFolder: string | undefined;
}

type Child = ChildProcessByStdio<null, Readable, Readable>;

interface Banner {
  /** The address that the server listens on, as `host:port`. */
  readonly address: string;
  readonly url: string;
  readonly httpUrl: string;
}

export class ServerProcess implements Banner {
  readonly address: string;
  readonly url: string;
  readonly httpUrl: string;
  readonly pid: number;
  readonly output: () => string;
  readonly #child: Child;
  readonly #exited: Promise<ServerExit>;
  #sentSignal: StopSignal | undefined;

  private constructor(child: Child, pid: number, banner: Banner, output: () => string, exited: Promise<ServerExit>) {
    this.address = banner.address;
    this.url = banner.url;
    this.httpUrl = banner.httpUrl;
    this.pid = pid;
    this.output = output;
    this.#child = child;
    this.#exited = exited;
  }

  /**
   * Starts a server and waits until it is ready.
   *
   * @throws LaunchError if the server cannot be started, ends before it is ready, or is not ready in time
   */
  static async start(options: ProcessOptions): Promise<ServerProcess> {
    const child = spawn(options.binary, options.args, { env: options.env, stdio: ["ignore", "pipe", "pipe"] });
    const { pid } = child;
    if (pid === undefined) {
      const [error] = await once(child, "error") as [unknown];
      throw cannotExecute(options.binary, error);
    }
    const forget = killAtExit(pid, options.temporaryFolder);
    const exited = new Promise<ServerExit>((resolve) => {
      child.once("exit", (code, signal) => {
        forget();
        resolve({ code, signal });
      });
    });
    const output = new OutputTail();
    for (const pipe of [child.stdout, child.stderr]) pipe.on("data", (chunk: Buffer) => output.add(chunk));
    const banner = await readBanner(child, output, options.timeoutMs);
    setReferenced(child, false);
    return new ServerProcess(child, pid, banner, () => output.text(), exited);
  }

  /** Sends the signal, unless it was sent before, and waits for the exit. Sends SIGKILL after `timeoutMs`. */
  async stop(signal: StopSignal, timeoutMs: number): Promise<ServerExit> {
    setReferenced(this.#child, true);
    if (this.#sentSignal !== signal) {
      this.#sentSignal = signal;
      this.#child.kill(signal);
    }
    const timer = setTimeout(() => this.#child.kill("SIGKILL"), timeoutMs);
    const exit = await this.#exited;
    clearTimeout(timer);
    return exit;
  }
}

function readBanner(child: Child, output: OutputTail, timeoutMs: number): Promise<Banner> {
  return new Promise<Banner>((resolve, reject) => {
    const settle = (result: () => void): void => {
      clearTimeout(timer);
      child.off("close", onClose);
      child.stdout.off("data", onStdout);
      result();
    };
    const fail = (code: LaunchErrorCode, why: string): void => settle(() => {
      const text = output.text();
      reject(new LaunchError(code, `prombus serve ${why}:\n${text}`, { output: text }));
    });
    const timer = setTimeout(() => {
      child.once("exit", () => fail("start_timeout", `was not ready after ${timeoutMs} ms`));
      child.kill("SIGKILL");
    }, timeoutMs);
    // Unlike "exit", "close" is emitted after all output has been read.
    const onClose = (code: number | null, signal: string | null): void => {
      fail("start_failed", `ended before it was ready (${signal ?? `exit code ${code}`})`);
    };
    let stdout = "";
    const onStdout = (chunk: Buffer): void => {
      stdout += chunk.toString();
      const banner = parseBanner(stdout);
      if (banner !== undefined) settle(() => resolve(banner));
    };
    child.once("close", onClose);
    child.stdout.on("data", onStdout);
  });
}

/** Returns the addresses, or undefined while the banner is incomplete: `try:` is its last line. */
function parseBanner(stdout: string): Banner | undefined {
  if (!/^try:.*\n/m.test(stdout)) return undefined;
  const listen = /^listen: +(wss?):\/\/(\S+)/m.exec(stdout);
  const scheme = listen?.[1];
  const address = listen?.[2];
  if (scheme === undefined || address === undefined) return undefined;
  // On some platforms, clients cannot connect to an unspecified address.
  const host = address.replace(/^0\.0\.0\.0:/, "127.0.0.1:").replace(/^\[::\]:/, "[::1]:");
  return { address, url: `${scheme}://${host}`, httpUrl: `${scheme === "wss" ? "https" : "http"}://${host}` };
}

/** Sets whether the child and its pipes keep the event loop of this process alive. */
function setReferenced(child: Child, isReferenced: boolean): void {
  for (const handle of [child, child.stdout as Socket, child.stderr as Socket]) {
    if (isReferenced) handle.ref();
    else handle.unref();
  }
}

/** The last 64 KiB of the output. */
class OutputTail {
  static readonly MAX_BYTES = 64 * 1024;
  #bytes = Buffer.alloc(0);

  add(chunk: Buffer): void {
    this.#bytes = Buffer.concat([this.#bytes, chunk]).subarray(-OutputTail.MAX_BYTES);
  }

  text(): string {
    return this.#bytes.toString();
  }
}
