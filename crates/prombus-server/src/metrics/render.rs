//! Formats the figures of the backend and the server in the Prometheus text format.

use super::counters::{Metrics, SubscriptionMetrics};
use super::label_cap;
use super::shared_store::SharedStoreMetrics;
use super::text::{FamilyKind, MetricsText};
use crate::buffer_budget::Budget;
use crate::rate_limit::Rates;
use prombus::{Backend, Figures, GroupFigures, Histogram};
use std::sync::atomic::{AtomicU64, Ordering};

/// All metrics of a server that serves a backend.
pub(crate) fn render(
    metrics: &Metrics,
    rates: &Rates,
    budget: &Budget,
    backend: &dyn Backend,
    shared_store: Option<&SharedStoreMetrics>,
) -> String {
    let figures = backend.figures();
    metrics.forget_missing(&figures);
    let mut text = MetricsText::default();
    put_topics(&mut text, &figures, metrics.labels_max);
    put_groups(&mut text, &figures, metrics.labels_max);
    put_subscriptions(&mut text, metrics);
    put_store(&mut text, &figures);
    put_connections(&mut text, metrics);
    let (of_connections, of_topics) = rates.refusals();
    text.family(
        "rate_limited_total",
        FamilyKind::Counter,
        "Events refused because a publish rate was exceeded, by scope.",
    );
    text.sample(&[("scope", "connection")], of_connections);
    text.sample(&[("scope", "topic")], of_topics);
    text.family(
        "buffered_bytes",
        FamilyKind::Gauge,
        "Bytes in buffers that count against max_buffered_bytes.",
    );
    text.sample(&[], budget.used_bytes() as u64);
    text.family("bus_healthy", FamilyKind::Gauge, "1 while the bus can write.");
    text.sample(&[], u64::from(backend.health().is_ok()));
    if let Some(shared_store) = shared_store {
        shared_store.put(&mut text);
    }
    text.finish()
}

/// The metrics of a follower; the leader has the others.
pub(crate) fn render_follower(metrics: &Metrics, shared_store: &SharedStoreMetrics) -> String {
    let mut text = MetricsText::default();
    put_connections(&mut text, metrics);
    shared_store.put(&mut text);
    text.finish()
}

fn put_topics(text: &mut MetricsText, figures: &Figures, labels_max: usize) {
    text.family(
        "events_published_total",
        FamilyKind::Counter,
        "Events published to a topic since it was created, without duplicates.",
    );
    for (topic, published) in label_cap::topics(&figures.topics, labels_max) {
        text.sample(&[("topic", topic)], published);
    }
}

