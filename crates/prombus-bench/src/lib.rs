//! Load generator for event buses.
//!
//! One client loop ([`client::run`]) drives any number of connections from one thread: it sleeps until sockets are ready, reads
//! all available bytes, and writes all pending bytes in one call. A [`wire::Wire`] implements a protocol: this crate contains the
//! WebSocket protocol of prombus, and the folder `bench/` those of the servers that prombus is compared with. So every server gets
//! the same load from the same code.
//!
//! Every message has a stamp ([`stamp::Stamp`]): its publisher, its number, and the time at which it was due. Latencies are
//! computed from the stamps, and a [`ledger::Ledger`] finds messages that were lost, duplicated or out of order.

pub mod client;
pub mod in_process;
pub mod ledger;
pub mod plan;
pub mod process;
pub mod report;
pub mod stamp;
pub mod usage;
pub mod wire;

pub use plan::{Length, Pace, Plan};
pub use report::{Measurement, Percentiles};
