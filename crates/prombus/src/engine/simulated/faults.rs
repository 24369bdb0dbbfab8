//! The behaviour of the simulated network: its options, and the seeded choices that follow from them.

use crate::engine::network::NetworkLimits;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Options of the network between an engine and its database. All probabilities are from 0 to 1.
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// The seed of all latencies and faults.
    pub seed: u64,
    /// The round-trip time of a commit, in microseconds of real time.
    pub commit_latency_us: RangeInclusive<u64>,
    /// The round-trip time of a read, in microseconds of real time. Reads may overtake each other.
    pub read_latency_us: RangeInclusive<u64>,
    /// If a commit gets no response for this many microseconds, the engine looks for the commit's fence: the entry in the
    /// database that shows that it was applied.
    pub answer_timeout_us: u64,
    /// The probability that a commit is applied and its response is lost.
    pub lost_answers: f64,
    /// The probability that a commit is lost before it is applied.
    pub lost_requests: f64,
    /// The probability that a commit arrives late: after the engine has looked for the commit's fence in vain, and before the
    /// engine sends the commit again.
    pub late_requests: f64,
    /// The probability that a short outage precedes a commit.
    pub outages: f64,
    /// The duration of such an outage, in microseconds.
    pub outage_us: RangeInclusive<u64>,
    /// See [`NetworkLimits::queue_bytes_max`].
    pub queue_bytes_max: usize,
    /// See [`NetworkLimits::queue_batches_max`].
    pub queue_batches_max: usize,
    /// The maximum size of a commit. A larger batch is refused.
    pub commit_bytes_max: usize,
    /// The maximum size of one fetch of a scanner.
    pub fetch_bytes_max: usize,
    /// The maximum size of the tail cache: the newest events of all topics, kept in memory and read without a request.
    pub tail_bytes: usize,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            commit_latency_us: 0..=3_000,
            read_latency_us: 0..=3_000,
            answer_timeout_us: 5_000,
            lost_answers: 0.0,
            lost_requests: 0.0,
            late_requests: 0.0,
            outages: 0.0,
            outage_us: 1_000..=20_000,
            queue_bytes_max: 8 << 20,
            queue_batches_max: 10_000,
            commit_bytes_max: 48 << 20,
            fetch_bytes_max: 64 << 10,
            tail_bytes: 0,
        }
    }
}

/// What happens to the request or the response of a commit in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    AnswerLost,
    RequestLost,
    RequestLate,
}

impl NetworkOptions {
    pub(super) fn fault(&self, random: &mut Random) -> Fault {
        if random.happens(self.lost_answers) {
            Fault::AnswerLost
        } else if random.happens(self.lost_requests) {
            Fault::RequestLost
        } else if random.happens(self.late_requests) {
            Fault::RequestLate
        } else {
            Fault::None
        }
    }

    /// The limits of an engine on this network.
    pub(super) fn limits(&self) -> NetworkLimits {
        NetworkLimits {
            queue_bytes_max: self.queue_bytes_max,
            queue_batches_max: self.queue_batches_max,
            commit_bytes_max: self.commit_bytes_max,
            commit_bytes_target: self.commit_bytes_max,
            fetch_bytes_max: self.fetch_bytes_max,
            tail_bytes: self.tail_bytes,
            compaction_bytes_min: 64 << 10,
            threads: 1,
            ..NetworkLimits::default()
        }
    }

    pub(super) fn answer_timeout(&self) -> Duration {
        Duration::from_micros(self.answer_timeout_us)
    }
}

/// A repeatable source of random choices.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// Decides whether the network fails now, and for how long; `None` if it does not fail.
    pub(super) fn outage(&mut self, options: &NetworkOptions) -> Option<Duration> {
        self.happens(options.outages).then(|| self.duration_us(&options.outage_us))
    }

    pub(super) fn duration_us(&mut self, range: &RangeInclusive<u64>) -> Duration {
        let width = range.end().saturating_sub(*range.start()).saturating_add(1);
        Duration::from_micros(range.start() + self.next() % width)
    }
}
