// node serve.mjs COMMAND...: runs `COMMAND... serve`, publishes an event, reads it back, and stops the server with SIGTERM.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [command, ...args] = process.argv.slice(2);
const data = mkdtempSync(join(tmpdir(), "prombus-package-check-"));
// Detached: the command gets its own process group, so that all its processes can be killed if the check fails.
const child = spawn(command, [...args, "serve", "--listen", "127.0.0.1:0", "--data", data], {
  stdio: ["ignore", "pipe", "pipe"],
  detached: true,
});
let output = "";
let isStopping = false;
for (const pipe of [child.stdout, child.stderr]) pipe.on("data", (chunk) => { output += chunk; });
const exited = new Promise((resolve) => { child.once("exit", (code, signal) => resolve({ code, signal })); });
// Resolves when all processes that share the pipes have ended.
const closed = new Promise((resolve) => { child.once("close", resolve); });
const timer = setTimeout(() => fail("not done after 60 s"), 60_000);
process.on("exit", () => {
  clearTimeout(timer);
  rmSync(data, { recursive: true, force: true, maxRetries: 5, retryDelay: 20 });
});

const url = await new Promise((resolve) => {
  child.stdout.on("data", () => {
    const address = /^listen: .*(http:\S+)/m.exec(output)?.[1];
    if (address !== undefined && /^try:.*\n/m.test(output)) resolve(address);
  });
  child.once("error", (error) => fail(`cannot run ${command}: ${error.message}`));
  closed.then(() => { if (!isStopping) fail("ended too early"); });
});

const published = await fetch(`${url}/publish/greetings`, { method: "POST", body: '{"hello":"world"}' });
if (!published.ok) fail(`publish: status ${published.status}: ${await published.text()}`);
const exported = await (await fetch(`${url}/export?topic=greetings`)).text();
if (!exported.includes('"hello":"world"')) fail(`export does not contain the event: ${exported}`);

isStopping = true;
child.kill("SIGTERM");
const { code, signal } = await exited;
// If sh does not forward signals, the signal kills npx itself. The server stops cleanly in either case.
const isNpx = command === "npx";
if (code !== 0 && !(isNpx && signal === "SIGTERM")) fail(`after SIGTERM: exit code ${code}, signal ${signal}; expected exit code 0`);
await closed;
if (!/ stopped$/m.test(output)) fail("the server did not stop cleanly");
console.log(`${url}: published, read back, stopped (${signal ?? `exit code ${code}`})`);
process.exit();

function fail(message) {
  console.error(`${message}\n${output}`);
  try {
    process.kill(-child.pid, "SIGKILL");
  } catch {
    // All of its processes have ended.
  }
  process.exit(1);
}
