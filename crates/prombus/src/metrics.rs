//! Figures for operators: histograms, and the structs that report counters. The server and the CLI render them. Per-event
//! counters are updated where the event is handled, under a lock that is held anyway, so that metrics cost a publish only a
//! few additions per batch.

use crate::delivery::GroupCounters;
use prombus_protocol::Topic;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts values into buckets. A concurrent reader may see a value in its bucket before it is in the sum.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One bucket per bound, and a last one for values above all bounds.
    buckets: Box<[AtomicU64]>,
    /// The bits of an `f64`. An integer would overflow: an ack of an event with a `ts` near 1970 adds 10^12 milliseconds.
    sum: AtomicU64,
}

/// The contents of a [`Histogram`] at some time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramFigures {
    /// The upper bounds of the buckets.
    pub bounds: &'static [f64],
    /// How many values are in each bucket (not cumulative); the additional last bucket is for values above the last bound.
    pub buckets: Vec<u64>,
    /// The sum of all values.
    pub sum: f64,
}

impl Histogram {
    /// An empty histogram with these upper bounds, in rising order.
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = std::iter::repeat_with(AtomicU64::default).take(bounds.len() + 1).collect();
        Self { bounds, buckets, sum: AtomicU64::new(0f64.to_bits()) }
    }

    /// Counts a value.
    pub fn observe(&self, value: f64) {
        self.observe_many(value, 1);
    }

    /// Counts the same value `count` times.
    pub fn observe_many(&self, value: f64, count: u64) {
        let at = self.bounds.iter().position(|&bound| value <= bound).unwrap_or(self.bounds.len());
        self.buckets[at].fetch_add(count, Ordering::Relaxed);
        let added = value.max(0.0) * count as f64;
        let add = |bits| Some((f64::from_bits(bits) + added).to_bits());
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Its current contents.
    pub fn figures(&self) -> HistogramFigures {
        HistogramFigures {
            bounds: self.bounds,
            buckets: self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect(),
            sum: f64::from_bits(self.sum.load(Ordering::Relaxed)),
        }
    }
}

/// Figures of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreFigures {
    /// How long the write and the sync of a commit took.
    pub commit_duration_seconds: HistogramFigures,
    /// How many events share a commit.
    pub commit_batch_events: HistogramFigures,
    /// Bytes that it keeps.
    pub bytes: u64,
    /// Whether the storage is full or almost full.
    pub is_full: bool,
    /// Damaged places that were found since it was opened.
    pub faults: u64,
    /// Reads that failed since it was opened.
    pub read_errors: u64,
    /// Events that cannot be read now.
    pub events_unreadable: u64,
    /// Why these events cannot be read, in words.
    pub read_problem: Option<String>,
    /// Damaged events that were found since it was opened. The log counts an event only the first time; an engine on the
    /// network counts it again when it is read again.
    pub corrupt_events: u64,
}

/// Figures of a backend that are cheap to collect.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Figures of its store.
    pub store: StoreFigures,
    /// Topics, in the order of their names.
    pub topics: Vec<TopicFigures>,
    /// Groups, in the order in which they were created.
    pub groups: Vec<GroupFigures>,
    /// Dead-letter topics, in the order of their names.
    pub dead_letters: Vec<DeadLetterFigures>,
    /// Events that cleaning removed since the bus was opened.
    pub cleaned_events: u64,
    /// Bytes that the removed events took.
    pub cleaned_bytes: u64,
    /// Memory that the newest-event-by-key maps take, approximately.
    pub state_memory_bytes: u64,
}

/// A topic.
#[derive(Clone, Debug)]
pub struct TopicFigures {
    /// Its name.
    pub topic: Topic,
    /// Events that were published to it, ever.
    pub published: u64,
}

/// A dead-letter topic.
#[derive(Clone, Debug)]
pub struct DeadLetterFigures {
    /// Its name.
    pub topic: Topic,
    /// The letters in it that are neither redriven nor discarded.
    pub open: u64,
}

/// A group.
#[derive(Clone, Debug)]
pub struct GroupFigures {
    /// The subscription as written.
    pub topic: String,
    /// Its name.
    pub group: String,
    /// Counters since the bus was opened.
    pub counters: GroupCounters,
    /// Events that it has not settled.
    pub lag: u64,
    /// Deliveries that members have not settled.
    pub in_flight: usize,
    /// The part of `in_flight` that belongs to members with a label, i.e. to members outside this process.
    pub in_flight_outside: usize,
    /// How many members it has.
    pub members: usize,
    /// Unsettled deliveries of named members, by name.
    pub by_name: BTreeMap<String, usize>,
}

/// The age of a group's oldest unsettled event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupAge {
    /// The subscription as written.
    pub topic: String,
    /// The name of the group.
    pub group: String,
    /// Time since the event was committed; zero if the group has settled all events. `None` if it is not known at the moment.
    pub age_ms: Option<u64>,
}

/// Upper bounds of the buckets for the duration of a commit, in seconds.
pub(crate) const COMMIT_SECONDS_BOUNDS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];
/// Upper bounds of the buckets for the number of events in a commit.
pub(crate) const COMMIT_EVENTS_BOUNDS: &[f64] =
    &[1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_the_first_bucket_that_holds_them() {
        let histogram = Histogram::new(&[1.0, 5.0]);
        histogram.observe(1.0);
        histogram.observe_many(4.5, 3);
        histogram.observe(100.0);
        let figures = histogram.figures();
        assert_eq!(figures.buckets, [1, 3, 1]);
        assert!((figures.sum - 114.5).abs() < 1e-9);
    }

    #[test]
    fn latencies_of_events_with_a_very_old_ts_do_not_make_the_sum_wrap() {
        let histogram = Histogram::new(&[1.0]);
        let since_1970_ms = 1.8e12;
        histogram.observe_many(since_1970_ms, 100_000_000);
        assert!((histogram.figures().sum / 1.8e20 - 1.0).abs() < 1e-9);
    }
}
