//! All time limits of a WebSocket. One timer waits for the earliest.

use super::ping::PingTimer;
use crate::clock::steady_ms;
use crate::options::ConnectionLimits;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The leases of the client's deliveries are held (do not expire) when the session could handle no frames for this long.
const BLOCKED_MS: u64 = 100;
/// How long a client may take to answer a close frame.
const CLOSE_MS: u64 = 2_000;
/// A stalled client has more time: it must first read the data that was queued before the close frame.
const STALLED_CLOSE_MS: u64 = 30_000;
/// How long a client whose token was withdrawn waits for the answers to its last frames, before the close frame is queued.
/// Together with [`WITHDRAWN_CLOSE_MS`] and the shutdown of the socket, it takes less than the second that docs/operating.md
/// promises.
const WITHDRAWN_DRAIN_MS: u64 = 350;
/// How long such a client may take to answer the close frame, even if it was stalled.
const WITHDRAWN_CLOSE_MS: u64 = 350;

/// The start times and limits, in milliseconds of the steady clock. A start time is `None` while its limit does not apply.
#[derive(Debug)]
pub(super) struct Timers {
    /// When AUTH must have arrived.
    auth_by_ms: u64,
    pub(super) ping: PingTimer,
    /// How long the socket may accept nothing while data waits.
    stall_ms: u64,
    /// Since when data waits and the socket accepts nothing.
    behind_since_ms: Option<u64>,
    /// How long a frame may be incomplete.
    frame_ms: u64,
    /// Since when a frame or message is incomplete.
    partial_since_ms: Option<u64>,
    /// Since when the session can handle no frames.
    blocked_since_ms: Option<u64>,
    /// How long draining may take before the close frame is sent.
    drain_ms: u64,
    draining_since_ms: Option<u64>,
    /// Since when the close frame is queued.
    closing_since_ms: Option<u64>,
    /// Whether the client was ever stalled.
    was_stalled: bool,
    /// Whether a reload has withdrawn the client's token.
    is_withdrawn: bool,
    /// When to try again to read, while the buffer budget is used up.
    retry_at_ms: Option<u64>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// When `sleep` ends.
    sleeps_until_ms: u64,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4)
}

impl Timers {
    pub(super) fn new(limits: &ConnectionLimits, now: u64) -> Self {
        Self {
            auth_by_ms: now + millis(limits.auth_timeout),
            ping: PingTimer::new(limits.ping_interval, now),
            stall_ms: millis(limits.stall_timeout),
            behind_since_ms: None,
            frame_ms: millis(limits.stall_timeout),
            partial_since_ms: None,
            blocked_since_ms: None,
            drain_ms: millis(limits.drain_timeout).saturating_sub(CLOSE_MS).max(1),
            draining_since_ms: None,
            closing_since_ms: None,
            was_stalled: false,
            is_withdrawn: false,
            retry_at_ms: None,
            sleep: None,
            sleeps_until_ms: u64::MAX,
        }
    }

    pub(super) fn is_auth_due(&self, now: u64) -> bool {
        now >= self.auth_by_ms
    }

    /// Records that data waits and the socket accepts none.
    pub(super) fn behind(&mut self, now: u64) {
        self.behind_since_ms.get_or_insert(now);
    }

    /// Records that the socket accepted data.
    pub(super) fn wrote(&mut self, now: u64) {
        if let Some(since) = &mut self.behind_since_ms {
            *since = now;
            // A ping may be queued after other data. A client that reads is alive.
            self.ping.heard();
        }
    }

    /// Records that the socket has accepted all data.
    pub(super) fn caught_up(&mut self) {
        self.behind_since_ms = None;
    }

    pub(super) fn is_stalled(&mut self, is_behind: bool, now: u64) -> bool {
        let is_stalled = is_behind && self.behind_since_ms.is_some_and(|since| now >= since + self.stall_ms);
        self.was_stalled |= is_stalled;
        is_stalled
    }

