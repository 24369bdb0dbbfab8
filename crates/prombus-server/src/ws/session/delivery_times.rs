//! Measures how long the deliveries of a subscription take, for its metrics.

use super::delivered::Sent;
use super::frame_time::FrameTime;
use crate::metrics::SubscriptionMetrics;
use prombus::Histogram;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct DeliveryTimes {
    metrics: Arc<SubscriptionMetrics>,
    handler_durations: Repeated,
    latencies: Repeated,
}

/// Equal successive values, which are recorded together: successive acks often took equally long.
#[derive(Default)]
struct Repeated {
    value_ms: u64,
    count: u64,
}

impl DeliveryTimes {
    pub(super) fn new(metrics: Arc<SubscriptionMetrics>) -> Self {
        Self { metrics, handler_durations: Repeated::default(), latencies: Repeated::default() }
    }

    /// Records the duration of a pull that returned deliveries.
    pub(super) fn pulled(&self, took: Duration) {
        self.metrics.poll_duration_ms.observe(took.as_secs_f64() * 1000.0);
    }

    /// Records the times of a delivery that was acked or nacked. The latency is recorded only for acks.
    pub(super) fn settled(&mut self, sent: &Sent, is_ack: bool, now: FrameTime) {
        let took_ms = now.steady_ms.saturating_sub(sent.at_ms);
        self.handler_durations.add(took_ms, &self.metrics.handler_duration_ms);
        if is_ack {
            let latency_ms = now.wall_ms.saturating_sub(sent.ts).max(0).unsigned_abs();
            self.latencies.add(latency_ms, &self.metrics.latency_ms);
        }
    }

    /// Records the collected values.
    pub(super) fn flush(&mut self) {
        self.handler_durations.flush(&self.metrics.handler_duration_ms);
        self.latencies.flush(&self.metrics.latency_ms);
    }
}

impl Repeated {
    fn add(&mut self, value_ms: u64, histogram: &Histogram) {
        if value_ms != self.value_ms {
            self.flush(histogram);
            self.value_ms = value_ms;
        }
        self.count += 1;
    }

    fn flush(&mut self, histogram: &Histogram) {
        let count = std::mem::take(&mut self.count);
        if count > 0 {
            histogram.observe_many(self.value_ms as f64, count);
        }
    }
}
