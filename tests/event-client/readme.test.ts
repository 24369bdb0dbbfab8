// README.md's section "Try it", as printed there, against a real server: the commands, the consumer, and what they print.
// Only the port and the path of the binary are different.
import { execFile, spawn } from "node:child_process";
import { readFile, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { BINARY, DataFolder, Server } from "./server.js";

const README = join(import.meta.dirname, "../../README.md");
/** A redelivery waits for its backoff, and a busy machine is slow. */
const PATIENCE_MS = 20_000;

const run = promisify(execFile);

interface Block {
  language: string;
  text: string;
}

async function blocksOf(section: string): Promise<Block[]> {
  const readme = await readFile(README, "utf8");
  const text = readme.split(`\n## ${section}\n`)[1]?.split("\n## ")[0] ?? "";
  return [...text.matchAll(/^```(\w+)\n(.*?)^```$/gms)].map(([, language = "", text = ""]) => ({ language, text }));
}

/** Without ids and times, which differ from run to run. */
function normalized(output: string): string {
  return output.trimEnd().replace(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[\d:.]+Z|\d{13}/g, "…");
}

/** `node consumer.mjs`, and what it has printed. */
class Consumer {
  private output = "";
  private readonly child;

  constructor(folder: string) {
    this.child = spawn(process.execPath, ["consumer.mjs"], { cwd: folder });
    for (const stream of [this.child.stdout, this.child.stderr]) {
      stream.on("data", (piece: Buffer) => { this.output += piece.toString(); });
    }
  }

  async printed(expected: string): Promise<void> {
    await expect.poll(() => this.output.trimEnd(), { timeout: PATIENCE_MS }).toBe(expected.trimEnd());
  }

  async stop(): Promise<void> {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    const exited = new Promise((exited) => this.child.once("exit", exited));
    this.child.kill("SIGINT");
    await exited;
  }
}

test("the commands and the consumer of the README print what it shows", { timeout: 3 * PATIENCE_MS }, async () => {
  const [publish, published, consumer, refuse, consumed, redrive, redriven, ...others] = await blocksOf("Try it");
  expect(others).toEqual([]);
  if (!publish || !published || !consumer || !refuse || !consumed || !redrive || !redriven) throw new Error("a block is missing");
  expect([publish, consumer, refuse, redrive].map(({ language }) => language)).toEqual(["sh", "js", "sh", "sh"]);
  const data = await DataFolder.make();
  const folder = await DataFolder.make();
  const server = await Server.start(data.path);
  const host = new URL(server.url).host;
  const consumers: Consumer[] = [];

  async function shell({ text }: Block): Promise<string> {
    const lines = text.trimEnd().split("\n");
    let output = "";
    for (const line of lines) {
      const command = line.replaceAll("127.0.0.1:8090", host).replace("target/release/prombus", BINARY);
      // The last line about publishing waits for new events; Ctrl-C ends it.
      if (line.startsWith("curl -N ")) {
        const { stdout } = await run("sh", ["-c", `${command} --max-time 1 || [ $? = 28 ]`]);
        expect(stdout).toContain(": connected");
        continue;
      }
      const { stdout } = await run("sh", ["-c", command], { env: { ...process.env, PROMBUS_URL: `http://${host}` } });
      output += `${stdout.trimEnd()}\n`;
    }
    return normalized(output);
  }
  async function startConsumer(source: string): Promise<Consumer> {
    expect(source).toContain("ws://127.0.0.1:8090/ws");
    await writeFile(join(folder.path, "consumer.mjs"), source.replace("127.0.0.1:8090", host));
    const consumer = new Consumer(folder.path);
    consumers.push(consumer);
    return consumer;
  }

  try {
    await symlink(join(import.meta.dirname, "node_modules"), join(folder.path, "node_modules"));
    expect(await shell(publish)).toBe(normalized(published.text));

    const strict = await startConsumer(consumer.text);
    await shell(refuse);
    await strict.printed(consumed.text);
    await strict.stop();

    expect(consumer.text).toContain("> 0");
    const fixed = await startConsumer(consumer.text.replace("> 0", ">= 0"));
    await fixed.printed("OK { created: false }");
    expect(await shell(redrive)).toBe(normalized(redriven.text));
    await fixed.printed("OK { created: false }\nbilled { total: 0 }");
  } finally {
    for (const consumer of consumers) await consumer.stop();
    expect(await server.stop()).toBe(0);
    await data.remove();
    await folder.remove();
  }
});
