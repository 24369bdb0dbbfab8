//! The buffers and the state of a member's pulls. They are kept between pulls, so that the next pull reuses their
//! memory.

use super::topic_cursors::TopicCursors;
use crate::delivery::{Leased, Position, ReservedRange};
use crate::engine::{Engine, EventScanner, Scanned, TopicId};
use crate::error::ReadError;
use prombus_protocol::{GroupName, Topic};
use std::sync::Arc;

/// Seqs of a reservation that cannot be read at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnreadableSeqs {
    /// The index of the reserved range in [`Pull::reserved`].
    pub(super) reservation: usize,
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
}

/// The buffers and the state of a member's pulls.
pub(super) struct Pull {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) scanner: Box<dyn EventScanner>,
    /// Set while the read of a reservation is pending: how many of the reserved events may be delivered.
    pub(super) pending: Option<u32>,
    /// The member's turn among the waiting members, which it keeps until it has received an event.
    pub(super) turn: Option<u64>,
    /// The reserved redeliveries.
    pub(super) redelivered: Vec<Position>,
    /// The leases of the events that the pull delivers.
    pub(super) leased: Vec<Leased>,
    /// The reserved ranges of new seqs.
    pub(super) reserved: Vec<ReservedRange>,
    /// For each reserved range: the seq up to which it was read, and the number of events that passed the filters.
    pub(super) read: Vec<(u64, usize)>,
    /// With one reserved range: the seqs that passed the filters.
    pub(super) kept: Vec<u64>,
    /// Redeliveries that were read and passed the filters.
    pub(super) read_redeliveries: Vec<Position>,
    /// Redeliveries that are not delivered: the event is gone, or a filter rejects it.
    pub(super) dropped_redeliveries: Vec<Position>,
    /// Redeliveries that are left for the next pull.
    pub(super) postponed: Vec<Position>,
    /// Redeliveries that are unreadable.
    pub(super) unreadable_redeliveries: Vec<Position>,
    /// New seqs that are unreadable.
    pub(super) unreadable: Vec<UnreadableSeqs>,
    /// The topics of the reserved events, those of redeliveries first.
    pub(super) topics: Vec<(TopicId, Topic)>,
    /// The state of reads of several topics.
    pub(super) topic_cursors: TopicCursors,
    /// The maximum length of a reservation in a topic. If a reservation has this length, the topic may have more
    /// events.
    pub(super) share: u64,
}

impl Pull {
    pub(super) fn new(engine: Arc<dyn Engine>) -> Self {
        Self {
            scanner: engine.scanner(),
            engine,
            pending: None,
            turn: None,
            redelivered: Vec::new(),
            leased: Vec::new(),
            reserved: Vec::new(),
            read: Vec::new(),
            kept: Vec::new(),
            read_redeliveries: Vec::new(),
            dropped_redeliveries: Vec::new(),
            postponed: Vec::new(),
            unreadable_redeliveries: Vec::new(),
            unreadable: Vec::new(),
            topics: Vec::new(),
            topic_cursors: TopicCursors::default(),
            share: 0,
        }
    }

    /// Frees the memory of events that were read ahead.
    pub(super) fn rest(&mut self) {
        self.scanner.rest();
        self.topic_cursors.rest();
    }

    pub(super) fn clear_read(&mut self) {
        self.read.clear();
        self.kept.clear();
        self.dropped_redeliveries.clear();
        self.postponed.clear();
        self.unreadable.clear();
        self.unreadable_redeliveries.clear();
        self.read_redeliveries.clear();
    }
}

/// Logs events that a group does not receive.
pub(super) fn log_missing(group: &GroupName, topic: &Topic, scanned: Scanned) {
    let Scanned { cleaned, corrupt, .. } = scanned;
    if cleaned > 0 {
        // This is normal: newer events of the same keys have replaced them.
        tracing::debug!(
            "group {group} on {topic}: {cleaned} events were cleaned before the group received them"
        );
    }
    if corrupt > 0 {
        tracing::error!("group {group} on {topic}: {corrupt} damaged events are left out");
    }
}

/// If the scan failed because events cannot be read at the moment, records their seqs in `unreadable` and returns
/// `None`. Otherwise returns the result of the scan.
pub(super) fn note_unreadable(
    scanned: Result<Scanned, ReadError>,
    reservation: usize,
    first_seq: u64,
    range: ReservedRange,
    unreadable: &mut Vec<UnreadableSeqs>,
) -> Result<Option<Scanned>, ReadError> {
    let last_seq = match scanned {
        Ok(scanned) => return Ok(Some(scanned)),
        Err(ReadError::Unreadable { last_seq, .. }) => last_seq.min(range.last_seq),
        // It is unknown which events are affected, so the whole range counts as unreadable.
        Err(ReadError::Io(_)) => range.last_seq,
        Err(error) => return Err(error),
    };
    unreadable.push(UnreadableSeqs { reservation, first_seq, last_seq });
    Ok(None)
}
