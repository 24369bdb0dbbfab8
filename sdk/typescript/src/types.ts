/** The types of the wire protocol, and the options of the client's calls. */

/** A UUID as text, e.g. `0196f1d0-1c2a-7b3c-8d4e-5f6071829304`. */
export type UUID = string;
/** A duration in milliseconds, or a point in time in milliseconds since 1970-01-01 UTC. */
export type Millis = number;

/** One event of a topic. */
export interface EventRecord<T = unknown> {
  /** Unique within the topic; a UUIDv7 unless the publisher chose another. */
  id: UUID;
  /** Position in the topic: 1, 2, 3 … in commit order. */
  seq?: number;
  /** When the event happened. */
  ts: Millis;
  topic: string;
  payload: T;
  /** What the event is about; compaction keeps the newest event of each key. */
  key?: string;
  /** Id of the publisher's session. */
  sid?: UUID;
  partition?: number;
  headers?: Record<string, string>;
  /** Ids of the events that led to this one. */
  caused_by?: UUID[];
  tags?: string[];
  /** The only group that receives the event; absent if all groups do. States by key ignore an event with an addressee. */
  addressee?: Addressee;
}

/** A group, by its topic or pattern and its name. */
export interface Addressee {
  subscription: string;
  group: string;
}

/** An event as the server sends it: `seq` is always present. */
export type StoredEvent<T = unknown> = EventRecord<T> & { seq: number };

/** Payload of the events in `dlq.<topic>`. */
export interface DeadLetter<T = unknown> {
  /** Topic of the event that failed. */
  topic: string;
  /** The group that gave the event up. */
  group: string;
  original: StoredEvent<T>;
  /** Why the group gave up: the reason of the last nack, or another cause. */
  err: string;
  attempts: number;
  ts: Millis;
  /** Topic or pattern of the group; absent in dead letters of older servers. */
  subscription?: string;
}

/** The position of a group: all events up to and including this one are settled. */
export interface CursorPosition {
  topic: string;
  lastId?: UUID;
  lastTs?: Millis;
}

/** Where a new group starts, or where a seek moves a group. */
export type Start = "latest" | "earliest" | { ts: Millis } | { afterId: UUID };

/** Options of a publish. */
export interface PublishOptions {
  /** The event's id. A publish with an id that the topic already has adds nothing. */
  id?: UUID | undefined;
  /** A business id, e.g. `"order 17"`: the server derives the event's id from it. Not together with `id`. */
  idempotencyKey?: string | undefined;
  ts?: Millis | undefined;
  key?: string | undefined;
  headers?: Record<string, string> | undefined;
  tags?: string[] | undefined;
  caused_by?: UUID[] | undefined;
  sid?: UUID | undefined;
  /** The only group that receives the event. Needs the scope `admin`. If the group does not exist, the publish fails with `not_found`. */
  addressee?: Addressee | undefined;
  /** Gives up after this time; the default is `publishTimeoutMs` of `connect`. */
  timeoutMs?: Millis | undefined;
}

/** The answer to a publish: the event is durable. */
export interface PublishResult {
  id: UUID;
  seq: number;
  /** The topic already had an event with this id; nothing was added. */
  duplicate?: boolean;
}

/** Selects the events of a group. The filter belongs to the group: all members must use the same one. */
export interface EventFilter {
  key?: string | undefined;
  tag?: string | undefined;
  header?: Record<string, string> | undefined;
}

/** Options of `subscribe` and `consume`. */
export interface SubscribeOptions {
  /** Where a new group starts (default `"latest"`); ignored if the group exists. `"ts"` needs `ts`, `"afterId"` needs `afterId`. */
  from?: "latest" | "earliest" | "ts" | "afterId" | { ts: Millis } | { afterId: UUID } | undefined;
  ts?: Millis | undefined;
  afterId?: UUID | undefined;
  /** Maximum number of events that the server leases at once; default 100. */
  batchSize?: number | undefined;
  /** How many unsettled events this member may hold; default 100, or `concurrency` if that is more. */
  maxInFlight?: number | undefined;
  /** How long a lease runs; default 30,000. */
  ackTimeoutMs?: Millis | undefined;
  /** Deliveries before an event becomes a dead letter; default 5. */
  maxAttempts?: number | undefined;
  /** How many events of the whole group may be leased or waiting for redelivery. */
  maxUnsettled?: number | undefined;
  filter?: EventFilter | undefined;
  /** More topics or patterns that the group reads. */
  topics?: string[] | undefined;
  /** Name of this member in lists, metrics and logs. */
  name?: string | undefined;
  /** Deletes the group after this time without members; only applies when the group is created. */
  expireMs?: Millis | undefined;
  /** Extends the leases of the events that the client holds; default true. */
  autoExtend?: boolean | undefined;
  /** The longest time for which the lease of one event is extended; default one hour. */
  maxExtensionMs?: Millis | undefined;
}

