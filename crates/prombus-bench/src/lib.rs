//! Loads for event buses.
//!
//! One client loop ([`client::run`]) drives any number of connections from one thread: it sleeps until sockets are ready, reads
//! all that is there, and writes all that it has to say in one call. What is said in which words is a [`wire::Wire`]: the
//! WebSocket protocol of prombus is here, those of the peers are in the program that compares. So every server gets the same load
//! from the same code.
//!
//! Every message has a stamp ([`stamp::Stamp`]): who published it, its number, and when it was due. From it come latencies, and a
//! [`ledger::Ledger`] of what was lost, came twice, or came out of order.

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
