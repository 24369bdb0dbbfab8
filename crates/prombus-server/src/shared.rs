//! A gateway: a server that shares its store with others. It serves the store while it leads, and relays to the leader otherwise.
//!
//! The role at the time of a connection's first bytes decides how the connection is handled. A connection that begins with a
//! preface (`relay/preface.rs`) was relayed by a follower. If this gateway leads, it checks the preface and serves the
//! connection. If it follows, it closes the connection, so that no connection is relayed twice.

mod destination;
mod duty;
mod follower;
mod leader;
mod probe;
mod state;

use crate::connection::{ResetOnClose, ResetSwitch};
use crate::gateway::GatewayParts;
use crate::listener::{Listeners, Slots};
use crate::metrics::SharedStoreMetrics;
use crate::peer::{ConnectionSlot, Ends};
use crate::relay::{Preface, keep_alive};
use crate::role::ServerRole;
use crate::shutdown::{StopReason, StopSender, Stopping};
use duty::{Duty, DutyUpdater};
use follower::Outcome;
use state::SharedState;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Maximum size of the first read of a connection.
const FIRST_BYTES: usize = 4 * 1024;

/// A gateway of a shared store, without its sockets.
pub(crate) struct SharedGateway {
    state: SharedState,
    roles: watch::Receiver<ServerRole>,
    duties: watch::Sender<Duty>,
    stop: StopSender,
}

impl SharedGateway {
    pub(crate) fn new(
        roles: watch::Receiver<ServerRole>,
        parts: GatewayParts,
        metrics: Arc<SharedStoreMetrics>,
    ) -> Self {
        let (sender, duties) = watch::channel(Duty::Following(None));
        let (stop, stopping) = Stopping::new();
        let state = SharedState { parts: Arc::new(parts), metrics, duties, stopping };
        Self { state, roles, duties: sender, stop }
    }

    /// Serves until `shutdown` resolves, then closes all connections gracefully.
    pub(crate) async fn run(self, listeners: Listeners, shutdown: impl Future<Output = ()> + Send) {
        let Self { state, roles, duties, stop } = self;
        let SharedState { parts, metrics, .. } = state.clone();
        let slots = Slots::new(&parts.options, &parts.metrics);
        let updater = DutyUpdater {
            roles,
            parts: Arc::clone(&parts),
            metrics: Arc::clone(&metrics),
            duties: duties.clone(),
            prefaces: None,
        };
        let mut tasks = JoinSet::new();
        // The current role applies before the first connection is accepted.
        tasks.spawn(updater.apply_current().run());
        if let Some(&own) = listeners.addresses.first() {
            let ends = Ends { remote: own, local: own, is_tls: parts.live.current().tls.is_some() };
            tasks.spawn(probe::probe_leaders(state.duties.clone(), metrics, ends));
        }
        let serving = state.clone();
        let accepting = listeners.accept(&slots, move |socket, remote, slot| {
            // The certificate may have changed since the last connection.
            let tls = serving.parts.live.current().tls.as_ref().map(|tls| tls.acceptor.clone());
            tokio::spawn(accepted(serving.clone(), socket, remote, slot, tls));
        });
        shutdown.await;
        drop(accepting);
        // The role must not change any more: a gateway of a new term would not get the stop signal.
        tasks.shutdown().await;
        stop.send_replace(Some(StopReason::Shutdown));
        if let Duty::Leading(leading) = &*duties.borrow() {
            leading.stop(StopReason::Shutdown);
        }
        slots.drain(parts.options.connections.drain_timeout).await;
    }
}

/// Serves a connection. TLS is already terminated. `reset`: the switch of the socket.
async fn serve<S>(state: SharedState, mut socket: S, ends: Ends, slot: ConnectionSlot, reset: ResetSwitch)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut read = Vec::with_capacity(FIRST_BYTES);
    let patience = state.parts.options.connections.head_timeout;
    let first = tokio::select! {
        first = timeout(patience, socket.read_buf(&mut read)) => first,
        () = state.stopping.wait() => return,
    };
    if !matches!(first, Ok(Ok(1..))) {
        return tracing::debug!("{}: no data arrived in time", ends.remote);
    }
    let duty = state.duties.borrow().clone();
    let is_relayed = Preface::is_first_byte(read[0]);
    match duty {
        Duty::Leading(leading) if is_relayed => {
            leader::serve_relayed(&state, &leading, socket, read, ends, slot, reset).await;
        }
        Duty::Leading(leading) => leader::serve(&leading, socket, read, ends, slot).await,
        Duty::Following(_) if is_relayed => leader::refuse_relayed(&state, ends),
        Duty::Following(_) => match follower::serve(&state, socket, read, ends).await {
            Outcome::Done => {}
            Outcome::Lead(leading, socket) => leader::serve_prefixed(&leading, socket, ends, slot).await,
        },
    }
}

/// Prepares an accepted connection (socket options, TLS) and serves it.
async fn accepted(
    state: SharedState,
    socket: TcpStream,
    remote: SocketAddr,
    slot: ConnectionSlot,
    tls: Option<TlsAcceptor>,
) {
    // Responses and events are already written in batches, so Nagle's algorithm would only add latency.
    let _ = socket.set_nodelay(true);
    keep_alive(&socket);
    let ends = Ends { remote, local: socket.local_addr().unwrap_or(remote), is_tls: tls.is_some() };
    let reset = ResetSwitch::default();
    let socket = ResetOnClose::new(socket, reset.clone());
    let Some(acceptor) = tls else { return serve(state, socket, ends, slot, reset).await };
    let patience = state.parts.options.connections.head_timeout;
    let accepting = tokio::select! {
        accepting = timeout(patience, acceptor.accept(socket)) => accepting,
        // An incomplete handshake must not delay the release of the leader lease.
        () = state.stopping.wait() => return,
    };
    match accepting {
        Ok(Ok(socket)) => serve(state, socket, ends, slot, reset).await,
        Ok(Err(error)) => tracing::debug!("{remote}: TLS handshake failed: {error}"),
        Err(_) => tracing::debug!("{remote}: TLS handshake timed out"),
    }
}
