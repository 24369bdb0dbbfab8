//! A relayed connection: copies bytes in both directions until one side ends, the leader changes, or this process stops.
//!
//! If the leader does not close a WebSocket itself, the follower sends the client a close frame after the leader's last complete
//! frame. All other connections end at TCP level.

use super::frame_boundary::FrameBoundaries;
use super::hop::Hop;
use super::lane::{Failed, Lane};
use super::stream_tracker::ResponseTracker;
use crate::options::ConnectionLimits;
use crate::shutdown::Stopping;
use crate::ws::Ending;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, Sleep, sleep, timeout};

/// Rounds of copying before other connections get a turn.
const ROUNDS_MAX: usize = 16;
/// After `stall_timeout`, the leader closes the connection of a client that does not read. The follower waits this much longer,
/// so that the client can still read the close frame.
const STALLED_CLOSE: Duration = Duration::from_secs(35);
/// When the connection must end: how long the rest of the current frame, or the close frame, may take.
const FRAME_PATIENCE: Duration = Duration::from_secs(1);
/// How long a client may take to answer a close frame, or to close its side.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
/// The same if the leader has sent everything and then closed the connection: the leader has already waited for the client.
const CLOSE_PATIENCE_AFTER_LEADER: Duration = Duration::from_millis(250);
/// How often a connection whose client does not read is checked for a reset by the leader.
const RESET_CHECK: Duration = Duration::from_millis(100);
/// How long the client may take to accept what the leader sent before it reset the connection. The leader does that when the
/// client's token was withdrawn. Together with the limits of the leader (`ws/timers.rs`), it takes less than the second that
/// docs/operating.md promises.
const RESET_PATIENCE: Duration = Duration::from_millis(50);
/// An HTTP connection is idle if no bytes were copied for this long and the last ones came from the leader.
const QUIET: Duration = Duration::from_millis(250);

/// A relayed connection.
pub(crate) struct Splice<C> {
    client: C,
    leader: Hop,
    to_leader: Lane,
    to_client: Lane,
    /// The frames of the client, after the head of its first request. Meaningful only for a WebSocket.
    request_frames: FrameBoundaries,
    /// The bytes of the leader.
    response: ResponseTracker,
    /// Number of pieces that were read from both sides.
    pieces: u64,
    /// Whether the last bytes came from the leader.
    is_answered: bool,
    /// Whether the client gets only the rest of the leader's current frame.
    ends_at_boundary: bool,
    /// Whether the leader gets only the rest of the client's current frame, and then a close frame.
    closes_leader: bool,
    /// The client counts as gone if it accepts nothing for this long while bytes wait for it.
    stall: Duration,
    /// Runs while bytes wait for the client and it accepts nothing.
    stall_timer: Option<Pin<Box<Sleep>>>,
    /// Runs while the client is so slow that nothing is read from the leader: when to check for a reset.
    reset_check: Option<Pin<Box<Sleep>>>,
    /// When the client must have accepted the last bytes of a leader that has reset the connection.
    reset_until: Option<Instant>,
}

