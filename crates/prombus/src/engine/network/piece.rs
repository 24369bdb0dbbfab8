//! Events of a topic that were fetched together, in seq order.

use super::change::EventDocument;
use std::collections::VecDeque;
use std::sync::Arc;

/// The range of seqs of a topic that may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadableSeqs {
    /// Events below this seq have expired and must not be read. The database may still have some of them.
    pub first_seq: u64,
    /// The newest durable seq.
    pub last_seq: u64,
}

/// Limits of a fetch. The limits on number and size do not apply to the first stored event: a fetch always covers it.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimit {
    /// The highest seq to return.
    pub last_seq: u64,
    /// The maximum number of events.
    pub events: usize,
    /// The approximate maximum size in bytes.
    pub bytes: usize,
}

/// Events of a topic that were fetched together.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// The first requested seq.
    pub first_seq: u64,
    /// The last seq that the piece covers: events up to this seq that are not in the piece were removed, or
    /// are counted in `corrupt`.
    pub last_seq: u64,
    /// The events with their seqs, in order.
    pub events: VecDeque<(u64, Arc<EventDocument>)>,
    /// The number of stored events that could not be decoded; they are left out.
    pub corrupt: u64,
}

impl Piece {
    pub(super) fn bytes(&self) -> usize {
        self.events.iter().map(|(_, event)| event.bytes()).sum()
    }
}
