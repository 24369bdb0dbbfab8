/**
 * - `binary_not_found`: no package for this platform is installed, or the given path does not exist.
 * - `cannot_execute`: the binary exists, but the system cannot run it.
 * - `start_failed`: the server exited before it was ready.
 * - `start_timeout`: the server was not ready within `startTimeoutMs`.
 */
export type LaunchErrorCode = "binary_not_found" | "cannot_execute" | "start_failed" | "start_timeout";

/** The prombus binary was not found, or the server did not start. */
export class LaunchError extends Error {
  override readonly name = "LaunchError";
  readonly code: LaunchErrorCode;
  /** The server's stdout and stderr (the last 64 KiB); empty if it never ran. */
  readonly output: string;

  constructor(code: LaunchErrorCode, message: string, details: { output?: string; cause?: unknown } = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = code;
    this.output = details.output ?? "";
  }
}