/** Options of `subscribe`. */
export interface HandlerOptions extends SubscribeOptions {
  /** How many handlers may run at the same time; default 1: events are handled in order, one at a time. */
  concurrency?: number | undefined;
}

/** Why an event is delivered again. */
export type RedeliveryReason = "nacked" | "lease_expired" | "member_lost" | "server_restarted";

/** Describes the delivery that a handler processes. */
export interface DeliveryContext {
  /** 1 for the first delivery. Changes if the event is redelivered while its handler runs. */
  readonly attempt: number;
  readonly maxAttempts: number;
  /** The topic or pattern of the subscription. */
  readonly subscription: string;
  readonly group: string;
  /** Why the event was delivered again; undefined if it was not delivered before. */
  readonly reason?: RedeliveryReason | undefined;
  /** The reason of the last nack. */
  readonly lastError?: string | undefined;
  /** When the lease ends, in milliseconds since 1970 by the local clock. */
  readonly leaseUntil: Millis;
  /**
   * Aborts when this member has lost the lease, because the lease expired or the server says so: another member may have the
   * event. Pass the signal to everything that the handler waits for.
   */
  readonly signal: AbortSignal;
  /** Extends the lease to `ms` from now, at least 1000. Rejects if the lease is lost. */
  extend(ms?: Millis): Promise<void>;
}

/** Handles one event: returning acks it, throwing nacks it. */
export type Handler<T = unknown> = (event: StoredEvent<T>, ctx: DeliveryContext) => unknown;

/**
 * The outcome of an ack or nack: `settled` (it is durable), `stale` (this member had lost the event, so nothing changed), or
 * `deferred` (the connection is down: the ack or nack is sent if the event is redelivered to this client).
 */
export type Settlement = "settled" | "stale" | "deferred";

/** Options of a nack. */
export interface NackOptions {
  /** Redelivers after this time instead of the server's backoff. */
  delayMs?: Millis | undefined;
  /** Gives the event up at once: it becomes a dead letter. */
  dead?: boolean | undefined;
}

/** One event of `consume`, to be settled by the caller. */
export interface Delivery<T = unknown> {
  readonly event: StoredEvent<T>;
  readonly ctx: DeliveryContext;
  /** Settles the event; resolves when that is durable. */
  ack(): Promise<Settlement>;
  /** Reports a failure: the event is redelivered, or becomes a dead letter after `maxAttempts`. */
  nack(reason?: string, options?: NackOptions): Promise<Settlement>;
  /** Extends the lease to `ms` from now. Rejects if the lease is lost. */
  extend(ms?: Millis): Promise<void>;
}

/** One topic, from `topics()`. */
export interface TopicInfo {
  topic: string;
  first_seq: number;
  last_seq: number;
  /** The number of stored events. */
  count: number;
  bytes: number;
  groups: number;
}

/** One group, from `groups()`. */
export interface GroupInfo {
  /** The group's topic or pattern. */
  topic: string;
  group: string;
  made_ts: Millis;
  expire_ms: Millis | null;
  members: number;
  /** The number of unsettled events. */
  lag: number;
  /** The number of events that are leased to members. */
  in_flight: number;
  /** The number of events that wait for redelivery. */
  waiting: number;
  oldest_unacked: { topic: string; seq: number; id: UUID; ts: Millis; age_ms: Millis } | null;
  counters: Record<string, number>;
  cursor?: CursorPosition | null;
}

/** A point in time for queries: milliseconds since 1970, a `Date`, or ISO 8601. */
export type TimeLike = Millis | Date | string;

/** Which events a query of the history returns. */
export interface HistoryFilter {
  key?: string | undefined;
  tag?: string | undefined;
  header?: Record<string, string> | undefined;
}
