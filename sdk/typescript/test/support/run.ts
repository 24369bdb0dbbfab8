/** Runs programs and collects their output. */
import { spawn } from "node:child_process";

export interface Finished {
  status: number | string;
  stdout: string;
  stderr: string;
}

export interface RunOptions {
  cwd?: string;
  env?: Record<string, string>;
  /** Stops the program with SIGTERM once its output matches. */
  until?: RegExp;
  /** Default 120,000. */
  timeoutMs?: number;
}

/** Runs a program; its status is the exit code, or the signal that ended it. */
export async function run(program: string, values: string[], options: RunOptions = {}): Promise<Finished> {
  const child = spawn(program, values, {
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
    env: { ...process.env, NO_COLOR: "1", ...options.env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const finished: Finished = { status: -1, stdout: "", stderr: "" };
  child.stdout.on("data", (piece: Buffer) => {
    finished.stdout += piece.toString();
    if (options.until?.test(finished.stdout)) child.kill("SIGTERM");
  });
  child.stderr.on("data", (piece: Buffer) => { finished.stderr += piece.toString(); });
  const late = setTimeout(() => {
    finished.stderr += `\n${program} did not end in time`;
    child.kill("SIGKILL");
  }, options.timeoutMs ?? 120_000);
  try {
    finished.status = await new Promise((done, failed) => {
      child.once("error", failed);
      child.once("close", (code, signal) => done(code ?? signal ?? -1));
    });
  } finally {
    clearTimeout(late);
  }
  return finished;
}

/** Runs a program that must succeed; returns its output. */
export async function runOk(program: string, values: string[], options: RunOptions = {}): Promise<string> {
  const { status, stdout, stderr } = await run(program, values, options);
  if (status !== 0) throw new Error(`${program} ${values.join(" ")} ended with ${status}\n${stdout}${stderr}`);
  return stdout;
}