fn put_groups(text: &mut MetricsText, figures: &Figures, labels_max: usize) {
    let rows = label_cap::groups(&figures.groups, labels_max);
    let mut family = |name, kind, help, value: fn(&GroupFigures) -> u64| {
        text.family(name, kind, help);
        for row in &rows {
            text.sample(&row.labels, value(&row.figures));
        }
    };
    family("events_delivered_total", FamilyKind::Counter, "Deliveries, including redeliveries.", |it| {
        it.counters.delivered
    });
    family("events_acked_total", FamilyKind::Counter, "Acks that were applied.", |it| it.counters.acked);
    family("events_nacked_total", FamilyKind::Counter, "Nacks that were applied.", |it| it.counters.nacked);
    family("events_stale_total", FamilyKind::Counter, "Acks and nacks that came too late.", |it| {
        it.counters.stale
    });
    family("events_dead_lettered_total", FamilyKind::Counter, "Events that a group gave up.", |it| {
        it.counters.dead_lettered
    });
    family(
        "events_missed_total",
        FamilyKind::Counter,
        "Events that retention removed before a group settled them.",
        |it| it.counters.missed,
    );
    family(
        "events_inflight",
        FamilyKind::Gauge,
        "Deliveries that members hold and have not settled.",
        |it| it.in_flight as u64,
    );
    family("ws_inflight", FamilyKind::Gauge, "Deliveries over WebSockets that are not settled.", |it| {
        it.in_flight_outside as u64
    });
    family("group_lag_events", FamilyKind::Gauge, "Events that a group has not settled.", |it| it.lag);
    family("group_members", FamilyKind::Gauge, "Members of a group.", |it| it.members as u64);
    put_members(text, figures, labels_max);
    text.family("events_redelivered_total", FamilyKind::Counter, "Redeliveries, by reason.");
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

fn put_members(text: &mut MetricsText, figures: &Figures, labels_max: usize) {
    text.family(
        "member_inflight",
        FamilyKind::Gauge,
        "Deliveries that the members with this name hold and have not settled.",
    );
    for (labels, in_flight) in label_cap::members(&figures.groups, labels_max) {
        text.sample(&labels, in_flight);
    }
}

fn put_subscriptions(text: &mut MetricsText, metrics: &Metrics) {
    let subscriptions = metrics.subscriptions();
    let mut family = |name, help, histogram: fn(&SubscriptionMetrics) -> &Histogram| {
        text.family(name, FamilyKind::Histogram, help);
        for ((topic, group), it) in &subscriptions {
            text.histogram(&[("topic", topic), ("group", group)], &histogram(it).figures());
        }
    };
    family("subscribe_poll_duration_ms", "Duration of pulls that returned deliveries.", |it| {
        &it.poll_duration_ms
    });
    family("delivery_handler_duration_ms", "Time from sending an event to its ack or nack.", |it| {
        &it.handler_duration_ms
    });
    family("delivery_latency_ms", "Time from an event's ts to its ack.", |it| &it.latency_ms);
}

fn put_store(text: &mut MetricsText, figures: &Figures) {
    let store = &figures.store;
    text.family("commit_duration_ms", FamilyKind::Histogram, "Duration of a commit: write and sync.");
    text.histogram(&[], &store.commit_duration_ms);
    text.family("commit_batch_events", FamilyKind::Histogram, "Events per commit.");
    text.histogram(&[], &store.commit_batch_events);
    text.family("log_bytes", FamilyKind::Gauge, "Bytes in the store.");
    text.sample(&[], store.bytes);
    text.family("events_cleaned_total", FamilyKind::Counter, "Events that cleaning removed.");
    text.sample(&[], figures.cleaned_events);
    text.family("cleaned_bytes_total", FamilyKind::Counter, "Bytes of log that cleaning removed.");
    text.sample(&[], figures.cleaned_bytes);
    text.family("state_memory_bytes", FamilyKind::Gauge, "Approximate memory of the newest events by key.");
    text.sample(&[], figures.state_memory_bytes);
    text.family("storage_full", FamilyKind::Gauge, "1 while the disk has no room for another segment.");
    text.sample(&[], u64::from(store.is_full));
    text.family("events_corrupt_total", FamilyKind::Counter, "Damaged events found.");
    text.sample(&[], store.corrupt_events);
    text.family("storage_faults_total", FamilyKind::Counter, "Damaged places found, in any file.");
    text.sample(&[], store.faults);
    text.family("prombus_read_errors_total", FamilyKind::Counter, "Failed reads of files.");
    text.sample(&[], store.read_errors);
    text.family(
        "prombus_events_unreadable",
        FamilyKind::Gauge,
        "Events that cannot be read at the moment; groups wait for them.",
    );
    text.sample(&[], store.events_unreadable);
}

fn put_connections(text: &mut MetricsText, metrics: &Metrics) {
    let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
    text.family("ws_connections", FamilyKind::Gauge, "Open WebSockets.");
    text.sample(&[], load(&metrics.ws_connections));
    text.family("ws_dropped_total", FamilyKind::Counter, "WebSockets closed by the server, by reason.");
    text.sample(&[("reason", "stalled")], load(&metrics.ws_stalled));
    text.sample(&[("reason", "silent")], load(&metrics.ws_silent));
    text.family("connections", FamilyKind::Gauge, "Open connections of all kinds.");
    text.sample(&[], load(&metrics.connections));
    text.family(
        "connections_refused_total",
        FamilyKind::Counter,
        "Connections refused because of max_connections.",
    );
    text.sample(&[], load(&metrics.connections_refused));
}
