//! Formats the figures of the backend and the server.

use super::counters::{Metrics, SubscriptionMetrics};
use super::label_cap::LabelCap;
use super::process;
use super::shared_store::SharedStoreMetrics;
use super::text::{FamilyKind, Format, MetricsText};
use crate::buffer_budget::Budget;
use crate::rate_limit::Rates;
use prombus::{Backend, Figures, GroupAge, GroupFigures, Histogram};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the metrics of a server that serves a backend come from.
pub(crate) struct Sources<'a> {
    pub(crate) metrics: &'a Metrics,
    pub(crate) rates: &'a Rates,
    pub(crate) budget: &'a Budget,
    pub(crate) backend: &'a dyn Backend,
    /// The ages of the oldest unsettled events; empty if they could not be determined in time.
    pub(crate) ages: &'a [GroupAge],
    pub(crate) shared_store: Option<&'a SharedStoreMetrics>,
}

/// All metrics of a server that serves a backend.
pub(crate) fn render(sources: &Sources<'_>, format: Format) -> String {
    let Sources { metrics, rates, budget, backend, ages, shared_store } = sources;
    // Locked before the figures are taken: scrapes at the same time must not see figures that decrease.
    let mut labels = metrics.label_cap.lock();
    let figures = backend.figures();
    metrics.forget_missing(&figures);
    let mut text = MetricsText::new(format);
    put_build(&mut text);
    put_topics(&mut text, &figures, &mut labels);
    put_groups(&mut text, &figures, &mut labels);
    put_ages(&mut text, &figures, ages, &labels);
    put_dead_letters(&mut text, &figures, &mut labels);
    drop(labels);
    put_subscriptions(&mut text, metrics);
    put_store(&mut text, &figures);
    put_connections(&mut text, metrics);
    let (of_connections, of_topics) = rates.refusals();
    text.family(
        "prombus_rate_limited_total",
        FamilyKind::Counter,
        "Events refused because a publish rate was exceeded, by scope.",
    );
    text.sample(&[("scope", "connection")], of_connections);
    text.sample(&[("scope", "topic")], of_topics);
    text.family(
        "prombus_buffered_bytes",
        FamilyKind::Gauge,
        "Bytes in buffers that count against max_buffered_bytes.",
    );
    text.sample(&[], budget.used_bytes());
    text.family("prombus_bus_healthy", FamilyKind::Gauge, "1 while the bus can write.");
    text.sample(&[], u64::from(backend.health().is_ok()));
    if let Some(shared_store) = shared_store {
        shared_store.put(&mut text);
    }
    process::put(&mut text);
    text.finish()
}

/// The metrics of a follower; the leader has the others.
pub(crate) fn render_follower(
    metrics: &Metrics,
    shared_store: &SharedStoreMetrics,
    format: Format,
) -> String {
    let mut text = MetricsText::new(format);
    put_build(&mut text);
    put_connections(&mut text, metrics);
    shared_store.put(&mut text);
    process::put(&mut text);
    text.finish()
}

fn put_build(text: &mut MetricsText) {
    text.family(
        "prombus_build_info",
        FamilyKind::Info,
        "The version of this server and its platform; always 1.",
    );
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("os", std::env::consts::OS),
        ("arch", std::env::consts::ARCH),
    ];
    text.sample(&labels, 1);
}

fn put_topics(text: &mut MetricsText, figures: &Figures, labels: &mut LabelCap) {
    text.family(
        "events_published_total",
        FamilyKind::Counter,
        "Events published to a topic since it was created, without duplicates.",
    );
    for (topic, published) in labels.topics(&figures.topics) {
        text.sample(&[("topic", topic)], published);
    }
}

