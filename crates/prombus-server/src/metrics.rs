//! What `/metrics` shows, in the text format of Prometheus. Most of it is counted by the backend already and only written down
//! here; what only the gateway knows is counted in atomics, per subscription and not per connection.
//!
//! Names of topics and groups come from clients, so there is a limit to how many are labels: the rest is summed as `_other`.

mod text;

use crate::gateway::Gateway;
use parking_lot::Mutex;
use prombus::{Figures, GroupFigures, Histogram};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use text::{Kind, Text};

/// Milliseconds, from a fast answer to a lease's length.
const MS_BOUNDS: &[f64] = &[1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0, 30000.0];

/// The label of what has none of its own.
const OTHER: &str = "_other";

/// What the gateway counts.
pub(crate) struct Metrics {
    labels_max: usize,
    pub(crate) ws_connections: AtomicU64,
    /// Closed because they read nothing.
    pub(crate) ws_stalled: AtomicU64,
    /// Closed because they answered no ping.
    pub(crate) ws_silent: AtomicU64,
    pub(crate) connections: Arc<AtomicU64>,
    pub(crate) connections_refused: AtomicU64,
    subscriptions: Mutex<HashMap<(String, String), Arc<SubscriptionMetrics>>>,
}

/// What is counted about all connections that are subscribed to the same.
pub(crate) struct SubscriptionMetrics {
    /// What it took to get deliveries that were there.
    pub(crate) poll_duration_ms: Histogram,
    /// From sending an event to its ack or nack.
    pub(crate) handler_duration_ms: Histogram,
    /// From the event's time to its ack.
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
            ws_connections: AtomicU64::new(0),
            ws_stalled: AtomicU64::new(0),
            ws_silent: AtomicU64::new(0),
            connections: Arc::default(),
            connections_refused: AtomicU64::new(0),
            subscriptions: Mutex::default(),
        }
    }

    /// Where to count about a subscription.
    pub(crate) fn subscription(&self, topic: &str, group: &str) -> Arc<SubscriptionMetrics> {
        let mut subscriptions = self.subscriptions.lock();
        let mut key = (topic.to_owned(), group.to_owned());
        if subscriptions.len() >= self.labels_max && !subscriptions.contains_key(&key) {
            key = (OTHER.to_owned(), OTHER.to_owned());
        }
        Arc::clone(subscriptions.entry(key).or_insert_with(|| Arc::new(SubscriptionMetrics::new())))
    }

    fn subscriptions(&self) -> BTreeMap<(String, String), Arc<SubscriptionMetrics>> {
        self.subscriptions.lock().iter().map(|(key, it)| (key.clone(), Arc::clone(it))).collect()
    }
}

/// All metrics, as text.
pub(crate) fn render(gateway: &Gateway) -> String {
    let figures = gateway.backend.figures();
    gateway.metrics.forget_missing(&figures);
    let mut text = Text::default();
    put_topics(&mut text, &figures, gateway.metrics.labels_max);
    put_groups(&mut text, &figures, gateway.metrics.labels_max);
    put_subscriptions(&mut text, &gateway.metrics);
    put_store(&mut text, &figures);
    put_gateway(&mut text, gateway);
    text.finish()
}

fn put_topics(text: &mut Text, figures: &Figures, labels_max: usize) {
    text.family(
        "events_published_total",
        Kind::Counter,
        "Events of a topic since it was made, duplicates not counted.",
    );
    // The busiest have a label, whatever their names.
    let mut topics: Vec<_> = figures.topics.iter().collect();
    topics.sort_by_key(|it| std::cmp::Reverse(it.published));
    let (named, rest) = topics.split_at(topics.len().min(labels_max));
    for it in named {
        text.sample(&[("topic", it.topic.as_str())], it.published);
    }
    if !rest.is_empty() {
        text.sample(&[("topic", OTHER)], rest.iter().map(|it| it.published).sum::<u64>());
    }
}

/// A group's row: its labels and figures.
struct GroupRow<'a> {
    labels: [(&'static str, &'a str); 2],
    figures: GroupFigures,
}

