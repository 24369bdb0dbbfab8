//! Listening sockets, which accept connections up to `max_connections`.

use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::peer::ConnectionSlot;
use crate::serve_error::ServeError;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How long to wait after a failed accept, for example when no file descriptors are left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The listening sockets of a server.
pub(crate) struct Listeners {
    sockets: Vec<TcpListener>,
    pub(crate) addresses: Vec<SocketAddr>,
}

/// The slots of all connections: at most `max_connections`.
#[derive(Clone)]
pub(crate) struct Slots {
    semaphore: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    /// The option `max_connections`.
    connections_max: u32,
}

impl Listeners {
    /// Opens the sockets. Without auth, only loopback addresses are allowed, unless `is_insecure` is set.
    pub(crate) async fn bind(options: &ServerOptions, has_auth: bool) -> Result<Self, ServeError> {
        let exposed = options.listen.iter().find(|address| !address.ip().to_canonical().is_loopback());
        if let Some(address) = exposed.filter(|_| !has_auth && !options.is_insecure) {
            return Err(ServeError::Exposed(*address));
        }
        let mut sockets = Vec::new();
        for &address in &options.listen {
            let socket = TcpListener::bind(address).await;
            sockets.push(socket.map_err(|source| ServeError::Listen { address, source })?);
        }
        if sockets.is_empty() {
            return Err(ServeError::Nowhere);
        }
        let addresses = sockets.iter().zip(&options.listen);
        let addresses = addresses.map(|(socket, &asked)| socket.local_addr().unwrap_or(asked)).collect();
        Ok(Self { sockets, addresses })
    }

    /// Hands every accepted connection with its slot to `serve`, until the returned set is dropped.
    pub(crate) fn accept<F>(self, slots: &Slots, serve: F) -> JoinSet<()>
    where
        F: Fn(TcpStream, SocketAddr, ConnectionSlot) + Clone + Send + 'static,
    {
        let mut accepting = JoinSet::new();
        for socket in self.sockets {
            accepting.spawn(accept(socket, slots.clone(), serve.clone()));
        }
        accepting
    }
}

impl Slots {
    pub(crate) fn new(options: &ServerOptions, metrics: &Arc<Metrics>) -> Self {
        let slots = options.connections.max_connections;
        Self {
            semaphore: Arc::new(Semaphore::new(slots)),
            metrics: Arc::clone(metrics),
            connections_max: u32::try_from(slots).unwrap_or(u32::MAX),
        }
    }

    /// Takes a slot. Returns `None`, and counts a refused connection, if all are taken.
    fn take(&self) -> Option<ConnectionSlot> {
        let permit = Arc::clone(&self.semaphore).try_acquire_owned();
        if permit.is_err() {
            self.metrics.connections_refused.fetch_add(1, Ordering::Relaxed);
        }
        permit.ok().map(|permit| ConnectionSlot::new(permit, &self.metrics.connections))
    }

    /// Resolves when all connections have ended, or after `drain_timeout`.
    pub(crate) async fn drain(&self, drain_timeout: Duration) {
        let gone = self.semaphore.acquire_many(self.connections_max);
        if tokio::time::timeout(drain_timeout, gone).await.is_err() {
            let left = self.metrics.connections.load(Ordering::Relaxed);
            tracing::warn!("{left} connections did not end in time and are dropped");
        }
    }
}

async fn accept(listener: TcpListener, slots: Slots, serve: impl Fn(TcpStream, SocketAddr, ConnectionSlot)) {
    loop {
        match listener.accept().await {
            Ok((socket, remote)) => {
                if let Some(slot) = slots.take() {
                    serve(socket, remote, slot);
                }
            }
            Err(error) => {
                // The client has already disconnected, or no file descriptors are left: both problems are temporary.
                tracing::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}
