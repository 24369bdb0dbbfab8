//! Tests of the log through its public API, on a simulated disk that loses unsynced writes and on a real one.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests print their seeds")]

mod backup;
mod basics;
mod chain;
mod clean;
mod cut_cleaning;
mod damage;
mod failed_fsync;
mod fixture;
mod full_disk;
mod hooked;
mod hostile;
mod inspect;
mod kept_ids;
mod kill;
mod lookup;
mod lost_seqs;
mod open;
mod power_cut;
mod ram;
mod read_errors;
mod regressions;
mod segment_sizes;
mod server_ids;
mod stress;
mod support;
mod tight_disk;
mod usage;
