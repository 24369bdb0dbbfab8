//! The group machine: who gets which event, for how long, and what happens when that does not work out.
//!
//! [`Group`] is a pure value. What goes in: seqs that are granted or gone, members that join, leave, are lost or paused, acks,
//! nacks, extensions, and the time. What comes out: leases, events to give up, records to keep, and when to look again. It has
//! no clock, does no I/O, and knows neither events nor topics: a topic is a [`SourceId`], an event a seq. So a test can drive
//! millions of random histories through it.
//!
//! | question | file |
//! |---|---|
//! | what is granted, reserved and leased to whom | `group.rs` |
//! | how an unsettled delivery is kept, and its timers | `lease.rs` |
//! | ack, nack, extension, expiry, lost members | `redelivery.rs` |
//! | what is given up after too many attempts | `dead_letter.rs` |
//! | what the nack before said | `last_error.rs` |
//! | windows, pauses | `member.rs` |
//! | events that are gone before the group had them | `cut.rs` |
//! | events that cannot be read now | `unreadable.rs` |
//! | floor and ranges above it | `settled.rs` |
//! | how far it has leased, so that a crash does not take it back | `mark.rs` |
//! | what must be written down | `change.rs` |

mod change;
mod cut;
mod dead_letter;
mod group;
mod last_error;
mod lease;
mod mark;
mod member;
mod redelivery;
mod settled;
mod unreadable;

pub use change::{AttemptsChange, Changes};
pub use dead_letter::GiveUp;
pub use group::{Group, GroupCounters, Leased, Restored, SourceStatus, UnsettledCounts};
pub use last_error::ErrorBudget;
pub use lease::{State, Unsettled};
pub use mark::MARK_AHEAD;
pub use member::{MemberId, MemberSettings, ReservedRange};
pub use redelivery::{Sender, Settling, backoff_ms};
pub use settled::Settled;

/// Milliseconds of a clock that never goes back.
pub type Millis = u64;

/// A topic of a group, by its number in the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

/// An event of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Its topic.
    pub source: SourceId,
    /// Its seq.
    pub seq: u64,
}

impl std::hash::Hash for Position {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.seq ^ u64::from(self.source.0) << 40);
    }
}
