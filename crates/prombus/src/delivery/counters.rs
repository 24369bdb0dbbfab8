//! Counters of a group, and the number of its unsettled deliveries.

use prombus_protocol::RedeliveryReason;

/// Counters of a group since it was loaded into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounters {
    /// Deliveries, repeated ones included.
    pub delivered: u64,
    /// Acks that were applied.
    pub acked: u64,
    /// Nacks that were applied.
    pub nacked: u64,
    /// Leases that expired.
    pub expired: u64,
    /// Deliveries whose member was lost.
    pub lost: u64,
    /// Redeliveries because a lease had expired.
    pub redelivered_expired: u64,
    /// Redeliveries because of a nack.
    pub redelivered_nacked: u64,
    /// Redeliveries because a member was lost.
    pub redelivered_lost: u64,
    /// Deliveries with the reason `server_restarted`: the event may have been delivered before a restart.
    pub redelivered_restarted: u64,
    /// Acks and nacks that changed nothing.
    pub stale: u64,
    /// Events that were given up, including those without a dead letter.
    pub dead_lettered: u64,
    /// Events that a filter dropped or that no longer exist.
    pub passed_over: u64,
    /// Events that retention removed before the group settled them.
    pub missed: u64,
}

impl GroupCounters {
    /// Counts a redelivery with this reason.
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
    /// Leased to a member.
    pub leased: usize,
    /// Waiting for redelivery, or being given up.
    pub waiting: usize,
}

/// A topic's state in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// This seq and all lower ones are settled.
    pub floor: u64,
    /// How many seqs above the floor are settled.
    pub settled_above: u64,
    /// The newest seq that the group knows of: its event, and all earlier ones, are durable.
    pub granted_to: u64,
}
