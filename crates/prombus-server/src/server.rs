//! The listening server, over its own store or over a store that several servers (gateways) share.

use crate::connection::{self, ResetSwitch};
use crate::gateway::{Gateway, GatewayParts};
use crate::http;
use crate::listener::{Listeners, Slots};
use crate::live::{Live, LiveOptions};
use crate::metrics::SharedStoreMetrics;
use crate::options::ServerOptions;
use crate::peer::{Ends, Peer};
use crate::reload::ReloadHandle;
use crate::role::ServerRole;
use crate::serve_error::ServeError;
use crate::shared::SharedGateway;
use crate::shutdown::{StopReason, StopSender, Stopping};
use prombus::Backend;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;

/// A future without a result.
pub(crate) type BoxFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// File descriptors reserved for the files of the store.
const DESCRIPTORS_FOR_FILES: u64 = 512;

/// A server with open listeners.
pub struct Server {
    listeners: Listeners,
    serving: Serving,
    live: Arc<Live>,
    /// The option `max_connections`.
    connections_max: usize,
}

/// The store of the server.
enum Serving {
    /// A store of its own: the same backend from start to end.
    One { gateway: Arc<Gateway>, stop: StopSender },
    /// A shared store: a backend while this process leads, and a relay to the leader otherwise.
    Shared(SharedGateway),
}

impl Server {
    /// Opens the listeners. Nothing is served before [`run`](Self::run).
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn bind(backend: Arc<dyn Backend>, options: ServerOptions) -> Result<Self, ServeError> {
        let live = LiveOptions::new(&options, None)?;
        let listeners = Listeners::bind(&options, live.auth.is_configured()).await?;
        let connections_max = options.connections.max_connections;
        let (stop, stopping) = Stopping::new();
        let gateway = Arc::new(Gateway::new(backend, live, options, stopping));
        let live = Arc::clone(&gateway.live);
        Ok(Self { listeners, serving: Serving::One { gateway, stop }, live, connections_max })
    }

    /// Opens the listeners of a gateway: a server that shares its store with others. Its role may change at any time while it
    /// runs. When it stops leading, its WebSockets are closed with 1012 and new connections are relayed to the leader.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn bind_shared(
        roles: watch::Receiver<ServerRole>,
        options: ServerOptions,
    ) -> Result<Self, ServeError> {
        let live = LiveOptions::new(&options, None)?;
        let listeners = Listeners::bind(&options, live.auth.is_configured()).await?;
        let connections_max = options.connections.max_connections;
        let shared_store = Arc::new(SharedStoreMetrics::new(&options.takeovers));
        let parts = GatewayParts::new(live, options, Some(Arc::clone(&shared_store)));
        let live = Arc::clone(&parts.live);
        let shared = SharedGateway::new(roles, parts, shared_store);
        Ok(Self { listeners, serving: Serving::Shared(shared), live, connections_max })
    }

    /// The addresses that the server listens on. Where the options contain port 0, this is the port that the system chose.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.listeners.addresses
    }

    /// SHA-256 of the certificate that the server presents to other gateways, for the lease record (see
    /// [`LeaderEndpoint`](crate::LeaderEndpoint)); `None` without TLS. A reload does not change it.
    pub fn cert_hash(&self) -> Option<[u8; 32]> {
        self.live.current().tls.as_ref().map(|tls| tls.relay.hash())
    }

    /// Replaces tokens, rules, certificates, origins and rates while the server runs.
    pub fn reload_handle(&self) -> ReloadHandle {
        ReloadHandle::new(Arc::clone(&self.live), matches!(self.serving, Serving::Shared(_)))
    }

    /// The number of file descriptors that the server may need. The caller compares it with the limit that
    /// [`raise_descriptor_limit`] returns. A relayed connection needs two.
    pub fn descriptors_wanted(&self) -> u64 {
        let per_connection = match self.serving {
            Serving::One { .. } => 1,
            Serving::Shared(_) => 2,
        };
        self.connections_max as u64 * per_connection + DESCRIPTORS_FOR_FILES
    }

    /// Serves until `shutdown` resolves. Then it accepts no new connections, completes the requests in progress, closes
    /// WebSockets (with code 1012 if a follower relays them, otherwise with 1001), and returns after `drain_timeout` at the
    /// latest, even if clients are still connected. The backend stays open: the caller closes it afterwards.
    ///
    /// # Errors
    /// None at present; the type is reserved for future errors.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        self.run_until(Box::pin(shutdown)).await;
        Ok(())
    }

    /// Neither generic nor `async`, so that all code of the server is compiled, and optimised, with this crate and not again with
    /// the program that calls it.
    fn run_until<'a>(self, shutdown: BoxFuture<'a>) -> BoxFuture<'a> {
        Box::pin(async move {
            match self.serving {
                Serving::One { gateway, stop } => run_one(gateway, &stop, self.listeners, shutdown).await,
                Serving::Shared(shared) => shared.run(self.listeners, shutdown).await,
            }
        })
    }
}

async fn run_one(gateway: Arc<Gateway>, stop: &StopSender, listeners: Listeners, shutdown: BoxFuture<'_>) {
    let router = http::router(Arc::clone(&gateway));
    let slots = Slots::new(&gateway.options, &gateway.metrics);
    let serving = Arc::clone(&gateway);
    let accepting = listeners.accept(&slots, move |socket, remote, slot| {
        // The certificate may have changed since the last connection.
        let tls = serving.live.current().tls.as_ref().map(|tls| tls.acceptor.clone());
        let ends = Ends { remote, local: socket.local_addr().unwrap_or(remote), is_tls: tls.is_some() };
        let peer = Arc::new(Peer {
            ends,
            is_relayed: false,
            reset: ResetSwitch::default(),
            rate: serving.rates.connection(),
            _slot: slot,
        });
        tokio::spawn(connection::serve(Arc::clone(&serving), router.clone(), socket, peer, tls));
    });
    shutdown.await;
    drop(accepting);
    stop.send_replace(Some(StopReason::Shutdown));
    slots.drain(gateway.options.connections.drain_timeout).await;
}

/// Raises this process's limit of open files to the maximum that the system allows. Returns the limit.
///
/// # Errors
/// The error of the system call.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(limit.current.unwrap_or(u64::MAX))
}

#[cfg(feature = "test-util")]
impl Server {
    /// Makes WebSockets echo every message and do nothing else, for test suites that test only the transport.
    ///
    /// # Panics
    /// If the store is shared.
    #[must_use]
    pub fn into_echo(mut self) -> Self {
        let Serving::One { gateway, .. } = &mut self.serving else {
            panic!("an echo server has no shared store")
        };
        Arc::get_mut(gateway).expect("nothing else has a reference before the server runs").is_echo = true;
        self
    }
}
