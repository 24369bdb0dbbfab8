import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { launchBrowser, Origin } from "./browser.js";
import { RestartableServer } from "./restartable-server.js";

let browser: Browser;
let origin: Origin;
let server: RestartableServer;
let page: Page;

beforeAll(async () => {
  [browser, origin] = await Promise.all([launchBrowser(), Origin.start()]);
  server = await RestartableServer.start(origin.url);
  page = await origin.open(browser);
});

afterAll(async () => {
  await browser?.close();
  await server?.remove();
  await origin?.stop();
});

interface Close {
  elapsedMs: number;
  wasClean: boolean;
  code: number;
}

/** Connects, sends the frames, waits for one answer to each of them, and closes. */
function openAndClose(frames: object[], arguments_: [code?: number, reason?: string]): Promise<Close> {
  return page.evaluate(({ url, frames, arguments_ }) => new Promise<Close>((closed, failed) => {
    const socket = new WebSocket(url);
    let answers = 0;
    let started = 0;
    const closeWhenDone = () => {
      if (answers < frames.length) return;
      started = performance.now();
      socket.close(...arguments_);
    };
    socket.onopen = () => {
      frames.forEach((frame) => socket.send(JSON.stringify(frame)));
      closeWhenDone();
    };
    socket.onmessage = () => {
      answers += 1;
      if (answers === frames.length) closeWhenDone();
    };
    socket.onclose = ({ wasClean, code }) => {
      if (started === 0) failed(new Error(`closed with ${code} before close()`));
      closed({ elapsedMs: performance.now() - started, wasClean, code });
    };
  }), { url: server.ws, frames, arguments_ });
}

/** The fastest of three: a single one may be slow because the machine is busy. */
async function fastestClose(frames: object[], ...arguments_: [code?: number, reason?: string]): Promise<Close> {
  const closes: Close[] = [];
  for (let i = 0; i < 3; i++) closes.push(await openAndClose(frames, arguments_));
  return closes.reduce((best, next) => next.elapsedMs < best.elapsedMs ? next : best);
}

test("close() without arguments completes at once, clean, with 1000", async () => {
  const close = await fastestClose([]);
  expect(close).toMatchObject({ wasClean: true, code: 1000 });
  expect(close.elapsedMs).toBeLessThan(100);
});

test("close(1000, reason) completes at once, clean, with 1000", async () => {
  const close = await fastestClose([], 1000, "done");
  expect(close).toMatchObject({ wasClean: true, code: 1000 });
  expect(close.elapsedMs).toBeLessThan(100);
});

test("close() with a subscription and events in flight completes at once", async () => {
  await server.publish("close.busy", [1, 2, 3]);
  const subscribe = { op: "SUBSCRIBE", topic: "close.busy", group: "page", opts: { from: "earliest", manualAck: true } };
  const close = await fastestClose([subscribe], 1000);
  expect(close).toMatchObject({ wasClean: true, code: 1000 });
  expect(close.elapsedMs).toBeLessThan(100);
});
