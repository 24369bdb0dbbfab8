// Prints the sizes of bundles for browsers, minified and gzipped, and fails if the client is over its limit.
//
//   npm run build && npm run size        `--analyze` also prints the bytes of each file
//
// The limit applies to a page that imports the client and its errors. The helpers of the main entry point (exactly once, outbox,
// projector, token bucket) add to that only where they are used: the package has no side effects, so bundlers leave out modules
// that are not imported.
import { analyzeMetafile, build } from "esbuild";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

/** Gzipped bytes of the client: 12 kB. */
const LIMIT_BYTES = 12_000;
const CLIENT = `export {
  AuthError, Client, ClosedError, connect, ConnectionError, NackError, PrombusError, RejectError, ValidationError,
} from "./dist/browser/index.js";`;

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const { exports, peerDependencies } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
if (!existsSync(join(root, "dist/browser/index.js"))) {
  console.error("dist does not exist: run `npm run build` first");
  process.exit(1);
}

async function measure(contents) {
  const { metafile, outputFiles } = await build({
    absWorkingDir: root,
    stdin: { contents, resolveDir: root },
    bundle: true,
    minify: true,
    format: "esm",
    platform: "browser",
    target: "es2022",
    // The application brings optional peer dependencies itself.
    external: [...Object.keys(peerDependencies), "node:*"],
    metafile: true,
    write: false,
  });
  const bytes = outputFiles[0].contents;
  return { raw: bytes.length, gzipped: gzipSync(bytes, { level: 9 }).length, metafile };
}

function print(name, { raw, gzipped }, note = "") {
  const number = (bytes) => bytes.toLocaleString("en-US").padStart(7);
  console.log(`${name.padEnd(36)} ${number(raw)} bytes, ${number(gzipped)} gzipped${note}`);
}

const client = await measure(CLIENT);
print("client", client, ` (limit ${LIMIT_BYTES.toLocaleString("en-US")})`);
for (const [name, target] of Object.entries(exports)) {
  if (typeof target !== "object") continue;
  print(`everything in ${join("@prombus/client", name)}`, await measure(`export * from "${target.browser?.default.default ?? target.import}";`));
}
const isOver = client.gzipped > LIMIT_BYTES;
if (isOver || process.argv.includes("--analyze")) console.log(await analyzeMetafile(client.metafile));
if (isOver) console.error(`the client is ${client.gzipped - LIMIT_BYTES} bytes over its limit`);
process.exitCode = isOver ? 1 : 0;
