//! Listeners, and the way down.

use crate::auth::{AuthSetupError, Authenticator};
use crate::gateway::Gateway;
use crate::options::ServerOptions;
use crate::peer::{ConnectionSlot, Peer};
use crate::shutdown::Stopping;
use crate::tls::TlsSetupError;
use crate::{connection, http, tls};
use axum::Router;
use prombus::Backend;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

/// Descriptors that files of the store need beside the connections.
const DESCRIPTORS_FOR_FILES: u64 = 512;
/// How long to wait when the system has no descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Why a gateway does not serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Without auth only this machine may get in.
    #[error(
        "{0} is not a loopback address and no auth is configured: everybody who reaches it could read and write \
         everything. Set WS_TOKEN or [auth] in the config, or say --insecure if that is what you want"
    )]
    Open(SocketAddr),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// There is no address.
    #[error("there is no address to listen on")]
    Nowhere,
    /// Auth cannot work as it is configured.
    #[error(transparent)]
    Auth(#[from] AuthSetupError),
    /// TLS cannot work as it is configured.
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
}

/// A gateway that listens.
pub struct Server {
    gateway: Arc<Gateway>,
    stop: watch::Sender<bool>,
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    tls: Option<TlsAcceptor>,
}

impl Server {
    /// Opens the listeners. Nothing is served before [`run`](Self::run).
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn bind(backend: Arc<dyn Backend>, options: ServerOptions) -> Result<Self, ServeError> {
        let auth = Authenticator::new(&options.auth)?;
        let exposed = options.listen.iter().find(|address| !address.ip().to_canonical().is_loopback());
        if let Some(address) = exposed.filter(|_| !auth.is_configured() && !options.is_insecure) {
            return Err(ServeError::Open(*address));
        }
        let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let mut listeners = Vec::new();
        for &address in &options.listen {
            let listener = TcpListener::bind(address).await;
            listeners.push(listener.map_err(|source| ServeError::Listen { address, source })?);
        }
        if listeners.is_empty() {
            return Err(ServeError::Nowhere);
        }
        let addresses = listeners.iter().zip(&options.listen);
        let addresses = addresses.map(|(listener, &asked)| listener.local_addr().unwrap_or(asked)).collect();
        let (stop, stopping) = Stopping::new();
        let gateway = Arc::new(Gateway::new(backend, auth, options, stopping));
        Ok(Self { gateway, stop, listeners, addresses, tls })
    }

    /// Where it listens, with the ports that the system chose.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves until `shutdown` resolves. Then nothing new is taken, what is under way is answered, WebSockets are closed with
    /// 1001, and it returns, also if some client does not go. The backend is left open: closing it comes next.
    ///
    /// # Errors
    /// None today; for what may come.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let Self { gateway, stop, listeners, tls, .. } = self;
        let router = http::router(Arc::clone(&gateway));
        let slots = Arc::new(Semaphore::new(gateway.options.connections.max_connections));
        let accepting: Vec<_> = listeners
            .into_iter()
            .map(|listener| {
                let accepting =
                    accept(Arc::clone(&gateway), router.clone(), listener, tls.clone(), Arc::clone(&slots));
                tokio::spawn(accepting)
            })
            .collect();
        shutdown.await;
        accepting.iter().for_each(tokio::task::JoinHandle::abort);
        stop.send_replace(true);
        let everybody = u32::try_from(gateway.options.connections.max_connections).unwrap_or(u32::MAX);
        let gone = slots.acquire_many(everybody);
        if tokio::time::timeout(gateway.options.connections.drain_timeout, gone).await.is_err() {
            let left = gateway.metrics.connections.load(Ordering::Relaxed);
            tracing::warn!("{left} connections did not end in time and are dropped");
        }
        Ok(())
    }
}

async fn accept(
    gateway: Arc<Gateway>,
    router: Router,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    slots: Arc<Semaphore>,
) {
    loop {
        let (socket, remote) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // One client that went away at once, or no descriptors left; both pass.
                tracing::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&slots).try_acquire_owned() else {
            gateway.metrics.connections_refused.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let peer = Arc::new(Peer {
            remote,
            local: socket.local_addr().unwrap_or(remote),
            is_tls: tls.is_some(),
            rate: gateway.rates.connection(),
            _slot: ConnectionSlot::new(permit, &gateway.metrics.connections),
        });
        tokio::spawn(connection::serve(Arc::clone(&gateway), router.clone(), socket, peer, tls.clone()));
    }
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

impl Server {
    /// How many descriptors it may need, to compare with [`raise_descriptor_limit`].
    pub fn descriptors_wanted(&self) -> u64 {
        self.gateway.options.connections.max_connections as u64 + DESCRIPTORS_FOR_FILES
    }
}

#[cfg(feature = "test-util")]
impl Server {
    /// WebSockets send every message back and do nothing else: what suites that test the transport alone need.
    ///
    /// # Panics
    /// If the server runs already.
    #[must_use]
    pub fn into_echo(mut self) -> Self {
        Arc::get_mut(&mut self.gateway).expect("it is not shared before it runs").is_echo = true;
        self
    }
}
