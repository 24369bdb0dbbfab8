//! The state that all connections share.

use crate::auth::{OneTimeTickets, SseTickets};
use crate::buffer_budget::Budget;
use crate::live::{Live, LiveOptions};
use crate::metrics::{AgesReader, Metrics, SharedStoreMetrics};
use crate::options::ServerOptions;
use crate::rate_limit::{RateRefusals, Rates};
use crate::shutdown::Stopping;
use prombus::Backend;
use std::sync::Arc;

/// The server without its sockets. A process that leads a shared store creates an instance for each of its terms (a term is a
/// period in which one process leads).
pub(crate) struct Gateway {
    pub(crate) backend: Arc<dyn Backend>,
    /// The options that need a restart. Those that a reload replaces are in `live`, and empty here.
    pub(crate) options: ServerOptions,
    pub(crate) live: Arc<Live>,
    pub(crate) tickets: Arc<OneTimeTickets>,
    pub(crate) sse_tickets: Arc<SseTickets>,
    pub(crate) rates: Rates,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ages: AgesReader,
    /// The budget for the buffers of all connections.
    pub(crate) budget: Arc<Budget>,
    pub(crate) stopping: Stopping,
    /// Metrics about leading and relaying; `None` if the store is not shared.
    pub(crate) shared_store: Option<Arc<SharedStoreMetrics>>,
    /// Whether WebSockets only echo every message.
    #[cfg(feature = "test-util")]
    pub(crate) is_echo: bool,
}

/// The parts of a [`Gateway`] that outlive a term: options, auth, counters and tickets.
pub(crate) struct GatewayParts {
    /// The options that need a restart. Those that a reload replaces are in `live`, and empty here.
    pub(crate) options: ServerOptions,
    pub(crate) live: Arc<Live>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) shared_store: Option<Arc<SharedStoreMetrics>>,
    tickets: Arc<OneTimeTickets>,
    sse_tickets: Arc<SseTickets>,
    rate_refusals: Arc<RateRefusals>,
}

impl GatewayParts {
    /// `live`: made from the same options.
    pub(crate) fn new(
        live: LiveOptions,
        options: ServerOptions,
        shared_store: Option<Arc<SharedStoreMetrics>>,
    ) -> Self {
        Self {
            live: Arc::new(Live::new(live)),
            metrics: Arc::new(Metrics::new(options.metrics_labels_max)),
            budget: Arc::new(Budget::new(options.connections.max_buffered_bytes)),
            shared_store,
            tickets: Arc::default(),
            sse_tickets: Arc::default(),
            rate_refusals: Arc::default(),
            options: ServerOptions {
                auth: Default::default(),
                tls: None,
                allowed_hosts: Vec::new(),
                cors_origins: Vec::new(),
                rates: Default::default(),
                ..options
            },
        }
    }

    /// Creates a gateway over a backend. Its token buckets start full: they are not carried over from an earlier term.
    pub(crate) fn gateway(&self, backend: Arc<dyn Backend>, stopping: Stopping) -> Gateway {
        self.metrics.begin(&backend.figures());
        Gateway {
            backend,
            options: self.options.clone(),
            live: Arc::clone(&self.live),
            tickets: Arc::clone(&self.tickets),
            sse_tickets: Arc::clone(&self.sse_tickets),
            rates: Rates::new(Arc::clone(&self.live), Arc::clone(&self.rate_refusals)),
            metrics: Arc::clone(&self.metrics),
            ages: AgesReader::default(),
            budget: Arc::clone(&self.budget),
            stopping,
            shared_store: self.shared_store.clone(),
            #[cfg(feature = "test-util")]
            is_echo: false,
        }
    }
}

impl Gateway {
    /// The gateway of a process that does not share its store. `live`: made from the same options.
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        live: LiveOptions,
        options: ServerOptions,
        stopping: Stopping,
    ) -> Self {
        GatewayParts::new(live, options, None).gateway(backend, stopping)
    }
}
