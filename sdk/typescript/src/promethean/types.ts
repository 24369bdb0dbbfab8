/** The types of the sketch (see `index.ts`), with the same names. Fields and methods that the sketch does not have are optional. */
import type { Addressee, CursorPosition, EventFilter, EventRecord, Millis, UUID } from "../types.js";

export type { CursorPosition, EventRecord, Millis, UUID } from "../types.js";
export type { DedupeStore } from "../exactly-once.js";
export type { OutboxRecord, OutboxStore } from "../outbox.js";

export type Vec8 = [number, number, number, number, number, number, number, number];

export interface DeliveryContext {
  /** 1 for the first delivery. */
  attempt: number;
  maxAttempts: number;
  /** The group's cursor when the event was delivered, if it is known. */
  cursor?: CursorPosition;
}

export interface SubscribeOptions {
  /** Durable consumer group. */
  group: string;
  /** Where a new group starts; default `"latest"`. Ignored if the group exists. */
  from?: "latest" | "earliest" | "ts" | "afterId";
  ts?: Millis;
  afterId?: UUID;
  /** Default 100. */
  batchSize?: number;
  /** Default 1000. */
  maxInFlight?: number;
  /** How long a lease runs; default 30,000. If neither this nor `manualAck` is set, leases are extended while handlers run. */
  ackTimeoutMs?: Millis;
  /** Default 5. */
  maxAttempts?: number;
  /**
   * A function is applied by this member: events for which it returns false are acked without being handled. An object is a filter of
   * the server and belongs to the group.
   */
  filter?: ((e: EventRecord) => boolean) | EventFilter;
  /** More topics or patterns that the group reads. */
  topics?: string[];
  /** If true, returning from the handler does not ack the event: call `ack` or `nack`. */
  manualAck?: boolean;
}

export interface PublishOptions {
  /** A publish with an id that the topic already has adds nothing. */
  id?: UUID;
  /** A business id instead of `id`. */
  idempotencyKey?: string;
  ts?: Millis;
  key?: string;
  headers?: Record<string, string>;
  tags?: string[];
  caused_by?: UUID[];
  sid?: UUID;
  /**
   * The only group that receives the event. A server requires the scope `admin`. If the group does not exist, the publish fails with
   * `not_found`.
   */
  addressee?: Addressee;
}

export interface Ack {
  id: UUID;
  /** False if nothing was settled: this bus has no such group, the server refused, or the connection is down. */
  ok: boolean;
  /**
   * If `ok` is false, the failure. Otherwise `"stale"` if the event was already settled or delivered to another member, or the reason
   * of the nack.
   */
  err?: string;
}

export type EventHandler = (e: EventRecord, ctx: DeliveryContext) => Promise<void>;

export interface EventBus {
  /** Resolves with the stored event. */
  publish<T>(topic: string, payload: T, opts?: PublishOptions): Promise<EventRecord<T>>;
  /** Resolves with a function that leaves the group. */
  subscribe(
    topic: string,
    group: string,
    handler: EventHandler,
    opts?: Omit<SubscribeOptions, "group">,
  ): Promise<() => Promise<void>>;
  ack(topic: string, group: string, id: UUID): Promise<Ack>;
  nack(topic: string, group: string, id: UUID, reason?: string): Promise<Ack>;
  getCursor(topic: string, group: string): Promise<CursorPosition | null>;
  setCursor(topic: string, group: string, cursor: CursorPosition): Promise<void>;
}

export interface CursorStore {
  get(topic: string, group: string): Promise<CursorPosition | null>;
  set(topic: string, group: string, cursor: CursorPosition): Promise<void>;
}

export interface EventStore {
  /** Adds nothing if the topic already has the id. */
  insert<T>(e: EventRecord<T>): Promise<void>;
  /** Events in commit order, after `afterId`, or from the first event with the time `ts` or a later one. */
  scan(topic: string, params: { afterId?: UUID; ts?: Millis; limit?: number }): Promise<EventRecord[]>;
  /** The newest event of each of the given keys, or of all keys if none are given. Ignores events with an `addressee`. */
  latestByKey?(topic: string, keys?: string[]): Promise<Record<string, EventRecord | undefined>>;
}

/**
 * The wait after a failed attempt: 20 ms after the first, so that a temporary failure costs little; then the same as the server's
 * backoff, 200 ms doubling up to 30 s.
 */
export function retryDelayMs(attempt: number): Millis {
  return attempt <= 1 ? 20 : Math.min(100 * 2 ** (attempt - 1), 30_000);
}
