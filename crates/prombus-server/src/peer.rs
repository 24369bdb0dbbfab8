//! The two ends of a connection, and its slot among the `max_connections`.

use crate::connection::ResetSwitch;
use crate::rate_limit::ConnectionRate;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::OwnedSemaphorePermit;

/// The two ends of a client's connection. For a relayed connection: the client, and the follower that accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The client's address.
    pub(crate) remote: SocketAddr,
    /// The address that the client connected to.
    pub(crate) local: SocketAddr,
    /// Whether the client uses TLS.
    pub(crate) is_tls: bool,
}

/// A client's connection. Every request carries it as an extension.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) ends: Ends,
    /// Whether a follower relays this connection. When this process stops, the client can connect to that follower again.
    pub(crate) is_relayed: bool,
    /// Whether the socket of a relayed connection is closed with a reset. Has no effect on a direct connection.
    pub(crate) reset: ResetSwitch,
    /// The publish rate of the connection.
    pub(crate) rate: ConnectionRate,
    /// Released when the last reference to the connection is dropped.
    pub(crate) _slot: ConnectionSlot,
}

/// One of the `max_connections` slots. The metrics count it as an open connection while it is held.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
    /// The number of open connections.
    count: Arc<AtomicU64>,
}

impl ConnectionSlot {
    pub(crate) fn new(permit: OwnedSemaphorePermit, count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self { _permit: permit, count: Arc::clone(count) }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Peer {
    /// The connection ends now, although the client may not have read everything. A follower that relays it learns this at once.
    pub(crate) fn reset_if_relayed(&self) {
        self.reset.turn_on();
    }
}

#[cfg(feature = "test-util")]
impl Peer {
    /// A connection from this machine without a socket.
    pub(crate) fn local(rate: ConnectionRate, count: &Arc<AtomicU64>) -> Arc<Self> {
        let permit = Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned();
        Arc::new(Self {
            ends: Ends {
                remote: SocketAddr::from(([127, 0, 0, 1], 50_000)),
                local: SocketAddr::from(([127, 0, 0, 1], 8090)),
                is_tls: false,
            },
            is_relayed: false,
            reset: ResetSwitch::default(),
            rate,
            _slot: ConnectionSlot::new(permit.expect("one permit is free"), count),
        })
    }
}
