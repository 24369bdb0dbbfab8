/** Finds the native binary: `PROMBUS_BINARY`, or the package for this platform. */
import { accessSync, constants, statSync } from "node:fs";
import { resolve } from "node:path";
import { LaunchError } from "./errors.js";

/** Platforms with a prebuilt package, as `<process.platform>-<process.arch>`. package.json contains the same list. */
const PREBUILT: readonly string[] = ["linux-x64"];

const FROM_SOURCE = [
  "To build it from source (Rust 1.90 or newer), run this in a clone of the repository:",
  "  cargo build --release",
  "and set PROMBUS_BINARY to the path of target/release/prombus.",
];

/**
 * Returns the path of the prombus binary: `PROMBUS_BINARY` if it is set, otherwise the binary of the platform package.
 *
 * @throws LaunchError with code `binary_not_found` or `cannot_execute`
 */
export function binaryPath(): string {
  const override = process.env["PROMBUS_BINARY"];
  if (override !== undefined && override !== "") return checkBinary(override, "PROMBUS_BINARY");
  const platform = `${process.platform}-${process.arch}`;
  let path: string;
  try {
    path = require.resolve(`@prombus/${platform}/bin/prombus`);
  } catch (cause) {
    throw new LaunchError("binary_not_found", missingPackage(platform), { cause });
  }
  return checkBinary(path, `@prombus/${platform}`);
}

/** Checks that the file can be executed, and returns its absolute path. Error messages begin with `origin`, the source of the path. */
export function checkBinary(path: string, origin: string): string {
  const absolute = resolve(path);
  try {
    if (!statSync(absolute).isFile()) {
      throw new LaunchError("cannot_execute", `${origin}: ${absolute} is not a file`);
    }
  } catch (cause) {
    if (cause instanceof LaunchError) throw cause;
    throw new LaunchError("binary_not_found", `${origin}: ${absolute} does not exist`, { cause });
  }
  try {
    accessSync(absolute, constants.X_OK);
  } catch (cause) {
    throw new LaunchError("cannot_execute", `${origin}: ${absolute} is not executable`, { cause });
  }
  return absolute;
}

/** The error for a binary that exists and could not be started. */
export function cannotExecute(path: string, cause: unknown): LaunchError {
  const why = cause instanceof Error ? cause.message : String(cause);
  const lines = [`cannot run ${path}: ${why}`];
  // The system reports a missing program interpreter as a missing file.
  if (isCode(cause, "ENOENT") && process.platform === "linux") {
    lines.push("The prebuilt binary needs glibc; systems with musl, such as Alpine Linux, do not have it.", ...FROM_SOURCE);
  }
  return new LaunchError("cannot_execute", lines.join("\n"), { cause });
}

function missingPackage(platform: string): string {
  const libc = usesMusl() ? " with musl" : "";
  if (!PREBUILT.includes(platform) || libc !== "") {
    return [
      `no prebuilt binary for ${platform}${libc} (prebuilt: ${PREBUILT.join(", ")} with glibc).`,
      ...FROM_SOURCE,
    ].join("\n");
  }
  return [
    `the package @prombus/${platform}, which contains the binary for this platform, is not installed.`,
    "npm skips it with --omit=optional, and it is missing if node_modules was copied from another platform.",
    "To get it, install again with optional dependencies:",
    "  npm install --include=optional prombus",
    ...FROM_SOURCE,
  ].join("\n");
}

function usesMusl(): boolean {
  if (process.platform !== "linux") return false;
  const { header } = process.report.getReport() as { header?: { glibcVersionRuntime?: string } };
  return header?.glibcVersionRuntime === undefined;
}

function isCode(error: unknown, code: string): boolean {
  return error instanceof Error && "code" in error && error.code === code;
}
