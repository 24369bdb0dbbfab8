import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { afterEach, describe, expect, test, vi } from "vitest";
import { LaunchError, type PrombusServer, type StartServerOptions, startServer } from "../prombus/esm/index.mjs";
import { BINARY, isRunning, runNode, script, temporaryFolder } from "./support.js";

const folder = temporaryFolder();
const started: PrombusServer[] = [];

afterEach(async () => {
  vi.unstubAllEnvs();
  await Promise.all(started.splice(0).map((server) => server.stop("SIGKILL")));
});

async function start(options: StartServerOptions = {}): Promise<PrombusServer> {
  const server = await startServer({ binary: BINARY, ...options });
  started.push(server);
  return server;
}

async function publish(server: PrombusServer, payload: unknown, token?: string): Promise<Response> {
  const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
  return fetch(`${server.httpUrl}/publish/things`, { method: "POST", body: JSON.stringify(payload), headers });
}

async function payloads(server: PrombusServer): Promise<unknown[]> {
  const lines = (await (await fetch(`${server.httpUrl}/export?topic=things`)).text()).trim().split("\n");
  return lines.map((line) => (JSON.parse(line) as { payload: unknown }).payload);
}

describe("startServer", () => {
  test("starts a server on a free port, and stop() ends it and removes its temporary folder", async () => {
    const server = await start();
    expect(server.url).toMatch(/^ws:\/\/127\.0\.0\.1:\d+$/);
    expect(server.httpUrl).toBe(server.url.replace("ws:", "http:"));
    expect(isRunning(server.pid)).toBe(true);
    expect((await publish(server, 1)).ok).toBe(true);
    expect(existsSync(server.dataFolder)).toBe(true);
    expect(await server.stop()).toEqual({ code: 0, signal: null });
    expect(isRunning(server.pid)).toBe(false);
    expect(existsSync(server.dataFolder)).toBe(false);
    expect(await server.stop()).toEqual({ code: 0, signal: null });
    await expect(server.restart()).rejects.toThrow("stop() removed the temporary data folder");
  });

  test("keeps a data folder that the caller named", async () => {
    const data = join(folder, "given");
    const first = await start({ data });
    expect(first.dataFolder).toBe(data);
    await publish(first, "kept");
    await first.stop();
    const second = await start({ data });
    expect(await payloads(second)).toEqual(["kept"]);
    await second.stop();
    await second.restart();
    expect(await payloads(second)).toEqual(["kept"]);
  });

  test("restart() keeps the address and the data", async () => {
    const server = await start();
    const { url, pid } = server;
    await publish(server, "before");
    await server.restart();
    expect(server.url).toBe(url);
    expect(server.pid).not.toBe(pid);
    expect(isRunning(pid)).toBe(false);
    await publish(server, "after");
    expect(await payloads(server)).toEqual(["before", "after"]);
  });

  test("restart() recovers after kill()", async () => {
    const server = await start();
    await publish(server, "durable");
    expect(await server.kill()).toEqual({ code: null, signal: "SIGKILL" });
    await expect(publish(server, "lost")).rejects.toThrow();
    await server.restart();
    expect(await payloads(server)).toEqual(["durable"]);
    await server.kill();
    await server.stop();
    expect(existsSync(server.dataFolder)).toBe(false);
  });

  test("await using stops it", async () => {
    const server = await start();
    await server[Symbol.asyncDispose]();
    expect(isRunning(server.pid)).toBe(false);
  });

  test("a token is required when one was given", async () => {
    const server = await start({ token: "secret" });
    expect((await publish(server, 1)).status).toBe(401);
    expect((await publish(server, 1, "secret")).ok).toBe(true);
  });

  test("variables of the surrounding environment do not configure it; those of `env` do", async () => {
    vi.stubEnv("WS_TOKEN", "surrounding");
    vi.stubEnv("PROMBUS_DATA", join(folder, "surrounding"));
    vi.stubEnv("PROMBUS_LOG", "not a filter=");
    const server = await start();
    expect((await publish(server, 1)).ok).toBe(true);
    expect(existsSync(join(folder, "surrounding"))).toBe(false);
    const configured = await start({ env: { WS_TOKEN: "given" }, args: ["--log", "debug"] });
    expect((await publish(configured, 1)).status).toBe(401);
    expect(configured.output()).toContain("DEBUG");
  });

  test("PROMBUS_BINARY is the default for `binary`", async () => {
    vi.stubEnv("PROMBUS_BINARY", BINARY);
    const server = await startServer();
    started.push(server);
    expect((await publish(server, 1)).ok).toBe(true);
  });
});

