//! Tests of the library from outside: one binary.

mod bad_input;
mod conformance;
mod folder;
mod guarantees;
mod kill;
mod power_cut;
mod rig;
mod seeds;
mod support;
