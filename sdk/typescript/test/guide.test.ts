/**
 * Checks every code block of `docs/typescript.md`. The words after the language of a block define how:
 *
 * - `ts file=NAME`: a part of the program NAME. All parts are type-checked and run as one program. `token=TOKEN` starts a server with that
 *   token, `node=newest` runs it in the newest Node, `launcher` means that it needs the package `prombus` and no server, `worker` that
 *   it runs until it is stopped, `mongodb` that it needs a MongoDB server, `mongodb=store` that the prombus server uses that MongoDB.
 * - `text output=NAME`: the output of the program NAME; several such blocks are one output. `sorted` ignores the order of lines.
 * - `toml file=NAME`, `html file=NAME`: the server's configuration and the page, which Chromium opens.
 * - `sh run`: commands that this test runs. `sh package`: commands that install packages or run a server; `scripts/package` checks those.
 *
 * The TypeScript of the package's README and the Node programs of `examples/` are type-checked as well.
 */
import { createServer, type Server } from "node:http";
import { cp, readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { transform } from "esbuild";
import { afterAll, beforeAll, describe, expect, it, type TestContext } from "vitest";
import { launchBrowser } from "./support/browser.js";
import { bundleForBrowser, ROOT } from "./support/bundle.js";
import { findMongod, startMongod, type TestMongod } from "./support/mongod.js";
import { fixedPort } from "./support/ports.js";
import { findRuntime } from "./support/runtimes.js";
import { startServer, type TestServer } from "./support/server.js";
import { killPrograms, makeWorkspace, REPOSITORY, runProgram, type Workspace } from "./support/workspace.js";

const BINARY = process.env["PROMBUS_BIN"] ?? join(REPOSITORY, "target/debug/prombus");
const PAGE_TOKEN = "page-token-of-the-guide";
const ADDRESS = "127.0.0.1:8090";
const MONGODB = "mongodb://127.0.0.1:27017/?replicaSet=rs0";
const PAGE_ORIGIN = "http://127.0.0.1:8000";

interface Block {
  language: string;
  /** E.g. `{ file: "first.ts", launcher: "" }`. */
  marks: Record<string, string>;
  text: string;
  line: number;
}

const guide = await readFile(join(REPOSITORY, "docs/typescript.md"), "utf8");
const blocks = blocksOf(guide);
const programs = [...new Set(blocks.filter(({ language }) => language === "ts").map(({ marks }) => marks["file"] ?? ""))];

let workspace: Workspace;
let mongod: Promise<TestMongod> | undefined;
const servers: TestServer[] = [];

beforeAll(async () => { workspace = await makeWorkspace(); });
afterAll(async () => {
  killPrograms();
  await Promise.all(servers.map((server) => server.remove()));
  await (await mongod)?.remove();
  await workspace.remove();
});

function blocksOf(markdown: string): Block[] {
  const found: Block[] = [];
  let open: Block | undefined;
  for (const [index, line] of markdown.split("\n").entries()) {
    if (!line.startsWith("```")) {
      if (open !== undefined) open.text += `${line}\n`;
    } else if (open === undefined) {
      const [language = "", ...words] = line.slice(3).split(" ");
      const marks = Object.fromEntries(words.map((word) => word.includes("=") ? word.split("=") as [string, string] : [word, ""]));
      open = { language, marks, text: "", line: index + 1 };
    } else {
      found.push(open);
      open = undefined;
    }
  }
  return found;
}

function partsOf(name: string): Block[] {
  return blocks.filter(({ language, marks }) => language === "ts" && marks["file"] === name);
}

function marksOf(name: string): Record<string, string> {
  return Object.assign({}, ...partsOf(name).map(({ marks }) => marks)) as Record<string, string>;
}

function block(language: string, file: string): string {
  return blocks.find(({ language: other, marks }) => other === language && marks["file"] === file)?.text ?? "";
}

function missing(context: TestContext, why: string): never {
  if (process.env["CI"] === "true") throw new Error(why);
  console.error(`SKIPPED: ${why}`);
  context.skip(why);
  throw new Error("not reached");
}

describe("docs/typescript.md", { timeout: 120_000 }, () => {
  it("marks every block with how it is checked", () => {
    const unmarked = blocks.filter(({ language, marks }) => {
      if (language === "ts" || language === "toml" || language === "html") return marks["file"] === undefined;
      if (language === "text") return !programs.includes(marks["output"] ?? "");
      return language !== "sh" || (marks["package"] === undefined && marks["run"] === undefined);
    });
    expect(unmarked.map(({ line }) => `line ${line}`)).toEqual([]);
  });

  it("links to headings and files that exist", async () => {
    const broken: string[] = [];
    for (const [, path = "", anchor] of guide.matchAll(/\]\(((?!https?:)[^)#]*)(?:#([^)]*))?\)/g)) {
      const page = path === "" ? guide : await readFile(join(REPOSITORY, "docs", path), "utf8").catch(() => undefined);
      if (page === undefined) broken.push(path);
      else if (anchor !== undefined && !anchorsOf(page).has(anchor)) broken.push(`${path}#${anchor}`);
    }
    expect(broken).toEqual([]);
  });

  it("type-checks under strict and exactOptionalPropertyTypes", async () => {
    const checked = programs.filter((name) => workspace.hasLauncher || marksOf(name)["launcher"] === undefined);
    for (const name of checked) await writeFile(join(workspace.folder, name), partsOf(name).map(({ text }) => text).join("\n"));
    const readme = blocksOf(await readFile(join(ROOT, "README.md"), "utf8")).filter(({ language }) => language === "ts");
    await writeFile(join(workspace.folder, "readme.ts"), readme.map(({ text }) => text).join("\n"));
    const examples = await copyExamples();
    expect(await workspace.check([...checked, "readme.ts", ...examples])).toBe("");
  });

  it("has shell commands that work", async () => {
    // The real `npx` would look for the packages on the network.
    const npx = 'npx() { case "$1" in prombus) "$PROMBUS" "${@:2}" ;; esbuild) "$ESBUILD" "${@:2}" ;; *) return 1 ;; esac; }';
    const env = { PROMBUS: BINARY, ESBUILD: join(ROOT, "node_modules/.bin/esbuild") };
    for (const { text } of blocks.filter(({ language, marks }) => language === "sh" && marks["run"] !== undefined)) {
      const program = runProgram("bash", ["-euc", `${npx}\n${text}`], { cwd: workspace.folder, env });
      expect(await program.ended, program.output()).toBe(0);
    }
    expect(await readFile(join(workspace.folder, "client.js"), "utf8")).toMatch(/export \{[^}]*connect/);
  });

  for (const name of programs) {
    it.concurrent(`runs ${name}`, async (context) => {
      const marks = marksOf(name);
      if (marks["launcher"] !== undefined && !workspace.hasLauncher) missing(context, `${name}: npm/prombus does not exist`);
      let command = process.execPath;
      if (marks["node"] === "newest") {
        const node = await findRuntime("node");
        if (node.missing !== undefined) missing(context, `${name} needs a newer Node: ${node.missing}`);
        command = node.binary;
      }
      let source = partsOf(name).map(({ text }) => text).join("\n");
      const env: Record<string, string> = {};
      const settings: Record<string, string> = {};
      let server: TestServer | undefined;
      if (marks["mongodb"] !== undefined) {
        const { missing: why } = findMongod();
        if (why !== undefined) missing(context, `${name}: ${why}`);
        const { url } = await (mongod ??= startMongod("replica set"));
        expect(source).toContain(MONGODB);
        source = source.replaceAll(MONGODB, url);
        if (marks["mongodb"] === "store") settings["PROMBUS_STORE"] = url;
      }
      if (marks["launcher"] === undefined) {
        server = await startServer({ env: settings, ...(marks["token"] === undefined ? {} : { token: marks["token"] }) });
        servers.push(server);
        source = source.replaceAll(ADDRESS, new URL(server.http).host);
      } else {
        env["PROMBUS_BINARY"] = BINARY;
      }
      const file = name.replace(/\.ts$/, ".mjs");
      const { code } = await transform(source, { loader: "ts", format: "esm", target: "es2022" });
      await writeFile(join(workspace.folder, file), code);
      const program = runProgram(command, [file], { cwd: workspace.folder, env });
      const outputs = blocks.filter(({ marks: { output } }) => output === name);
      const expected = outputs.map(({ text }) => text).join("").trimEnd().split("\n");
      const isSorted = outputs.some(({ marks: { sorted } }) => sorted !== undefined);
      if (marks["worker"] === undefined) {
        const late = setTimeout(() => void program.stop("SIGKILL"), 20_000);
        expect(await program.ended, program.output()).toBe(0);
        clearTimeout(late);
      } else {
        await program.saw(expected.at(-1) ?? "");
        await program.stop();
      }
      const lines = isSorted ? program.lines.toSorted() : program.lines;
      expect(lines, program.output()).toEqual(isSorted ? expected.toSorted() : expected);
      await server?.remove();
    });
  }

  it("has a page that works from another origin, with a token and a ticket", async (context) => {
    const browser = await launchBrowser().catch((error: Error) => missing(context, error.message));
    let web: Server | undefined;
    try {
      const origin = `http://127.0.0.1:${await fixedPort()}`;
      const config = join(workspace.folder, "prombus.toml");
      await writeFile(config, block("toml", "prombus.toml").replace(PAGE_ORIGIN, origin));
      const server = await startServer({ listen: `127.0.0.1:${await fixedPort()}`, env: { PROMBUS_CONFIG: config } });
      servers.push(server);
      const files: Record<string, [string, string]> = {
        "/": ["text/html", block("html", "page.html").replace(ADDRESS, new URL(server.http).host)],
        "/client.js": ["text/javascript", await bundleForBrowser("src/index.ts")],
        "/token": ["text/plain", PAGE_TOKEN],
      };
      web = createServer((request, response) => {
        const [type, text] = files[request.url ?? ""] ?? ["text/plain", ""];
        response.setHeader("Content-Type", `${type}; charset=utf-8`);
        response.end(text);
      });
      await new Promise<void>((listening) => web?.listen(Number(new URL(origin).port), "127.0.0.1", () => listening()));

      const page = await browser.newPage();
      const opened = page.waitForResponse((response) => response.url().includes("ticket="));
      await page.goto(origin);
      await page.locator("#status", { hasText: /^connected$/ }).waitFor();
      expect((await opened).status()).toBe(200);
      await page.fill("#text", "water the plants");
      await page.click("#add button");
      await page.locator("#tasks li", { hasText: "water the plants" }).waitFor();
      await page.locator("#log li", { hasText: "water the plants" }).waitFor();
      await server.restart("SIGKILL");
      await page.locator("#status", { hasText: /^connected$/ }).waitFor();
      await page.locator("#tasks li button").click();
      expect(await page.locator("#tasks li").count()).toBe(0);
    } finally {
      await browser.close();
      web?.closeAllConnections();
      web?.close();
    }
  });
});

/** Copies the Node programs of `examples/` to the workspace; returns their paths there. */
async function copyExamples(): Promise<string[]> {
  const from = join(REPOSITORY, "examples");
  const names = (await readdir(from, { recursive: true })).filter((name) => /^(?!.*node_modules).*\.mjs$/.test(name));
  for (const name of names) await cp(join(from, name), join(workspace.folder, "examples", name));
  return names.map((name) => join("examples", name));
}

/** The anchors that GitHub gives the headings of a page. */
function anchorsOf(page: string): Set<string> {
  const headings = [...page.matchAll(/^#+ (.*)$/gm)].map(([, text]) => text as string);
  return new Set(headings.map((text) => text.toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, "").replaceAll(" ", "-")));
}
