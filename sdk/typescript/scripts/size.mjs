// Prints the size of each entry as a browser would load it, minified and in one file, and fails if the main entry is over its limit.
//
//   npm run size                 sizes of all entries
//   npm run size -- --analyze    and the bytes of each source file in the main entry
import { analyzeMetafile, build } from "esbuild";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
/** Gzipped bytes of the main entry: 12 kB. */
const LIMIT_BYTES = 12_000;

const { exports, peerDependencies } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
const entries = Object.entries(exports)
  .filter(([, target]) => typeof target === "object")
  .map(([name, target]) => ({
    name: join("@prombus/client", name),
    source: target.import.replace("./dist/esm/", "src/").replace(/\.js$/, ".ts"),
    limit: name === "." ? LIMIT_BYTES : undefined,
  }));

async function measure(input) {
  const { metafile, outputFiles } = await build({
    absWorkingDir: root,
    ...input,
    bundle: true,
    minify: true,
    format: "esm",
    platform: "browser",
    target: "es2022",
    // Optional peers are the application's own.
    external: [...Object.keys(peerDependencies), "node:*"],
    metafile: true,
    write: false,
  });
  const { contents } = outputFiles[0];
  return { raw: contents.length, gzipped: gzipSync(contents, { level: 9 }).length, metafile };
}

const number = (bytes) => bytes.toLocaleString("en-US").padStart(7);
const print = (name, raw, gzipped, note = "") =>
  console.log(`${name.padEnd(32)} ${number(raw)} bytes, ${number(gzipped)} gzipped${note}`);
for (const { name, source, limit } of entries) {
  if (!existsSync(join(root, source))) {
    console.error(`${name}: ${source} does not exist`);
    process.exitCode = 1;
    continue;
  }
  const { raw, gzipped, metafile } = await measure({ entryPoints: [source] });
  print(name, raw, gzipped, limit === undefined ? "" : ` (limit ${limit.toLocaleString("en-US")})`);
  if (limit === undefined) continue;
  if (process.argv.includes("--analyze")) console.log(await analyzeMetafile(metafile));
  if (gzipped > limit) {
    console.error(`${name} is ${(gzipped - limit).toLocaleString("en-US")} bytes over its limit; its files:`);
    console.error(await analyzeMetafile(metafile));
    process.exitCode = 1;
  }
}

// What a bundler leaves of the main entry for a page that imports nothing else.
const stdin = { contents: 'export { connect } from "./src/index.ts";', resolveDir: root };
const { raw, gzipped } = await measure({ stdin });
print("only `connect`", raw, gzipped);
