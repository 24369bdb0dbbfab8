//! Limits of a network engine.

/// Limits of a network engine.
#[derive(Clone, Debug)]
pub struct NetworkLimits {
    /// The maximum size of the queue in bytes. When it is reached, appends are refused with `Busy`.
    pub queue_bytes_max: usize,
    /// The maximum number of queued batches. When it is reached, appends are refused with `Busy`.
    pub queue_batches_max: usize,
    /// The maximum size of a commit. A larger batch is refused.
    pub commit_bytes_max: usize,
    /// The size up to which batches are combined into one commit.
    pub commit_bytes_target: usize,
    /// The maximum number of events in a commit. A batch with more events is refused.
    pub commit_events_max: usize,
    /// The maximum size of an event, key and body. A larger event is refused.
    pub event_bytes_max: usize,
    /// The size of an event in a commit in addition to [`EventDocument::bytes_of`](super::EventDocument::bytes_of).
    pub event_overhead_bytes: usize,
    /// The maximum size of one fetch of a scanner.
    pub fetch_bytes_max: usize,
    /// The size of the tail: the newest events of all topics, kept in memory and read without a request.
    pub tail_bytes: usize,
    /// Compaction is worth its cost when this many bytes of events are dead.
    pub compaction_unit_bytes: u64,
    /// The number of threads that talk to the database.
    pub threads: usize,
}

impl Default for NetworkLimits {
    fn default() -> Self {
        Self {
            queue_bytes_max: 64 << 20,
            queue_batches_max: 10_000,
            commit_bytes_max: 46_000_000,
            commit_bytes_target: 4 << 20,
            commit_events_max: 90_000,
            event_bytes_max: usize::MAX,
            event_overhead_bytes: 0,
            fetch_bytes_max: 1 << 20,
            tail_bytes: 64 << 20,
            compaction_unit_bytes: 1 << 20,
            threads: 2,
        }
    }
}
