//! Several processes on one store: takeovers at every step, deposed leaders that still run, lost responses, clock steps,
//! releases, and the leasing gate.
//!
//! `process` is a process whose every step is decided by the test; `runner` tests the runner that programs use, on tokio's
//! paused clock.

mod gate;
mod process;
mod runner;
mod takeover;
