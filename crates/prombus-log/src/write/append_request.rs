//! The input and the result of an append.

use crate::event_id::EventId;
use crate::topics::TopicId;

/// An event to append.
#[derive(Clone, Copy, Debug)]
pub struct NewEvent<'a> {
    /// The topic, from [`Log::ensure_topic`](crate::Log::ensure_topic).
    pub topic: TopicId,
    /// The id that the publisher chose. If it is `None`, the log generates one.
    pub id: Option<EventId>,
    /// The publisher's time.
    pub ts: i64,
    /// The key for latest-by-key and compaction.
    pub key: Option<&'a [u8]>,
    /// The payload; the log does not interpret it.
    pub body: &'a [u8],
    /// Whether the event deletes its key in a compacted topic.
    pub tombstone: bool,
}

/// A state record to append. It is opaque to the log, which passes it to [`State::apply`](crate::State::apply) in order.
#[derive(Clone, Copy, Debug)]
pub struct NewState<'a> {
    /// The caller's kind of record.
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
    /// Whether the append may use the segments that are reserved for a full disk. Set it for state records that let
    /// consumers continue, not for events of publishers.
    pub use_reserve: bool,
}

/// The outcome for one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The id of the event.
    pub id: EventId,
    /// The seq of the event. For a duplicate: the seq of the existing event.
    pub seq: u64,
    /// Whether the topic already had an event with this id. Then nothing was added.
    pub duplicate: bool,
}

/// The outcomes of an append, one per event. Reuse it for many appends: it keeps its memory.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// The outcomes, in the order of the events.
    pub(super) all: Vec<Outcome>,
    /// Per event, computed before the append lock is taken.
    pub(super) prepared: Vec<Prepared>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    /// The checksum of key and body.
    pub(super) body_crc: u32,
    /// The seq of the durable event with the same id; zero if there is none.
    pub(super) duplicate_of: u64,
    /// The hash of the id that the publisher chose; zero if the log generates the id.
    pub(super) id_hash: u64,
}

impl std::ops::Deref for Outcomes {
    type Target = [Outcome];

    fn deref(&self) -> &[Outcome] {
        &self.all
    }
}

/// Identifies the batch that makes an append durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// The number of the batch.
    pub(crate) batch: u64,
}

impl Ticket {
    /// The number of the batch. The append is durable when [`Log::durable_batch`](crate::Log::durable_batch) has reached
    /// it.
    pub fn batch(self) -> u64 {
        self.batch
    }
}
