// Runs the real server with its own data folder; it can be restarted at the same address.
import { DataFolder, Server } from "../event-client/server.js";

export class RestartableServer {
  /** E.g. `http://127.0.0.1:40123`. */
  readonly http: string;
  /** E.g. `ws://127.0.0.1:40123`. */
  readonly ws: string;
  private server: Server;
  private readonly data: DataFolder;
  private readonly origin: string;
  private readonly token: string | undefined;

  private constructor(server: Server, data: DataFolder, origin: string, token: string | undefined) {
    this.ws = server.url.replace(/\/$/, "");
    this.http = this.ws.replace(/^ws/, "http");
    this.server = server;
    this.data = data;
    this.origin = origin;
    this.token = token;
  }

  /** Starts a server that pages of `origin` may use. Without a token, every client on this machine has access. */
  static async start(origin: string, token?: string): Promise<RestartableServer> {
    const data = await DataFolder.make();
    const server = await Server.start(data.path, token, { variables: RestartableServer.variables(origin) });
    return new RestartableServer(server, data, origin, token);
  }

  private static variables(origin: string): Record<string, string> {
    return { PROMBUS_HTTP_CORS_ORIGINS: origin };
  }

  /** Ends the server with the signal, calls `whileAway` if given, and starts the server at the same address. */
  async restart(signal: "SIGTERM" | "SIGKILL", whileAway?: () => Promise<void>): Promise<void> {
    const code = await this.server.stop(signal);
    if (signal === "SIGTERM" && code !== 0) throw new Error(`the server exited with code ${code}`);
    await whileAway?.();
    const listen = new URL(this.http).host;
    this.server = await Server.start(this.data.path, this.token, {
      listen,
      variables: RestartableServer.variables(this.origin),
    });
  }

  /** Publishes while no page can reach the server: for this time it listens at another address. */
  async publishElsewhere(topic: string, payloads: unknown[]): Promise<void> {
    const server = await Server.start(this.data.path, this.token);
    try {
      await this.post(server.url.replace(/^ws/, "http").replace(/\/$/, ""), topic, payloads);
    } finally {
      await server.stop();
    }
  }

  /** Publishes payloads one after the other; returns when all are durable. */
  async publish(topic: string, payloads: unknown[]): Promise<void> {
    await this.post(this.http, topic, payloads);
  }

  private async post(base: string, topic: string, payloads: unknown[]): Promise<void> {
    for (const payload of payloads) {
      const response = await fetch(`${base}/publish/${topic}`, {
        method: "POST",
        headers: this.token === undefined ? {} : { Authorization: `Bearer ${this.token}` },
        body: JSON.stringify(payload),
      });
      if (!response.ok) throw new Error(`publish: ${response.status} ${await response.text()}`);
    }
  }

  async remove(): Promise<void> {
    await this.server.stop();
    await this.data.remove();
  }
}
