//! Tests of the documented guarantees: each test fails when its guarantee is broken. They use the log on a simulated disk,
//! where nothing is durable before the test makes a commit.

mod bounded_memory;
mod corruption;
mod delivery;
mod durable;
mod idempotent;
mod poison_events;
mod visible;
