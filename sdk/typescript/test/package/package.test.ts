/** Tests the package as npm installs it: every entry point, both module formats, their types, and other runtimes. */
import { copyFile, mkdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { join, posix } from "node:path";
import { publint } from "publint";
import { formatMessage } from "publint/utils";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ROOT } from "../support/bundle.js";
import { type Packed, packPackage, readmeSnippet } from "../support/packed.js";
import { run, runOk } from "../support/run.js";
import { findRuntime, type RuntimeName } from "../support/runtimes.js";
import { startServer, type TestServer } from "../support/server.js";

const TIMEOUT_MS = 180_000;
const TSC = join(ROOT, "node_modules/typescript/bin/tsc");

/** Used if the README has no snippet. */
const OWN_SNIPPET = `
import { connect } from "@prombus/client";

const bus = connect<{ "orders.new": { total: number } }>("ws://127.0.0.1:8090");

async function main() {
  await bus.subscribe("orders.new", "billing", async (event) => {
    console.log(\`order \${event.seq}: \${event.payload.total}\`);
  });
  await bus.publish("orders.new", { total: 12 });
}
void main();
`;

let packed: Packed;
/** A project with the package, `ws`, `@opentelemetry/api`, and `mongodb`, which is linked because it has its own dependencies. */
let project: string;
let entries: string[];
/** The entry point that needs the package `mongodb`, which only works in Node. */
const MONGO = "@prombus/client/mongo";

beforeAll(async () => {
  packed = await packPackage();
  project = await packed.install(["ws", "@opentelemetry/api"]);
  await symlink(join(ROOT, "node_modules/mongodb"), join(project, "node_modules/mongodb"));
  const manifest = await readFile(join(packed.folder, "package.json"), "utf8");
  const { exports } = JSON.parse(manifest) as { exports: Record<string, unknown> };
  entries = Object.keys(exports).filter((name) => name !== "./package.json").map((name) => posix.join("@prombus/client", name));
}, TIMEOUT_MS);

afterAll(async () => {
  await packed?.remove();
});

function withoutMongo(): string[] {
  return entries.filter((name) => name !== MONGO);
}

/** Runs `work` with a new server. */
async function withServer<R>(work: (server: TestServer) => Promise<R>): Promise<R> {
  const server = await startServer();
  try {
    return await work(server);
  } finally {
    await server.remove();
  }
}

