import { LaunchError, binaryPath, startServer } from "prombus";
import type { LaunchErrorCode, PrombusServer, ServerExit, StartServerOptions } from "prombus";

const options: StartServerOptions = { data: "folder", token: undefined, args: ["--log", "debug"], env: { A: "b", C: undefined } };

export async function use(): Promise<ServerExit> {
  await using other: PrombusServer = await startServer();
  const server = await startServer(options);
  const urls: string[] = [server.url, server.httpUrl, server.dataFolder, other.output(), binaryPath()];
  const pid: number = server.pid;
  await server.kill();
  await server.restart();
  // @ts-expect-error: not a signal that ends a server
  await server.stop("SIGHUP");
  // @ts-expect-error: an unknown option
  await startServer({ port: pid });
  return urls.length > 0 ? server.stop("SIGINT") : server.stop();
}

export function codeOf(error: unknown): LaunchErrorCode | undefined {
  return error instanceof LaunchError ? error.code : undefined;
}
