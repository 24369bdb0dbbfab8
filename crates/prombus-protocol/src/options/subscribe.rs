//! Options of a subscription.

use super::fields::{Ignored, sorted};
use super::untyped::Untyped;
use super::{Filter, OptionError, Start, check_count, check_length, check_range};
use crate::limits::{
    DEFAULT_ACK_TIMEOUT_MS, DEFAULT_BATCH_SIZE, DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_IN_FLIGHT,
    DEFAULT_MAX_UNSETTLED, MAX_ACK_TIMEOUT_MS, MAX_BATCH_SIZE, MAX_EXPIRE_MS, MAX_MAX_ATTEMPTS,
    MAX_MAX_IN_FLIGHT, MAX_MAX_UNSETTLED, MAX_MEMBER_NAME_BYTES, MAX_SUBSCRIBED_TOPICS,
};
use crate::pattern::check_pattern;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Options of a subscription, in addition to topic and group. For an option that is `None`, the method of the same name returns the
/// default.
///
/// ```
/// use prombus_protocol::{Start, SubscribeOptions};
///
/// let options = SubscribeOptions::from_json(r#"{"from": "earliest", "batchSize": 10}"#)?;
/// assert_eq!((options.from, options.batch_size(), options.max_attempts()), (Start::Earliest, 10, 5));
///
/// let error = SubscribeOptions::from_json(r#"{"batchSize": 0}"#).unwrap_err();
/// assert_eq!(error.to_string(), r#""batchSize": 0 is not allowed, only a whole number from 1 to 10000"#);
/// # Ok::<(), prombus_protocol::OptionError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Where the group starts, if this subscription creates it.
    pub from: Start,
    /// `batchSize`: the number of events that one pull leases.
    pub batch_size: Option<u32>,
    /// `maxInFlight`: the number of unsettled deliveries that this member may hold.
    pub max_in_flight: Option<u32>,
    /// `ackTimeoutMs`: the duration of a lease.
    pub ack_timeout_ms: Option<u64>,
    /// `maxAttempts`: the number of attempts after which an event becomes a dead letter.
    pub max_attempts: Option<u32>,
    /// `maxUnsettled`: the number of events of the group that may be leased or wait for redelivery.
    pub max_unsettled: Option<u32>,
    /// Further topics or patterns that the group reads.
    pub topics: Vec<String>,
    /// `manualAck`: the handler settles its events itself.
    pub manual_ack: bool,
    /// Which events the group receives; without a filter, all.
    pub filter: Option<Filter>,
    /// The member's name in lists, metrics and logs.
    pub name: Option<String>,
    /// `expireMs`: a group that this subscription creates is deleted after this time without members.
    pub expire_ms: Option<u64>,
}

/// The names that `opts` of a SUBSCRIBE may have.
pub(crate) const NAMES: [&str; 13] = [
    "from",
    "ts",
    "afterId",
    "batchSize",
    "maxInFlight",
    "ackTimeoutMs",
    "maxAttempts",
    "maxUnsettled",
    "topics",
    "manualAck",
    "filter",
    "name",
    "expireMs",
];

impl SubscribeOptions {
    /// The number of events that one pull leases; 100 by default.
    pub fn batch_size(&self) -> u32 {
        self.batch_size.unwrap_or(DEFAULT_BATCH_SIZE)
    }

    /// The number of unsettled deliveries that this member may hold; 1000 by default. Over WebSocket, the server uses
    /// [`DEFAULT_MAX_IN_FLIGHT_WEBSOCKET`](crate::limits::DEFAULT_MAX_IN_FLIGHT_WEBSOCKET) instead.
    pub fn max_in_flight(&self) -> u32 {
        self.max_in_flight.unwrap_or(DEFAULT_MAX_IN_FLIGHT)
    }

    /// The duration of a lease; 30 seconds by default.
    pub fn ack_timeout_ms(&self) -> u64 {
        self.ack_timeout_ms.unwrap_or(DEFAULT_ACK_TIMEOUT_MS)
    }