fn group_rows(groups: &[GroupFigures], labels_max: usize) -> Vec<GroupRow<'_>> {
    let (named, rest) = groups.split_at(groups.len().min(labels_max));
    let mut rows: Vec<GroupRow<'_>> = named
        .iter()
        .map(|it| GroupRow { labels: [("topic", &it.topic), ("group", &it.group)], figures: it.clone() })
        .collect();
    let summed = rest.iter().cloned().reduce(|mut sum, it| {
        let (into, of) = (&mut sum.counters, it.counters);
        into.delivered += of.delivered;
        into.acked += of.acked;
        into.nacked += of.nacked;
        into.dead_lettered += of.dead_lettered;
        into.redelivered_expired += of.redelivered_expired;
        into.redelivered_nacked += of.redelivered_nacked;
        into.redelivered_lost += of.redelivered_lost;
        into.redelivered_restarted += of.redelivered_restarted;
        into.stale += of.stale;
        into.missed += of.missed;
        sum.lag += it.lag;
        sum.in_flight += it.in_flight;
        sum.in_flight_outside += it.in_flight_outside;
        sum.members += it.members;
        sum
    });
    let labels = [("topic", OTHER), ("group", OTHER)];
    rows.extend(summed.map(|figures| GroupRow { labels, figures }));
    rows
}

fn put_groups(text: &mut Text, figures: &Figures, labels_max: usize) {
    let rows = group_rows(&figures.groups, labels_max);
    let mut family = |name, kind, help, value: fn(&GroupFigures) -> u64| {
        text.family(name, kind, help);
        for row in &rows {
            text.sample(&row.labels, value(&row.figures));
        }
    };
    family("events_delivered_total", Kind::Counter, "Deliveries, repeated ones included.", |it| {
        it.counters.delivered
    });
    family("events_acked_total", Kind::Counter, "Acks that counted.", |it| it.counters.acked);
    family("events_nacked_total", Kind::Counter, "Nacks that counted.", |it| it.counters.nacked);
    family("events_stale_total", Kind::Counter, "Acks and nacks that came too late.", |it| it.counters.stale);
    family("events_dead_lettered_total", Kind::Counter, "Events given up after too many attempts.", |it| {
        it.counters.dead_lettered
    });
    family(
        "events_missed_total",
        Kind::Counter,
        "Events that retention took before a group had them.",
        |it| it.counters.missed,
    );
    family("events_inflight", Kind::Gauge, "Deliveries that members have and have not settled.", |it| {
        it.in_flight as u64
    });
    family("ws_inflight", Kind::Gauge, "Deliveries over WebSockets that are not settled.", |it| {
        it.in_flight_outside as u64
    });
    family("group_lag_events", Kind::Gauge, "Events that a group has not settled.", |it| it.lag);
    family("group_members", Kind::Gauge, "Members of a group.", |it| it.members as u64);
    put_members(text, figures, labels_max);
    text.family("events_redelivered_total", Kind::Counter, "Deliveries again, and why.");
    for row in &rows {
        let counters = &row.figures.counters;
        let [topic, group] = row.labels;
        for (reason, count) in [
            ("lease_expired", counters.redelivered_expired),
            ("nacked", counters.redelivered_nacked),
            ("member_lost", counters.redelivered_lost),
            ("server_restarted", counters.redelivered_restarted),
        ] {
            text.sample(&[topic, group, ("reason", reason)], count);
        }
    }
}

/// Members choose their names, so the names have a limit of their own.
fn put_members(text: &mut Text, figures: &Figures, labels_max: usize) {
    text.family(
        "member_inflight",
        Kind::Gauge,
        "Deliveries that members of one name have and have not settled.",
    );
    let members = figures.groups.iter().flat_map(|group| {
        group.by_name.iter().map(move |(name, &in_flight)| (group, name.as_str(), in_flight as u64))
    });
    let mut rest = None;
    for (at, (group, name, in_flight)) in members.enumerate() {
        if at < labels_max {
            text.sample(&[("topic", &group.topic), ("group", &group.group), ("member", name)], in_flight);
        } else {
            *rest.get_or_insert(0) += in_flight;
        }
    }
    if let Some(in_flight) = rest {
        text.sample(&[("topic", OTHER), ("group", OTHER), ("member", OTHER)], in_flight);
    }
}

