//! Options of a subscription.

use super::loose::Loose;
use super::{Filter, OptionError, Start, check_count, check_range};
use crate::limits::{
    DEFAULT_ACK_TIMEOUT_MS, DEFAULT_BATCH_SIZE, DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_IN_FLIGHT,
    DEFAULT_MAX_UNSETTLED, MAX_ACK_TIMEOUT_MS, MAX_BATCH_SIZE, MAX_MAX_ATTEMPTS, MAX_MAX_IN_FLIGHT,
    MAX_MAX_UNSETTLED, MAX_SUBSCRIBED_TOPICS,
};
use crate::pattern::check_pattern;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a subscriber may say beside topic and group. A number that is `None` has the default that its method gives.
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
    /// Where a group starts that does not exist yet.
    pub from: Start,
    /// `batchSize`: events that one pull leases.
    pub batch_size: Option<u32>,
    /// `maxInFlight`: deliveries that this member may hold unsettled.
    pub max_in_flight: Option<u32>,
    /// `ackTimeoutMs`: how long a lease runs.
    pub ack_timeout_ms: Option<u64>,
    /// `maxAttempts`: deliveries of an event before it becomes a dead letter.
    pub max_attempts: Option<u32>,
    /// `maxUnsettled`: events of the group that may be leased or wait for redelivery.
    pub max_unsettled: Option<u32>,
    /// More topics or patterns that the group reads.
    pub topics: Vec<String>,
    /// `manualAck`: the handler settles its events itself.
    pub manual_ack: bool,
    /// Which events the group wants; all if there is none.
    pub filter: Option<Filter>,
}

impl SubscribeOptions {
    /// Events that one pull leases; 100 unless said.
    pub fn batch_size(&self) -> u32 {
        self.batch_size.unwrap_or(DEFAULT_BATCH_SIZE)
    }

    /// Deliveries that this member may hold unsettled; 1000 unless said. (Over WebSocket the default is
    /// [`DEFAULT_MAX_IN_FLIGHT_WEBSOCKET`](crate::limits::DEFAULT_MAX_IN_FLIGHT_WEBSOCKET).)
    pub fn max_in_flight(&self) -> u32 {
        self.max_in_flight.unwrap_or(DEFAULT_MAX_IN_FLIGHT)
    }

    /// How long a lease runs; 30 seconds unless said.
    pub fn ack_timeout_ms(&self) -> u64 {
        self.ack_timeout_ms.unwrap_or(DEFAULT_ACK_TIMEOUT_MS)
    }

    /// Deliveries of an event before it becomes a dead letter; 5 unless said.
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS)
    }

    /// Events of the group that may be leased or wait for redelivery; 100,000 unless said.
    pub fn max_unsettled(&self) -> u32 {
        self.max_unsettled.unwrap_or(DEFAULT_MAX_UNSETTLED)
    }

    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// Names the field, what it is and what is allowed.
    pub fn check(&self) -> Result<(), OptionError> {
        self.from.check()?;
        let numbers = [
            ("batchSize", self.batch_size.map(u64::from), u64::from(MAX_BATCH_SIZE)),
            ("maxInFlight", self.max_in_flight.map(u64::from), u64::from(MAX_MAX_IN_FLIGHT)),
            ("ackTimeoutMs", self.ack_timeout_ms, MAX_ACK_TIMEOUT_MS),
            ("maxAttempts", self.max_attempts.map(u64::from), u64::from(MAX_MAX_ATTEMPTS)),
            ("maxUnsettled", self.max_unsettled.map(u64::from), u64::from(MAX_MAX_UNSETTLED)),
        ];
        for (field, number, most) in numbers {
            if let Some(number) = number {
                check_range(field, i64::try_from(number).unwrap_or(i64::MAX), 1, most as i64)?;
            }
        }
        check_count("topics", self.topics.len(), MAX_SUBSCRIBED_TOPICS)?;
        for topic in &self.topics {
            check_pattern(topic)
                .map_err(|source| OptionError::Topic { field: "topics".to_owned(), source })?;
        }
        self.filter.as_ref().map_or(Ok(()), Filter::check)
    }

    /// Reads and checks options.
    ///
    /// # Errors
    /// Names the field, what came and what is allowed.
    pub fn from_json(json: &str) -> Result<Self, OptionError> {
        Self::from_loose(Loose::parse(json).map_err(OptionError::unreadable)?)
    }

    pub(crate) fn from_loose(value: Loose<'_>) -> Result<Self, OptionError> {
        let mut options = Self::default();
        let Some(value) = value.into_option() else { return Ok(options) };
        let (mut from, mut ts, mut after_id) = (None, None, None);
        for (name, value) in value.map("opts")? {
            let value = value.into_option();
            match &*name {
                "from" => from = value,
                "ts" => ts = value,
                "afterId" => after_id = value,
                "batchSize" => options.batch_size = whole(value, "batchSize", MAX_BATCH_SIZE)?,
                "maxInFlight" => options.max_in_flight = whole(value, "maxInFlight", MAX_MAX_IN_FLIGHT)?,
                "ackTimeoutMs" => {
                    options.ack_timeout_ms =
                        whole(value, "ackTimeoutMs", MAX_ACK_TIMEOUT_MS as u32)?.map(u64::from);
                }
                "maxAttempts" => options.max_attempts = whole(value, "maxAttempts", MAX_MAX_ATTEMPTS)?,
                "maxUnsettled" => options.max_unsettled = whole(value, "maxUnsettled", MAX_MAX_UNSETTLED)?,
                "topics" => {
                    let topics = value.map(|topics| topics.list("topics")).transpose()?.unwrap_or_default();
                    options.topics = topics
                        .into_iter()
                        .map(|topic| Ok(topic.text("topics")?.into()))
                        .collect::<Result<_, _>>()?;
                }
                "manualAck" => {
                    options.manual_ack =
                        value.map(|flag| flag.bool("manualAck")).transpose()?.unwrap_or_default();
                }
                "filter" => {
                    let filter = value.map(Filter::from_loose).transpose()?;
                    // Two members, one with no filter and one with an empty one, agree.
                    options.filter = filter.filter(|filter| !filter.is_empty());
                }
                _ => {}
            }
        }
        options.from = Start::from_parts(from, ts, after_id)?;
        options.check()?;
        Ok(options)
    }
}

fn whole(value: Option<Loose<'_>>, field: &str, most: u32) -> Result<Option<u32>, OptionError> {
    let number = value.map(|value| value.whole(field, 1, i64::from(most))).transpose()?;
    Ok(number.map(|number| number as u32))
}

impl<'de> Deserialize<'de> for SubscribeOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_loose(Loose::deserialize(deserializer)?).map_err(serde::de::Error::custom)
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
        map.end()
    }
}
