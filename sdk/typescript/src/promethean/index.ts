/**
 * The API of *the sketch*: the TypeScript event bus that prombus began with. It has the same names, and works with a prombus server.
 * Code that was written for the sketch only needs to change its imports to `@prombus/client/promethean`.
 */
export { PrombusEventBus, type PrombusEventBusOptions } from "./bus.js";
export { type CompactorOptions, startCompactor } from "./compactor.js";
export { EventClient, type EventClientContext, type Handler, type OkAnswer } from "./event-client.js";
export { makeConnLimiter, makeTopicLimiter } from "./limiters.js";
export { InMemoryCursorStore, InMemoryEventBus, type InMemoryEventBusOptions, InMemoryEventStore } from "./memory.js";
export {
  type CounterLike, type GaugeLike, type HistogramLike, type Labels, MetricNames, metrics, type MetricsApp, type MetricsResponse,
  type PromClient,
} from "./metrics.js";
export {
  type HeartbeatPayload, type ProcessProjectorOptions, type ProcessState, STALE_MS, startProcessProjector,
} from "./process-projector.js";
export { HttpEventStore, PrombusCursorStore } from "./stores.js";
export { TopicConfig, Topics } from "./topics.js";
export type {
  Ack, CursorPosition, CursorStore, DedupeStore, DeliveryContext, EventBus, EventHandler, EventRecord, EventStore, Millis,
  OutboxRecord, OutboxStore, PublishOptions, SubscribeOptions, UUID, Vec8,
} from "./types.js";
export { MemoryDedupe, subscribeExactlyOnce } from "../exactly-once.js";
export { type DrainerOptions, runOutboxDrainer } from "../outbox.js";
export { TokenBucket } from "../token-bucket.js";
