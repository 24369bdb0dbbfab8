//! Runs the same loads on prombus and on its peers: Redis Streams, NATS JetStream and RabbitMQ.
//!
//! [`peer`] starts servers, [`wire`] implements the peers' protocols for the client loop of `prombus-bench`, [`schedule`] orders the
//! runs, [`results`] stores the measurements, [`verdicts`] compares them with the goals, and [`page`] and [`chart`] present them.
//! `bench/compare` builds and runs this.
//!
//! [`growth`] measures how the cost of prombus grows with load dimensions such as topics and groups; `bench/growth` runs it.

pub mod chart;
pub mod data_folder;
pub mod growth;
pub mod load;
pub mod machine;
pub mod page;
pub mod peer;
pub mod progress;
pub mod results;
pub mod schedule;
pub mod verdicts;
pub mod wire;
