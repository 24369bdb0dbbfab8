//! The group machine decides which member gets which event, for how long, and what happens when an attempt fails.
//!
//! [`Group`] is a pure value. Input: seqs that are granted or removed, members that join, leave, are lost or paused, acks,
//! nacks, extensions, a pause of the group, and the time. Output: leases, events to give up, records to write, and when to call it again. It has
//! no clock, does no I/O, and knows neither events nor topics: a topic is a [`SourceId`], an event a seq. So a test can
//! drive millions of random histories through it.
//!
//! Terms: a seq is *granted* when the machine was told that its event is durable, *fresh* if it is granted and no member has
//! reserved it yet, and *settled* when the group needs no further delivery of its event. The *floor* of a topic is the highest
//! seq up to which all seqs are settled. The *lease mark* of a topic is a durable upper bound of the seqs that the group has
//! leased. Changes become durable in numbered records; the number of a record is its *generation*.
//!
//! | subject | file |
//! |---|---|
//! | the state of a group, of a topic, of a delivery, of a member | `group.rs`, `source.rs`, `lease.rs`, `member.rs` |
//! | which seqs the group knows of | `grant.rs` |
//! | which seqs a pull takes | `reserve.rs` |
//! | leasing events to the member that read them | `deliver.rs` |
//! | which events are redelivered, and when an attempt counts | `redeliver.rs` |
//! | ack, nack, extension | `settle.rs`, `nack_backoff.rs` |
//! | leases that expire, waits that end | `lease_expiry.rs`, `timers.rs` |
//! | deliveries and reservations that are undone | `give_back.rs` |
//! | members that join, leave, are lost, paused or held; the pause of a group | `membership.rs` |
//! | seeks and deleted topics | `seek.rs` |
//! | events that are given up after too many attempts | `give_up_event.rs`, `give_up.rs` |
//! | the reason of the previous nack | `last_error.rs` |
//! | events that retention removed before the group received them | `cut.rs` |
//! | events that cannot be read now | `unreadable.rs` |
//! | the floor, and the settled ranges above it | `settled.rs` |
//! | the lease mark | `mark_ahead.rs`, `lease_mark.rs` |
//! | the changes that must become durable | `change.rs` |
//!
//! The types are in files that do not use [`Group`]; files with an `impl Group` import the types and [`Group`].

mod change;
mod counters;
mod cut;
mod deliver;
mod give_back;
mod give_up;
mod give_up_event;
mod grant;
mod group;
mod last_error;
mod lease;
mod lease_expiry;
mod lease_mark;
mod mark_ahead;
mod member;
mod membership;
mod nack_backoff;
mod redeliver;
mod reserve;
mod seek;
mod settle;
mod settled;
mod source;
mod timers;
mod unreadable;

pub use change::{AttemptsChange, Changes};
pub use counters::{GroupCounters, SourceStatus, UnsettledCounts};
pub use give_up::GiveUp;
pub use group::Group;
pub use last_error::ErrorBudget;
pub use lease::{Leased, Unsettled, UnsettledState};
pub use lease_mark::MARK_AHEAD;
pub use member::{MemberId, MemberSettings, ReservedRange};
pub use nack_backoff::backoff_ms;
pub use settle::{AckOutcome, Sender};
pub use settled::SettledSeqs;
pub use source::Restored;

/// Milliseconds of a monotonic clock.
pub type Millis = u64;

/// The number of a topic in its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

/// Identifies an event within a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The topic of the event.
    pub source: SourceId,
    /// The seq of the event.
    pub seq: u64,
}

impl std::hash::Hash for Position {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.seq ^ u64::from(self.source.0) << 40);
    }
}
