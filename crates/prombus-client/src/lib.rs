//! A client of a prombus gateway.
//!
//! - Publishing goes over one WebSocket, many events before the first answer: [`Client::publish_batch`]. A [`Publisher`] also
//!   waits out rate limits and connects again; every event has an id, so that what is sent twice is kept once.
//! - A [`Subscription`] is one member of a consumer group, as a stream of deliveries to ack: [`Client::subscribe`].
//! - History comes as a stream in constant memory: [`Client::history`], [`Client::lines`].
//! - A cold start loads what is newest of each key, and knows where to go on: [`Client::load_state`].
//! - The other routes of the gateway: [`Client::get_json`] and its siblings.
//!
//! ```no_run
//! use prombus_client::{Client, Record};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("ws://127.0.0.1:8090", None).await?;
//! let order = Record::new("orders.new", &serde_json::json!({"total": 12}))?.key("customer-7");
//! let published = client.publish(&order).await?;
//! assert!(published.seq > 0);
//!
//! let state = client.load_state("orders.new").await?;
//! assert_eq!(state.events["customer-7"].id, published.id);
//! # Ok(()) }
//! ```

mod address;
mod array_splitter;
mod client;
mod connection;
mod error;
mod history;
mod http;
mod lines;
mod publisher;
mod record;
mod state;
mod subscription;
mod transport;

pub use address::Address;
pub use client::Client;
pub use error::{ClientError, PublishError};
pub use history::{After, History, HistoryEvent, HistoryQuery};
pub use lines::Lines;
pub use prombus_protocol::{
    DeadLetter, ErrorCode, EventContext, EventRecord, PublishOptions, RawValue, Start, SubscribeOptions, Uuid,
};
pub use publisher::{Publisher, Setback};
pub use record::{Published, Record};
pub use state::{Position, State};
pub use subscription::{Delivery, Subscription};
