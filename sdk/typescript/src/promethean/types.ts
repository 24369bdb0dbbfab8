/** The types of the sketch, name for name. Fields and methods that the sketch does not have are optional. */
import type { CursorPosition, EventFilter, EventRecord, Millis, UUID } from "../types.js";

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
  /** Where a new group starts; default `"latest"`. It has no effect on a group that exists. */
  from?: "latest" | "earliest" | "ts" | "afterId";
  ts?: Millis;
  afterId?: UUID;
  /** Default 100. */
  batchSize?: number;
  /** Default 1000. */
  maxInFlight?: number;
  /** How long an event may stay unsettled; default 30,000. Unless it is set, a running handler keeps its event. */
  ackTimeoutMs?: Millis;
  /** Default 5. */
  maxAttempts?: number;
  /**
   * A function is applied by this member: events that it refuses are acked without being handled. An object is the server's own
   * filter and belongs to the group.
   */
  filter?: ((e: EventRecord) => boolean) | EventFilter;
  /** More topics or patterns that the group reads. */
  topics?: string[];
  /** The handler's end does not ack: call `ack` or `nack`. */
  manualAck?: boolean;
}

export interface PublishOptions {
  /** A publish with an id that the topic has adds nothing. */
  id?: UUID;
  /** A business id in place of `id`. */
  idempotencyKey?: string;
  ts?: Millis;
  key?: string;
  headers?: Record<string, string>;
  tags?: string[];
  caused_by?: UUID[];
  sid?: UUID;
}

export interface Ack {
  id: UUID;
  /** False: nothing was settled, because the group does not exist here or the server refused. */
  ok: boolean;
  /** Why not; for a nack its reason; `"stale"` if the event was settled or delivered to another member before. */
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
  /** An id that the topic has adds nothing. */
  insert<T>(e: EventRecord<T>): Promise<void>;
  /** Events in commit order, after `afterId` or from the first event of `ts` or later. */
  scan(topic: string, params: { afterId?: UUID; ts?: Millis; limit?: number }): Promise<EventRecord[]>;
  /** The newest event of each key; of all keys if none are given. */
  latestByKey?(topic: string, keys?: string[]): Promise<Record<string, EventRecord | undefined>>;
}

/**
 * The wait after a failed attempt: 20 ms after the first, so that a passing fault costs little, then as the server does, from
 * 200 ms doubling to 30 s.
 */
export function retryDelayMs(attempt: number): Millis {
  return attempt <= 1 ? 20 : Math.min(100 * 2 ** (attempt - 1), 30_000);
}
