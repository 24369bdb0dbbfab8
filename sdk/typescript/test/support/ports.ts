/** Fixed ports for servers that are restarted. */
import { createServer } from "node:net";

/**
 * A free port that the system does not use for outgoing connections: while the server is down, another
 * connection could take its port, and a client that connects to such a port could reach itself.
 */
export async function fixedPort(): Promise<number> {
  for (let attempt = 0; attempt < 100; attempt++) {
    const port = 10_000 + Math.floor(Math.random() * 20_000);
    if (await isFree(port)) return port;
  }
  throw new Error("no free port from 10000 to 29999");
}

function isFree(port: number): Promise<boolean> {
  return new Promise((done) => {
    const server = createServer();
    server.once("error", () => done(false));
    server.listen(port, "127.0.0.1", () => server.close(() => done(true)));
  });
}
