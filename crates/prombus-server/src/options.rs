//! What can be set about a gateway. The defaults are what `prombus serve` runs with.

use crate::auth::AuthOptions;
use prombus_protocol::limits;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Where and how a gateway serves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens. Default: `127.0.0.1:8090`.
    pub listen: Vec<SocketAddr>,
    /// Certificate and key: with them it speaks `wss` and `https` only.
    pub tls: Option<TlsOptions>,
    /// Who may do what. Nothing configured: everybody on this machine may do everything.
    pub auth: AuthOptions,
    /// Listen on other addresses than loopback also when no auth is configured.
    pub is_insecure: bool,
    /// Names, besides loopback, that a `Host` header may have when no auth is configured; without port.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may use the gateway, e.g. `https://app.example.com`. `*` is any.
    pub cors_origins: Vec<String>,
    /// Bounds of connections.
    pub connections: ConnectionLimits,
    /// Rates.
    pub rates: RateOptions,
    /// Topics and groups that metrics name; the rest is summed under `_other`.
    pub metrics_labels_max: usize,
    /// The largest payload of an event: the backend's limit.
    pub max_payload_bytes: usize,
    /// Offer WebSocket clients to compress messages (permessage-deflate).
    pub has_permessage_deflate: bool,
    /// Of a follower: relay to a leader that has no certificate in the lease record and is not on this machine, over plain TCP.
    /// Anyone on the network between them can then read events and tokens.
    pub relay_insecure: bool,
    /// Of a follower: how long a new connection waits for a leader that can be reached.
    pub engine_wait: Duration,
    /// How often this process has become the leader of a shared store, for `prombus_takeovers_total`. The caller counts: it
    /// keeps a clone.
    pub takeovers: Arc<AtomicU64>,
}

/// Files with a certificate chain and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The chain.
    pub cert: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// Bounds of connections, and how long they may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections at a time; more are closed at once.
    pub max_connections: usize,
    /// Subscriptions of one connection.
    pub max_subscriptions: usize,
    /// Bytes that wait to be sent on one WebSocket before it gets no more events and is not read.
    pub max_queued_bytes: usize,
    /// Bytes that all connections together may have in buffers; above it no buffer grows.
    pub max_buffered_bytes: usize,
    /// The largest body of an HTTP request.
    pub max_body_bytes: usize,
    /// How long a client has for AUTH.
    pub auth_timeout: Duration,
    /// How often a WebSocket is pinged; who has not answered by the next ping is closed.
    pub ping_interval: Duration,
    /// A client that takes nothing for this long, with data waiting, is closed; so is one that does not complete a frame within this time.
    pub stall_timeout: Duration,
    /// The least rate of a request's body, measured over 10 s in which the server waits for the client; 0 turns the limit off.
    pub min_body_bytes_per_second: u64,
    /// How long a connection may be idle between two requests.
    pub keep_alive: Duration,
    /// How long the head of a request, the next piece of its body, or a TLS handshake may take.
    pub head_timeout: Duration,
    /// How long clients have to go when the gateway shuts down.
    pub drain_timeout: Duration,
}

/// Rates of connections; what is not set is not limited. Rates of topics are settings of the topics (`publish_rate`).
#[derive(Clone, Debug, Default)]
pub struct RateOptions {
    /// Publishes of one connection.
    pub connection_publish: Option<Rate>,
    /// Events to one connection; what is over it waits.
    pub connection_deliver: Option<Rate>,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Tokens that come back in a second.
    pub per_second: f64,
    /// Tokens that it holds.
    pub burst: f64,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 8090))],
            tls: None,
            auth: AuthOptions::default(),
            is_insecure: false,
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            connections: ConnectionLimits::default(),
            rates: RateOptions::default(),
            metrics_labels_max: 1_000,
            max_payload_bytes: limits::MAX_PAYLOAD_BYTES,
            has_permessage_deflate: false,
            relay_insecure: false,
            engine_wait: Duration::from_secs(10),
            takeovers: Arc::default(),
        }
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            max_subscriptions: 1_000,
            max_queued_bytes: 1 << 20,
            max_buffered_bytes: 256 << 20,
            max_body_bytes: 32 << 20,
            min_body_bytes_per_second: 500,
            keep_alive: Duration::from_secs(75),
            auth_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            head_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(8),
        }
    }
}