    /// Records whether a frame or fragmented message is incomplete. `is_new`: a frame was completed since the last call, so the
    /// time starts again.
    pub(super) fn partial(&mut self, is_partial: bool, is_new: bool, now: u64) {
        if !is_partial || is_new {
            self.partial_since_ms = None;
        }
        if is_partial {
            self.partial_since_ms.get_or_insert(now);
        }
    }

    pub(super) fn is_frame_late(&self, now: u64) -> bool {
        self.partial_since_ms.is_some_and(|since| now >= since + self.frame_ms)
    }

    /// Whether the session could handle no frames for 100 ms. Acks are then missing because of the server, not the client.
    pub(super) fn is_blocked_long(&mut self, is_blocked: bool, now: u64) -> bool {
        if !is_blocked {
            self.blocked_since_ms = None;
            return false;
        }
        // The rest of an incomplete frame cannot arrive, because the server does not read.
        self.partial_since_ms = None;
        let since = *self.blocked_since_ms.get_or_insert(now);
        now >= since + BLOCKED_MS
    }

    pub(super) fn retry_at(&mut self, at_ms: u64) {
        self.retry_at_ms = Some(at_ms);
    }

    /// Records that draining begins.
    pub(super) fn draining(&mut self, now: u64) {
        self.draining_since_ms = Some(now);
    }

    /// Records that a reload has withdrawn the client's token. The limits become shorter, also for a connection that is already
    /// being closed.
    pub(super) fn withdraw(&mut self) {
        self.is_withdrawn = true;
        self.drain_ms = self.drain_ms.min(WITHDRAWN_DRAIN_MS);
    }

    /// Whether a reload has withdrawn the client's token.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn
    }

    pub(super) fn is_drain_over(&self, now: u64) -> bool {
        self.draining_since_ms.is_some_and(|since| now >= since + self.drain_ms)
    }

    /// Records that the close frame is queued.
    pub(super) fn closing(&mut self, now: u64) {
        self.closing_since_ms = Some(now);
    }

    fn close_ms(&self) -> u64 {
        match (self.is_withdrawn, self.was_stalled) {
            (true, _) => WITHDRAWN_CLOSE_MS,
            (false, true) => STALLED_CLOSE_MS,
            (false, false) => CLOSE_MS,
        }
    }

    pub(super) fn is_close_over(&self, now: u64) -> bool {
        self.closing_since_ms.is_some_and(|since| now >= since + self.close_ms())
    }

    /// Waits until the earliest of the limits and of the times `others`.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        is_authenticated: bool,
        others: [Option<u64>; 2],
    ) -> Poll<()> {
        let closed = self.closing_since_ms.map(|since| since + self.close_ms());
        let due = match closed.or(self.draining_since_ms.map(|since| since + self.drain_ms)) {
            Some(due) => Some(due),
            None => [
                (!is_authenticated).then_some(self.auth_by_ms),
                Some(self.ping.due_ms()),
                self.behind_since_ms.map(|since| since + self.stall_ms),
                self.partial_since_ms.map(|since| since + self.frame_ms),
                self.blocked_since_ms.map(|since| since + BLOCKED_MS).filter(|&at| at > steady_ms()),
                self.retry_at_ms.take(),
                others[0],
                others[1],
            ]
            .into_iter()
            .flatten()
            .min(),
        };
        let Some(due_ms) = due else { return Poll::Pending };
        let now = steady_ms();
        if due_ms <= now {
            return Poll::Ready(());
        }
        let at = Instant::now() + Duration::from_millis(due_ms - now);
        let sleep = match &mut self.sleep {
            Some(sleep) => {
                if self.sleeps_until_ms != due_ms {
                    sleep.as_mut().reset(at);
                }
                sleep
            }
            None => self.sleep.insert(Box::pin(tokio::time::sleep_until(at))),
        };
        self.sleeps_until_ms = due_ms;
        sleep.as_mut().poll(context)
    }
}
