import { join } from "node:path";
import { expect, test } from "vitest";
import { ROOT } from "../support/bundle.js";
import { run } from "../support/run.js";

test("the client for browsers is smaller than its limit", async () => {
  const { status, stdout, stderr } = await run(process.execPath, [join(ROOT, "scripts/size.mjs")]);
  console.log(stdout);
  expect(status, stderr).toBe(0);
  expect(stdout).toMatch(/^client +[\d,]+ bytes, +[\d,]+ gzipped \(limit 12,000\)$/m);
});
