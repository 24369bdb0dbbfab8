//! The ping timer: when the next ping is due, and whether the client has been silent since the last one. A client is silent if it
//! sends nothing and does not read data that waits for it.

use std::time::Duration;

#[derive(Debug)]
/// The ping timer of one WebSocket.
pub(super) struct PingTimer {
    interval_ms: u64,
    /// When the next ping is due, on the steady clock.
    due_ms: u64,
    /// Whether the client has been silent since the last ping.
    is_silent: bool,
}

impl PingTimer {
    pub(super) fn new(interval: Duration, now: u64) -> Self {
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX / 4).max(1);
        Self { interval_ms, due_ms: now + interval_ms, is_silent: false }
    }

    /// When the next ping is due, on the steady clock.
    pub(super) fn due_ms(&self) -> u64 {
        self.due_ms
    }

    pub(super) fn is_due(&self, now: u64) -> bool {
        now >= self.due_ms
    }

    /// Whether the client has been silent since the last ping.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Records that the client sent something, or read data that waited for it.
    pub(super) fn heard(&mut self) {
        self.is_silent = false;
    }

    /// Records that a ping was sent.
    pub(super) fn sent(&mut self, now: u64) {
        self.is_silent = true;
        self.due_ms = now + self.interval_ms;
    }
}
