//! Which process leads a store that several can open: the lease, the takeover, the release.
//!
//! ```text
//! LeaseMachine (pure) ◄── Runner ──► SharedStore: lease record, engine
//!                           │
//!                           ├──► Role, for a gateway      ├──► Bus of the term that this process leads
//!                           └──► LeasingGate of that bus
//! ```
//!
//! The lease only keeps two processes from leading at once; that no two of them write is the engine's fence.

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
