// Reexports the CommonJS build, the only copy of the code, so that import and require share one list of running servers.
export { LaunchError, binaryPath, startServer } from "../lib/index.js";
