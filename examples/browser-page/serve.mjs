// @ts-check
// Serves the page and the client's ES modules on http://127.0.0.1:8000. No build step is needed: the page's import map points to
// the files of the installed package.
//
//   PROMBUS_HTTP_CORS_ORIGINS=http://127.0.0.1:8000 WS_TOKEN=secret prombus serve
//   PROMBUS_TOKEN=secret node browser-page/serve.mjs
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const here = import.meta.dirname;
const client = dirname(fileURLToPath(import.meta.resolve("@prombus/client")));
const types = { ".html": "text/html", ".js": "text/javascript", ".map": "application/json" };

const server = createServer(async (request, response) => {
  const path = normalize(decodeURIComponent(new URL(request.url ?? "/", "http://page").pathname));
  if (path === "/session") {
    // A real backend authenticates the user here, and responds with a short-lived token (a JWT) for that user.
    response.setHeader("Content-Type", "application/json");
    response.setHeader("Cache-Control", "no-store");
    response.end(JSON.stringify({
      url: process.env.PROMBUS_URL ?? "ws://127.0.0.1:8090",
      token: process.env.PROMBUS_TOKEN ?? "",
    }));
    return;
  }
  const file = path.startsWith("/client/") ? join(client, path.slice("/client/".length))
    : path === "/" ? join(here, "index.html")
    : undefined;
  const type = types[/** @type {keyof typeof types} */ (extname(file ?? ""))];
  if (file === undefined || type === undefined || !(await stat(file).catch(() => undefined))?.isFile()) {
    response.writeHead(404).end();
    return;
  }
  response.setHeader("Content-Type", `${type}; charset=utf-8`);
  createReadStream(file).pipe(response);
});

server.listen(Number(process.env.PORT ?? 8000), "127.0.0.1", () => {
  const address = /** @type {import("node:net").AddressInfo} */ (server.address());
  console.log(`open http://127.0.0.1:${address.port}`);
});
process.once("SIGTERM", () => {
  server.close();
  server.closeAllConnections();
});
