/** Client of a prombus event bus. */
export { Client, connect, type ConnectOptions, type PublishRecord, type PublishRecordOf } from "./client.js";
export type { ClientEvents, ConnectionOptions, ConnectionState } from "./connection.js";
export { Consumer } from "./consumer.js";
export {
  AuthError, type ClientErrorCode, ClosedError, ConnectionError, type ErrorCode, type ErrorDetails, NackError, PrombusError,
  RejectError, type ServerErrorCode, ValidationError, type ValidationIssue,
} from "./errors.js";
export { type DedupeStore, MemoryDedupe, type SubscribableBus, subscribeExactlyOnce } from "./exactly-once.js";
export type { ExportOptions, LastOptions, ReplayOptions, StartOptions, TailOptions, TicketOptions } from "./history.js";
export type { Exchange, Http, Query, QueryValue, RequestOptions, TokenSource } from "./http.js";
export {
  type DrainerOptions, type OutboxBus, type OutboxPublishOptions, type OutboxRecord, type OutboxStore, runOutboxDrainer,
} from "./outbox.js";
export {
  type Projection, Projector, type ProjectorClient, type ProjectorConsumer, type ProjectorCounts, type ProjectorOptions, States,
} from "./projector.js";
export type { PublisherOptions } from "./publisher.js";
export type { WebSocketConstructor, WebSocketLike } from "./socket.js";
export { type StateChange, type StatePosition, StateView } from "./state.js";
export { Subscription } from "./subscription.js";
export type { Telemetry } from "./telemetry.js";
export { TokenBucket } from "./token-bucket.js";
export type { Token } from "./token.js";
export type { Inputs, Outputs, PayloadOf, Schemas, SchemaResult, StandardSchema, SubscriptionOf, TopicMap, TopicOf } from "./topics.js";
export type * from "./types.js";
export { uuidv7 } from "./uuid.js";
