//! Counts of what happened in a group, and of what it has.

use prombus_protocol::RedeliveryReason;

/// What happened in a group since it is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounters {
    /// Deliveries, repeated ones included.
    pub delivered: u64,
    /// Acks that counted.
    pub acked: u64,
    /// Nacks that counted.
    pub nacked: u64,
    /// Leases that ran out.
    pub expired: u64,
    /// Deliveries whose member was lost.
    pub lost: u64,
    /// Deliveries again because a lease had run out.
    pub redelivered_expired: u64,
    /// Deliveries again because of a nack.
    pub redelivered_nacked: u64,
    /// Deliveries again because a member was lost.
    pub redelivered_lost: u64,
    /// Deliveries of events that may have been delivered before a restart.
    pub redelivered_restarted: u64,
    /// Acks and nacks that changed nothing.
    pub stale: u64,
    /// Events that were given up.
    pub dead_lettered: u64,
    /// Events that a filter dropped, or that are gone.
    pub passed_over: u64,
    /// Events that retention took before the group had them.
    pub missed: u64,
}

impl GroupCounters {
    /// Counts a delivery again for this reason.
    pub(super) fn count_redelivery(&mut self, reason: Option<RedeliveryReason>) {
        self.delivered += 1;
        match reason {
            Some(RedeliveryReason::LeaseExpired) => self.redelivered_expired += 1,
            Some(RedeliveryReason::Nacked) => self.redelivered_nacked += 1,
            Some(RedeliveryReason::MemberLost) => self.redelivered_lost += 1,
            Some(RedeliveryReason::ServerRestarted) => self.redelivered_restarted += 1,
            None => {}
        }
    }
}

/// How many deliveries of a group are unsettled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsettledCounts {
    /// With a member.
    pub leased: usize,
    /// Waiting to be delivered again, or on the way to the dead letters.
    pub waiting: usize,
}

/// A topic's state in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// It and everything below it is settled.
    pub floor: u64,
    /// How many seqs above the floor are settled.
    pub settled_above: u64,
    /// The newest seq that the group knows of.
    pub granted_to: u64,
}
