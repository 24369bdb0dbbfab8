//! A follower's view of the leader: connects to it, and remembers whether the last probe reached it.

use super::hop::{Hop, HopError, open};
use super::pinned_certificate;
use super::preface::{MAC_BYTES, Nonce, Preface, RelayKey};
use crate::peer::Ends;
use crate::role::LeaderEndpoint;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::Error as RustlsError;
use tokio_rustls::rustls::pki_types::ServerName;
use uuid::Uuid;

/// How long connecting to the leader may take, including TLS and the preface.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);

/// The leader of a term.
pub(crate) struct Leader {
    pub(crate) endpoint: LeaderEndpoint,
    /// `None` if the lease record has no certificate: the hop then uses plain TCP.
    connector: Option<Result<TlsConnector, RustlsError>>,
    /// Signs prefaces and checks confirmations.
    key: RelayKey,
    /// The id of this process in prefaces, for this leader only.
    follower: [u8; 16],
    /// The counter of the next preface.
    connections: AtomicU64,
    /// Whether plain TCP to other machines is allowed.
    is_insecure: bool,
    /// Whether it was logged that plain TCP is refused.
    has_warned: AtomicBool,
    /// The result of the last probe; `None` before the first.
    probed: Mutex<Option<Result<(), String>>>,
}

impl Leader {
    pub(crate) fn new(endpoint: LeaderEndpoint, is_insecure: bool) -> Self {
        Self {
            connector: endpoint.cert_hash.map(pinned_certificate::connector),
            key: RelayKey::new(&endpoint.secret),
            follower: Uuid::now_v7().into_bytes(),
            connections: AtomicU64::new(0),
            is_insecure,
            has_warned: AtomicBool::new(false),
            probed: Mutex::new(None),
            endpoint,
        }
    }

    /// Whether the last probe reached the leader; the reason if it did not.
    pub(crate) fn reached(&self) -> Result<(), String> {
        let not_yet = || Err(format!("the leader at {} was not reached yet", self.endpoint.address));
        self.probed.lock().clone().unwrap_or_else(not_yet)
    }

    pub(crate) fn set_reached(&self, probed: Result<(), String>) {
        *self.probed.lock() = Some(probed);
    }

    /// Opens a connection over which the leader serves a client. If this fails, no bytes of the client were sent, so the caller
    /// can try again.
    pub(crate) async fn connect(&self, ends: Ends) -> Result<Hop, HopError> {
        let connecting = tokio::time::timeout(CONNECT_PATIENCE, self.connect_patiently(ends));
        let connected = connecting.await.unwrap_or_else(|_| Err(HopError::Late(self.address())));
        if matches!(connected, Err(HopError::Plain(_))) && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::error!("connections are not relayed: {}", HopError::Plain(self.address()));
        }
        connected
    }

    async fn connect_patiently(&self, ends: Ends) -> Result<Hop, HopError> {
        let addresses = self.resolve().await?;
        let failed = |source| HopError::Connect { address: self.address(), source };
        let socket = open(&addresses).await.map_err(failed)?;
        let mut hop = match &self.connector {
            None => Hop::Plain(socket),
            Some(Err(error)) => return Err(HopError::TlsSetup(error.to_string())),
            Some(Ok(connector)) => {
                let name = ServerName::from(addresses[0].ip());
                let secured = connector.connect(name, socket).await;
                let failed = |source| HopError::Tls { address: self.address(), source };
                Hop::Tls(Box::new(secured.map_err(failed)?))
            }
        };
        self.introduce(&mut hop, ends).await?;
        Ok(hop)
    }

    /// The addresses of the leader. If the hop does not use TLS, and `relay_insecure` is not set, only loopback addresses are
    /// allowed.
    async fn resolve(&self) -> Result<Vec<SocketAddr>, HopError> {
        let failed = |source| HopError::Resolve { address: self.address(), source };
        let mut addresses: Vec<_> =
            tokio::net::lookup_host(&self.endpoint.address).await.map_err(failed)?.collect();
        if addresses.is_empty() {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        if self.connector.is_none() && !self.is_insecure {
            addresses.retain(|address| address.ip().to_canonical().is_loopback());
        }
        if addresses.is_empty() { Err(HopError::Plain(self.address())) } else { Ok(addresses) }
    }

    /// Sends the preface and waits for the leader's confirmation.
    async fn introduce(&self, hop: &mut Hop, ends: Ends) -> Result<(), HopError> {
        let counter = self.connections.fetch_add(1, Ordering::Relaxed);
        let nonce = Nonce { follower: self.follower, counter };
        let preface = Preface::new(self.endpoint.term, nonce, ends).encode(&self.key);
        let mut confirmation = [0; MAC_BYTES];
        let exchange = async {
            hop.write_all(&preface).await?;
            hop.flush().await?;
            hop.read_exact(&mut confirmation).await
        };
        exchange.await.map_err(|_| HopError::Refused(self.address()))?;
        if self.key.is_confirmation(&preface, &confirmation) {
            return Ok(());
        }
        Err(HopError::Unconfirmed(self.address()))
    }

    fn address(&self) -> String {
        self.endpoint.address.clone()
    }
}
