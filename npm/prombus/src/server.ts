/// <reference lib="esnext.disposable" preserve="true" />
/** `startServer`: starts a prombus server for tests, on a free port and with its own data folder. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { binaryPath, checkBinary } from "./binary.js";
import { removeAtExit } from "./cleanup.js";
import { ServerProcess } from "./process.js";

/** A signal that ends the server. SIGTERM and SIGINT let it finish its work first. */
export type StopSignal = "SIGTERM" | "SIGINT" | "SIGKILL";

export interface StartServerOptions {
  /** The data folder. Default: a new temporary folder, which `stop()` removes. */
  data?: string | undefined;
  /** A token that grants all access. Default: no auth; only this machine has access. */
  token?: string | undefined;
  /** `host:port`. Default: `127.0.0.1:0`, a free port. */
  listen?: string | undefined;
  /** More arguments of `prombus serve`, e.g. `["--log", "debug"]`. */
  args?: readonly string[] | undefined;
  /**
   * More environment variables, e.g. `{ PROMBUS_LIMITS_MAX_TOPICS: "10" }`. The server inherits the environment of this process
   * without `PROMBUS_*`, `WS_*` and `HTTP_PORT`, which would configure it. `undefined` removes a variable.
   */
  env?: Readonly<Record<string, string | undefined>> | undefined;
  /** The path of the binary. Default: `PROMBUS_BINARY`, or the package for this platform. */
  binary?: string | undefined;
  /** How long the server may take to become ready. Default: 15,000 ms. */
  startTimeoutMs?: number | undefined;
  /** How long the server may take to stop; after that it is killed with SIGKILL. Default: 15,000 ms. */
  stopTimeoutMs?: number | undefined;
}

/** How the server ended: with an exit code, or by a signal. */
export interface ServerExit {
  readonly code: number | null;
  readonly signal: string | null;
}

export interface PrombusServer extends AsyncDisposable {
  /** E.g. `ws://127.0.0.1:40123`. Stays the same after `restart()`. */
  readonly url: string;
  /** E.g. `http://127.0.0.1:40123`. */
  readonly httpUrl: string;
  /** The process id. Changes with `restart()`. */
  readonly pid: number;
  readonly dataFolder: string;
  /** The last 64 KiB of stdout and stderr since the last start. */
  output(): string;
  /** Ends the server (default: SIGTERM) and removes its data folder if that is a temporary one. */
  stop(signal?: StopSignal): Promise<ServerExit>;
  /** Ends the server with SIGKILL, like a crash. Keeps the data folder, from which `restart()` recovers. */
  kill(): Promise<ServerExit>;
  /** Stops the server with SIGTERM if it is running, and starts it with the same address and data folder. */
  restart(): Promise<void>;
}

const DEFAULT_TIMEOUT_MS = 15_000;

/**
 * Starts a server and returns when it accepts connections. The server ends at the latest when this process ends, and does not keep
 * this process running.
 *
 * @throws LaunchError if the binary is not found or the server does not start; the message contains the server's output
 */
export async function startServer(options: StartServerOptions = {}): Promise<PrombusServer> {
  const binary = options.binary === undefined ? binaryPath() : checkBinary(options.binary, "binary");
  const temporary = options.data === undefined ? await mkdtemp(join(tmpdir(), "prombus-")) : undefined;
  const settings: Settings = {
    binary,
    dataFolder: temporary ?? resolve(options.data ?? ""),
    temporaryFolder: temporary,
    args: options.args ?? [],
    env: serverEnvironment(options),
    startTimeoutMs: options.startTimeoutMs ?? DEFAULT_TIMEOUT_MS,
    stopTimeoutMs: options.stopTimeoutMs ?? DEFAULT_TIMEOUT_MS,
  };
  const keepFolder = temporary === undefined ? () => {} : removeAtExit(temporary);
  try {
    const first = await startProcess(settings, options.listen ?? "127.0.0.1:0");
    return new Server(settings, first, keepFolder);
  } catch (error) {
    if (temporary !== undefined) await removeFolder(temporary);
    keepFolder();
    throw error;
  }
}

interface Settings {
  readonly binary: string;
  readonly dataFolder: string;
  /** `dataFolder` if `startServer` created it. */
  readonly temporaryFolder: string | undefined;
  readonly args: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  readonly startTimeoutMs: number;
  readonly stopTimeoutMs: number;
}

class Server implements PrombusServer {
  readonly #settings: Settings;
  /** The address of the first start, which `restart()` uses again. */
  readonly #address: string;
  /** Called after the temporary folder was removed, so that it is not removed again at exit. */
  readonly #folderRemoved: () => void;
  #process: ServerProcess;
  #isStopped = false;

  constructor(settings: Settings, process: ServerProcess, folderRemoved: () => void) {
    this.#settings = settings;
    this.#address = process.address;
    this.#folderRemoved = folderRemoved;
    this.#process = process;
  }

  get url(): string {
    return this.#process.url;
  }

  get httpUrl(): string {
    return this.#process.httpUrl;
  }

  get pid(): number {
    return this.#process.pid;
  }

  get dataFolder(): string {
    return this.#settings.dataFolder;
  }

  output(): string {
    return this.#process.output();
  }

  async stop(signal: StopSignal = "SIGTERM"): Promise<ServerExit> {
    this.#isStopped = true;
    const exit = await this.#process.stop(signal, this.#settings.stopTimeoutMs);
    if (this.#settings.temporaryFolder !== undefined) {
      await removeFolder(this.#settings.temporaryFolder);
      this.#folderRemoved();
    }
    return exit;
  }

  async kill(): Promise<ServerExit> {
    return this.#process.stop("SIGKILL", this.#settings.stopTimeoutMs);
  }

  async restart(): Promise<void> {
    if (this.#isStopped && this.#settings.temporaryFolder !== undefined) {
      throw new Error("cannot restart: stop() removed the temporary data folder; pass `data` to keep it");
    }
    await this.#process.stop("SIGTERM", this.#settings.stopTimeoutMs);
    this.#process = await startProcess(this.#settings, this.#address);
    this.#isStopped = false;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }
}

function startProcess(settings: Settings, listen: string): Promise<ServerProcess> {
  return ServerProcess.start({
    binary: settings.binary,
    args: ["serve", "--listen", listen, "--data", settings.dataFolder, ...settings.args],
    env: settings.env,
    timeoutMs: settings.startTimeoutMs,
    temporaryFolder: settings.temporaryFolder,
  });
}

/** The environment of this process without the variables that configure a server, plus those of the options. */
function serverEnvironment(options: StartServerOptions): NodeJS.ProcessEnv {
  const inherited = Object.entries(process.env).filter(([name]) => !/^(PROMBUS_|WS_|HTTP_PORT$)/.test(name));
  return {
    ...Object.fromEntries(inherited),
    ...options.env,
    ...(options.token === undefined ? {} : { WS_TOKEN: options.token }),
  };
}

async function removeFolder(folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 20 });
}
