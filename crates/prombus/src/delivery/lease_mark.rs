//! The lease mark of a topic: the last seq that may be leased. `mark_ahead.rs` explains why and when it moves.

use prombus_protocol::RedeliveryReason;

/// How many seqs ahead of the leases the mark is recorded.
pub const MARK_AHEAD: u64 = 16_384;

/// The lease mark of a topic.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseMark {
    /// Events up to here may be leased: this mark is durable.
    pub(super) durable: u64,
    /// The newest mark, durable or not.
    pub(super) written: u64,
    /// The generation of the record that contains the newest mark. Zero if that mark is known to be durable; `u64::MAX` while
    /// the mark is among the changes that the caller has not taken yet.
    pub(super) gate: u64,
    /// Whether a member waits until the newest mark is durable. `Group::is_mark_awaited` reports the beginning of each such
    /// wait to the caller.
    pub(super) is_awaited: bool,
    /// The highest seq that was leased since the group was loaded; before the first lease, `restarted_to`, or the floor
    /// after a seek.
    pub(super) leased_to: u64,
    /// Events up to here may have been delivered before the last restart.
    pub(super) restarted_to: u64,
}

impl LeaseMark {
    /// A mark that was read from the store, so it is durable. Events up to `restarted_to` may have been delivered before a
    /// restart.
    pub(super) fn restored(durable: u64, restarted_to: u64) -> Self {
        Self { durable, written: durable, leased_to: restarted_to, restarted_to, ..Self::default() }
    }

    /// The last seq that may be leased, given that all records up to this generation are durable.
    pub(super) fn limit(&mut self, durable_generation: u64) -> u64 {
        if self.gate != 0 && self.gate <= durable_generation {
            *self = Self { durable: self.written, gate: 0, is_awaited: false, ..*self };
        }
        self.durable
    }

    /// Notes that events up to `seq` are leased.
    pub(super) fn leased(&mut self, seq: u64) {
        debug_assert!(seq <= self.durable, "leased {seq} above the durable mark {}", self.durable);
        self.leased_to = self.leased_to.max(seq);
    }

    /// The reason for the first delivery of an event since the last restart. `None` above `restarted_to`.
    pub(super) fn reason(&self, seq: u64) -> Option<RedeliveryReason> {
        (seq <= self.restarted_to).then_some(RedeliveryReason::ServerRestarted)
    }
}
