// Builds dist/esm and dist/cjs: the same sources, compiled twice. The package.json in each folder tells Node the module format.
// dist/browser is dist/esm without the code for Node.
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
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

const browser = join(root, "dist/browser");
cpSync(join(root, "dist/esm"), browser, { recursive: true, filter: (path) => !/\.d\.ts(\.map)?$/.test(path) });
renameSync(join(browser, "browser-socket.js"), join(browser, "node-socket.js"));
rmSync(join(browser, "node-socket.js.map"));
for (const format of Object.keys(formats)) {
  for (const end of [".js", ".js.map", ".d.ts", ".d.ts.map"]) rmSync(join(root, "dist", format, `browser-socket${end}`));
}
