//! Which process leads a store that several can open: the lease, the takeover, the release.
//!
//! [`LeaseMachine`] decides, as a pure value. The lease only avoids that two processes lead at once; that no two of them write is
//! the engine's fence.

mod held_lease;
mod lease_machine;
mod observed_lease;
#[cfg(test)]
mod tests;
mod timing;

pub use lease_machine::{Candidate, LeaseMachine, LeasePosition, LeaseStep};
pub use timing::LeaseTiming;
