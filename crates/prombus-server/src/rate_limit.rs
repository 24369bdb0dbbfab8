//! Rate limits: token buckets per connection and per topic.

use crate::clock::steady_ms;
use crate::options::{Rate, RateOptions};
use parking_lot::{Mutex, RwLock};
use prombus::Backend;
use prombus_protocol::Pattern;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// When there are this many buckets of topics, the full ones are dropped before another is added. A new bucket is full too, so
/// nothing changes for the topics of the dropped buckets.
const TOPIC_BUCKETS_MAX: usize = 10_000;

/// A token bucket. It has no clock: the caller passes the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    rate: Rate,
    /// The tokens at `at_ms`; negative while there is a debt.
    tokens: f64,
    /// The time of the last refill, on the steady clock.
    at_ms: u64,
}

/// A publish rate is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} publish rate exceeded; try again in {retry_after_ms} ms")]
pub(crate) struct RateLimited {
    /// Whose rate: `connection` or `topic`.
    pub(crate) what: &'static str,
    /// After how many milliseconds a retry can succeed.
    pub(crate) retry_after_ms: u64,
}

impl TokenBucket {
    pub(crate) fn new(rate: Rate, now_ms: u64) -> Self {
        Self { rate, tokens: rate.burst, at_ms: now_ms }
    }

    fn refill(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.at_ms) as f64;
        self.tokens = (self.tokens + passed_ms / 1000.0 * self.rate.per_second).min(self.rate.burst);
        self.at_ms = self.at_ms.max(now_ms);
    }

    /// How long until `count` tokens may be taken; zero if now. A full bucket allows any count, even one above its size: the
    /// missing tokens become a debt.
    pub(crate) fn wait_ms(&mut self, count: u32, now_ms: u64) -> u64 {
        self.refill(now_ms);
        let missing = f64::from(count).min(self.rate.burst) - self.tokens;
        if missing <= 1e-9 {
            return 0;
        }
        ((missing / self.rate.per_second * 1000.0).ceil() as u64).max(1)
    }

    /// Takes tokens, even if the bucket has fewer.
    pub(crate) fn take(&mut self, count: u32, now_ms: u64) {
        self.refill(now_ms);
        self.tokens -= f64::from(count);
    }

    /// How many tokens are available.
    pub(crate) fn available(&mut self, now_ms: u64) -> u32 {
        self.refill(now_ms);
        self.tokens.max(0.0) as u32
    }

    fn is_full(&mut self, now_ms: u64) -> bool {
        self.refill(now_ms);
        self.tokens >= self.rate.burst
    }
}

/// The publish rate of a connection: its bucket, or none if the rate is not limited.
#[derive(Debug)]
pub(crate) struct ConnectionRate {
    bucket: Option<Mutex<TokenBucket>>,
}

/// The rate limits of a server.
pub(crate) struct Rates {
    options: RateOptions,
    /// The buckets of topics that have a publish rate.
    topics: Mutex<HashMap<String, TokenBucket>>,
    /// The publish rates of topics, as of `rules_version`. The first pattern that matches a topic applies.
    rules: RwLock<Vec<(Pattern, Option<Rate>)>>,
    /// The version of the backend's settings from which `rules` were copied.
    rules_version: AtomicU64,
    /// Whether any of the `rules` has a rate.
    has_rules: AtomicBool,
    refusals: Arc<RateRefusals>,
}

/// Number of events that were refused because a rate was exceeded.
#[derive(Debug, Default)]
pub(crate) struct RateRefusals {
    /// Because of the rate of a connection.
    connection: AtomicU64,
    /// Because of the rate of a topic.
    topic: AtomicU64,
}

impl Rates {
    pub(crate) fn new(options: RateOptions, refusals: Arc<RateRefusals>) -> Self {
        Self {
            options,
            topics: Mutex::default(),
            rules: RwLock::default(),
            rules_version: AtomicU64::new(0),
            has_rules: AtomicBool::new(false),
            refusals,
        }
    }

    /// Creates the publish rate of a new connection.
    pub(crate) fn connection(&self) -> ConnectionRate {
        let bucket = self.options.connection_publish.map(|rate| TokenBucket::new(rate, steady_ms()));
        ConnectionRate { bucket: bucket.map(Mutex::new) }
    }

    /// Creates the bucket for the events that are sent on a connection; `None` if their rate is not limited.
    pub(crate) fn deliveries(&self) -> Option<TokenBucket> {
        self.options.connection_deliver.map(|rate| TokenBucket::new(rate, steady_ms()))
    }

