//! Connections of a leader: direct ones from clients, and those that a follower relays.

use super::duty::Leading;
use super::state::SharedState;
use crate::clock::steady_ms;
use crate::connection::{PrefixedSocket, ResetSwitch, serve_http};
use crate::peer::{ConnectionSlot, Ends, Peer};
use crate::relay::{AcceptedPreface, PrefaceCheck, PrefaceRefused};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

/// Minimum time between two warnings about refused prefaces.
const WARN_EVERY_MS: u64 = 10_000;

/// Serves a direct connection whose first bytes, `read`, were already read.
pub(super) async fn serve<S>(leading: &Leading, socket: S, read: Vec<u8>, ends: Ends, slot: ConnectionSlot)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    serve_prefixed(leading, PrefixedSocket::new(read, socket), ends, slot).await;
}

/// Serves a direct connection of a client.
pub(super) async fn serve_prefixed<S>(
    leading: &Leading,
    socket: PrefixedSocket<S>,
    ends: Ends,
    slot: ConnectionSlot,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    serve_peer(leading, socket, Via::Client(ends), slot).await;
}

/// Who opened the connection to this process. The [`Ends`] are those of the client's own connection in both cases.
enum Via {
    Client(Ends),
    Follower(Ends, ResetSwitch),
}

async fn serve_peer<S>(leading: &Leading, socket: PrefixedSocket<S>, via: Via, slot: ConnectionSlot)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let gateway = Arc::clone(&leading.gateway);
    let (ends, is_relayed, reset) = match via {
        Via::Client(ends) => (ends, false, ResetSwitch::default()),
        Via::Follower(ends, reset) => (ends, true, reset),
    };
    let rate = gateway.rates.connection();
    let peer = Arc::new(Peer { ends, is_relayed, reset, rate, _slot: slot });
    serve_http(gateway, leading.router.clone(), socket, peer).await;
}

/// Serves a connection that begins with a preface, if the preface is authentic. The ends are then those that the preface names.
/// `reset`: the switch of the socket.
pub(super) async fn serve_relayed<S>(
    shared: &SharedState,
    leading: &Leading,
    mut socket: S,
    mut read: Vec<u8>,
    ends: Ends,
    slot: ConnectionSlot,
    reset: ResetSwitch,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let patience = shared.parts.options.connections.head_timeout;
    let reading = tokio::select! {
        reading = timeout(patience, read_preface(&mut socket, &mut read)) => reading,
        () = shared.stopping.wait() => return,
    };
    let preface = reading.ok().flatten().ok_or(PrefaceRefused::Incomplete);
    match preface.and_then(|preface| leading.prefaces.check(&preface)) {
        Err(refused) => note_refused(shared, ends, refused),
        Ok(AcceptedPreface { ends, confirmation }) => {
            let confirming = async {
                socket.write_all(&confirmation).await?;
                socket.flush().await
            };
            if timeout(patience, confirming).await.is_ok_and(|confirmed| confirmed.is_ok()) {
                let socket = PrefixedSocket::new(read.split_off(PrefaceCheck::BYTES), socket);
                serve_peer(leading, socket, Via::Follower(ends, reset), slot).await;
            }
        }
    }
}

async fn read_preface<S: AsyncRead + Unpin>(
    socket: &mut S,
    read: &mut Vec<u8>,
) -> Option<[u8; PrefaceCheck::BYTES]> {
    loop {
        if let Some(preface) = read.first_chunk() {
            return Some(*preface);
        }
        if socket.read_buf(read).await.ok()? == 0 {
            return None;
        }
    }
}

/// Counts and logs a connection that another follower relayed to this process, although this process does not lead. The caller
/// closes the connection.
pub(super) fn refuse_relayed(shared: &SharedState, ends: Ends) {
    note_refused(shared, ends, PrefaceRefused::NotLeading);
}

/// Counts and logs a refused preface. If it may be a forgery, the log line is a warning, at most every 10 s.
fn note_refused(shared: &SharedState, ends: Ends, refused: PrefaceRefused) {
    static WARNED_MS: AtomicU64 = AtomicU64::new(0);
    shared.metrics.refused_prefaces.fetch_add(1, Ordering::Relaxed);
    let is_race = matches!(refused, PrefaceRefused::NotLeading | PrefaceRefused::Incomplete);
    let (now, warned) = (steady_ms() + WARN_EVERY_MS, WARNED_MS.load(Ordering::Relaxed));
    if !is_race && now >= warned + WARN_EVERY_MS {
        WARNED_MS.store(now, Ordering::Relaxed);
        tracing::warn!("relayed connection from {} refused: {refused}", ends.remote);
    } else {
        tracing::debug!("relayed connection from {} refused: {refused}", ends.remote);
    }
}
