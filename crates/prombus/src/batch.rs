//! Batches of events on their way out of the bus: [`EventBatch`] for reads, [`DeliveryBatch`] for pulls, whose events are
//! leased. How large one may be is a [`PullLimit`].

mod delivery_batch;
mod event_batch;
mod event_bytes;
mod pull_limit;

pub use delivery_batch::{DeliveryBatch, DeliveryItem};
pub use event_batch::{EventBatch, EventItem};
pub use pull_limit::PullLimit;
