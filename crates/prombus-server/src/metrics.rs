//! `/metrics`, in the Prometheus text format or as OpenMetrics.
//!
//! The backend counts most of the figures, and `render.rs` formats them. `counters.rs` has the figures that only the server
//! knows, `requests.rs` those of HTTP, `process.rs` those of the process. Names of topics and groups come from clients:
//! `label_cap.rs` limits how many of them become labels.

mod ages_reader;
mod counters;
mod label_cap;
mod other_total;
mod own_labels;
mod process;
mod render;
mod requests;
mod shared_store;
mod text;

pub(crate) use ages_reader::AgesReader;
pub(crate) use counters::{Metrics, SubscriptionMetrics};
pub(crate) use render::{Sources, render, render_follower};
pub(crate) use requests::RouteMetrics;
pub(crate) use shared_store::SharedStoreMetrics;
pub(crate) use text::Format;
