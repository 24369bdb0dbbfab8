//! Tests of the library from outside: one binary.

mod power_cut;
mod seeds;
mod support;