fn put_groups(text: &mut MetricsText, figures: &Figures, labels: &mut LabelCap) {
    let rows = labels.groups(&figures.groups);
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
    family("prombus_events_stale_total", FamilyKind::Counter, "Acks and nacks that came too late.", |it| {
        it.counters.stale
    });
    family("prombus_events_dead_lettered_total", FamilyKind::Counter, "Events that a group gave up.", |it| {
        it.counters.dead_lettered
    });
    family(
        "prombus_events_missed_total",
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
    family("prombus_group_lag_events", FamilyKind::Gauge, "Events that a group has not settled.", |it| {
        it.lag
    });
    family("prombus_group_members", FamilyKind::Gauge, "Members of a group.", |it| it.members as u64);
    put_members(text, figures, labels);
    text.family("prombus_events_redelivered_total", FamilyKind::Counter, "Redeliveries, by reason.");
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

fn put_dead_letters(text: &mut MetricsText, figures: &Figures, labels: &mut LabelCap) {
    text.family(
        "prombus_dead_letters_open",
        FamilyKind::Gauge,
        "Dead letters that are neither redriven nor discarded.",
    );
    for (topic, open) in labels.dead_letters(&figures.dead_letters) {
        text.sample(&[("topic", topic)], open);
    }
}

fn put_members(text: &mut MetricsText, figures: &Figures, labels: &LabelCap) {
    text.family(
        "prombus_member_inflight",
        FamilyKind::Gauge,
        "Deliveries that the members with this name hold and have not settled.",
    );
    for (labels, in_flight) in labels.members(&figures.groups) {
        text.sample(&labels, in_flight);
    }
}

fn put_ages(text: &mut MetricsText, figures: &Figures, ages: &[GroupAge], labels: &LabelCap) {
    text.family(
        "prombus_group_oldest_unsettled_age_seconds",
        FamilyKind::Gauge,
        "Time since the commit of the oldest event that a group has not settled; 0 if there is none.",
    );
    for (labels, age_ms) in labels.ages(&figures.groups, ages) {
        text.sample(&labels, age_ms as f64 / 1000.0);
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
    text.family(
        "prombus_commit_duration_seconds",
        FamilyKind::Histogram,
        "Duration of a commit: write and sync.",
    );
    text.histogram(&[], &store.commit_duration_seconds);
    text.family("prombus_commit_batch_events", FamilyKind::Histogram, "Events per commit.");
    text.histogram(&[], &store.commit_batch_events);
    text.family("prombus_log_bytes", FamilyKind::Gauge, "Bytes in the store.");
    text.sample(&[], store.bytes);
    text.family("prombus_events_cleaned_total", FamilyKind::Counter, "Events that cleaning removed.");
    text.sample(&[], figures.cleaned_events);
    text.family("prombus_cleaned_bytes_total", FamilyKind::Counter, "Bytes of log that cleaning removed.");
    text.sample(&[], figures.cleaned_bytes);
    text.family(
        "prombus_state_memory_bytes",
        FamilyKind::Gauge,
        "Approximate memory of the newest events by key.",
    );
    text.sample(&[], figures.state_memory_bytes);
    text.family(
        "prombus_storage_full",
        FamilyKind::Gauge,
        "1 while the disk has no room for another segment.",
    );
    text.sample(&[], u64::from(store.is_full));
    text.family("prombus_events_corrupt_total", FamilyKind::Counter, "Damaged events found.");
    text.sample(&[], store.corrupt_events);
    text.family("prombus_storage_faults_total", FamilyKind::Counter, "Damaged places found, in any file.");
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
    text.family("prombus_ws_connections", FamilyKind::Gauge, "Open WebSockets.");
    text.sample(&[], load(&metrics.ws_connections));
    text.family(
        "prombus_ws_dropped_total",
        FamilyKind::Counter,
        "WebSockets closed by the server, by reason.",
    );
    text.sample(&[("reason", "stalled")], load(&metrics.ws_stalled));
    text.sample(&[("reason", "silent")], load(&metrics.ws_silent));
    text.family("prombus_connections", FamilyKind::Gauge, "Open connections of all kinds.");
    text.sample(&[], load(&metrics.connections));
    text.family(
        "prombus_connections_refused_total",
        FamilyKind::Counter,
        "Connections refused because of max_connections.",
    );
    text.sample(&[], load(&metrics.connections_refused));
    metrics.requests.put(text);
}