describe("a server that does not start", () => {
  async function failure(options: StartServerOptions): Promise<LaunchError> {
    const error: unknown = await start(options).then(() => undefined, (reason: unknown) => reason);
    if (!(error instanceof LaunchError)) throw new Error(`expected a LaunchError, got ${String(error)}`);
    return error;
  }

  test("is reported with its stderr", async () => {
    const error = await failure({ args: ["--no-such-option"] });
    expect(error.code).toBe("start_failed");
    expect(error.message).toContain("prombus serve ended before it was ready (exit code 2)");
    expect(error.message).toContain("--no-such-option");
    expect(error.output).toContain("--no-such-option");
  });

  test("is reported when its port is in use", async () => {
    const other = createServer();
    await new Promise<void>((ready) => { other.listen(0, "127.0.0.1", ready); });
    const { port } = other.address() as AddressInfo;
    const error = await failure({ listen: `127.0.0.1:${port}` });
    other.close();
    expect(error.code).toBe("start_failed");
    expect(error.message).toContain(`127.0.0.1:${port}`);
  });

  test("is killed after startTimeoutMs", async () => {
    const pidFile = join(folder, "pid");
    const binary = script(join(folder, "silent"), `echo hello; echo $$ >${pidFile}; exec sleep 60`);
    const error = await failure({ binary, startTimeoutMs: 500 });
    expect(error.code).toBe("start_timeout");
    expect(error.message).toBe("prombus serve was not ready after 500 ms:\nhello\n");
    expect(isRunning(Number(readFileSync(pidFile, "utf8")))).toBe(false);
  });

  test("is reported when its binary does not exist", async () => {
    const error = await failure({ binary: join(folder, "nowhere") });
    expect(error.code).toBe("binary_not_found");
  });

  test("is reported when the system cannot run its binary", async () => {
    const binary = join(folder, "no-interpreter");
    writeFileSync(binary, "#!/nowhere/interpreter\n", { mode: 0o755 });
    const error = await failure({ binary });
    expect(error.code).toBe("cannot_execute");
    expect(error.message).toContain(`cannot run ${binary}: `);
    expect(error.message).toContain("needs glibc");
  });
});

describe("the server does not outlive its parent process", () => {
  test.each([
    ["exits", "process.exit(3)", { code: 3, signal: null }],
    ["has nothing left to do", "", { code: 0, signal: null }],
    ["throws", "throw new Error('on purpose')", { code: 1, signal: null }],
    ["is terminated", "process.kill(process.pid, 'SIGTERM'); setInterval(() => {}, 1000)", { code: null, signal: "SIGTERM" }],
    ["is killed", "process.kill(process.pid, 'SIGKILL')", { code: null, signal: "SIGKILL" }],
  ])("that %s", async (_, ending, exit) => {
    const source = `
      import { startServer } from ${JSON.stringify(new URL("../prombus/esm/index.mjs", import.meta.url).href)};
      const server = await startServer({ binary: ${JSON.stringify(BINARY)} });
      console.log(JSON.stringify({ pid: server.pid, folder: server.dataFolder }));
      ${ending}`;
    const result = await runNode(["--input-type=module", "--eval", source]).result;
    expect(result).toMatchObject(exit);
    const { pid, folder: data } = JSON.parse(result.stdout) as { pid: number; folder: string };
    await vi.waitFor(() => {
      expect(isRunning(pid)).toBe(false);
      expect(existsSync(data)).toBe(false);
    }, { timeout: 5_000 });
  });
});
