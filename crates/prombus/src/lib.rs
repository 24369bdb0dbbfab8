//! A durable event bus to embed: topics, consumer groups with leases and acks. A publish resolves only when its event is on
//! disk.
//!
//! ```
//! use prombus::Bus;
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Order { item: u32 }
//!
//! prombus::topic! { ORDERS: Order = "orders"; }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("prombus-example-{}", std::process::id()));
//! let bus = Bus::open(&folder).await?;
//! let mut orders = bus.subscribe(ORDERS.name(), "billing").from_earliest().await?;
//! bus.publish(ORDERS, &Order { item: 7 }).await?; // on disk now
//!
//! let delivery = orders.next().await.expect("the bus is open")?;
//! assert_eq!(delivery.json::<Order>()?.item, 7);
//! delivery.ack().await?; // on disk too: this group does not receive the event again
//! bus.close().await?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```

mod backend;
mod batch;
mod box_future;
mod bus;
mod clock;
mod commit_watch;
mod config;
#[cfg(feature = "test-util")]
pub mod conformance;
pub mod consume;
mod deferred_wakes;
pub mod delivery;
pub mod engine;
mod error;
mod event;
mod event_id;
mod failure_log;
mod info;
pub mod leadership;
mod leasing_gate;
mod local;
mod merged;
mod metrics;
pub mod outbox;
mod publish;
mod publishing;
mod settings;
#[cfg(feature = "sqlite")]
mod sqlite;
pub mod state;
mod subscribe;

pub use backend::{
    Backend, BackupProgress, Capabilities, ClosedCount, DeadLetterStates, Durability, DurableTicket,
    EventChunk, EventFilter, EventPosition, EventView, GroupSpec, Joined, Keys, LatestPage, LatestQuery,
    MemberOptions, Membership, Problem, SeekPreview, SettleOutcome, TopicDetails, UnreadableRange, Verdict,
};
pub use batch::{DeliveryBatch, DeliveryItem, EventBatch, EventItem, PullLimit};
pub use box_future::BoxFuture;
pub use bus::{Bus, BusBuilder, Publish, PublishOne};
pub use clock::{Clock, ManualClock, SystemClock};
pub use config::Limits;
pub use engine::Published;
pub use error::{
    BackupError, GroupError, OpenError, PublishError, ReadError, SettingError, StoreError, TopicAdminError,
    Unavailable,
};
pub use event::{Delivery, Event, Page, Settled, Settling};
pub use failure_log::FailureLog;
pub use info::{
    GroupInfo, GroupTopicInfo, LEASES_LISTED_MAX, LeaseInfo, MEMBERS_LISTED_MAX, MemberInfo, OldestUnacked,
    TopicInfo,
};
pub use leasing_gate::LeasingGate;
pub use local::LocalBackend;
pub use merged::{BusPosition, MergedChunk, MergedQuery, MergedRead, MergedReader, More, PositionError};
pub use metrics::{
    DeadLetterFigures, Figures, GroupAge, GroupFigures, Histogram, HistogramFigures, StoreFigures,
    TopicFigures,
};
pub use prombus_protocol::{
    Ack, Addressee, AfterFailure, Body, CursorPosition, DeadLetter, DeliveryContext, EventRecord,
    FailedEvent, Filter, GroupName, HandlerFailure, Pattern, PublishOptions, RawValue, RedeliveryReason,
    Start, SubscribeOptions, Topic, TopicFor, TypedTopic, Uuid, topic,
};
pub use publish::PublishBatch;
pub use publishing::Publishing;
pub use settings::{PublishRate, SNAPSHOT_INTERVAL_MS, TOMBSTONE_MS, TopicOptions, TopicRule, TopicSettings};
pub use subscribe::{Deliveries, HandlerHandle, Subscribe, Subscription, max_attempts};

/// The examples of the Rust guide, compiled with the doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct RustGuide;

/// The examples of the page about consuming, compiled with the doc tests. Those that need MongoDB are marked `rs`, which rustdoc
/// does not compile: the tests of `prombus-mongo` run them.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/consuming.md")]
struct ConsumingGuide;
