//! A piece of a topic that was fetched.

use super::change::EventDocument;
use std::collections::VecDeque;
use std::sync::Arc;

/// Which seqs of a topic may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadableSeqs {
    /// What is below was removed by retention, though the database may still have it.
    pub first_seq: u64,
    /// The newest durable seq.
    pub last_seq: u64,
}

/// How much a fetch takes. It takes one event at least.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimit {
    /// No event above this seq.
    pub last_seq: u64,
    /// The most events.
    pub events: usize,
    /// About the most bytes.
    pub bytes: usize,
}

/// Events that were fetched.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// The first seq that was asked for.
    pub first_seq: u64,
    /// What is not in the piece up to this seq is not in the topic.
    pub last_seq: u64,
    /// Seqs and events, in order.
    pub events: VecDeque<(u64, Arc<EventDocument>)>,
    /// Stored events that could not be understood; they are left out.
    pub corrupt: u64,
}

impl Piece {
    pub(super) fn bytes(&self) -> usize {
        self.events.iter().map(|(_, event)| event.bytes()).sum()
    }
}
