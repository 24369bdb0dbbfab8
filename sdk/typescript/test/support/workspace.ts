/** Creates a folder with the packages that a user would install, and runs programs in it. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { cp, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { build } from "esbuild";
import { ROOT } from "./bundle.js";

export const REPOSITORY = resolve(ROOT, "../..");
/** The package that `npx prombus` runs. */
const LAUNCHER = join(REPOSITORY, "npm/prombus");

export interface Workspace {
  readonly folder: string;
  /** Whether the package `prombus` exists. */
  readonly hasLauncher: boolean;
  /** Type-checks files of the folder under `strict` and `exactOptionalPropertyTypes`; returns the output of tsc, "" if there are no errors. */
  check(files: string[]): Promise<string>;
  remove(): Promise<void>;
}

/** Creates the folder. Its client is compiled from the sources, because `dist` may be out of date. */
export async function makeWorkspace(): Promise<Workspace> {
  const folder = await mkdtemp(join(tmpdir(), "prombus-workspace-"));
  const modules = join(folder, "node_modules");
  const client = join(modules, "@prombus/client");
  await mkdir(client, { recursive: true });
  await cp(join(ROOT, "package.json"), join(client, "package.json"));
  await build({
    absWorkingDir: ROOT, entryPoints: await sources(), outbase: "src", outdir: join(client, "dist/esm"),
    format: "esm", target: "es2022", sourcemap: "inline", logLevel: "error",
  });
  await writeFile(join(client, "dist/esm/package.json"), '{"type":"module"}\n');
  // The same as in `scripts/build.mjs`.
  await cp(join(client, "dist/esm"), join(client, "dist/browser"), { recursive: true });
  await cp(join(client, "dist/esm/browser-socket.js"), join(client, "dist/browser/node-socket.js"));
  await writeFile(join(folder, "package.json"), '{"type":"module"}\n');
  for (const name of ["mongodb", "ws", "zod", "@opentelemetry", "@types", "undici-types"]) {
    await symlink(join(ROOT, "node_modules", name), join(modules, name));
  }
  const hasLauncher = existsSync(LAUNCHER);
  if (hasLauncher) await installLauncher(join(modules, "prombus"));
  return {
    folder,
    hasLauncher,
    check: (files) => typeCheck(folder, files),
    remove: () => rm(folder, { recursive: true, force: true }),
  };
}

async function sources(): Promise<string[]> {
  const found = await readdir(join(ROOT, "src"), { recursive: true });
  return found.filter((name) => name.endsWith(".ts")).map((name) => join("src", name));
}

async function installLauncher(folder: string): Promise<void> {
  await build({
    entryPoints: [join(LAUNCHER, "src/index.ts")], outfile: join(folder, "index.cjs"),
    bundle: true, platform: "node", format: "cjs", logLevel: "error",
  });
  await writeFile(join(folder, "package.json"), '{"name":"prombus","main":"index.cjs"}\n');
}

async function typeCheck(folder: string, files: string[]): Promise<string> {
  const source = (name: string): string[] => [join(ROOT, "src", name)];
  const config = {
    extends: join(ROOT, "tsconfig.json"),
    compilerOptions: {
      noEmit: true, declaration: false, declarationMap: false, composite: false, allowJs: true, checkJs: true,
      types: ["node"], rootDir: "/", baseUrl: ".", noUnusedLocals: false,
      paths: {
        "@prombus/client": source("index.ts"),
        "@prombus/client/mongo": source("mongo.ts"),
        "@prombus/client/opentelemetry": source("opentelemetry.ts"),
        "@prombus/client/promethean": source("promethean/index.ts"),
        "@prombus/client/sqlite": source("sqlite.ts"),
        prombus: [join(LAUNCHER, "src/index.ts")],
      },
    },
    files,
  };
  const name = `tsconfig.${files.length}.json`;
  await writeFile(join(folder, name), JSON.stringify(config));
  const tsc = join(ROOT, "node_modules/typescript/bin/tsc");
  return await new Promise((done) => {
    execFile(process.execPath, [tsc, "-p", name], { cwd: folder }, (_error, stdout, stderr) => done(`${stdout}${stderr}`.trim()));
  });
}

export interface Program {
  /** Lines of stdout so far. */
  readonly lines: string[];
  /** The whole output, stdout and stderr. */
  output(): string;
  /** Resolves when `count` lines of stdout contain the text. */
  saw(text: string, count?: number): Promise<void>;
  /** Resolves with the exit code, or the name of the signal that ended it. */
  readonly ended: Promise<number | string>;
  /** Sends a signal and waits until the program has ended. */
  stop(signal?: NodeJS.Signals): Promise<number | string>;
}

export interface ProgramOptions {
  cwd?: string;
  env?: Record<string, string>;
  /** Timeout of each `saw` and of `stop`; default 20,000. */
  timeoutMs?: number;
}

const programs = new Set<ChildProcess>();

/** Kills the programs that a failed test left running. */
export function killPrograms(): void {
  for (const child of programs) child.kill("SIGKILL");
}

export function runProgram(command: string, args: string[], options: ProgramOptions = {}): Program {
  const { timeoutMs = 20_000 } = options;
  const child = spawn(command, args, { cwd: options.cwd, env: { ...process.env, ...options.env }, stdio: ["ignore", "pipe", "pipe"] });
  programs.add(child);
  const lines: string[] = [];
  let output = "";
  let rest = "";
  let isOver = false;
  let watchers: (() => void)[] = [];
  const wake = (): void => {
    for (const watcher of watchers.splice(0)) watcher();
  };
  child.stdout.setEncoding("utf8").on("data", (piece: string) => {
    output += piece;
    const parts = (rest + piece).split("\n");
    rest = parts.pop() ?? "";
    lines.push(...parts);
    wake();
  });
  child.stderr.setEncoding("utf8").on("data", (piece: string) => { output += piece; });
  const ended = new Promise<number | string>((done, failed) => {
    child.once("error", failed);
    child.once("close", (code, signal) => {
      isOver = true;
      programs.delete(child);
      done(code ?? signal ?? "unknown");
      wake();
    });
  });
  const name = [command.split("/").at(-1), ...args.map((arg) => arg.split("/").at(-1))].join(" ");
  return {
    lines,
    output: () => output,
    ended,
    async saw(text, count = 1) {
      const end = Date.now() + timeoutMs;
      while (lines.filter((line) => line.includes(text)).length < count) {
        if (isOver) throw new Error(`${name} ended before it printed "${text}":\n${output}`);
        if (Date.now() > end) throw new Error(`${name} did not print "${text}" within ${timeoutMs} ms:\n${output}`);
        await new Promise<void>((done) => {
          const late = setTimeout(done, 250);
          watchers.push(() => { clearTimeout(late); done(); });
        });
      }
    },
    async stop(signal = "SIGTERM") {
      child.kill(signal);
      const late = setTimeout(() => child.kill("SIGKILL"), timeoutMs);
      const result = await ended;
      clearTimeout(late);
      return result;
    },
  };
}
