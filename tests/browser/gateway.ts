// The real server with a folder of its own, which can be restarted at the same address.
import { DataFolder, Server } from "../event-client/server.js";

export class Gateway {
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

  /** Pages of `origin` may use it. Without a token everybody on this machine gets in. */
  static async start(origin: string, token?: string): Promise<Gateway> {
    const data = await DataFolder.make();
    const server = await Server.start(data.path, token, { variables: Gateway.variables(origin) });
    return new Gateway(server, data, origin, token);
  }

  private static variables(origin: string): Record<string, string> {
    return { PROMBUS_HTTP_CORS_ORIGINS: origin };
  }

  /** Ends it with the signal, calls `whileAway` if there is one, and starts it at the same address. */
  async restart(signal: "SIGTERM" | "SIGKILL", whileAway?: () => Promise<void>): Promise<void> {
    const code = await this.server.stop(signal);
    if (signal === "SIGTERM" && code !== 0) throw new Error(`the server ended with ${code}`);
    await whileAway?.();
    const listen = new URL(this.http).host;
    this.server = await Server.start(this.data.path, this.token, {
      listen,
      variables: Gateway.variables(this.origin),
    });
  }

  /** Publishes while no page can reach the gateway: for this time it listens at another address. */
  async publishElsewhere(topic: string, payloads: unknown[]): Promise<void> {
    const server = await Server.start(this.data.path, this.token);
    try {
      await this.post(server.url.replace(/^ws/, "http").replace(/\/$/, ""), topic, payloads);
    } finally {
      await server.stop();
    }
  }

  /** Publishes one after the other; returns when all are durable. */
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
