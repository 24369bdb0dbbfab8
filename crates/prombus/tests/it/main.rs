//! Tests of the library from outside: one binary.

mod bad_input;
mod cold_start;
mod conformance;
mod fixture;
mod folder;
mod group_model;
mod guarantees;
mod kill;
mod power_cut;
mod regressions;
mod retention;
mod rig;
mod seeds;
mod snapshots;
mod state_power_cut;
mod stress;
mod support;
