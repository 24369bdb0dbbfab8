//! `/metrics`, in the Prometheus text format.
//!
//! The backend counts most of the figures, and `render.rs` formats them. `counters.rs` has the figures that only the server
//! knows. Names of topics and groups come from clients: `label_cap.rs` limits how many of them become labels.

mod counters;
mod label_cap;
mod render;
mod shared_store;
mod text;

pub(crate) use counters::{Metrics, SubscriptionMetrics};
pub(crate) use render::{render, render_follower};
pub(crate) use shared_store::SharedStoreMetrics;
