export { LaunchError, type LaunchErrorCode } from "./errors.js";
export { binaryPath } from "./binary.js";
export {
  startServer,
  type PrombusServer,
  type ServerExit,
  type StartServerOptions,
  type StopSignal,
} from "./server.js";
