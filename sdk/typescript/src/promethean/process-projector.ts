/** The sketch's example: heartbeats of processes become the state of each process. */
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

/** A process without a heartbeat for longer is stale. */
export const STALE_MS: Millis = 15_000;
const SCAN_MS: Millis = 5_000;
const GROUP = "process-projector";

export interface ProcessProjectorOptions {
  /** Where the states of earlier runs are read. Default: the server, for a `PrombusEventBus`. */
  store?: EventStore;
  staleMs?: Millis;
  scanMs?: Millis;
  /** Gets failures of the scan. Default: `console.warn`. */
  onError?: (error: unknown) => void;
}

/**
 * Publishes the state of each process to `process.state`, by key `host:name:pid`: `alive` with each heartbeat, `stale` after 15 s
 * without one. Run one at a time. The function that it resolves with stops the scan and leaves the group.
 */
export async function startProcessProjector(bus: EventBus, options: ProcessProjectorOptions = {}): Promise<() => Promise<void>> {
  const { staleMs = STALE_MS, scanMs = SCAN_MS, onError = warn } = options;
  const store = options.store ?? (bus instanceof PrombusEventBus ? new HttpEventStore(bus) : undefined);
  const states = await load(store);

  async function change(state: ProcessState): Promise<void> {
    await bus.publish(Topics.ProcessState, state, { key: state.processId });
    // A heartbeat may have been faster.
    const known = states.get(state.processId);
    if (known === undefined || known.last_seen_ts <= state.last_seen_ts) states.set(state.processId, state);
  }

  const unsubscribe = await bus.subscribe(Topics.HeartbeatReceived, GROUP, async (e) => {
    const { pid, name, host, cpu_pct, mem_mb, sid } = e.payload as HeartbeatPayload;
    const processId = `${host}:${name}:${pid}`;
    // A late heartbeat says nothing new.
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
