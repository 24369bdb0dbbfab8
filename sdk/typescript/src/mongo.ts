/**
 * Outbox, deduplication marks, events and cursors in MongoDB, with the official driver (`mongodb`, version 6 or newer).
 *
 * The Rust library and `prombus serve --store mongodb://…` use the same collections, so Rust and Node programs can share them.
 */
export { MongoCursorStore } from "./mongo/cursor-store.js";
export { MongoDedupe } from "./mongo/dedupe.js";
export { MongoEventStore } from "./mongo/event-store.js";
export { MongoOutbox, type MongoOutboxAddOptions, type MongoOutboxOptions } from "./mongo/outbox.js";
