//! A member of a group, as the group machine sees it.

use super::{Millis, Position, SourceId};

/// The number of a member. Numbers are not reused while the group is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// The settings that a member chose when it joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberSettings {
    /// The most unsettled deliveries that it may have.
    pub max_in_flight: u32,
    /// The maximum number of events that one pull leases.
    pub batch_size: u32,
    /// How long a lease runs.
    pub ack_timeout_ms: Millis,
    /// An event is given up when this many attempts have failed.
    pub max_attempts: u32,
    /// While the group has this many unsettled events, it leases no new ones to this member.
    pub max_unsettled: u32,
    /// Whether later events may be delivered before unreadable ones, after a wait of a minute. False for a member that needs
    /// strict order.
    pub passes_unreadable: bool,
}

impl Default for MemberSettings {
    fn default() -> Self {
        Self {
            max_in_flight: 1_000,
            batch_size: 100,
            ack_timeout_ms: 30_000,
            max_attempts: 5,
            max_unsettled: 100_000,
            passes_unreadable: true,
        }
    }
}

/// Seqs that a member is about to read: not fresh any more, not leased yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedRange {
    /// The topic.
    pub source: SourceId,
    /// The first seq.
    pub first_seq: u64,
    /// The last seq.
    pub last_seq: u64,
}

impl ReservedRange {
    /// How many seqs the range has.
    pub fn count(&self) -> u64 {
        self.last_seq - self.first_seq + 1
    }
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) settings: MemberSettings,
    /// How many deliveries it holds.
    pub(super) in_flight: u32,
    pub(super) is_paused: bool,
    /// The server has stopped reading from the member, so its acks cannot arrive and its leases do not expire.
    pub(super) is_held: bool,
    /// Leases whose time ended while the member was held.
    pub(super) overdue: Vec<Position>,
    /// Fresh seqs that it is about to read.
    pub(super) reserved: Vec<ReservedRange>,
    /// Whether its last pull reserved redeliveries.
    pub(super) may_read_redeliveries: bool,
    /// Whether the last pull of the member found nothing, so that the member waits for events.
    pub(super) is_idle: bool,
}

impl Member {
    pub(super) fn new(settings: MemberSettings) -> Self {
        Self {
            settings,
            in_flight: 0,
            is_paused: false,
            is_held: false,
            overdue: Vec::new(),
            reserved: Vec::new(),
            may_read_redeliveries: false,
            is_idle: false,
        }
    }

    /// How many more deliveries it may get in one pull.
    pub(super) fn window(&self) -> u32 {
        if self.is_paused {
            return 0;
        }
        self.settings.max_in_flight.saturating_sub(self.in_flight).min(self.settings.batch_size)
    }
}
