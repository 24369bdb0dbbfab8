//! The limits of a bus, and their allowed ranges.

use crate::error::OpenError;
use prombus_protocol::limits::MAX_PAYLOAD_BYTES;

/// The limits of a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest payload of an event, in bytes of JSON. Default: 1 MiB.
    pub max_payload_bytes: usize,
    /// Maximum number of topics. Dead-letter topics that the bus creates itself do not count. Default: 100,000.
    pub max_topics: usize,
    /// Maximum number of groups. Default: 100,000.
    pub max_groups: usize,
    /// A group without members for this long is deleted. Default: never.
    pub group_expire_ms: Option<u64>,
    /// Maximum memory of the newest-event-by-key maps of all topics together. They hold keys and event positions, not the
    /// events themselves. Default: 512 MiB.
    pub state_memory_bytes: usize,
    /// While the engine cannot commit, publishers wait this long; then they get `unavailable`. Default: 10 seconds.
    pub engine_wait_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_payload_bytes: MAX_PAYLOAD_BYTES,
            max_topics: 100_000,
            max_groups: 100_000,
            group_expire_ms: None,
            state_memory_bytes: 512 << 20,
            engine_wait_ms: 10_000,
        }
    }
}

const EXPIRE_MS_MAX: u64 = 365 * 24 * 3_600_000;
/// A payload must fit into a segment of the log, together with the fields that a dead letter adds.
const PAYLOAD_BYTES_MAX: usize = 16 << 20;

impl Limits {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let bad =
            |name, value: usize, allowed| OpenError::BadSetting { name, value: value.to_string(), allowed };
        if !(1..=PAYLOAD_BYTES_MAX).contains(&self.max_payload_bytes) {
            return Err(bad("max_payload_bytes", self.max_payload_bytes, "1 to 16777216 are allowed"));
        }
        if !(1..=10_000_000).contains(&self.max_topics) {
            return Err(bad("max_topics", self.max_topics, "1 to 10000000 are allowed"));
        }
        if !(1..=10_000_000).contains(&self.max_groups) {
            return Err(bad("max_groups", self.max_groups, "1 to 10000000 are allowed"));
        }
        if let Some(after) = self.group_expire_ms.filter(|after| !(1_000..=EXPIRE_MS_MAX).contains(after)) {
            return Err(bad("group_expire_ms", after as usize, "1000 to 31536000000 (a year) are allowed"));
        }
        Ok(())
    }
}
