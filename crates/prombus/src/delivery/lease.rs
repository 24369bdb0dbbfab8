//! Deliveries that are not settled, and when to look at them again.
//!
//! Leases that one pull gives end together, so they share one timer; timers are not taken out when a lease is settled but
//! found stale when they fire, and thrown away together when most of them are. That makes a timer cost a lease next to nothing.

use super::change::AttemptsChange;
use super::{MemberId, Millis, Position, SourceId};
use prombus_protocol::RedeliveryReason;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// Where an unsettled delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A member has it until `Unsettled::at`.
    Leased,
    /// To be delivered again from `Unsettled::at` on.
    Waiting,
    /// To be delivered again now.
    Due,
    /// It is on its way to the dead letters.
    GivingUp,
}

/// An event that was leased at least once, or is known to have been before a restart, and is not settled.
#[derive(Clone, Copy, Debug)]
pub struct Unsettled {
    /// Where it stands.
    pub state: State,
    /// Attempts that were used up, the running one included.
    pub attempts: u32,
    /// Who has it, or had it last.
    pub holder: MemberId,
    /// The holder's limit of attempts.
    pub max_attempts: u32,
    /// When the lease ends, or the wait.
    pub at: Millis,
    /// When the last lease began.
    pub leased_at: Millis,
    /// Why it is delivered again.
    pub reason: Option<RedeliveryReason>,
    /// It stands in `Group::due`, perhaps from an earlier time that it was due.
    pub is_queued: bool,
    /// It could not be read when it was to be delivered again.
    pub is_unreadable: bool,
    /// It must not be delivered before this generation of the group's records is durable.
    pub gate: u64,
    /// The start of its next attempt is written down already. Attempts from the second on are delivered only after that is
    /// durable.
    pub is_started: bool,
}

impl Unsettled {
    /// Whether the start of its next attempt must be written down before it is delivered: a first attempt needs no record.
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

/// Positions are small numbers that nobody outside chooses freely: one multiplication spreads them well enough.
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

/// Look at these seqs at this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer {
    /// When.
    pub at: Millis,
    /// The topic.
    pub source: SourceId,
    /// The first seq.
    pub first_seq: u64,
    /// The last one.
    pub last_seq: u64,
}

/// The timers of a group.
#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<Timer>>,
    /// The newest one, which may still grow.
    open: Option<Timer>,
}

/// So many stale timers are not worth sweeping.
const STALE_MAX: usize = 1_024;

impl Timers {
    /// Looks at a position at a time.
    pub fn add(&mut self, at: Millis, position: Position) {
        let Position { source, seq } = position;
        if let Some(open) = &mut self.open {
            if open.at == at && open.source == source && open.last_seq + 1 == seq {
                open.last_seq = seq;
                return;
            }
            self.heap.push(Reverse(*open));
        }
        self.open = Some(Timer { at, source, first_seq: seq, last_seq: seq });
    }

    /// The next time to look. Nothing may be left to do then.
    pub fn next_at(&self) -> Option<Millis> {
        let first = self.heap.peek().map(|Reverse(timer)| timer.at);
        let open = self.open.map(|timer| timer.at);
        first.into_iter().chain(open).min()
    }

    /// How many there are, stale ones included.
    pub fn count(&self) -> usize {
        self.heap.len() + usize::from(self.open.is_some())
    }

    /// Takes a timer that is due, in the order of time, then of position.
    pub fn pop_due(&mut self, now: Millis) -> Option<Timer> {
        if let Some(open) = self.open.take_if(|open| open.at <= now) {
            self.heap.push(Reverse(open));
        }
        if self.heap.peek().is_some_and(|Reverse(timer)| timer.at <= now) {
            return self.heap.pop().map(|Reverse(timer)| timer);
        }
        None
    }

    /// Whether so many timers are stale that they should be made anew from what is unsettled.
    pub fn needs_sweep(&self, unsettled: usize) -> bool {
        self.heap.len() > 2 * unsettled + STALE_MAX
    }

    /// Makes the timers anew.
    pub fn rebuild(&mut self, timers: impl Iterator<Item = (Millis, Position)>) {
        self.heap.clear();
        self.open = None;
        let mut all: Vec<_> = timers.collect();
        all.sort_unstable();
        for (at, position) in all {
            self.add(at, position);
        }
    }
}
