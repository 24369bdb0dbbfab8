//! The state that all connections of a gateway share, in both roles.

use super::duty::Duty;
use crate::gateway::GatewayParts;
use crate::metrics::SharedStoreMetrics;
use crate::shutdown::Stopping;
use std::sync::Arc;
use tokio::sync::watch;

/// The state of a gateway that all its connections use.
#[derive(Clone)]
pub(super) struct SharedState {
    pub(super) parts: Arc<GatewayParts>,
    pub(super) metrics: Arc<SharedStoreMetrics>,
    pub(super) duties: watch::Receiver<Duty>,
    /// The stop signal of the process. Each term in which this gateway leads has a separate stop signal (see `Duty::Leading`).
    pub(super) stopping: Stopping,
}
