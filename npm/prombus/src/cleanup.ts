/**
 * Makes sure that no server and no temporary folder outlives this process.
 *
 * - When this process exits, an exit handler kills the servers and removes the folders.
 * - When this process is killed by a signal, no handler runs. For that case, a guard shell waits for its stdin to close: a pipe from
 *   this process, which the system closes when this process ends. (Not on Windows.)
 */
import { spawn } from "node:child_process";
import { rmSync } from "node:fs";
import type { Socket } from "node:net";

const servers = new Set<number>();
const folders = new Set<string>();

/** The script of the guard shell. `$1` is the process id of the server, `$2` the folder to remove, or an empty string. */
const GUARD = `
read -r _
kill -9 "$1" 2>/dev/null
[ -n "$2" ] || exit 0
tries=0
while ! rm -rf -- "$2" 2>/dev/null && [ "$tries" -lt 20 ]; do
  sleep 0.1
  tries=$((tries + 1))
done
`;

/** Kills the server when this process ends. Call the returned function when the server has ended: the system may reuse its pid. */
export function killAtExit(pid: number, temporaryFolder: string | undefined): () => void {
  installExitHandler();
  servers.add(pid);
  const endGuard = process.platform === "win32" ? () => {} : startGuard(pid, temporaryFolder);
  return () => {
    servers.delete(pid);
    endGuard();
  };
}

/** Removes the folder when this process ends. Call the returned function when the folder has been removed. */
export function removeAtExit(folder: string): () => void {
  installExitHandler();
  folders.add(folder);
  return () => { folders.delete(folder); };
}

function startGuard(pid: number, temporaryFolder: string | undefined): () => void {
  // Detached, because Ctrl-C in a terminal is sent to all processes of the terminal's process group, and would end the guard.
  const guard = spawn("/bin/sh", ["-c", GUARD, "prombus-guard", String(pid), temporaryFolder ?? ""], {
    detached: true,
    stdio: ["pipe", "ignore", "ignore"],
  });
  // If there is no shell, only the exit handler cleans up.
  guard.on("error", () => {});
  guard.stdin.on("error", () => {});
  guard.unref();
  (guard.stdin as Socket).unref();
  return () => { guard.kill("SIGKILL"); };
}

let isInstalled = false;

function installExitHandler(): void {
  if (isInstalled) return;
  isInstalled = true;
  process.on("exit", () => {
    for (const pid of servers) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {
        // The server has already ended.
      }
    }
    for (const folder of folders) {
      try {
        rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 20 });
      } catch {
        // Nothing can be reported at this point.
      }
    }
  });
}
