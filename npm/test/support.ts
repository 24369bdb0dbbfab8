// Helpers of the tests: the real binary, fake binaries, and child processes.
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { chmodSync, existsSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterAll, onTestFinished } from "vitest";

const ROOT = resolve(import.meta.dirname, "..");

export const PACKAGE = join(ROOT, "prombus");
export const LAUNCHER = join(PACKAGE, "bin/prombus.js");
export const BINARY = resolve(process.env["PROMBUS_BIN"] ?? join(ROOT, "../target/debug/prombus"));

if (!existsSync(BINARY)) throw new Error(`${BINARY} does not exist: run cargo build, or set PROMBUS_BIN`);

/** A folder that is removed after the tests of the file. */
export function temporaryFolder(): string {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), "prombus-npm-test-")));
  afterAll(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** Writes an executable shell script and returns its path. */
export function script(path: string, lines: string): string {
  writeFileSync(path, `#!/bin/sh\n${lines}\n`);
  chmodSync(path, 0o755);
  return path;
}

export interface Run {
  readonly child: ChildProcessWithoutNullStreams;
  /** Resolves when stdout contains the text. */
  printed(text: string): Promise<void>;
  readonly result: Promise<{ code: number | null; signal: string | null; stdout: string; stderr: string }>;
}

/**
 * Runs Node with these arguments, without the environment variables that configure prombus or npm. When the test ends, all processes
 * that are left are killed.
 */
export function runNode(args: readonly string[], env: Record<string, string> = {}): Run {
  const inherited = Object.entries(process.env).filter(([name]) => !/^(PROMBUS_|WS_|npm_|NODE_OPTIONS$)/.test(name));
  const child = spawn(process.execPath, args, { env: { ...Object.fromEntries(inherited), ...env }, detached: true });
  onTestFinished(() => {
    try {
      if (child.pid !== undefined) process.kill(-child.pid, "SIGKILL");
    } catch {
      // All processes of the group have ended.
    }
  });
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (chunk: Buffer) => { stdout += chunk.toString(); });
  child.stderr.on("data", (chunk: Buffer) => { stderr += chunk.toString(); });
  return {
    child,
    printed: (text) => new Promise((found, failed) => {
      const look = (): void => { if (stdout.includes(text)) found(); };
      child.stdout.on("data", look);
      child.once("close", () => failed(new Error(`ended without printing ${text}: ${stdout}${stderr}`)));
      look();
    }),
    result: new Promise((ended) => {
      child.once("close", (code, signal) => ended({ code, signal, stdout, stderr }));
    }),
  };
}

/** Whether the process is running. A zombie is not. */
export function isRunning(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    return !stat.slice(stat.lastIndexOf(")")).startsWith(") Z");
  } catch {
    return false;
  }
}
