//! A gateway that listens: over a store of its own, or over one that several gateways share.

use crate::auth::Authenticator;
use crate::connection;
use crate::gateway::{Gateway, GatewayParts};
use crate::http;
use crate::listener::{Listeners, Slots};
use crate::metrics::SharedStoreMetrics;
use crate::options::ServerOptions;
use crate::peer::{Ends, Peer};
use crate::role::ServerRole;
use crate::serve_error::ServeError;
use crate::shared::SharedGateway;
use crate::shutdown::{StopReason, StopSender, Stopping};
use prombus::Backend;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// Descriptors that files of the store need beside the connections.
const DESCRIPTORS_FOR_FILES: u64 = 512;

/// A gateway that listens.
pub struct Server {
    listeners: Listeners,
    serving: Serving,
    connections_max: usize,
}

/// The stores that a gateway can be in front of.
enum Serving {
    /// One backend, from start to end.
    One { gateway: Arc<Gateway>, stop: StopSender },
    /// A backend while this process leads, and the leader otherwise.
    Shared(SharedGateway),
}

impl Server {
    /// Opens the listeners. Nothing is served before [`run`](Self::run).
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn bind(backend: Arc<dyn Backend>, options: ServerOptions) -> Result<Self, ServeError> {
        let auth = Authenticator::new(&options.auth)?;
        let listeners = Listeners::bind(&options, auth.is_configured()).await?;
        let connections_max = options.connections.max_connections;
        let (stop, stopping) = Stopping::new();
        let gateway = Arc::new(Gateway::new(backend, auth, options, stopping));
        Ok(Self { listeners, serving: Serving::One { gateway, stop }, connections_max })
    }

    /// Opens the listeners of a gateway of a shared store. Its role may change at any time while it runs: when it stops leading,
    /// its WebSockets are closed with 1012 and new connections are relayed to the leader.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn bind_shared(
        roles: watch::Receiver<ServerRole>,
        options: ServerOptions,
    ) -> Result<Self, ServeError> {
        let auth = Authenticator::new(&options.auth)?;
        let listeners = Listeners::bind(&options, auth.is_configured()).await?;
        let connections_max = options.connections.max_connections;
        let shared_store = Arc::new(SharedStoreMetrics::new(&options.takeovers));
        let parts = GatewayParts::new(auth, options, Some(Arc::clone(&shared_store)));
        let shared = SharedGateway::new(roles, parts, shared_store);
        Ok(Self { listeners, serving: Serving::Shared(shared), connections_max })
    }

    /// Where it listens, with the ports that the system chose.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.listeners.addresses
    }

    /// SHA-256 of the certificate that it serves, for the lease record; `None` without TLS.
    pub fn cert_hash(&self) -> Option<[u8; 32]> {
        self.listeners.tls.as_ref().map(|tls| tls.cert_hash)
    }

    /// How many descriptors it may need, to compare with [`raise_descriptor_limit`]. A relayed connection has two.
    pub fn descriptors_wanted(&self) -> u64 {
        let per_connection = match self.serving {
            Serving::One { .. } => 1,
            Serving::Shared(_) => 2,
        };
        self.connections_max as u64 * per_connection + DESCRIPTORS_FOR_FILES
    }

    /// Serves until `shutdown` resolves. Then nothing new is taken, what is under way is answered, WebSockets are closed with
    /// 1001, and it returns, also if some client does not go. The backend is left open: closing it comes next.
    ///
    /// # Errors
    /// None today; for what may come.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        match self.serving {
            Serving::One { gateway, stop } => run_one(gateway, &stop, self.listeners, shutdown).await,
            Serving::Shared(shared) => shared.run(self.listeners, shutdown).await,
        }
        Ok(())
    }
}

async fn run_one(
    gateway: Arc<Gateway>,
    stop: &StopSender,
    listeners: Listeners,
    shutdown: impl Future<Output = ()> + Send,
) {
    let router = http::router(Arc::clone(&gateway));
    let slots = Slots::new(&gateway.options, &gateway.metrics);
    let tls = listeners.tls.as_ref().map(|tls| tls.acceptor.clone());
    let serving = Arc::clone(&gateway);
    let accepting = listeners.accept(&slots, move |socket, remote, slot| {
        let ends = Ends { remote, local: socket.local_addr().unwrap_or(remote), is_tls: tls.is_some() };
        let peer = Arc::new(Peer { ends, is_relayed: false, rate: serving.rates.connection(), _slot: slot });
        tokio::spawn(connection::serve(Arc::clone(&serving), router.clone(), socket, peer, tls.clone()));
    });
    shutdown.await;
    drop(accepting);
    stop.send_replace(Some(StopReason::Shutdown));
    slots.drain(gateway.options.connections.drain_timeout).await;
}

/// Raises this process's limit of open files to what the system allows; answers the limit.
///
/// # Errors
/// What the system says.
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
    /// WebSockets send every message back and do nothing else: what suites that test the transport alone need.
    ///
    /// # Panics
    /// If the server runs already, or its store is shared.
    #[must_use]
    pub fn into_echo(mut self) -> Self {
        let Serving::One { gateway, .. } = &mut self.serving else { panic!("the store is not shared") };
        Arc::get_mut(gateway).expect("it is not shared before it runs").is_echo = true;
        self
    }
}
