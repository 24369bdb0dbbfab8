//! Several processes on one store: takeovers at every step, zombies, lost answers, clock steps, releases; the gate.
//!
//! `process` is a process whose every step a test decides; `runner` is the one that programs use, on tokio's paused clock.

mod gate;
mod process;
mod runner;
mod takeover;