describe("the tarball", () => {
  test("has the sources, source maps and types of every module, and no tests", async () => {
    const { files } = packed;
    expect(files.filter((path) => !/^(dist|src)\//.test(path)).sort()).toEqual(
      expect.arrayContaining(["LICENSE", "package.json"]),
    );
    expect(files.filter((path) => /(^|\/)(test|tests|scripts|node_modules)\/|\.test\./.test(path))).toEqual([]);
    const sources = files.filter((path) => path.startsWith("src/"));
    expect(sources).toContain("src/index.ts");
    const compiled = new Set(files.filter((path) => path.startsWith("dist/")));
    const endings = { esm: [".js", ".js.map", ".d.ts", ".d.ts.map"], cjs: [".js", ".js.map", ".d.ts", ".d.ts.map"], browser: [".js", ".js.map"] };
    // In the build for browsers, this module has the name of the module that it replaces.
    expect(sources).toContain("src/browser-socket.ts");
    for (const source of sources.filter((path) => path !== "src/browser-socket.ts")) {
      for (const [format, ends] of Object.entries(endings)) {
        const base = source.replace(/^src\//, `dist/${format}/`).replace(/\.ts$/, "");
        for (const ending of ends) {
          const path = `${base}${ending}`.replace("browser/node-socket.js.map", "browser/browser-socket.js.map");
          expect(compiled.delete(path), `${path} is in the tarball`).toBe(true);
        }
      }
    }
    expect([...compiled]).toEqual(["dist/browser/package.json", "dist/cjs/package.json", "dist/esm/package.json"]);
  });

  test("has source maps that point to its sources", async () => {
    for (const path of packed.files.filter((file) => file.endsWith(".map"))) {
      const map = JSON.parse(await readFile(join(packed.folder, path), "utf8")) as { sources: string[] };
      for (const source of map.sources) expect(packed.files).toContain(posix.join(posix.dirname(path), source));
    }
  });

  test("passes publint without a message", async () => {
    const tarball = await readFile(packed.tarball);
    const bytes = tarball.buffer.slice(tarball.byteOffset, tarball.byteOffset + tarball.byteLength) as ArrayBuffer;
    const { messages, pkg } = await publint({ pack: { tarball: bytes }, strict: true });
    expect(messages.map((message) => formatMessage(message, pkg ?? {}))).toEqual([]);
  });

  // TypeScript's `node10` resolution ignores `exports` and cannot find subpaths. All other resolutions are checked.
  test("passes attw for Node 16 and newer and for bundlers", { timeout: TIMEOUT_MS }, async () => {
    const attw = join(ROOT, "node_modules/@arethetypeswrong/cli/dist/index.js");
    const { status, stdout, stderr } = await run(process.execPath, [attw, packed.tarball, "--profile", "node16", "--no-emoji"]);
    expect(status, stdout + stderr).toBe(0);
  });
});

describe("every entry", () => {
  test("can be imported from an ES module", async () => {
    const code = entries.map((name) => `console.log(Object.keys(await import(${JSON.stringify(name)})).length > 0);`).join("\n");
    await writeFile(join(project, "entries.mjs"), code);
    expect(await runOk(process.execPath, ["entries.mjs"], { cwd: project })).toBe("true\n".repeat(entries.length));
  });

  test("can be required from a CommonJS module", async () => {
    const code = entries.map((name) => `console.log(Object.keys(require(${JSON.stringify(name)})).length > 0);`).join("\n");
    await writeFile(join(project, "entries.cjs"), code);
    expect(await runOk(process.execPath, ["entries.cjs"], { cwd: project })).toBe("true\n".repeat(entries.length));
  });

  const imports = (names: string[]): string =>
    names.map((name, index) => `import * as entry${index} from "${name}";\nvoid entry${index};`).join("\n");

  test("type-checks in a project for browsers, without the types of Node", { timeout: TIMEOUT_MS }, async () => {
    await typeCheck("entries-browser", imports(withoutMongo()), { lib: ["es2022", "dom", "dom.iterable"], types: [] });
  });

  test("type-checks in a project for Node, without the types of browsers", { timeout: TIMEOUT_MS }, async () => {
    const typeRoots = [join(ROOT, "node_modules/@types")];
    await typeCheck("entries-node", imports(entries), { lib: ["es2022"], types: ["node"], typeRoots });
  });
});

describe("a project without mongodb", () => {
  test("can import and type-check every other entry point, and gets an error that names the missing package", { timeout: TIMEOUT_MS }, async () => {
    const link = join(project, "node_modules/mongodb");
    await rm(link);
    try {
      expect(entries).toContain(MONGO);
      const code = withoutMongo().map((name, index) => `import * as entry${index} from "${name}";\nvoid entry${index};`).join("\n");
      await typeCheck("without-mongodb", code, { lib: ["es2022", "dom", "dom.iterable"], types: [] });
      for (const ending of ["mjs", "cjs"]) await runOk(process.execPath, [join(project, `without-mongodb/without-mongodb.${ending}`)]);
      await writeFile(join(project, "missing.mjs"), `import(${JSON.stringify(MONGO)}).catch(({ message }) => console.log(message));`);
      expect(await runOk(process.execPath, ["missing.mjs"], { cwd: project })).toMatch(/Cannot find package 'mongodb'/);
    } finally {
      await symlink(join(ROOT, "node_modules/mongodb"), link);
    }
  });
});

describe("the snippet of the README", () => {
  let snippet: string;

  beforeAll(async () => {
    snippet = (await readmeSnippet()) ?? OWN_SNIPPET;
    await typeCheck("snippet", snippet, { lib: ["es2022", "dom"], types: [] });
  }, TIMEOUT_MS);

  for (const [format, ending] of [["an ES module", "mjs"], ["a CommonJS module", "cjs"]] as const) {
    test(`type-checks and runs as ${format}`, { timeout: TIMEOUT_MS }, async () => {
      await withServer(async (server) => {
        const file = join(project, "snippet", `snippet.${ending}`);
        const code = await readFile(file, "utf8");
        expect(code).toContain("ws://127.0.0.1:8090");
        const runnable = join(project, "snippet", `run.${ending}`);
        await writeFile(runnable, code.replace("ws://127.0.0.1:8090", server.ws));
        // The snippet subscribes, so it runs until it is stopped.
        const { stdout, stderr } = await run(process.execPath, [runnable], { until: /\n/, timeoutMs: 30_000 });
        expect(stderr).toBe("");
        expect(stdout).toMatch(/^order 1: 12\n/);
        const { count } = await (await fetch(`${server.http}/replay?topic=orders.new`)).json() as { count: number };
        expect(count).toBe(1);
      });
    });
  }
});

describe("a runtime", () => {
  const runtimes: [string, RuntimeName | undefined, string[]][] = [
    ["this Node with ws", undefined, []],
    ["the newest Node", "node", []],
    ["Bun", "bun", []],
    ["Deno", "deno", ["run", "--allow-all", "--node-modules-dir=manual"]],
  ];
  for (const [title, name, values] of runtimes) {
    test(`publishes, subscribes and ends by itself: ${title}`, { timeout: TIMEOUT_MS }, async (context) => {
      const runtime = name === undefined ? { binary: process.execPath, version: process.versions.node } : await findRuntime(name);
      if ("missing" in runtime && runtime.missing !== undefined) return context.skip(runtime.missing);
      const { binary, version } = runtime as { binary: string; version: string };
      console.log(`${title}: ${version}`);
      await copyFile(join(import.meta.dirname, "smoke.mjs"), join(project, "smoke.mjs"));
      await withServer(async (server) => {
        const { status, stdout, stderr } = await run(binary, [...values, "smoke.mjs", server.ws], { cwd: project, timeoutMs: 30_000 });
        expect(status, stdout + stderr).toBe(0);
        expect(JSON.parse(stdout)).toEqual({ seqs: 100, last: 100, sum: 4950, status: "closed" });
      });
    });
  }

  test.runIf(globalThis.WebSocket === undefined)("without a WebSocket gets an error that names ws", { timeout: TIMEOUT_MS }, async () => {
    const bare = await packed.install([]);
    await writeFile(join(bare, "bare.mjs"), `
      import { connect } from "@prombus/client";
      const bus = connect("ws://127.0.0.1:1");
      await bus.publish("t", 1).catch((error) => console.log(error.code, error.message));
    `);
    const { status, stdout } = await run(process.execPath, ["bare.mjs"], { cwd: bare });
    expect(stdout).toMatch(/^no_websocket .*npm install ws/);
    expect(status).toBe(0);
  });
});

/**
 * Type-checks the code as `<name>.mts` and `<name>.cts`, writes the JavaScript to a folder with that name, and also type-checks it
 * with a bundler's resolution.
 */
async function typeCheck(name: string, code: string, options: Record<string, unknown>): Promise<void> {
  const folder = join(project, name);
  await mkdir(folder, { recursive: true });
  const strict = { target: "es2022", strict: true, exactOptionalPropertyTypes: true, skipLibCheck: false, ...options };
  const write = (file: string, text: string) => writeFile(join(folder, file), text);
  await Promise.all([
    write(`${name}.mts`, code),
    write(`${name}.cts`, code),
    write(`${name}-bundled.ts`, code),
    write("tsconfig.json", JSON.stringify({
      compilerOptions: { ...strict, module: "nodenext" },
      files: [`${name}.mts`, `${name}.cts`],
    })),
    write("tsconfig.bundler.json", JSON.stringify({
      compilerOptions: { ...strict, module: "esnext", moduleResolution: "bundler", noEmit: true },
      files: [`${name}-bundled.ts`],
    })),
  ]);
  await Promise.all(["tsconfig.json", "tsconfig.bundler.json"].map(async (config) => {
    const { status, stdout } = await run(process.execPath, [TSC, "--project", join(folder, config)]);
    expect(status, stdout).toBe(0);
  }));
}
