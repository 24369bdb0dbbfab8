//! The same load on prombus and on its peers: Redis Streams, NATS JetStream and RabbitMQ.
//!
//! [`peer`] starts servers, [`wire`] has the peers' protocols for the client loop of `prombus-bench`, [`schedule`] puts runs in
//! order, [`results`] keeps all that was measured, [`verdicts`] judges it, and [`page`] and [`chart`] show it. `bench/compare`
//! builds and runs all this.
//!
//! [`growth`] has what prombus alone costs when there is more of something; `bench/growth` runs that.

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
