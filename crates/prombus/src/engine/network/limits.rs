//! Bounds of a network engine.

/// Bounds of a network engine.
#[derive(Clone, Debug)]
pub struct NetworkLimits {
    /// Appends are refused with `Busy` when this many bytes wait for a commit.
    pub queue_bytes_max: usize,
    /// The same for batches.
    pub queue_batches_max: usize,
    /// The most bytes of one commit. A batch that is larger is refused.
    pub commit_bytes_max: usize,
    /// Batches share a commit up to this size.
    pub commit_bytes_target: usize,
    /// The most events of one commit. A batch that has more is refused.
    pub commit_events_max: usize,
    /// The most bytes of one event, key and body. One that is larger is refused.
    pub event_bytes_max: usize,
    /// What an event takes in a commit besides its key, its body and [`EventDocument::bytes_of`](super::EventDocument::bytes_of).
    pub event_overhead_bytes: usize,
    /// The most bytes that one read of a scanner fetches.
    pub fetch_bytes_max: usize,
    /// The newest events of all topics together that are kept in memory and read without a request.
    pub tail_bytes: usize,
    /// Compaction is worth its cost when this many bytes of events are dead.
    pub compaction_unit_bytes: u64,
    /// Threads that talk to the database.
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
