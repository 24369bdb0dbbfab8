//! The guarantees of the design, one after the other: each test fails when its guarantee is broken. Over the log on a simulated
//! disk, where nothing is durable before a commit that the test makes.

mod bounded_memory;
mod corruption;
mod delivery;
mod durable;
mod idempotent;
mod poison_events;
mod visible;