    /// The number of attempts after which an event becomes a dead letter; 5 by default.
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS)
    }

    /// The number of events of the group that may be leased or wait for redelivery; 100,000 by default.
    pub fn max_unsettled(&self) -> u32 {
        self.max_unsettled.unwrap_or(DEFAULT_MAX_UNSETTLED)
    }

    /// Whether no option is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// Names the field, its value and what is allowed.
    pub fn check(&self) -> Result<(), OptionError> {
        self.from.check()?;
        let numbers = [
            ("batchSize", self.batch_size.map(u64::from), u64::from(MAX_BATCH_SIZE)),
            ("maxInFlight", self.max_in_flight.map(u64::from), u64::from(MAX_MAX_IN_FLIGHT)),
            ("ackTimeoutMs", self.ack_timeout_ms, MAX_ACK_TIMEOUT_MS),
            ("maxAttempts", self.max_attempts.map(u64::from), u64::from(MAX_MAX_ATTEMPTS)),
            ("maxUnsettled", self.max_unsettled.map(u64::from), u64::from(MAX_MAX_UNSETTLED)),
            ("expireMs", self.expire_ms, MAX_EXPIRE_MS),
        ];
        for (field, number, most) in numbers {
            if let Some(number) = number {
                check_range(field, i64::try_from(number).unwrap_or(i64::MAX), 1, most as i64)?;
            }
        }
        if let Some(name) = &self.name {
            check_length("name", name, 1, MAX_MEMBER_NAME_BYTES)?;
        }
        check_count("topics", self.topics.len(), MAX_SUBSCRIBED_TOPICS)?;
        for topic in &self.topics {
            check_pattern(topic)
                .map_err(|source| OptionError::Topic { field: "topics".to_owned(), source })?;
        }
        self.filter.as_ref().map_or(Ok(()), Filter::check)
    }

    /// Reads and checks options. Unknown fields are ignored.
    ///
    /// # Errors
    /// Names the field, the value and what is allowed.
    pub fn from_json(json: &str) -> Result<Self, OptionError> {
        Self::from_json_noting(json, &mut Ignored::default())
    }

    pub(crate) fn from_json_noting(json: &str, ignored: &mut Ignored) -> Result<Self, OptionError> {
        Self::from_untyped(Untyped::parse(json).map_err(OptionError::unreadable)?, ignored)
    }

    fn from_untyped(value: Untyped<'_>, ignored: &mut Ignored) -> Result<Self, OptionError> {
        let Some(value) = value.into_option() else { return Ok(Self::default()) };
        let [
            from,
            ts,
            after_id,
            batch,
            in_flight,
            lease,
            attempts,
            unsettled,
            topics,
            manual,
            filter,
            name,
            expire,
        ] = sorted(value.map("opts")?, &NAMES, ignored)?;
        let topics = topics.map(|topics| topics.list("topics")).transpose()?.unwrap_or_default();
        let options = Self {
            from: Start::from_parts(from, ts, after_id, ignored)?,
            batch_size: whole(batch, "batchSize", MAX_BATCH_SIZE)?,
            max_in_flight: whole(in_flight, "maxInFlight", MAX_MAX_IN_FLIGHT)?,
            ack_timeout_ms: whole_ms(lease, "ackTimeoutMs", MAX_ACK_TIMEOUT_MS)?,
            max_attempts: whole(attempts, "maxAttempts", MAX_MAX_ATTEMPTS)?,
            max_unsettled: whole(unsettled, "maxUnsettled", MAX_MAX_UNSETTLED)?,
            topics: topics
                .into_iter()
                .map(|topic| Ok(topic.text("topics")?.into()))
                .collect::<Result<_, _>>()?,
            manual_ack: manual.map(|flag| flag.bool("manualAck")).transpose()?.unwrap_or_default(),
            // An empty filter is the same as none, so that a member with an empty filter and one without a filter do not conflict.
            filter: filter.map(Filter::from_untyped).transpose()?.filter(|filter| !filter.is_empty()),
            name: name.map(|name| name.text("name")).transpose()?.map(Into::into),
            expire_ms: whole_ms(expire, "expireMs", MAX_EXPIRE_MS)?,
        };
        options.check()?;
        Ok(options)
    }
}

fn whole(value: Option<Untyped<'_>>, field: &str, most: u32) -> Result<Option<u32>, OptionError> {
    Ok(whole_ms(value, field, u64::from(most))?.map(|number| number as u32))
}

fn whole_ms(value: Option<Untyped<'_>>, field: &str, most: u64) -> Result<Option<u64>, OptionError> {
    let number = value.map(|value| value.whole(field, 1, most as i64)).transpose()?;
    Ok(number.map(i64::unsigned_abs))
}

impl<'de> Deserialize<'de> for SubscribeOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Untyped::deserialize(deserializer)?;
        Self::from_untyped(value, &mut Ignored::default()).map_err(serde::de::Error::custom)
    }
}

impl Serialize for SubscribeOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.from != Start::Latest {
            map.serialize_entry("from", self.from.name())?;
        }
        match self.from {
            Start::Ts(ts) => map.serialize_entry("ts", &ts)?,
            Start::AfterId(id) => map.serialize_entry("afterId", &id)?,
            Start::Latest | Start::Earliest => {}
        }
        let numbers = [
            ("batchSize", self.batch_size.map(u64::from)),
            ("maxInFlight", self.max_in_flight.map(u64::from)),
            ("ackTimeoutMs", self.ack_timeout_ms),
            ("maxAttempts", self.max_attempts.map(u64::from)),
            ("maxUnsettled", self.max_unsettled.map(u64::from)),
            ("expireMs", self.expire_ms),
        ];
        for (field, number) in numbers {
            if let Some(number) = number {
                map.serialize_entry(field, &number)?;
            }
        }
        if !self.topics.is_empty() {
            map.serialize_entry("topics", &self.topics)?;
        }
        if self.manual_ack {
            map.serialize_entry("manualAck", &true)?;
        }
        if let Some(filter) = &self.filter {
            map.serialize_entry("filter", filter)?;
        }
        if let Some(name) = &self.name {
            map.serialize_entry("name", name)?;
        }
        map.end()
    }
}
