//! Batches of events that leave the bus: [`EventBatch`] for reads, and [`DeliveryBatch`] for pulls, whose events are leased. A
//! [`PullLimit`] bounds their size.

mod delivery_batch;
mod event_batch;
mod event_bytes;
mod pull_limit;

pub use delivery_batch::{DeliveryBatch, DeliveryItem};
pub use event_batch::{EventBatch, EventItem};
pub use pull_limit::PullLimit;