fn put_subscriptions(text: &mut Text, metrics: &Metrics) {
    let subscriptions = metrics.subscriptions();
    let mut family = |name, help, histogram: fn(&SubscriptionMetrics) -> &Histogram| {
        text.family(name, Kind::Histogram, help);
        for ((topic, group), it) in &subscriptions {
            text.histogram(&[("topic", topic), ("group", group)], &histogram(it).figures());
        }
    };
    family("subscribe_poll_duration_ms", "What it took to get deliveries that were there.", |it| {
        &it.poll_duration_ms
    });
    family("delivery_handler_duration_ms", "From sending an event to its ack or nack.", |it| {
        &it.handler_duration_ms
    });
    family("delivery_latency_ms", "From an event's ts to its ack.", |it| &it.latency_ms);
}

fn put_store(text: &mut Text, figures: &Figures) {
    let store = &figures.store;
    text.family("commit_duration_ms", Kind::Histogram, "The write and the sync of a commit.");
    text.histogram(&[], &store.commit_duration_ms);
    text.family("commit_batch_events", Kind::Histogram, "Events that share a commit.");
    text.histogram(&[], &store.commit_batch_events);
    text.family("log_bytes", Kind::Gauge, "Bytes that the store keeps.");
    text.sample(&[], store.bytes);
    text.family("events_cleaned_total", Kind::Counter, "Events that cleaning removed.");
    text.sample(&[], figures.cleaned_events);
    text.family("cleaned_bytes_total", Kind::Counter, "Bytes of log that cleaning removed.");
    text.sample(&[], figures.cleaned_bytes);
    text.family("state_memory_bytes", Kind::Gauge, "About what the newest events by key take in memory.");
    text.sample(&[], figures.state_memory_bytes);
    text.family("storage_full", Kind::Gauge, "1 while there is no room for another segment.");
    text.sample(&[], u64::from(store.is_full));
    text.family("events_corrupt_total", Kind::Counter, "Damaged events that were found.");
    text.sample(&[], store.corrupt_events);
    text.family("storage_faults_total", Kind::Counter, "Places of damage that were found, in any file.");
    text.sample(&[], store.faults);
    text.family("prombus_read_errors_total", Kind::Counter, "Reads of files that failed.");
    text.sample(&[], store.read_errors);
    text.family(
        "prombus_events_unreadable",
        Kind::Gauge,
        "Events that cannot be read now; groups wait for them.",
    );
    text.sample(&[], store.events_unreadable);
}

fn put_gateway(text: &mut Text, gateway: &Gateway) {
    let metrics = &gateway.metrics;
    let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
    text.family("ws_connections", Kind::Gauge, "Open WebSockets.");
    text.sample(&[], load(&metrics.ws_connections));
    text.family("ws_dropped_total", Kind::Counter, "WebSockets that were closed, and why.");
    text.sample(&[("reason", "stalled")], load(&metrics.ws_stalled));
    text.sample(&[("reason", "silent")], load(&metrics.ws_silent));
    text.family("connections", Kind::Gauge, "Open connections of all kinds.");
    text.sample(&[], load(&metrics.connections));
    text.family("connections_refused_total", Kind::Counter, "Connections over the limit.");
    text.sample(&[], load(&metrics.connections_refused));
    let (of_connections, of_topics) = gateway.rates.refusals();
    text.family("rate_limited_total", Kind::Counter, "Publishes over a rate, by whose rate it was.");
    text.sample(&[("scope", "connection")], of_connections);
    text.sample(&[("scope", "topic")], of_topics);
    text.family("buffered_bytes", Kind::Gauge, "Bytes in the buffers of WebSockets.");
    text.sample(&[], gateway.budget.used_bytes() as u64);
    text.family("bus_healthy", Kind::Gauge, "1 while the bus can write.");
    text.sample(&[], u64::from(gateway.backend.health().is_ok()));
}

impl Metrics {
    /// Lets go of subscriptions that nobody has and whose group is gone.
    fn forget_missing(&self, figures: &Figures) {
        let kept: HashSet<(&str, &str)> =
            figures.groups.iter().map(|it| (it.topic.as_str(), it.group.as_str())).collect();
        self.subscriptions.lock().retain(|(topic, group), it| {
            Arc::strong_count(it) > 1 || topic == OTHER || kept.contains(&(topic.as_str(), group.as_str()))
        });
    }
}
