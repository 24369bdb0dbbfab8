//! The rate limit of the events that are sent on one connection (the option `connection_deliver`). Events over the rate wait.

use crate::rate_limit::{DeliveryBucket, Rates};

pub(super) struct DeliveryRate {
    bucket: DeliveryBucket,
    /// When events may be sent again, on the steady clock; `None` if they may be sent now.
    paused_until_ms: Option<u64>,
}

impl DeliveryRate {
    pub(super) fn new(bucket: DeliveryBucket) -> Self {
        Self { bucket, paused_until_ms: None }
    }

    /// Applies a reload.
    pub(super) fn refresh(&mut self, rates: &Rates) {
        self.bucket.refresh(rates);
        self.paused_until_ms = None;
    }

    /// When events may be sent again; `None` if they may be sent now.
    pub(super) fn paused_until_ms(&self) -> Option<u64> {
        self.paused_until_ms
    }

    /// Ends the pause. [`available`](Self::available) begins it again if necessary.
    pub(super) fn resume(&mut self) {
        self.paused_until_ms = None;
    }

    /// How many events may be sent now. If none, begins a pause and returns `None`.
    pub(super) fn available(&mut self, now_ms: u64) -> Option<u32> {
        if !self.bucket.is_limited() {
            return Some(u32::MAX);
        }
        let wait_ms = self.bucket.wait_ms(1, now_ms);
        if wait_ms > 0 {
            self.paused_until_ms = Some(now_ms.saturating_add(wait_ms));
            return None;
        }
        Some(self.bucket.available(now_ms).max(1))
    }

    /// Takes the tokens of events that were sent.
    pub(super) fn take(&mut self, count: u32, now_ms: u64) {
        self.bucket.take(count, now_ms);
    }
}
