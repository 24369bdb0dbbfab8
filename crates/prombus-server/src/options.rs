//! The options of a server. The defaults are those of `prombus serve`.

use crate::auth::AuthOptions;
use crate::shown_settings::ShownSettings;
use prombus_protocol::limits;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Where and how a server serves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Addresses to listen on. Default: `127.0.0.1:8090`.
    pub listen: Vec<SocketAddr>,
    /// Certificate and key. With them, the server accepts only `wss` and `https`; with `None`, only `ws` and `http`.
    pub tls: Option<TlsOptions>,
    /// Tokens and rules. Without any, every client that can connect may do everything; the server then listens only on loopback
    /// addresses, unless `is_insecure` is set.
    pub auth: AuthOptions,
    /// Allow non-loopback addresses even if no auth is configured.
    pub is_insecure: bool,
    /// Names that a `Host` header may contain when no auth is configured, in addition to loopback names; without port.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may use the server, e.g. `https://app.example.com`. `*` allows any origin.
    pub cors_origins: Vec<String>,
    /// Limits of connections.
    pub connections: ConnectionLimits,
    /// Rate limits of connections.
    pub rates: RateOptions,
    /// How many topics, how many groups and how many members may have metric labels of their own; the rest is summed under
    /// `_other`.
    pub metrics_labels_max: usize,
    /// Maximum size of an event's payload. Must be the same as the backend's limit.
    pub max_payload_bytes: usize,
    /// Offer message compression to WebSocket clients (permessage-deflate).
    pub has_permessage_deflate: bool,
    /// For a follower (a gateway that relays to the leader of a shared store): allow plain TCP to a leader that is not on this
    /// machine and has no certificate in the lease record (see [`LeaderEndpoint`](crate::LeaderEndpoint)). Anyone on the network
    /// between them can then read events and tokens.
    pub relay_insecure: bool,
    /// For a follower: how long a new connection waits until a leader is reachable.
    pub engine_wait: Duration,
    /// How often this process has become the leader of a shared store, for `prombus_takeovers_total`. The caller keeps a clone
    /// and increments it.
    pub takeovers: Arc<AtomicU64>,
    /// The settings that `GET /settings` shows. The caller keeps a clone and replaces the list after a reload.
    pub shown_settings: ShownSettings,
}

/// Files with a certificate chain and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The file of the certificate chain.
    pub cert: PathBuf,
    /// The file of the private key.
    pub key: PathBuf,
}

/// Limits on the number, memory and waiting times of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of open connections; further ones are closed at once.
    pub max_connections: usize,
    /// Maximum number of subscriptions per connection.
    pub max_subscriptions: usize,
    /// When this many bytes wait to be sent to a WebSocket client, the client gets no more events and the server reads nothing
    /// from it.
    pub max_queued_bytes: usize,
    /// Maximum size of the buffers of all connections together. When it is reached, each connection may still buffer a small
    /// amount, at most 64 KiB.
    pub max_buffered_bytes: usize,
    /// Maximum size of an HTTP request body.
    pub max_body_bytes: usize,
    /// Time within which a WebSocket client must send AUTH.
    pub auth_timeout: Duration,
    /// How often a WebSocket is pinged. A client that has not responded by the next ping is disconnected.
    pub ping_interval: Duration,
    /// A client that reads nothing for this long while data waits is disconnected. So is a client that does not complete a frame
    /// within this time.
    pub stall_timeout: Duration,
    /// Minimum rate of a request body, measured over 10 s in which the server waits for the client; 0 turns the limit off.
    pub min_body_bytes_per_second: u64,
    /// How long a connection may be idle between two requests.
    pub keep_alive: Duration,
    /// How long the head of a request, the next piece of its body, or a TLS handshake may take.
    pub head_timeout: Duration,
    /// How long clients may take to disconnect when the server shuts down.
    pub drain_timeout: Duration,
}

/// Rate limits of connections; `None` means unlimited. Rates of topics are settings of the topics (`publish_rate`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateOptions {
    /// Events that one connection may publish. Events over the rate are refused.
    pub connection_publish: Option<Rate>,
    /// Events that are sent on one connection. Events over the rate wait.
    pub connection_deliver: Option<Rate>,
}

/// The parameters of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Tokens that are added per second.
    pub per_second: f64,
    /// Maximum number of tokens in the bucket.
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
            shown_settings: ShownSettings::default(),
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
