//! Limits and defaults that servers, clients and the TypeScript SDK share. Names end with their unit.

/// The version of the protocol, which the OK of AUTH contains.
pub const PROTOCOL_VERSION: u32 = 1;

/// The largest topic name or pattern, in bytes; a leading `dlq.` does not count.
pub const MAX_TOPIC_BYTES: usize = 255;
/// The largest group name, in bytes.
pub const MAX_GROUP_BYTES: usize = 255;

/// The default limit on a payload, in bytes: 1 MiB.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// The greatest nesting depth of arrays and objects in a payload.
pub const MAX_NESTING: usize = 128;
/// The largest `corr`, in bytes of JSON text.
pub const MAX_CORR_BYTES: usize = 256;
/// A longer `reason` of a NACK is cut to this many bytes.
pub const MAX_REASON_BYTES: usize = 4096;

/// The latest `ts`: the last millisecond of the year 9999. The earliest is 0.
pub const MAX_TS_MS: i64 = 253_402_300_799_999;
/// The largest key, in bytes; the smallest has 1.
pub const MAX_KEY_BYTES: usize = 1024;
/// The greatest number of headers of an event.
pub const MAX_HEADERS: usize = 64;
/// The largest header name, in bytes; the smallest has 1.
pub const MAX_HEADER_NAME_BYTES: usize = 128;
/// The largest header value, in bytes.
pub const MAX_HEADER_VALUE_BYTES: usize = 4096;
/// The greatest number of tags of an event.
pub const MAX_TAGS: usize = 64;
/// The largest tag, in bytes; the smallest has 1.
pub const MAX_TAG_BYTES: usize = 256;
/// The greatest number of ids in `caused_by`.
pub const MAX_CAUSED_BY: usize = 64;

/// The default `batchSize`: the number of events that one pull leases.
pub const DEFAULT_BATCH_SIZE: u32 = 100;
/// The largest `batchSize`; the smallest is 1.
pub const MAX_BATCH_SIZE: u32 = 10_000;
/// The default `maxInFlight` in the library: the number of unsettled deliveries that a member may hold.
pub const DEFAULT_MAX_IN_FLIGHT: u32 = 1000;
/// The default `maxInFlight` over WebSocket. It is lower than in the library, because network buffers hold events too.
pub const DEFAULT_MAX_IN_FLIGHT_WEBSOCKET: u32 = 100;
/// The largest `maxInFlight`; the smallest is 1.
pub const MAX_MAX_IN_FLIGHT: u32 = 100_000;
/// The default `ackTimeoutMs`: the duration of a lease.
pub const DEFAULT_ACK_TIMEOUT_MS: u64 = 30_000;
/// The largest `ackTimeoutMs` and the largest `extend_ms` of a MODACK: a day. The smallest `ackTimeoutMs` is 1.
pub const MAX_ACK_TIMEOUT_MS: u64 = 86_400_000;
/// The default `maxAttempts`: the number of attempts after which an event becomes a dead letter.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 5;
/// The largest `maxAttempts`; the smallest is 1.
pub const MAX_MAX_ATTEMPTS: u32 = 1000;
/// The default `maxUnsettled`: the number of events of a group that may be leased or wait for redelivery.
pub const DEFAULT_MAX_UNSETTLED: u32 = 100_000;
/// The largest `maxUnsettled`; the smallest is 1.
pub const MAX_MAX_UNSETTLED: u32 = 1_000_000;
/// The greatest number of entries in a subscription's `topics`.
pub const MAX_SUBSCRIBED_TOPICS: usize = 100;
/// The smallest `extend_ms` of a MODACK; smaller values count as this.
pub const MIN_EXTEND_MS: u64 = 1000;
/// The longest `delay_ms` of a NACK: an hour.
pub const MAX_NACK_DELAY_MS: u64 = 3_600_000;

/// The largest idempotency key, in bytes; the smallest has 1.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;
/// The largest member name, in bytes; the smallest has 1.
pub const MAX_MEMBER_NAME_BYTES: usize = 128;
/// The largest `expireMs`: a year. The smallest is 1.
pub const MAX_EXPIRE_MS: u64 = 31_536_000_000;
/// The `last_error` of a delivery is cut to this many bytes.
pub const MAX_LAST_ERROR_BYTES: usize = 256;
