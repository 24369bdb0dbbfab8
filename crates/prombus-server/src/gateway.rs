//! What all connections share.

use crate::auth::{Authenticator, Guard, OneTimeTickets, SseTickets};
use crate::buffer_budget::Budget;
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::rate_limit::Rates;
use crate::shutdown::Stopping;
use prombus::Backend;
use std::sync::Arc;

/// The gateway, without its sockets.
pub(crate) struct Gateway {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: ServerOptions,
    pub(crate) auth: Authenticator,
    /// Keeps pages of other origins out while no auth is configured.
    pub(crate) guard: Guard,
    pub(crate) tickets: OneTimeTickets,
    pub(crate) sse_tickets: SseTickets,
    pub(crate) rates: Rates,
    pub(crate) metrics: Metrics,
    /// Bytes in the buffers of all connections.
    pub(crate) budget: Budget,
    pub(crate) stopping: Stopping,
    /// Whether WebSockets send every message back and do nothing else.
    #[cfg(feature = "test-util")]
    pub(crate) is_echo: bool,
}

impl Gateway {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        auth: Authenticator,
        options: ServerOptions,
        stopping: Stopping,
    ) -> Self {
        Self {
            backend,
            auth,
            guard: Guard::new(options.auth.is_configured(), &options.allowed_hosts, &options.cors_origins),
            tickets: OneTimeTickets::default(),
            sse_tickets: SseTickets::default(),
            rates: Rates::new(options.rates.clone()),
            metrics: Metrics::new(options.metrics_labels_max),
            budget: Budget::new(options.connections.max_buffered_bytes),
            stopping,
            options,
            #[cfg(feature = "test-util")]
            is_echo: false,
        }
    }
}
