//! `/metrics`, in the text format of Prometheus.
//!
//! The backend counts most of it already, and `render.rs` only writes it down. What only the gateway knows is in `counters.rs`.
//! Names of topics and groups come from clients: `label_cap.rs` bounds how many of them become labels.

mod counters;
mod label_cap;
mod render;
mod shared_store;
mod text;

pub(crate) use counters::{Metrics, SubscriptionMetrics};
pub(crate) use render::{render, render_follower};
pub(crate) use shared_store::SharedStoreMetrics;
