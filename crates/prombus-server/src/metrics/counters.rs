//! The figures that only the server knows, counted in atomics. Deliveries are counted per topic and group, not per connection.

use super::label_cap::LabelCap;
use super::own_labels::OTHER;
use super::requests::Requests;
use parking_lot::Mutex;
use prombus::{Figures, Histogram};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Histogram bounds in milliseconds, from a fast response to the default lease of a delivery.
const MS_BOUNDS: &[f64] = &[1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0, 30000.0];

/// The counters of the server.
pub(crate) struct Metrics {
    /// The option `metrics_labels_max`.
    labels_max: usize,
    /// The labels of topics and groups that the backend counts.
    pub(super) label_cap: Mutex<LabelCap>,
    /// Open WebSockets.
    pub(crate) ws_connections: AtomicU64,
    /// WebSockets that were closed because the client did not read.
    pub(crate) ws_stalled: AtomicU64,
    /// WebSockets that were closed because the client did not respond to a ping.
    pub(crate) ws_silent: AtomicU64,
    /// Open connections of all kinds.
    pub(crate) connections: Arc<AtomicU64>,
    /// Connections that were refused because of `max_connections`.
    pub(crate) connections_refused: AtomicU64,
    /// HTTP requests by route.
    pub(crate) requests: Requests,
    /// By topic and group.
    subscriptions: Mutex<HashMap<(String, String), Arc<SubscriptionMetrics>>>,
}

/// The counters of all connections that are subscribed to the same topic and group.
pub(crate) struct SubscriptionMetrics {
    /// Duration of pulls that returned deliveries.
    pub(crate) poll_duration_ms: Histogram,
    /// Time from sending an event to its ack or nack.
    pub(crate) handler_duration_ms: Histogram,
    /// Time from the event's `ts` to its ack.
    pub(crate) latency_ms: Histogram,
}

impl SubscriptionMetrics {
    fn new() -> Self {
        Self {
            poll_duration_ms: Histogram::new(MS_BOUNDS),
            handler_duration_ms: Histogram::new(MS_BOUNDS),
            latency_ms: Histogram::new(MS_BOUNDS),
        }
    }
}

impl Metrics {
    pub(crate) fn new(labels_max: usize) -> Self {
        Self {
            labels_max,
            label_cap: Mutex::new(LabelCap::new(labels_max)),
            ws_connections: AtomicU64::new(0),
            ws_stalled: AtomicU64::new(0),
            ws_silent: AtomicU64::new(0),
            connections: Arc::default(),
            connections_refused: AtomicU64::new(0),
            requests: Requests::default(),
            subscriptions: Mutex::default(),
        }
    }

    /// Called when the server begins to serve a store: events that were published before do not count as new ones.
    pub(crate) fn begin(&self, figures: &Figures) {
        self.label_cap.lock().topics(&figures.topics);
    }

    /// The counters of a topic and group. If the pair has none and `labels_max` pairs already have some, returns those of
    /// `_other`.
    pub(crate) fn subscription(&self, topic: &str, group: &str) -> Arc<SubscriptionMetrics> {
        let mut subscriptions = self.subscriptions.lock();
        let mut key = (topic.to_owned(), group.to_owned());
        if subscriptions.len() >= self.labels_max && !subscriptions.contains_key(&key) {
            key = (OTHER.to_owned(), OTHER.to_owned());
        }
        Arc::clone(subscriptions.entry(key).or_insert_with(|| Arc::new(SubscriptionMetrics::new())))
    }

    pub(super) fn subscriptions(&self) -> BTreeMap<(String, String), Arc<SubscriptionMetrics>> {
        self.subscriptions.lock().iter().map(|(key, it)| (key.clone(), Arc::clone(it))).collect()
    }

    /// Drops the counters of each topic and group that no connection is subscribed to, if the group no longer exists.
    pub(super) fn forget_missing(&self, figures: &Figures) {
        let kept: HashSet<(&str, &str)> =
            figures.groups.iter().map(|it| (it.topic.as_str(), it.group.as_str())).collect();
        self.subscriptions.lock().retain(|(topic, group), it| {
            let is_rest = topic == OTHER && group == OTHER;
            Arc::strong_count(it) > 1 || is_rest || kept.contains(&(topic.as_str(), group.as_str()))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_group_that_is_gone_are_dropped_also_on_a_topic_named_like_the_rest() {
        let metrics = Metrics::new(2);
        for (topic, group) in [(OTHER, "a"), ("t", "b"), ("t", "c")] {
            metrics.subscription(topic, group);
        }
        metrics.forget_missing(&prombus::Bus::memory().backend().figures());
        let left: Vec<_> = metrics.subscriptions().into_keys().collect();
        assert_eq!(left, [(OTHER.to_owned(), OTHER.to_owned())], "the sum of the rest stays");
    }
}
