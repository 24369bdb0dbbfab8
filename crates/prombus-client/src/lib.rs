//! A client of a prombus server.
//!
//! - Publishing goes over one WebSocket: [`Client::publish`], and many events at once with [`Client::publish_batch`]. Every event
//!   has an id, so the client can resend it after a lost connection and it is stored once. A [`Publisher`] also reports when it has to wait.
//! - [`Client::subscribe`] joins a consumer group, as a stream of [`Delivery`]s or with a handler. Both reconnect and resubscribe
//!   automatically.
//! - [`Client::history`] reads stored events, and [`Client::lines`] reads a response line by line, both in constant memory.
//! - [`Client::follow`] reads stored events and then new ones as they are published, without a group.
//! - [`Client::load_state`] loads the newest event of each key, and the position from which to continue.
//! - [`Client::get_json`] and similar methods call the other HTTP routes.
//!
//! ```no_run
//! use prombus_client::{Client, HandlerError, topic};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order {
//!     total: u32,
//! }
//!
//! topic!(ORDERS: Order = "orders.new");
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("ws://127.0.0.1:8090", None).await?;
//! client.publish(ORDERS, &Order { total: 12 }).key("customer-7").await?;
//!
//! let worker = client.subscribe(ORDERS, "billing").from_earliest().handler(|event, context| async move {
//!     let order: Order = event.json()?;
//!     println!("attempt {}: {}", context.attempt, order.total);
//!     Ok::<(), HandlerError>(())
//! });
//! let worker = worker.await?;
//! tokio::signal::ctrl_c().await?;
//! worker.stop().await?;
//! # Ok(()) }
//! ```

mod address;
mod array_splitter;
mod backoff;
mod client;
mod connection;
mod error;
mod follow;
mod history;
mod http;
mod io_reason;
mod lines;
mod patience;
mod publish;
mod publish_connection;
mod publisher;
mod record;
mod resend;
mod sse;
mod state;
mod subscribe;
mod tls_failure;
mod transport;
mod trust;

pub use address::Address;
pub use client::{Client, ClientBuilder};
pub use error::{ClientError, PublishError, RecordError};
pub use follow::Follow;
pub use history::{After, History, HistoryEvent, HistoryQuery};
pub use lines::Lines;
pub use prombus_protocol::{
    Addressee, AfterFailure, DeadLetter, ErrorCode, EventContext, EventRecord, FailedEvent, Filter,
    HandlerFailure, PublishOptions, RawValue, RedeliveryReason, Start, SubscribeOptions, Topic, TopicFor,
    TypedTopic, Uuid, topic,
};
pub use publish::Publish;
pub use publisher::Publisher;
pub use record::{Published, Record};
pub use resend::Setback;
pub use state::{Position, State};
pub use subscribe::{
    ConnectionChange, Delivery, HandlerContext, HandlerError, HandlerHandle, Settled, Subscribe, Subscription,
};
