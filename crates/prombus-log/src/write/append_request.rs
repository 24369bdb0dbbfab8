//! What callers append, and what they get back.

use crate::event_id::EventId;
use crate::topics::TopicId;

/// An event to append.
#[derive(Clone, Copy, Debug)]
pub struct NewEvent<'a> {
    /// Its topic, from [`Log::ensure_topic`](crate::Log::ensure_topic).
    pub topic: TopicId,
    /// The publisher's id; without one the log makes one.
    pub id: Option<EventId>,
    /// The publisher's time.
    pub ts: i64,
    /// The key for latest-by-key and compaction.
    pub key: Option<&'a [u8]>,
    /// The payload; the log does not interpret it.
    pub body: &'a [u8],
    /// Whether it deletes its key in a compacted topic.
    pub tombstone: bool,
}

/// A state record to append: opaque to the log, given back to [`State::apply`](crate::State::apply) in order.
#[derive(Clone, Copy, Debug)]
pub struct NewState<'a> {
    /// What the caller wants to tell records apart by.
    pub tag: u32,
    /// The record.
    pub body: &'a [u8],
}

/// Records that are appended together: all of them become durable, or none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Append<'a> {
    /// Events, in order.
    pub events: &'a [NewEvent<'a>],
    /// State records, in order.
    pub states: &'a [NewState<'a>],
    /// May use the reserve that is held back for a full disk. For what lets consumers go on, not for publishers.
    pub use_reserve: bool,
}

/// What became of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its id.
    pub id: EventId,
    /// Its seq; of a duplicate, that of the event that was there.
    pub seq: u64,
    /// The topic had this id already and nothing was added.
    pub duplicate: bool,
}

/// The outcomes of an append, one per event. Reuse one for many appends: it keeps its memory.
#[derive(Debug, Default)]
pub struct Outcomes {
    pub(super) all: Vec<Outcome>,
    /// Per event, made before the lock is taken.
    pub(super) prepared: Vec<Prepared>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    pub(super) body_crc: u32,
    /// The seq of the durable event that has this id already; zero for none.
    pub(super) duplicate_of: u64,
    /// Of the publisher's id.
    pub(super) id_hash: u64,
}

impl std::ops::Deref for Outcomes {
    type Target = [Outcome];

    fn deref(&self) -> &[Outcome] {
        &self.all
    }
}

/// Says which commit makes an append durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    pub(crate) batch: u64,
}

impl Ticket {
    /// The number of the batch; the append is durable when [`Log::durable_batch`](crate::Log::durable_batch) reached it.
    pub fn batch(self) -> u64 {
        self.batch
    }
}