    /// Takes the tokens for `count` events from the bucket of the connection and that of the topic. If one of them has too few,
    /// takes none.
    pub(crate) fn take_publish(
        &self,
        backend: &dyn Backend,
        connection: &ConnectionRate,
        topic: &str,
        count: u32,
    ) -> Result<(), RateLimited> {
        self.refresh(backend);
        let of_topic = self.topic_rate(topic);
        if connection.bucket.is_none() && of_topic.is_none() {
            return Ok(());
        }
        let now_ms = steady_ms();
        let mut own = connection.bucket.as_ref().map(Mutex::lock);
        if let Some(bucket) = &mut own {
            let retry_after_ms = bucket.wait_ms(count, now_ms);
            if retry_after_ms > 0 {
                self.refusals.connection.fetch_add(u64::from(count), Ordering::Relaxed);
                return Err(RateLimited { what: "connection", retry_after_ms });
            }
        }
        if let Some(rate) = of_topic {
            let mut topics = self.topics.lock();
            if topics.len() >= TOPIC_BUCKETS_MAX && !topics.contains_key(topic) {
                topics.retain(|_, bucket| !bucket.is_full(now_ms));
            }
            let bucket = match topics.get_mut(topic) {
                Some(bucket) => bucket,
                None => topics.entry(topic.to_owned()).or_insert(TokenBucket::new(rate, now_ms)),
            };
            let retry_after_ms = bucket.wait_ms(count, now_ms);
            if retry_after_ms > 0 {
                self.refusals.topic.fetch_add(u64::from(count), Ordering::Relaxed);
                return Err(RateLimited { what: "topic", retry_after_ms });
            }
            bucket.take(count, now_ms);
        }
        if let Some(bucket) = &mut own {
            bucket.take(count, now_ms);
        }
        Ok(())
    }

    /// Copies the publish rates from the backend, if the settings of topics have changed.
    fn refresh(&self, backend: &dyn Backend) {
        let version = backend.settings_version();
        if self.rules_version.load(Ordering::Acquire) == version {
            return;
        }
        let rates = backend.publish_rates().into_iter().map(|(pattern, rate)| {
            (pattern, rate.map(|rate| Rate { per_second: rate.per_second, burst: rate.burst }))
        });
        let mut rules = self.rules.write();
        *rules = rates.collect();
        self.has_rules.store(rules.iter().any(|(_, rate)| rate.is_some()), Ordering::Release);
        // The existing buckets use the old rates.
        self.topics.lock().clear();
        self.rules_version.store(version, Ordering::Release);
    }

    /// The rate of a topic: that of the first rule that matches.
    fn topic_rate(&self, topic: &str) -> Option<Rate> {
        if !self.has_rules.load(Ordering::Acquire) {
            return None;
        }
        let rules = self.rules.read();
        let of_topic = rules.iter().find(|(pattern, _)| covers(pattern, topic));
        of_topic.and_then(|(_, rate)| *rate)
    }

    /// Number of events refused because of a connection's rate, and because of a topic's rate.
    pub(crate) fn refusals(&self) -> (u64, u64) {
        let RateRefusals { connection, topic } = &*self.refusals;
        (connection.load(Ordering::Relaxed), topic.load(Ordering::Relaxed))
    }
}

/// Whether a rule with this pattern applies to the topic. Unlike in [`Pattern::matches`], `**` also covers `dlq.` topics, so that
/// a limit on `**` applies to every topic.
fn covers(pattern: &Pattern, topic: &str) -> bool {
    pattern.as_str() == "**" || pattern.matches(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { per_second: 200.0, burst: 200.0 };

    #[test]
    fn a_bucket_allows_a_burst_and_then_the_rate() {
        let mut bucket = TokenBucket::new(RATE, 0);
        for _ in 0..200 {
            assert_eq!(bucket.wait_ms(1, 0), 0);
            bucket.take(1, 0);
        }
        assert_eq!(bucket.wait_ms(1, 0), 5);
        assert_eq!(bucket.wait_ms(1, 4), 1);
        assert_eq!(bucket.wait_ms(1, 5), 0);
    }

    #[test]
    fn a_full_bucket_allows_more_than_it_holds_and_goes_into_debt() {
        let mut bucket = TokenBucket::new(RATE, 0);
        assert_eq!(bucket.wait_ms(1000, 0), 0);
        bucket.take(1000, 0);
        assert_eq!(bucket.wait_ms(1, 0), 4005);
        assert_eq!(bucket.available(0), 0);
    }

    #[test]
    fn a_refused_publish_takes_no_tokens() {
        let options = RateOptions {
            connection_publish: Some(Rate { per_second: 1.0, burst: 2.0 }),
            ..RateOptions::default()
        };
        let rates = Rates::new(options, Arc::default());
        let slow = prombus::TopicOptions {
            publish_rate: Some(0.001),
            publish_burst: Some(1.0),
            ..prombus::TopicOptions::default()
        };
        let rule = prombus::TopicRule { name: Pattern::new("a").expect("a pattern"), options: slow };
        let bus = prombus::Bus::builder().topic(rule).memory().expect("a bus");
        let bus = &**bus.backend();
        let connection = rates.connection();
        assert!(rates.take_publish(bus, &connection, "a", 1).is_ok());
        let refused = rates.take_publish(bus, &connection, "a", 1).expect_err("the topic's burst is one");
        assert_eq!(refused.what, "topic");
        // The connection's second token is still there.
        assert!(rates.take_publish(bus, &connection, "b", 1).is_ok());
        assert_eq!(
            rates.take_publish(bus, &connection, "b", 1).expect_err("two were taken").what,
            "connection"
        );
        assert_eq!(rates.refusals(), (1, 1));
    }

    #[test]
    fn a_clock_that_stops_or_goes_back_adds_no_tokens() {
        let mut bucket = TokenBucket::new(Rate { per_second: 1.0, burst: 1.0 }, 1000);
        bucket.take(1, 1000);
        assert_eq!(bucket.wait_ms(1, 500), 1000);
        assert_eq!(bucket.wait_ms(1, 1500), 500);
    }
}
