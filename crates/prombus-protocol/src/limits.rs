//! Limits and defaults that servers, clients and the TypeScript SDK share. Units stand last in the names.

/// The version of the protocol; AUTH's OK carries it.
pub const PROTOCOL_VERSION: u32 = 1;

/// Bytes of a topic name or pattern, a leading `dlq.` not counted.
pub const MAX_TOPIC_BYTES: usize = 255;
/// Bytes of a group name.
pub const MAX_GROUP_BYTES: usize = 255;

/// Bytes of a payload, unless the server is configured otherwise: 1 MiB.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// How deep the arrays and objects of a payload may be nested.
pub const MAX_NESTING: usize = 128;
/// Bytes of a `corr`, as it stands in the frame.
pub const MAX_CORR_BYTES: usize = 256;
/// Bytes that are kept of a NACK's `reason`; what is longer is cut.
pub const MAX_REASON_BYTES: usize = 4096;

/// The latest `ts`: the last millisecond of the year 9999. The earliest is 0.
pub const MAX_TS_MS: i64 = 253_402_300_799_999;
/// Bytes of a key; at least 1.
pub const MAX_KEY_BYTES: usize = 1024;
/// Headers of an event.
pub const MAX_HEADERS: usize = 64;
/// Bytes of a header's name; at least 1.
pub const MAX_HEADER_NAME_BYTES: usize = 128;
/// Bytes of a header's value.
pub const MAX_HEADER_VALUE_BYTES: usize = 4096;
/// Tags of an event.
pub const MAX_TAGS: usize = 64;
/// Bytes of a tag; at least 1.
pub const MAX_TAG_BYTES: usize = 256;
/// Ids in `caused_by`.
pub const MAX_CAUSED_BY: usize = 64;

/// `batchSize`: events that one pull leases.
pub const DEFAULT_BATCH_SIZE: u32 = 100;
/// The largest `batchSize`; the smallest is 1.
pub const MAX_BATCH_SIZE: u32 = 10_000;
/// `maxInFlight` in the library: deliveries that a member may hold unsettled.
pub const DEFAULT_MAX_IN_FLIGHT: u32 = 1000;
/// `maxInFlight` over WebSocket, where the network holds events too.
pub const DEFAULT_MAX_IN_FLIGHT_WEBSOCKET: u32 = 100;
/// The largest `maxInFlight`; the smallest is 1.
pub const MAX_MAX_IN_FLIGHT: u32 = 100_000;
/// `ackTimeoutMs`: how long a lease runs.
pub const DEFAULT_ACK_TIMEOUT_MS: u64 = 30_000;
/// The largest `ackTimeoutMs`, and the most that one MODACK asks for: a day. The smallest is 1.
pub const MAX_ACK_TIMEOUT_MS: u64 = 86_400_000;
/// `maxAttempts`: deliveries of an event before it becomes a dead letter.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 5;
/// The largest `maxAttempts`; the smallest is 1.
pub const MAX_MAX_ATTEMPTS: u32 = 1000;
/// `maxUnsettled`: events of a group that are leased or wait for redelivery.
pub const DEFAULT_MAX_UNSETTLED: u32 = 100_000;
/// The largest `maxUnsettled`; the smallest is 1.
pub const MAX_MAX_UNSETTLED: u32 = 1_000_000;
/// Entries of a subscription's `topics`.
pub const MAX_SUBSCRIBED_TOPICS: usize = 100;
/// The shortest lease that a MODACK gives; what asks for less gets this.
pub const MIN_EXTEND_MS: u64 = 1000;
/// The longest `delay_ms` of a NACK: an hour.
pub const MAX_NACK_DELAY_MS: u64 = 3_600_000;

/// Bytes of an idempotency key; at least 1.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;
/// Bytes of a member's name; at least 1.
pub const MAX_MEMBER_NAME_BYTES: usize = 128;
/// The largest `expireMs`: a year. The smallest is 1.
pub const MAX_EXPIRE_MS: u64 = 31_536_000_000;
/// Bytes of the `last_error` that a delivery carries; the rest of a longer reason is cut.
pub const MAX_LAST_ERROR_BYTES: usize = 256;
