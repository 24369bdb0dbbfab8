/** The package as npm publishes it, and empty projects that install it. */
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { existsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ROOT } from "./bundle.js";
import { runOk } from "./run.js";

export interface Packed {
  /** The folder that was packed, with a fresh `dist`. */
  folder: string;
  tarball: string;
  /** Paths in the tarball, e.g. `dist/esm/index.js`. */
  files: string[];
  /** Creates a project with this package and other packages of this repository's `node_modules`, e.g. `ws`. */
  install(packages: string[]): Promise<string>;
  remove(): Promise<void>;
}

const PARTS = ["package.json", "tsconfig.json", "LICENSE", "README.md", "scripts", "src"];

/** Builds and packs a copy of the package, so that the `dist` of tests that run at the same time is not changed. */
export async function packPackage(): Promise<Packed> {
  const temp = await mkdtemp(join(tmpdir(), "prombus-package-"));
  const folder = join(temp, "package");
  await mkdir(folder);
  for (const part of PARTS) {
    if (existsSync(join(ROOT, part))) await cp(join(ROOT, part), join(folder, part), { recursive: true });
  }
  await symlink(join(ROOT, "node_modules"), join(folder, "node_modules"));
  await runOk("npm", ["run", "build"], { cwd: folder });
  const answer = await runOk("npm", ["pack", "--json", "--pack-destination", temp], { cwd: folder });
  const [{ filename, files }] = JSON.parse(answer) as [{ filename: string; files: { path: string }[] }];
  const tarball = join(temp, filename);
  return {
    folder,
    tarball,
    files: files.map(({ path }) => path).sort(),
    async install(packages) {
      const project = await mkdtemp(join(temp, "project-"));
      await writeFile(join(project, "package.json"), JSON.stringify({ name: "project", version: "1.0.0", private: true }));
      const others = packages.map((name) => join(ROOT, "node_modules", name));
      await runOk("npm", ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--install-links", tarball, ...others], {
        cwd: project,
      });
      return project;
    },
    remove: () => rm(temp, { recursive: true, force: true }),
  };
}

/** The first TypeScript block of the README that imports the package. */
export async function readmeSnippet(): Promise<string | undefined> {
  const text = await readFile(join(ROOT, "../../README.md"), "utf8");
  const blocks = [...text.matchAll(/^```(?:ts|typescript)\n(.*?)^```$/gms)].map(([, code]) => code as string);
  const snippet = blocks.find((code) => /from "@prombus\/client"/.test(code));
  if (snippet === undefined && text.includes("@prombus/client")) {
    throw new Error("README.md mentions @prombus/client and has no TypeScript block that imports it");
  }
  return snippet;
}
