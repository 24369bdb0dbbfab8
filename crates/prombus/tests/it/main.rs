//! Tests of the library from outside: one binary.

mod kill;
mod power_cut;
mod seeds;
mod support;
