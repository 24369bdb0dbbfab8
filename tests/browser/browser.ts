// Starts headless Chromium, and serves empty pages of origins that are not the server's.
import { existsSync } from "node:fs";
import { createServer, type Server as HttpServer } from "node:http";
import type { AddressInfo } from "node:net";
import { type Browser, chromium, type Page } from "playwright-core";

const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** Starts `CHROMIUM_BIN`, or Chromium from one of the usual paths. */
export async function launchBrowser(): Promise<Browser> {
  const executablePath = process.env.CHROMIUM_BIN ?? PLACES.find((place) => existsSync(place));
  if (executablePath === undefined) {
    throw new Error("Chromium is not installed: install it, or set CHROMIUM_BIN");
  }
  // The sandbox does not work for root, and is not needed: all pages belong to the tests.
  return await chromium.launch({ executablePath, args: ["--no-sandbox"] });
}

/** Serves one empty page on a free port of this machine. */
export class Origin {
  /** E.g. `http://127.0.0.1:40124`. */
  readonly url: string;
  private readonly server: HttpServer;

  private constructor(url: string, server: HttpServer) {
    this.url = url;
    this.server = server;
  }

  static async start(): Promise<Origin> {
    const server = createServer((_request, response) => {
      response.setHeader("Content-Type", "text/html; charset=utf-8");
      response.end("<!doctype html><title>test</title>");
    });
    await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
    const { port } = server.address() as AddressInfo;
    return new Origin(`http://127.0.0.1:${port}`, server);
  }

  async open(browser: Browser): Promise<Page> {
    const page = await browser.newPage();
    await page.goto(this.url);
    return page;
  }

  async stop(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((closed) => this.server.close(closed));
  }
}
