//! Limits of a network engine.

/// Limits of a network engine.
#[derive(Clone, Debug)]
pub struct NetworkLimits {
    /// The maximum size of the queue in bytes. An append that would exceed it is refused with `Busy`, unless the queue is empty.
    pub queue_bytes_max: usize,
    /// The maximum number of queued changes: batches, and creations and deletions of topics. When it is reached, appends are
    /// refused with `Busy`.
    pub queue_batches_max: usize,
    /// The maximum size of a commit. A larger batch is refused.
    pub commit_bytes_max: usize,
    /// The size up to which batches are combined into one commit.
    pub commit_bytes_target: usize,
    /// The maximum number of events in a commit. A batch with more events is refused.
    pub commit_events_max: usize,
    /// The maximum size of an event as [`EventDocument::bytes_of`](super::EventDocument::bytes_of) counts it: its key, its body
    /// and a fixed part. A larger event is refused.
    pub event_bytes_max: usize,
    /// The bytes that each event takes in a commit in addition to
    /// [`EventDocument::bytes_of`](super::EventDocument::bytes_of).
    pub event_overhead_bytes: usize,
    /// The maximum size of one fetch of a scanner.
    pub fetch_bytes_max: usize,
    /// The maximum size of the tail cache: the newest events of all topics, kept in memory and read without a request.
    pub tail_bytes: usize,
    /// Compaction starts before its regular time only if there are at least this many dead bytes, and at least as many dead
    /// bytes as live bytes.
    pub compaction_bytes_min: u64,
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
            compaction_bytes_min: 1 << 20,
            threads: 2,
        }
    }
}
