//! What all connections share.

use crate::auth::{Authenticator, Guard, StreamTickets, Tickets};
use crate::budget::Budget;
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::rate::{ConnectionRate, Rates};
use prombus::Backend;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, watch};

/// The gateway, without its sockets.
pub(crate) struct Gateway {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: ServerOptions,
    pub(crate) auth: Authenticator,
    /// Keeps pages of other origins out while no auth is configured.
    pub(crate) guard: Guard,
    pub(crate) tickets: Tickets,
    pub(crate) stream_tickets: StreamTickets,
    pub(crate) rates: Rates,
    pub(crate) metrics: Metrics,
    /// Bytes in the buffers of all connections.
    pub(crate) budget: Budget,
    pub(crate) stopping: Stopping,
    /// Whether WebSockets send every message back and do nothing else.
    #[cfg(feature = "test-util")]
    pub(crate) is_echo: bool,
}

/// Whether the gateway shuts down.
#[derive(Clone, Debug)]
pub(crate) struct Stopping {
    receiver: watch::Receiver<bool>,
}

/// One side of a connection and the other; every request has it as an extension.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) remote: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) is_tls: bool,
    pub(crate) rate: ConnectionRate,
    /// Given back when the last that knows the connection is gone.
    pub(crate) _slot: Slot,
}

/// A connection's place among those that are allowed, counted while it is held.
#[derive(Debug)]
pub(crate) struct Slot {
    _permit: OwnedSemaphorePermit,
    count: Arc<AtomicU64>,
}

impl Slot {
    pub(crate) fn new(permit: OwnedSemaphorePermit, count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self { _permit: permit, count: Arc::clone(count) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
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
            guard: Guard::new(&options),
            tickets: Tickets::default(),
            stream_tickets: StreamTickets::default(),
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

impl Stopping {
    pub(crate) fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self { receiver })
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.receiver.borrow()
    }

    /// Resolves when the shutdown begins.
    pub(crate) async fn wait(&self) {
        let mut receiver = self.receiver.clone();
        // The sender lives as long as the server; when it is gone, everything is.
        let _ = receiver.wait_for(|&is_stopping| is_stopping).await;
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Milliseconds of a clock that never goes back.
pub(crate) fn steady_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}
