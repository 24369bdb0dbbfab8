const assert = require("node:assert/strict");
const { LaunchError, startServer } = require("prombus");

async function main() {
  const server = await startServer();
  const response = await fetch(`${server.httpUrl}/publish/greetings`, { method: "POST", body: '{"hello":"world"}' });
  assert.equal(response.status, 200);
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  // import and require return the same classes.
  assert.equal((await import("prombus")).LaunchError, LaunchError);
}

main();
