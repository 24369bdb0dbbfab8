//! Decides which process leads a store that several processes share: the leader lease, the takeover, the release. In
//! this folder, "the lease" is the leader lease of a store. A lease of an event is always called that.
//!
//! ```text
//! LeaseMachine (pure) ◄── Runner ──► SharedStore: lease record, engine
//!                           ├──► Role, for the server
//!                           ├──► Bus of the term that this process leads
//!                           └──► LeasingGate of that bus
//! ```
//!
//! The lease normally keeps two processes from leading at once, but it cannot guarantee it: a process may be suspended while it
//! leads. The engine's fence guarantees that only one of them writes.

mod handle;
mod held_lease;
mod lease_call;
mod lease_machine;
mod observed_lease;
mod open_shared;
mod options;
mod random;
mod role;
mod runner;
mod shared_address;
mod term_work;
#[cfg(test)]
mod tests;
mod timing;

pub use handle::Leadership;
pub use lease_machine::{Candidate, LeaseMachine, LeasePosition, LeaseStep};
pub use open_shared::SharedBus;
pub use options::LeadershipOptions;
pub use role::{LeadershipFigures, Role};
pub use runner::StopError;
pub use timing::LeaseTiming;
