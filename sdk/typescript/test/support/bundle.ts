/** Bundles the client from its sources into one file. */
import { build, type BuildOptions } from "esbuild";
import { mkdir, mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

export const ROOT = join(import.meta.dirname, "../..");

/** Creates a folder for files that must find the packages of this repository, e.g. `ws`. */
export async function cacheFolder(name: string): Promise<string> {
  const cache = join(ROOT, "node_modules/.cache");
  await mkdir(cache, { recursive: true });
  return await mkdtemp(join(cache, `${name}-`));
}

/** Creates a folder for files that must not find any package. */
export async function emptyFolder(name: string): Promise<string> {
  return await mkdtemp(join(tmpdir(), `prombus-${name}-`));
}

/** Writes the client as an ES module into `folder`; returns its `file:` URL. */
export async function bundleForNode(folder: string): Promise<string> {
  const outfile = join(folder, "client.mjs");
  await build({ ...OPTIONS, entryPoints: ["src/index.ts"], platform: "node", outfile });
  return pathToFileURL(outfile).href;
}

/** Bundles a file of this folder for a page or a worker. */
export async function bundleForBrowser(entry: string, options: BuildOptions = {}): Promise<string> {
  const { outputFiles } = await build({
    ...OPTIONS, entryPoints: [entry], platform: "browser", alias: { "@prombus/client": join(ROOT, "src/index.ts") },
    ...options, write: false,
  });
  return (outputFiles?.[0] as { text: string }).text;
}

const OPTIONS: BuildOptions = {
  absWorkingDir: ROOT, bundle: true, format: "esm", target: "es2022", sourcemap: "inline", logLevel: "error",
};
