// Runs the JavaScript of README.md against a real server. Only the port is changed.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import WebSocket from "ws";
import { DataFolder, Server } from "./server.js";

const README = join(import.meta.dirname, "../../README.md");

test("the JavaScript of the README receives the event that it publishes", async () => {
  const script = /```js\n(.*?)```/s.exec(await readFile(README, "utf8"))?.[1];
  expect(script).toContain("ws://127.0.0.1:8090/ws");
  const data = await DataFolder.make();
  const server = await Server.start(data.path);
  const sockets: WebSocket[] = [];
  // Browsers, and Node from version 22 on, have a WebSocket class of their own; this one also records the sockets.
  class Opened extends WebSocket {
    constructor(url: string) {
      super(url);
      sockets.push(this);
    }
  }
  try {
    const printed = new Promise((printed) => {
      const run = new Function("WebSocket", "console", script?.replace("ws://127.0.0.1:8090", server.url) ?? "");
      run(Opened, { log: printed });
    });
    expect(await printed).toEqual({ total: 12 });
  } finally {
    for (const socket of sockets) socket.close();
    const code = await server.stop();
    await data.remove();
    expect(code).toBe(0);
  }
});
