/** The sketch's example: derives the state of each process from heartbeats. */
import { messageOf } from "../errors.js";
import type { Millis } from "../types.js";
import { PrombusEventBus } from "./bus.js";
import { HttpEventStore } from "./stores.js";
import { Topics } from "./topics.js";
import type { EventBus, EventStore } from "./types.js";

export interface HeartbeatPayload {
  pid: number;
  name: string;
  host: string;
  cpu_pct: number;
  mem_mb: number;
  sid?: string;
}

export interface ProcessState {
  /** `host:name:pid`. */
  processId: string;
  name: string;
  host: string;
  pid: number;
  sid?: string;
  cpu_pct: number;
  mem_mb: number;
  last_seen_ts: Millis;
  status: "alive" | "stale";
}

/** A process without a heartbeat for longer than this is stale. */
export const STALE_MS: Millis = 15_000;
const SCAN_MS: Millis = 5_000;
const GROUP = "process-projector";

export interface ProcessProjectorOptions {
  /** The store to read the states of earlier runs from. Default for a `PrombusEventBus`: its server. */
  store?: EventStore;
  staleMs?: Millis;
  scanMs?: Millis;
  /** Called with failures of the scan. Default: `console.warn`. */
  onError?: (error: unknown) => void;
}

/**
 * Publishes the state of each process to `process.state`, with the key `host:name:pid`: `alive` with each heartbeat, `stale` after 15 s
 * without a heartbeat. Only one such projector may run at a time. Resolves with a function that stops the scan and leaves the group.
 */
export async function startProcessProjector(bus: EventBus, options: ProcessProjectorOptions = {}): Promise<() => Promise<void>> {
  const { staleMs = STALE_MS, scanMs = SCAN_MS, onError = warn } = options;
  const store = options.store ?? (bus instanceof PrombusEventBus ? new HttpEventStore(bus) : undefined);
  const states = await load(store);

  async function change(state: ProcessState): Promise<void> {
    await bus.publish(Topics.ProcessState, state, { key: state.processId });
    // A newer heartbeat may have been handled in the meantime.
    const known = states.get(state.processId);
    if (known === undefined || known.last_seen_ts <= state.last_seen_ts) states.set(state.processId, state);
  }

  const unsubscribe = await bus.subscribe(Topics.HeartbeatReceived, GROUP, async (e) => {
    const { pid, name, host, cpu_pct, mem_mb, sid } = e.payload as HeartbeatPayload;
    const processId = `${host}:${name}:${pid}`;
    // Ignore a heartbeat that is older than the known state.
    if ((states.get(processId)?.last_seen_ts ?? -Infinity) > e.ts) return;
    await change({
      processId, name, host, pid, ...(sid === undefined ? {} : { sid }), cpu_pct, mem_mb, last_seen_ts: e.ts, status: "alive",
    });
  }, { from: "earliest" });

  async function scan(): Promise<void> {
    const now = Date.now();
    for (const state of [...states.values()]) {
      const isSilent = now - state.last_seen_ts > staleMs;
      if (isSilent && state.status === "alive" && states.get(state.processId) === state) {
        await change({ ...state, status: "stale" });
      }
    }
  }

  let scanning: Promise<void> | undefined;
  const timer = setInterval(() => {
    scanning ??= scan().catch(onError).finally(() => { scanning = undefined; });
  }, scanMs);

  return async () => {
    clearInterval(timer);
    await scanning;
    await unsubscribe();
  };
}

async function load(store: EventStore | undefined): Promise<Map<string, ProcessState>> {
  const states = new Map<string, ProcessState>();
  const latest = (await store?.latestByKey?.(Topics.ProcessState)) ?? {};
  for (const [processId, event] of Object.entries(latest)) {
    if (event !== undefined) states.set(processId, event.payload as ProcessState);
  }
  return states;
}

function warn(error: unknown): void {
  console.warn(`process projector: ${messageOf(error)}`);
}
