// The consumer of README.md, pasted into the console of a page that the server itself serves.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { DataFolder, Server } from "../event-client/server.js";
import { launchBrowser } from "./browser.js";

const README = join(import.meta.dirname, "../../README.md");

let browser: Browser;
let data: DataFolder;
let server: Server;

beforeAll(async () => {
  [browser, data] = await Promise.all([launchBrowser(), DataFolder.make()]);
  server = await Server.start(data.path);
});

afterAll(async () => {
  await browser?.close();
  await server?.stop();
  await data?.remove();
});

test("the consumer of the README works in the console of a page of the server", async () => {
  const readme = await readFile(README, "utf8");
  const script = /```js\n(.*?)```/s.exec(readme)?.[1] ?? "";
  const path = /<http:\/\/127\.0\.0\.1:8090(\/\w*)>/.exec(readme)?.[1];
  expect(path).toBeDefined();
  const { host } = new URL(server.url);
  const page = await browser.newPage();
  const printed: string[] = [];
  page.on("console", (message) => {
    // Not what the browser itself reports, such as a missing icon.
    if (message.type() === "log") printed.push(message.text());
  });
  await page.goto(`http://${host}${path}`);
  await fetch(`http://${host}/publish/orders.new`, { method: "POST", body: '{"total": 12}' });
  // As the console does it: the lines may await.
  await page.evaluate(`(async () => {${script.replace("127.0.0.1:8090", host)}})()`);
  await expect.poll(() => printed, { timeout: 10_000 }).toEqual(["OK {created: true}", "billed {total: 12}"]);
});
