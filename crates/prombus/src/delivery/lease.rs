//! Unsettled deliveries: their states, leases and attempts.

use super::change::AttemptsChange;
use super::member::{MemberId, MemberSettings};
use super::{Millis, Position};
use prombus_protocol::RedeliveryReason;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The state of an unsettled delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsettledState {
    /// A member holds the event until `Unsettled::at`.
    Leased,
    /// The next attempt is due at `Unsettled::at`.
    Waiting,
    /// The event is ready to be redelivered.
    Due,
    /// This member is reading the event and gets it next. No lease runs, and the attempt does not count until the event is
    /// handed out.
    Reserved(MemberId),
    /// The event is being given up.
    GivingUp,
}

/// An event that was leased at least once, perhaps before a restart, and is not settled.
#[derive(Clone, Copy, Debug)]
pub struct Unsettled {
    /// The state of the delivery.
    pub state: UnsettledState,
    /// Attempts that were used up, the running one included.
    pub attempts: u32,
    /// The member that holds the lease, or held it last. A member that has only reserved the event is not a holder.
    pub holder: MemberId,
    /// The holder's limit of attempts.
    pub max_attempts: u32,
    /// When the lease (if leased) or the wait (if waiting) ends.
    pub at: Millis,
    /// When the last lease began.
    pub leased_at: Millis,
    /// Why the event was, or will be, delivered again. `None` if no earlier delivery counts.
    pub reason: Option<RedeliveryReason>,
    /// Whether the event is in the queue `Group::due`, which may also contain events that are not due any more.
    pub is_queued: bool,
    /// Whether the last attempt to read it for a redelivery failed.
    pub is_unreadable: bool,
    /// The event must not be delivered before the record of this generation is durable. `u64::MAX`: the generation is not
    /// assigned yet.
    pub gate: u64,
    /// Whether the start of its next attempt is recorded already. From the second attempt on, an event is delivered only
    /// after that record is durable.
    pub is_started: bool,
}

impl Unsettled {
    /// An event that is leased for the first time since the group was loaded.
    #[inline]
    pub(super) fn first_lease(
        holder: MemberId,
        settings: &MemberSettings,
        now: Millis,
        deadline: Millis,
        reason: Option<RedeliveryReason>,
    ) -> Self {
        Self {
            state: UnsettledState::Leased,
            attempts: 1,
            holder,
            max_attempts: settings.max_attempts,
            at: deadline,
            leased_at: now,
            reason,
            is_queued: false,
            is_unreadable: false,
            gate: 0,
            is_started: false,
        }
    }

    /// An event that was tried before a restart and waits for its next attempt. No member holds it.
    pub(super) fn restored(attempts: u32, not_before: Millis, reason: Option<RedeliveryReason>) -> Self {
        Self {
            state: UnsettledState::Waiting,
            attempts,
            holder: MemberId(0),
            max_attempts: u32::MAX,
            at: not_before,
            leased_at: 0,
            reason,
            is_queued: false,
            is_unreadable: false,
            gate: 0,
            is_started: false,
        }
    }

    /// Leases it again, as the next attempt.
    #[inline]
    pub(super) fn lease_again(
        &mut self,
        holder: MemberId,
        settings: &MemberSettings,
        now: Millis,
        deadline: Millis,
    ) {
        self.state = UnsettledState::Leased;
        self.attempts += 1;
        self.is_started = false;
        self.holder = holder;
        self.max_attempts = settings.max_attempts;
        self.at = deadline;
        self.leased_at = now;
    }

    /// Whether the start of its next attempt must be recorded before it is delivered: a first attempt needs no record.
    pub(super) fn needs_start(&self) -> bool {
        self.attempts > 0 && !self.is_started
    }

    /// Marks the next attempt as started, and returns the record that says so. The caller must keep the event from being
    /// delivered until that record is durable.
    pub(super) fn start(&mut self, position: Position) -> AttemptsChange {
        self.is_started = true;
        self.gate = u64::MAX;
        // If the record is ever read, the process died before the attempt ended.
        let reason = Some(RedeliveryReason::ServerRestarted);
        AttemptsChange { position, attempts: self.attempts + 1, not_before: 0, reason }
    }
}

/// All unsettled deliveries of a group.
pub type UnsettledMap = HashMap<Position, Unsettled, BuildHasherDefault<PositionHasher>>;

/// A fast hash of positions. It need not resist attacks, because clients cannot choose positions freely.
#[derive(Clone, Copy, Debug, Default)]
pub struct PositionHasher(u64);

impl Hasher for PositionHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(32) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
    }
}

/// A delivery to hand out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The event.
    pub position: Position,
    /// The attempt, counted from 1.
    pub attempt: u32,
    /// When the lease ends.
    pub deadline: Millis,
    /// Why it is delivered again. `None` if no earlier delivery counts.
    pub reason: Option<RedeliveryReason>,
}
