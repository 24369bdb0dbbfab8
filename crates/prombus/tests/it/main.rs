//! Tests of the library from outside: one binary.

mod bad_input;
mod child;
mod cold_start;
mod conformance;
mod dedupe;
mod exactly_once;
mod exactly_once_kill;
mod fixture;
mod folder;
mod full_disk;
mod group_model;
mod guarantees;
mod kill;
mod outbox;
mod outbox_kill;
mod power_cut;
mod projector;
mod projector_kill;
mod regressions;
mod retention;
mod rig;
mod seeds;
mod snapshots;
mod state_power_cut;
mod stress;
mod support;
