import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { LaunchError, startServer } from "prombus";

const server = await startServer();
const response = await fetch(`${server.httpUrl}/publish/greetings`, { method: "POST", body: '{"hello":"world"}' });
assert.equal(response.status, 200);
assert.deepEqual(await server.stop(), { code: 0, signal: null });
assert.equal(existsSync(server.dataFolder), false);
await assert.rejects(startServer({ args: ["--no-such-option"] }), LaunchError);
