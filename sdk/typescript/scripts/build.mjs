// Builds dist/esm and dist/cjs: the same sources, compiled twice. Each folder says how Node must read it.
import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const tsc = join(root, "node_modules/typescript/bin/tsc");
const formats = {
  esm: { type: "module", flags: [] },
  cjs: { type: "commonjs", flags: ["--module", "commonjs", "--moduleResolution", "node10", "--outDir", "dist/cjs"] },
};

rmSync(join(root, "dist"), { recursive: true, force: true });
for (const [name, { type, flags }] of Object.entries(formats)) {
  mkdirSync(join(root, "dist", name), { recursive: true });
  execFileSync(process.execPath, [tsc, "--project", "tsconfig.json", ...flags], { cwd: root, stdio: "inherit" });
  writeFileSync(join(root, "dist", name, "package.json"), `${JSON.stringify({ type })}\n`);
}
