/** Starts headless Chromium, and serves pages of origins other than the server's. */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Browser, chromium, type Page } from "playwright-core";

const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** Chromium's sandbox does not work for root, and is not needed: all pages belong to these tests. */
const FLAGS = ["--no-sandbox"];

/** The Chromium binary: `CHROMIUM_BIN`, or one of the usual paths. */
const CHROMIUM = process.env["CHROMIUM_BIN"] ?? PLACES.find((place) => existsSync(place));

/** Tests in Chromium are skipped if it is not installed; under CI they fail. */
export const skipsChromium = CHROMIUM === undefined && process.env["CI"] !== "true";
if (skipsChromium) console.error("SKIPPED: Chromium is not installed: install it, or set CHROMIUM_BIN");

function findChromium(): string {
  if (CHROMIUM === undefined) throw new Error("Chromium is not installed: install it, or set CHROMIUM_BIN");
  return CHROMIUM;
}

/** Starts Chromium. */
export async function launchBrowser(): Promise<Browser> {
  return await chromium.launch({ executablePath: findChromium(), args: FLAGS });
}

/**
 * Opens one page in a separate Chromium without Playwright, until `work` has ended. A browser that Playwright controls
 * reports every message of every WebSocket, which costs more time than the messages.
 */
export async function withPage<R>(url: string, work: Promise<R>): Promise<R> {
  const profile = await mkdtemp(join(tmpdir(), "prombus-chromium-"));
  const child = spawn(
    findChromium(),
    [...FLAGS, "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", `--user-data-dir=${profile}`, url],
    { stdio: ["ignore", "ignore", "pipe"] },
  );
  const kill = (): void => void child.kill("SIGKILL");
  process.once("exit", kill);
  let log = "";
  child.stderr.on("data", (piece: Buffer) => (log += piece.toString()));
  const exited = new Promise<void>((done) => child.once("close", () => done()));
  const failed = new Promise<never>((_, reject) => {
    child.once("error", reject);
    child.once("close", (code) => reject(new Error(`Chromium ended with status ${code}: ${log}`)));
  });
  try {
    return await Promise.race([work, failed]);
  } finally {
    kill();
    await exited;
    process.off("exit", kill);
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** Serves files of one origin on a free port of this machine; `/` is an empty page. */
export interface Origin {
  /** E.g. `http://127.0.0.1:40124`. */
  readonly url: string;
  /** Opens the empty page. */
  open(browser: Browser): Promise<Page>;
  stop(): Promise<void>;
}

export interface OriginOptions {
  /** Scripts by their path, e.g. `{ "/client.js": "export …" }`. */
  scripts?: Record<string, string>;
  /** The content of every page; an empty page if absent. */
  html?: string;
  /** Called with the path and body of each POST. */
  onPost?(path: string, body: string): void;
}

export async function startOrigin({ scripts = {}, html = "", onPost }: OriginOptions = {}): Promise<Origin> {
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url ?? "/", "http://localhost");
    if (request.method === "POST") {
      let body = "";
      for await (const piece of request) body += String(piece);
      onPost?.(pathname, body);
      response.end();
      return;
    }
    const script = scripts[pathname];
    response.setHeader("Content-Type", script === undefined ? "text/html; charset=utf-8" : "text/javascript; charset=utf-8");
    response.end(script ?? `<!doctype html><link rel=icon href=data:,><title>test</title>${html}`);
  });
  await listen(server);
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    url,
    async open(browser) {
      const page = await browser.newPage();
      await page.goto(url);
      return page;
    },
    async stop() {
      server.closeAllConnections();
      await new Promise((closed) => server.close(closed));
    },
  };
}

function listen(server: Server): Promise<void> {
  return new Promise((listening, failed) => {
    server.once("error", failed);
    server.listen(0, "127.0.0.1", () => listening());
  });
}
