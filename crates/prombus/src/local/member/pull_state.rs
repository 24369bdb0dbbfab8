//! What pulls of a member use, kept from one to the next.

use super::merge_state::Merge;
use crate::delivery::{Leased, Position, ReservedRange};
use crate::engine::{Engine, EventScanner, Scanned, TopicId};
use crate::error::ReadError;
use prombus_protocol::{GroupName, Topic};
use std::sync::Arc;

/// Seqs of a reservation that cannot be read now.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnreadableSeqs {
    /// The index of the reservation.
    pub(super) reservation: usize,
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
}

/// What pulls use, kept from one to the next.
pub(super) struct Pull {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) scanner: Box<dyn EventScanner>,
    /// What is reserved and not read yet: how many of the reserved events the pull may have.
    pub(super) pending: Option<u32>,
    /// The member's place among those that wait, until it has got something.
    pub(super) turn: Option<u64>,
    /// Redeliveries that are reserved.
    pub(super) redelivered: Vec<Position>,
    /// What is handed out.
    pub(super) leased: Vec<Leased>,
    pub(super) reserved: Vec<ReservedRange>,
    /// Of each reserved range: up to where it was read, and how many events are kept.
    pub(super) read: Vec<(u64, usize)>,
    pub(super) kept: Vec<u64>,
    /// Redeliveries that were read.
    pub(super) read_again: Vec<Position>,
    /// Redeliveries that nobody gets: the event is gone, or a filter does not want it any more.
    pub(super) dropped: Vec<Position>,
    /// Redeliveries that do not fit into this pull.
    pub(super) too_many: Vec<Position>,
    /// Redeliveries that are unreadable.
    pub(super) unreadable_again: Vec<Position>,
    pub(super) unreadable: Vec<UnreadableSeqs>,
    /// The topics of what is reserved, those of redeliveries first.
    pub(super) topics: Vec<(TopicId, Topic)>,
    pub(super) merge: Merge,
    /// A reservation of this length may not be all that its topic has.
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
            read_again: Vec::new(),
            dropped: Vec::new(),
            too_many: Vec::new(),
            unreadable_again: Vec::new(),
            unreadable: Vec::new(),
            topics: Vec::new(),
            merge: Merge::default(),
            share: 0,
        }
    }

    /// Frees what was read ahead.
    pub(super) fn rest(&mut self) {
        self.scanner.rest();
        self.merge.rest();
    }

    pub(super) fn clear_read(&mut self) {
        self.read.clear();
        self.kept.clear();
        self.dropped.clear();
        self.too_many.clear();
        self.unreadable.clear();
        self.unreadable_again.clear();
        self.read_again.clear();
    }
}

/// Logs what a group does not get.
pub(super) fn report_gone(group: &GroupName, topic: &Topic, scanned: Scanned) {
    let Scanned { cleaned, corrupt, .. } = scanned;
    if cleaned > 0 {
        // Newer events of the same keys are in their place.
        tracing::debug!("group {group} on {topic}: {cleaned} events were cleaned before the group had them");
    }
    if corrupt > 0 {
        tracing::error!("group {group} on {topic}: {corrupt} damaged events are left out");
    }
}

/// Notes seqs that cannot be read now; `None` if that is so. Other errors are returned.
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
        // It is not known which events: the whole range is held.
        Err(ReadError::Io(_)) => range.last_seq,
        Err(error) => return Err(error),
    };
    unreadable.push(UnreadableSeqs { reservation, first_seq, last_seq });
    Ok(None)
}
