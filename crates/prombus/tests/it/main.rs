//! Tests of the library from outside: one binary.

mod seeds;
