/**
 * The command `prombus`: runs the native binary.
 *
 * In Node 22.15 and newer, the binary replaces this process. In older versions, on Windows, and under npx, the binary is a child
 * process: this process forwards signals, and ends with the child's exit code or signal.
 */
import { spawn } from "node:child_process";
import { constants } from "node:os";
import { binaryPath, cannotExecute } from "./binary.js";
import { LaunchError } from "./errors.js";

const FORWARDED_SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

/** How often the launcher checks whether npx still runs. */
const PARENT_CHECK_MS = 200;

/** The exit code that shells use for a command that cannot be run. */
const CANNOT_RUN = 127;

export function launch(args: readonly string[]): void {
  try {
    const binary = binaryPath();
    const env = { ...process.env };
    // The server warns about PROMBUS_ variables that it does not know.
    delete env["PROMBUS_BINARY"];
    if (!isUnderNpx() && canReplaceProcess(process)) {
      replaceProcess(process, binary, args, env);
    } else {
      runAsChild(binary, args, env);
    }
  } catch (error) {
    fail(error);
  }
}

function replaceProcess(self: ProcessWithExecve, binary: string, args: readonly string[], env: NodeJS.ProcessEnv): never {
  try {
    return self.execve(binary, [binary, ...args], env);
  } catch (error) {
    throw cannotExecute(binary, error);
  }
}

function runAsChild(binary: string, args: readonly string[], env: NodeJS.ProcessEnv): void {
  // Ctrl-C reaches the child directly as well. `prombus serve` treats two equal signals in quick succession as one.
  const forward = (signal: NodeJS.Signals): void => { child.kill(signal); };
  for (const signal of FORWARDED_SIGNALS) process.on(signal, forward);
  const child = spawn(binary, args, { env, stdio: "inherit" });
  const parentCheck = isUnderNpx() ? stopWithParent(() => child.kill("SIGTERM")) : undefined;
  child.once("error", (error) => {
    clearInterval(parentCheck);
    fail(cannotExecute(binary, error));
  });
  child.once("exit", (code, signal) => {
    clearInterval(parentCheck);
    if (signal === null) process.exit(code ?? 1);
    for (const forwarded of FORWARDED_SIGNALS) process.off(forwarded, forward);
    // The exit code applies if the signal does not end this process.
    process.exitCode = 128 + constants.signals[signal];
    process.kill(process.pid, signal);
  });
}

/**
 * npx starts a shell that starts the launcher, and forwards SIGTERM and SIGINT to the shell only. dash, the `sh` of Debian and Ubuntu,
 * is killed by the signal and leaves its child running. So the launcher stops the binary when its own parent process has ended.
 */
function stopWithParent(stop: () => void): NodeJS.Timeout {
  const parent = process.ppid;
  const timer = setInterval(() => {
    if (process.ppid === parent) return;
    clearInterval(timer);
    stop();
  }, PARENT_CHECK_MS);
  return timer;
}

function isUnderNpx(): boolean {
  return process.env["npm_lifecycle_event"] === "npx" && /\bprombus\b/.test(process.env["npm_lifecycle_script"] ?? "");
}

function fail(error: unknown): void {
  if (!(error instanceof LaunchError)) throw error;
  console.error(`prombus: ${error.message}`);
  process.exitCode = CANNOT_RUN;
}

interface ProcessWithExecve {
  execve(file: string, args: readonly string[], env: NodeJS.ProcessEnv): never;
}

function canReplaceProcess(candidate: object): candidate is ProcessWithExecve {
  return process.platform !== "win32" && "execve" in candidate && typeof candidate.execve === "function";
}
