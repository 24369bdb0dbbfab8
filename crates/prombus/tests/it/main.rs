//! Tests of the library from outside: one binary.

mod bad_input;
mod conformance;
mod fixture;
mod folder;
mod group_model;
mod guarantees;
mod kill;
mod power_cut;
mod regressions;
mod rig;
mod seeds;
mod stress;
mod support;
