//! Decides which process leads a store that several processes share. The process that holds the *leader lease*, a record in the
//! store that it renews every 2 s, leads; the others follow, and one of them takes the lease over when it is released or not
//! renewed. In these files, "the lease" is the leader lease of a store; the lease of an event is always called that. A *term*
//! is the time in which one process holds the lease; each term has a higher number than the one before.
//!
//! ```text
//! LeaseMachine (pure) ◄── Runner ──► SharedStore: lease record, engine
//!                           ├──► Role, for the server
//!                           ├──► Bus of the term that this process leads
//!                           └──► LeasingGate of that bus
//! ```
//!
//! The lease normally keeps two processes from leading at the same time, but it cannot guarantee this: a process may be
//! suspended while it leads, and continue after another process has taken the lease. The *fence* guarantees that only one of
//! them writes: the engine of a new term first writes its fence to the store, and the store then refuses all commits of earlier
//! terms.

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