/// Why copying has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// The client is gone, or does not read. After a reset by the leader, it has less time to read.
    Client,
    /// The leader has ended the connection, or the connection to it broke.
    Leader,
    /// `ends_at_boundary` is set, and the leader's current frame has been passed to the client.
    Boundary,
    /// Another gateway leads.
    LeaderChanged,
    /// This process ends.
    Stopping,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Splice<C> {
    /// `read`: bytes that were already read from the client; the first `head_bytes` of them are the head of its first request.
    pub(crate) fn new(
        client: C,
        read: Vec<u8>,
        head_bytes: usize,
        leader: Hop,
        limits: &ConnectionLimits,
    ) -> Self {
        let mut request_frames = FrameBoundaries::default();
        request_frames.advance(read.get(head_bytes..).unwrap_or_default());
        Self {
            client,
            leader,
            to_leader: Lane::beginning_with(read),
            to_client: Lane::kept_open(),
            request_frames,
            response: ResponseTracker::new(),
            pieces: 0,
            is_answered: false,
            ends_at_boundary: false,
            closes_leader: false,
            stall: limits.stall_timeout + STALLED_CLOSE,
            stall_timer: None,
            reset_check: None,
            reset_until: None,
        }
    }

    /// Relays until the connection ends. `leader_changed` resolves when another gateway becomes the leader.
    pub(crate) async fn run(
        mut self,
        leader_changed: impl Future<Output = ()>,
        stopping: &Stopping,
        drain_timeout: Duration,
    ) {
        let over = tokio::select! {
            over = self.copy() => over,
            () = leader_changed => Over::LeaderChanged,
            () = stopping.wait() => Over::Stopping,
        };
        match over {
            Over::Client => {}
            Over::Leader | Over::Boundary => {
                let patience = self.close_patience();
                self.end(Ending::LEADER_CHANGED, patience).await;
            }
            Over::LeaderChanged if self.response.frames().is_none() => {}
            Over::LeaderChanged => self.end(Ending::LEADER_CHANGED, CLOSE_PATIENCE).await,
            Over::Stopping => {
                let stopped =
                    timeout(drain_timeout.saturating_sub(2 * FRAME_PATIENCE + CLOSE_PATIENCE), self.stop());
                if stopped.await != Ok(Over::Client) {
                    self.end(Ending::SHUTDOWN, CLOSE_PATIENCE).await;
                }
            }
        }
    }

    async fn copy(&mut self) -> Over {
        poll_fn(|context| self.poll_copy(context)).await
    }

    fn poll_copy(&mut self, context: &mut Context<'_>) -> Poll<Over> {
        for _ in 0..ROUNDS_MAX {
            let to_leader = self.poll_to_leader(context);
            let to_client = match self.poll_to_client(context) {
                Ok(has_moved) => has_moved,
                Err(over) => return Poll::Ready(over),
            };
            if to_client {
                self.stall_timer = None;
            }
            if self.to_client.is_over() {
                return Poll::Ready(if self.ends_at_boundary { Over::Boundary } else { Over::Leader });
            }
            match to_leader {
                Err(over) => return Poll::Ready(over),
                Ok(has_moved) if !has_moved && !to_client => {
                    let is_late = self.is_stalled(context) || self.is_late_after_reset(context);
                    return if is_late { Poll::Ready(Over::Client) } else { Poll::Pending };
                }
                Ok(_) => {}
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_to_leader(&mut self, context: &mut Context<'_>) -> Result<bool, Over> {
        let Self { client, leader, to_leader, request_frames, pieces, is_answered, closes_leader, .. } = self;
        if *closes_leader && request_frames.is_at_boundary() {
            *closes_leader = false;
            if !request_frames.has_close() {
                to_leader.put_last(&masked(&Ending { reason: "", ..Ending::SHUTDOWN }.frame()));
            }
        }
        let moved = to_leader.poll_move(context, client, leader, |bytes| {
            *pieces += 1;
            *is_answered = false;
            if *closes_leader {
                return request_frames.advance_to_boundary(bytes);
            }
            request_frames.advance(bytes);
            bytes.len()
        });
        match moved {
            Ok(has_moved) => Ok(has_moved),
            Err(Failed::Reading) => Err(Over::Client),
            // Bytes that the leader sent before it ended can still be read.
            Err(Failed::Writing) => {
                self.to_leader.abandon();
                Ok(true)
            }
        }
    }

    fn poll_to_client(&mut self, context: &mut Context<'_>) -> Result<bool, Over> {
        let Self { client, leader, to_client, response, pieces, is_answered, ends_at_boundary, .. } = self;
        if *ends_at_boundary && response.frames().is_some_and(FrameBoundaries::is_at_boundary) {
            to_client.close();
        }
        let moved = to_client.poll_move(context, leader, client, |bytes| {
            *pieces += 1;
            *is_answered = true;
            if *ends_at_boundary {
                return response.advance_to_boundary(bytes);
            }
            response.advance(bytes);
            bytes.len()
        });
        moved.map_err(|failed| match failed {
            Failed::Reading => Over::Leader,
            Failed::Writing => Over::Client,
        })
    }

    /// Whether the client has not read for too long.
    fn is_stalled(&mut self, context: &mut Context<'_>) -> bool {
        if !self.to_client.has_unsent() {
            self.stall_timer = None;
            return false;
        }
        let until = Instant::now() + self.stall;
        let timer = self.stall_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        timer.as_mut().poll(context).is_ready()
    }

    /// Whether the leader has reset the connection, and the client has not accepted the leader's last bytes in time. Nothing is
    /// read from the leader while the client does not read, so a read would not notice the reset.
    fn is_late_after_reset(&mut self, context: &mut Context<'_>) -> bool {
        if !self.to_client.is_blocked() {
            self.reset_check = None;
            return false;
        }
        loop {
            let now = Instant::now();
            if self.reset_until.is_none() && self.leader.is_reset() {
                self.reset_until = Some(now + RESET_PATIENCE);
            }
            if self.reset_until.is_some_and(|until| now >= until) {
                return true;
            }
            let next = self.reset_until.unwrap_or(now + RESET_CHECK);
            let check = self.reset_check.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(next)));
            if check.as_mut().poll(context).is_pending() {
                return false;
            }
            self.reset_check = None;
        }
    }

    /// How long the client may take to close its side after the leader has ended the connection.
    fn close_patience(&self) -> Duration {
        // A WebSocket without a close frame gets one from the follower. A client of HTTP may read the response only when it has sent its
        // whole request; it has less time if its token was withdrawn.
        let has_waited =
            self.response.frames().map_or_else(|| self.leader.is_reset(), FrameBoundaries::has_close);
        if has_waited { CLOSE_PATIENCE_AFTER_LEADER } else { CLOSE_PATIENCE }
    }

    /// Ends the connection to the client; a WebSocket ends after a complete frame. `patience`: how long the client may take to
    /// close its side.
    async fn end(&mut self, ending: Ending, patience: Duration) {
        self.to_leader.abandon();
        if self.response.frames().is_some() {
            self.ends_at_boundary = true;
            let finished = timeout(FRAME_PATIENCE, self.copy()).await;
            let frames = self.response.frames();
            let is_whole =
                frames.is_some_and(FrameBoundaries::is_at_boundary) && !self.to_client.has_unsent();
            if finished == Ok(Over::Client) || !is_whole {
                return;
            }
            if !frames.is_some_and(FrameBoundaries::has_close) {
                let _ = timeout(FRAME_PATIENCE, self.client.write_all(&ending.frame())).await;
            }
        }
        let _ = timeout(patience, self.shut()).await;
    }

    /// Shuts down the sending side, including that of TLS, and waits until the client closes its side. Closing a socket with
    /// unread data would reset the connection, and the client could lose the last bytes.
    async fn shut(&mut self) {
        if self.client.shutdown().await.is_ok() {
            let mut rest = [0; 1024];
            while self.client.read(&mut rest).await.is_ok_and(|count| count > 0) {}
        }
    }

    /// Ends the connection gracefully because this process stops: requests in progress are answered first.
    async fn stop(&mut self) -> Over {
        if self.response.frames().is_none() {
            return self.stop_http().await;
        }
        // The leader gets a close frame as if the client had sent it. The leader then removes the client from its groups, answers
        // the client's frames that it has read, and sends a close frame with the same code, which the follower passes to the
        // client.
        self.closes_leader = true;
        self.copy().await
    }

    /// Waits until an HTTP connection is idle. A follower does not parse HTTP, so a connection without traffic counts as idle,
    /// unless the last bytes came from the client and still need a response.
    async fn stop_http(&mut self) -> Over {
        loop {
            let before = self.pieces;
            tokio::select! {
                over = self.copy() => return over,
                () = sleep(QUIET) => {}
            }
            if self.is_answered && self.pieces == before {
                return Over::Stopping;
            }
        }
    }
}

/// A control frame as a client sends it: masked, here with zeros.
fn masked(frame: &[u8]) -> Vec<u8> {
    let mut masked = frame.to_vec();
    masked[1] |= 0x80;
    masked.splice(2..2, [0; 4]);
    masked
}
