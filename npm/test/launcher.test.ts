import { chmodSync, cpSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { BINARY, LAUNCHER, PACKAGE, isRunning, runNode, script, temporaryFolder } from "./support.js";

const folder = temporaryFolder();
const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

describe("the launcher", () => {
  test("passes on arguments, stdin and stdout", async () => {
    const binary = script(join(folder, "echo"), 'printf "[%s]" "$@"; cat');
    const run = runNode([LAUNCHER, "one", "two words", "--three=*"], { PROMBUS_BINARY: binary });
    run.child.stdin.end("from stdin");
    expect(await run.result).toMatchObject({ code: 0, stdout: "[one][two words][--three=*]from stdin", stderr: "" });
  });

  test("passes on the exit code", async () => {
    const binary = script(join(folder, "seven"), "exit 7");
    expect(await runNode([LAUNCHER], { PROMBUS_BINARY: binary }).result).toMatchObject({ code: 7, signal: null });
  });

  test("does not pass on PROMBUS_BINARY", async () => {
    const binary = script(join(folder, "env"), 'echo "<$PROMBUS_BINARY> <$PROMBUS_DATA>"');
    const run = runNode([LAUNCHER], { PROMBUS_BINARY: binary, PROMBUS_DATA: "kept" });
    expect((await run.result).stdout).toBe("<> <kept>\n");
  });

  test.each(SIGNALS)("passes %s on to the binary, and its exit code back", async (signal) => {
    const binary = script(
      join(folder, `trap-${signal}`),
      `trap 'echo got ${signal}; exit 3' ${signal.slice(3)}; echo ready; while :; do sleep 0.05; done`,
    );
    const run = runNode([LAUNCHER], { PROMBUS_BINARY: binary });
    await run.printed("ready");
    run.child.kill(signal);
    expect(await run.result).toMatchObject({ code: 3, signal: null, stdout: `ready\ngot ${signal}\n` });
  });

  test.each([...SIGNALS, "SIGKILL"] as const)("is killed by %s if the binary was killed by it", async (signal) => {
    const binary = script(join(folder, `die-${signal}`), `kill -${signal.slice(3)} $$; sleep 5`);
    expect(await runNode([LAUNCHER], { PROMBUS_BINARY: binary }).result).toMatchObject({ code: null, signal });
  });

  test("stops the binary when npx was killed and its shell did not pass the signal on", async () => {
    const pidFile = join(folder, "stopped-pid");
    const binary = script(
      join(folder, "stopped"),
      `trap 'echo stopped; exit 0' TERM; echo $$ >${pidFile}; echo ready; while :; do sleep 0.05; done`,
    );
    // Like npx: signals go to the shell only. `; true` keeps the shell from replacing itself with the command.
    const npx = join(folder, "npx.cjs");
    writeFileSync(npx, `
      const shell = require("node:child_process").spawn(
        "sh", ["-c", '"$0" "$1"; true', process.execPath, ${JSON.stringify(LAUNCHER)}], { stdio: "inherit" });
      process.on("SIGTERM", (signal) => shell.kill(signal));
      shell.once("exit", (code, signal) => { console.log("sh ended by", signal); process.exit(1); });`);
    const run = runNode([npx], {
      PROMBUS_BINARY: binary,
      npm_lifecycle_event: "npx",
      npm_lifecycle_script: "'prombus' serve",
    });
    await run.printed("ready");
    run.child.kill("SIGTERM");
    // The pipe of stdout is closed when the binary has ended.
    const { stdout } = await run.result;
    expect(stdout).toContain("sh ended by SIGTERM");
    expect(stdout).toContain("stopped");
    expect(isRunning(Number(readFileSync(pidFile, "utf8")))).toBe(false);
  });

  test("runs the real server, which SIGTERM stops with exit code 0", async () => {
    const args = ["serve", "--listen", "127.0.0.1:0", "--data", join(folder, "data")];
    const run = runNode([LAUNCHER, ...args], { PROMBUS_BINARY: BINARY });
    await run.printed("try:");
    run.child.kill("SIGTERM");
    const result = await run.result;
    expect(result).toMatchObject({ code: 0, signal: null });
    expect(result.stderr).not.toContain("PROMBUS_BINARY");
  });
});

describe("the binary", () => {
  /** Copies the package to a new `node_modules` folder. */
  function install(name: string): string {
    const modules = join(folder, name, "node_modules");
    for (const part of ["package.json", "bin", "lib"]) {
      cpSync(join(PACKAGE, part), join(modules, "prombus", part), { recursive: true });
    }
    return modules;
  }

  test("comes from the platform package", async () => {
    const modules = install("installed");
    const platform = join(modules, "@prombus", `${process.platform}-${process.arch}`);
    mkdirSync(join(platform, "bin"), { recursive: true });
    writeFileSync(join(platform, "package.json"), "{}");
    script(join(platform, "bin/prombus"), 'echo "the platform package: $1"');
    const run = runNode([join(modules, "prombus/bin/prombus.js"), "--version"]);
    expect(await run.result).toMatchObject({ code: 0, stdout: "the platform package: --version\n" });
  });

  test("is missing: the error names the package and the ways to get it", async () => {
    const modules = install("omitted");
    const { code, stderr } = await runNode([join(modules, "prombus/bin/prombus.js"), "serve"]).result;
    expect(code).toBe(127);
    expect(stderr).toMatch(/^prombus: the package @prombus\/linux-x64, .* is not installed\.$/m);
    expect(stderr).toContain("--omit=optional");
    expect(stderr).toContain("npm install --include=optional prombus");
    expect(stderr).toContain("cargo build --release");
    expect(stderr).toContain("PROMBUS_BINARY");
    expect(stderr).not.toContain("    at ");
  });

  test("does not exist for this platform: the error names it", async () => {
    const modules = install("unsupported");
    const preload = join(folder, "platform.cjs");
    writeFileSync(preload, 'Object.defineProperty(process, "platform", { value: "darwin" });\n' +
      'Object.defineProperty(process, "arch", { value: "arm64" });\n');
    const run = runNode(["--require", preload, join(modules, "prombus/bin/prombus.js"), "serve"]);
    const { code, stderr } = await run.result;
    expect(code).toBe(127);
    expect(stderr).toContain("prombus: no prebuilt binary for darwin-arm64 (prebuilt: linux-x64 with glibc).");
    expect(stderr).toContain("PROMBUS_BINARY");
  });

  test.each([
    ["does not exist", join(folder, "nowhere")],
    ["is not a file", folder],
    ["is not executable", join(folder, "plain")],
  ])("that PROMBUS_BINARY names %s: the error says so", async (why, path) => {
    if (why === "is not executable") {
      writeFileSync(path, "text");
      chmodSync(path, 0o644);
    }
    const { code, stderr } = await runNode([LAUNCHER, "serve"], { PROMBUS_BINARY: path }).result;
    expect(code).toBe(127);
    expect(stderr).toBe(`prombus: PROMBUS_BINARY: ${path} ${why}\n`);
  });

  test("needs a program interpreter that does not exist: the error says so", async () => {
    const binary = join(folder, "no-interpreter");
    writeFileSync(binary, "#!/nowhere/interpreter\n", { mode: 0o755 });
    const { code, stderr } = await runNode([LAUNCHER, "serve"], { PROMBUS_BINARY: binary }).result;
    expect(code).toBe(127);
    expect(stderr).toMatch(/^prombus: cannot run .*no-interpreter: .*ENOENT/);
    expect(stderr).toContain("needs glibc");
  });
});
