//! Rate limits: token buckets per connection and per topic.

use crate::clock::steady_ms;
use crate::live::Live;
use crate::options::Rate;
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

/// The publish rate of a connection. A reload may change it.
#[derive(Debug)]
pub(crate) struct ConnectionRate {
    /// `None` if the rate is not limited.
    bucket: Mutex<Option<TokenBucket>>,
    /// Whether there is a bucket.
    is_limited: AtomicBool,
    /// The version of the live options that `bucket` is from.
    version: AtomicU64,
}

/// The rate of the events that are sent on one connection. A reload may change it.
#[derive(Debug)]
pub(crate) struct DeliveryBucket {
    /// `None` if the rate is not limited.
    bucket: Option<TokenBucket>,
    /// The version of the live options that `bucket` is from.
    version: u64,
}

impl DeliveryBucket {
    /// A bucket of a server that was never reloaded.
    #[cfg(test)]
    pub(crate) fn of(bucket: Option<TokenBucket>) -> Self {
        Self { bucket, version: 0 }
    }

    /// Applies a change of the configured rate.
    pub(crate) fn refresh(&mut self, rates: &Rates) {
        let version = rates.live.version();
        if version != self.version {
            self.version = version;
            replace_rate(&mut self.bucket, rates.live.current().rates.connection_deliver);
        }
    }

    /// How long until `count` events may be sent; zero if now.
    pub(crate) fn wait_ms(&mut self, count: u32, now_ms: u64) -> u64 {
        self.bucket.as_mut().map_or(0, |bucket| bucket.wait_ms(count, now_ms))
    }

    /// How many events may be sent.
    pub(crate) fn available(&mut self, now_ms: u64) -> u32 {
        self.bucket.as_mut().map_or(u32::MAX, |bucket| bucket.available(now_ms))
    }

    /// Takes the tokens of events that were sent.
    pub(crate) fn take(&mut self, count: u32, now_ms: u64) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(count, now_ms);
        }
    }

    /// Whether the rate is limited.
    pub(crate) fn is_limited(&self) -> bool {
        self.bucket.is_some()
    }
}

/// Replaces a bucket if its rate has changed. The new bucket is full.
fn replace_rate(bucket: &mut Option<TokenBucket>, rate: Option<Rate>) {
    if bucket.as_ref().map(|bucket| bucket.rate) != rate {
        *bucket = rate.map(|rate| TokenBucket::new(rate, steady_ms()));
    }
}

/// The rate limits of a server.
pub(crate) struct Rates {
    /// The rates of connections.
    live: Arc<Live>,
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
    pub(crate) fn new(live: Arc<Live>, refusals: Arc<RateRefusals>) -> Self {
        Self {
            live,
            topics: Mutex::default(),
            rules: RwLock::default(),
            rules_version: AtomicU64::new(0),
            has_rules: AtomicBool::new(false),
            refusals,
        }
    }

    /// Creates the publish rate of a new connection.
    pub(crate) fn connection(&self) -> ConnectionRate {
        let version = self.live.version();
        let rate = self.live.current().rates.connection_publish;
        ConnectionRate {
            bucket: Mutex::new(rate.map(|rate| TokenBucket::new(rate, steady_ms()))),
            is_limited: AtomicBool::new(rate.is_some()),
            version: AtomicU64::new(version),
        }
    }

    /// Creates the bucket for the events that are sent on a connection.
    pub(crate) fn deliveries(&self) -> DeliveryBucket {
        let version = self.live.version();
        let rate = self.live.current().rates.connection_deliver;
        DeliveryBucket { bucket: rate.map(|rate| TokenBucket::new(rate, steady_ms())), version }
    }

    /// Applies a reload to the publish rate of a connection.
    #[cold]
    fn refresh_connection(&self, connection: &ConnectionRate) {
        let version = self.live.version();
        let mut bucket = connection.bucket.lock();
        replace_rate(&mut bucket, self.live.current().rates.connection_publish);
        connection.is_limited.store(bucket.is_some(), Ordering::Relaxed);
        connection.version.store(version, Ordering::Release);
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
        if connection.version.load(Ordering::Acquire) != self.live.version() {
            self.refresh_connection(connection);
        }
        let of_topic = self.topic_rate(topic);
        if !connection.is_limited.load(Ordering::Relaxed) && of_topic.is_none() {
            return Ok(());
        }
        let now_ms = steady_ms();
        let mut own = connection.bucket.lock();
        if let Some(bucket) = &mut *own {
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
        if let Some(bucket) = &mut *own {
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
    use crate::live::LiveOptions;
    use crate::options::{RateOptions, ServerOptions};

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

    fn rates_of(rates: RateOptions) -> Rates {
        Rates::new(Arc::new(Live::new(live_options(rates))), Arc::default())
    }

    fn live_options(rates: RateOptions) -> LiveOptions {
        LiveOptions::new(&ServerOptions { rates, ..ServerOptions::default() }, None).expect("valid options")
    }

    #[test]
    fn a_reload_changes_the_rates_of_open_connections() {
        let bus = prombus::Bus::memory();
        let bus = &**bus.backend();
        let rates = rates_of(RateOptions::default());
        let (connection, mut deliveries) = (rates.connection(), rates.deliveries());
        let slow = Some(Rate { per_second: 0.001, burst: 1.0 });
        let limited = RateOptions { connection_publish: slow, connection_deliver: slow };
        for _ in 0..2 {
            assert!(rates.take_publish(bus, &connection, "a", 5).is_ok());
            rates.live.replace(live_options(limited.clone()));
            // The same rate again does not fill the bucket.
            for expected in [true, false] {
                assert_eq!(rates.take_publish(bus, &connection, "a", 1).is_ok(), expected);
                rates.live.replace(live_options(limited.clone()));
            }
            deliveries.refresh(&rates);
            assert!(deliveries.is_limited());
            rates.live.replace(live_options(RateOptions::default()));
            deliveries.refresh(&rates);
            assert!(!deliveries.is_limited());
        }
    }

    #[test]
    fn a_refused_publish_takes_no_tokens() {
        let options = RateOptions {
            connection_publish: Some(Rate { per_second: 1.0, burst: 2.0 }),
            ..RateOptions::default()
        };
        let rates = rates_of(options);
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
