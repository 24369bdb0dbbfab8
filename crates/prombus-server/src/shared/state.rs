//! What all connections of a shared store's gateway share, whatever its role.

use super::duty::Duty;
use crate::gateway::GatewayParts;
use crate::metrics::SharedStoreMetrics;
use crate::shutdown::Stopping;
use std::sync::Arc;
use tokio::sync::watch;

/// What all connections share.
#[derive(Clone)]
pub(super) struct SharedState {
    pub(super) parts: Arc<GatewayParts>,
    pub(super) metrics: Arc<SharedStoreMetrics>,
    pub(super) duties: watch::Receiver<Duty>,
    /// The end of the process; a term has its own.
    pub(super) stopping: Stopping,
}
