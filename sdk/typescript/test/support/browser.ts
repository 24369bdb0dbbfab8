/** Chromium without a window, and pages of origins other than the server's. */
import { existsSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { type Browser, chromium, type Page } from "playwright-core";

const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** Starts Chromium. `CHROMIUM_BIN` names another binary than those of the usual places. */
export async function launchBrowser(): Promise<Browser> {
  const executablePath = process.env["CHROMIUM_BIN"] ?? PLACES.find((place) => existsSync(place));
  if (executablePath === undefined) throw new Error("Chromium is not installed: install it, or set CHROMIUM_BIN");
  // Chromium's sandbox does not work for root, and every page is one of these tests.
  return await chromium.launch({ executablePath, args: ["--no-sandbox"] });
}

/** Files of one origin on a free port of this machine; `/` is an empty page. */
export interface Origin {
  /** E.g. `http://127.0.0.1:40124`. */
  readonly url: string;
  /** Opens the empty page. */
  open(browser: Browser): Promise<Page>;
  stop(): Promise<void>;
}

/** Serves scripts by their path, e.g. `{ "/client.js": "export …" }`. */
export async function startOrigin(scripts: Record<string, string> = {}): Promise<Origin> {
  const server = createServer((request, response) => {
    const script = scripts[request.url ?? "/"];
    response.setHeader("Content-Type", script === undefined ? "text/html; charset=utf-8" : "text/javascript; charset=utf-8");
    response.end(script ?? "<!doctype html><link rel=icon href=data:,><title>test</title>");
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
