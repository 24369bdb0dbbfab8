//! The settings of topics: retention, compaction and snapshots, attempts, publish rates.
//!
//! Rules are given when the bus is opened (`[[topic]]` in `prombus.toml`). Only the first rule whose name or pattern matches
//! a topic applies; rules are not merged. Options that are set for a single topic while the bus runs are stored with the
//! events and override the rule field by field.

use crate::error::SettingError;
use prombus_protocol::limits::MAX_MAX_ATTEMPTS;
use prombus_protocol::{Pattern, Topic};
use serde::{Deserialize, Serialize};

/// How often a compacted topic gets a snapshot by default.
pub const SNAPSHOT_INTERVAL_MS: u64 = 30_000;
/// How long a tombstone stays in a compacted topic by default.
pub const TOMBSTONE_MS: u64 = 24 * 3_600_000;

const DAY_MS: u64 = 24 * 3_600_000;
const CENTURY_MS: u64 = 36_500 * DAY_MS;

/// The options of a topic or of a rule. A field that is `None` is not set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TopicOptions {
    /// Events are kept for this many days after their commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_days: Option<f64>,
    /// Events are kept for this many milliseconds after their commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<u64>,
    /// The newest events are kept, up to about this many bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<u64>,
    /// Whether only the newest event of each key is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction: Option<bool>,
    /// Tombstones are kept for this many milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tombstone_ms: Option<u64>,
    /// How often changes are published to the snapshot topic, in milliseconds; zero for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_interval_ms: Option<u64>,
    /// The snapshot topic. Default: the topic's name with `.snapshot` appended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_topic: Option<String>,
    /// Groups give up an event after this many attempts, unless the member sets its own number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// At most this many events per second may be published through the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish_rate: Option<f64>,
    /// At most this many events may be published at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish_burst: Option<f64>,
}

/// The options of all topics that a name or pattern matches.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicRule {
    /// A topic or a pattern.
    pub name: Pattern,
    /// The options.
    pub options: TopicOptions,
}

/// The settings that apply to a topic, defaults included.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopicSettings {
    /// Events are kept for this many milliseconds after their commit; indefinitely by default.
    pub retention_ms: Option<u64>,
    /// The newest events are kept, up to about this many bytes; all by default.
    pub retention_bytes: Option<u64>,
    /// Whether only the newest event of each key is kept.
    pub compaction: bool,
    /// Tombstones are kept for this many milliseconds.
    pub tombstone_ms: u64,
    /// How often changes are published to the snapshot topic, in milliseconds; zero for never.
    pub snapshot_interval_ms: u64,
    /// The snapshot topic; `None` for topics that are not compacted and for snapshot topics themselves.
    pub snapshot_topic: Option<Topic>,
    /// Groups give up an event after this many attempts, unless the member sets its own number. `None` for the default.
    pub max_attempts: Option<u32>,
    /// At most this many events per second may be published through the server. `None` if the topic has no limit.
    pub publish_rate: Option<f64>,
    /// At most this many events may be published at once. `None` for the number allowed per second.
    pub publish_burst: Option<f64>,
}

impl TopicSettings {
    /// Whether changes are published to a snapshot topic.
    pub(crate) fn has_snapshots(&self) -> bool {
        self.compaction && self.snapshot_topic.is_some() && self.snapshot_interval_ms > 0
    }
}

impl TopicRule {
    /// A rule for a topic or a pattern.
    ///
    /// # Errors
    /// [`SettingError`] names the field that is out of range.
    pub fn new(name: &str, options: TopicOptions) -> Result<Self, SettingError> {
        let name =
            Pattern::new(name).map_err(|error| SettingError { name: "name", why: error.to_string() })?;
        options.check()?;
        if let (Some(snapshots), None) = (&options.snapshot_topic, name.as_topic()) {
            let why = format!("{snapshots:?} would get the snapshots of many topics; name one topic");
            return Err(SettingError { name: "snapshot_topic", why });
        }
        options.check_for(name.as_str())?;
        Ok(Self { name, options })
    }
}

impl TopicOptions {
    /// Whether no option is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that all values are in range and do not contradict each other.
    ///
    /// # Errors
    /// [`SettingError`] names the field.
    pub fn check(&self) -> Result<(), SettingError> {
        let bad = |name, why: &str| Err(SettingError { name, why: why.to_owned() });
        if self.retention_days.is_some() && self.retention_ms.is_some() {
            return bad("retention_days", "retention_ms is set too; set one of them");
        }
        if self.retention_days.is_some_and(|days| !(1e-6..=36_500.0).contains(&days)) {
            return bad("retention_days", "more than 0 and at most 36500 are allowed");
        }
        if self.retention_ms.is_some_and(|ms| !(1..=CENTURY_MS).contains(&ms)) {
            return bad("retention_ms", "1 to 3153600000000 (a hundred years) are allowed");
        }
        if self.retention_bytes == Some(0) {
            return bad("retention_bytes", "1 and more are allowed");
        }
        if self.tombstone_ms.is_some_and(|ms| ms > CENTURY_MS) {
            return bad("tombstone_ms", "0 to 3153600000000 (a hundred years) are allowed");
        }
        if self.snapshot_interval_ms.is_some_and(|ms| ms > 0 && !(100..=DAY_MS).contains(&ms)) {
            return bad("snapshot_interval_ms", "0 (never) and 100 to 86400000 (a day) are allowed");
        }
        if let Some(topic) = &self.snapshot_topic
            && let Err(error) = Topic::new(topic.as_str())
        {
            return bad("snapshot_topic", &error.to_string());
        }
        if self.max_attempts.is_some_and(|attempts| !(1..=MAX_MAX_ATTEMPTS).contains(&attempts)) {
            return bad("max_attempts", &format!("1 to {MAX_MAX_ATTEMPTS} are allowed"));
        }
        let is_rate = |value: f64| value.is_finite() && value > 0.0 && value <= 1e9;
        if self.publish_rate.is_some_and(|rate| !is_rate(rate)) {
            return bad("publish_rate", "more than 0 and at most 1000000000 events a second are allowed");
        }
        if self.publish_burst.is_some_and(|burst| !is_rate(burst) || burst < 1.0) {
            return bad("publish_burst", "1 to 1000000000 are allowed");
        }
        if self.publish_burst.is_some() && self.publish_rate.is_none() {
            return bad("publish_burst", "publish_rate is not set; set both, or neither");
        }
        Ok(())
    }

    /// Checks that a topic can have these options: its snapshots must go to another topic.
    ///
    /// # Errors
    /// [`SettingError`] names the field.
    pub fn check_for(&self, topic: &str) -> Result<(), SettingError> {
        if self.snapshot_topic.as_deref() == Some(topic) {
            let why = format!("{topic:?} is the topic itself; snapshots need a topic of their own");
            return Err(SettingError { name: "snapshot_topic", why });
        }
        Ok(())
    }

    /// These options where they are set, else those of `below`.
    #[must_use]
    pub fn over(&self, below: &Self) -> Self {
        // Days and milliseconds are two units of one setting: either of them here overrides both of `below`.
        let has_age = self.retention_days.is_some() || self.retention_ms.is_some();
        let age = if has_age { self } else { below };
        Self {
            retention_days: age.retention_days,
            retention_ms: age.retention_ms,
            retention_bytes: self.retention_bytes.or(below.retention_bytes),
            compaction: self.compaction.or(below.compaction),
            tombstone_ms: self.tombstone_ms.or(below.tombstone_ms),
            snapshot_interval_ms: self.snapshot_interval_ms.or(below.snapshot_interval_ms),
            snapshot_topic: self.snapshot_topic.clone().or_else(|| below.snapshot_topic.clone()),
            max_attempts: self.max_attempts.or(below.max_attempts),
            publish_rate: self.publish_rate.or(below.publish_rate),
            publish_burst: self.publish_burst.or(below.publish_burst),
        }
    }

    fn settings(&self, topic: &str) -> TopicSettings {
        let days_ms = self.retention_days.map(|days| (days * DAY_MS as f64).round().max(1.0) as u64);
        let compaction = self.compaction.unwrap_or(false);
        let snapshots = match &self.snapshot_topic {
            Some(name) => Topic::new(name.as_str()).ok(),
            // A topic whose name is too long for the suffix has no snapshots.
            None => Topic::new(format!("{topic}.snapshot")).ok(),
        };
        TopicSettings {
            retention_ms: self.retention_ms.or(days_ms),
            retention_bytes: self.retention_bytes,
            compaction,
            tombstone_ms: self.tombstone_ms.unwrap_or(TOMBSTONE_MS),
            snapshot_interval_ms: self.snapshot_interval_ms.unwrap_or(SNAPSHOT_INTERVAL_MS),
            snapshot_topic: snapshots.filter(|snapshots| compaction && snapshots.as_str() != topic),
            max_attempts: self.max_attempts,
            publish_rate: self.publish_rate,
            publish_burst: self.publish_burst,
        }
    }
}

/// The publish rate limit of a topic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishRate {
    /// Events per second.
    pub per_second: f64,
    /// Events at once.
    pub burst: f64,
}

impl TopicOptions {
    fn publish_rate(&self) -> Option<PublishRate> {
        let per_second = self.publish_rate?;
        Some(PublishRate { per_second, burst: self.publish_burst.unwrap_or(per_second.max(1.0)) })
    }
}

/// The rules, and the options of single topics (`own`).
#[derive(Clone, Debug, Default)]
pub(crate) struct SettingsTable {
    rules: Vec<TopicRule>,
    own: std::collections::BTreeMap<String, TopicOptions>,
}

impl SettingsTable {
    pub(crate) fn set_rules(&mut self, rules: Vec<TopicRule>) {
        self.rules = rules;
    }

    pub(crate) fn set_own(&mut self, topic: &str, options: TopicOptions) {
        if options.is_empty() {
            self.own.remove(topic);
        } else {
            self.own.insert(topic.to_owned(), options);
        }
    }

    pub(crate) fn own(&self, topic: &str) -> TopicOptions {
        self.own.get(topic).cloned().unwrap_or_default()
    }

    /// Whether nothing is set for any topic: then callers need not look topics up.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.own.is_empty()
    }

    fn rule(&self, topic: &str) -> Option<&TopicRule> {
        self.rules.iter().find(|rule| rule.name.as_str() == topic || rule.name.matches(topic))
    }

    fn options(&self, topic: &str) -> TopicOptions {
        match (self.own.get(topic), self.rule(topic)) {
            (Some(own), Some(rule)) => own.over(&rule.options),
            (Some(own), None) => own.clone(),
            (None, Some(rule)) => rule.options.clone(),
            (None, None) => TopicOptions::default(),
        }
    }

    /// The settings that apply to a topic. The snapshot topic of a compacted topic is compacted too, and has no snapshots of
    /// its own.
    pub(crate) fn settings(&self, topic: &str) -> TopicSettings {
        if self.is_empty() {
            return TopicOptions::default().settings(topic);
        }
        let mut settings = self.options(topic).settings(topic);
        if let Some(source) = self.snapshotted(topic) {
            settings.compaction = true;
            settings.snapshot_topic = None;
            let source = self.options(source).settings(source);
            // Events that retention removes from the topic must not survive in its snapshots.
            settings.retention_ms = settings.retention_ms.or(source.retention_ms);
            if self.options(topic).tombstone_ms.is_none() {
                settings.tombstone_ms = source.tombstone_ms;
            }
        }
        settings
    }

    pub(crate) fn publish_rates(&self) -> Vec<(Pattern, Option<PublishRate>)> {
        let own = self.own.iter().filter_map(|(topic, own)| {
            own.publish_rate?;
            Some((Pattern::new(topic).ok()?, self.options(topic).publish_rate()))
        });
        let rules = self.rules.iter().map(|rule| (rule.name.clone(), rule.options.publish_rate()));
        own.chain(rules).collect()
    }

    /// The topic whose snapshots go to `topic`; `None` if `topic` is not a snapshot topic.
    fn snapshotted<'a>(&'a self, topic: &'a str) -> Option<&'a str> {
        let is_named = |(name, options): &(&str, &TopicOptions)| {
            options.snapshot_topic.as_deref() == Some(topic)
                && *name != topic
                && self.options(name).compaction == Some(true)
        };
        let ruled = self.rules.iter().map(|rule| (rule.name.as_str(), &rule.options));
        let own = self.own.iter().map(|(name, options)| (name.as_str(), options));
        if let Some((source, _)) = ruled.chain(own).find(is_named) {
            return Some(source);
        }
        // The default name applies unless the source topic has another snapshot topic or is itself a snapshot topic.
        topic.strip_suffix(".snapshot").filter(|source| {
            let options = self.options(source);
            options.compaction == Some(true)
                && options.snapshot_topic.is_none()
                && self.snapshotted(source).is_none()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, options: TopicOptions) -> TopicRule {
        TopicRule::new(name, options).expect("a good rule")
    }

    fn compacted() -> TopicOptions {
        TopicOptions { compaction: Some(true), ..TopicOptions::default() }
    }

    #[test]
    fn only_the_first_matching_rule_applies_and_own_options_override_it() {
        let mut table = SettingsTable::default();
        let short = TopicOptions { retention_days: Some(3.0), max_attempts: Some(7), ..Default::default() };
        table.set_rules(vec![rule("a.b", short), rule("a.*", compacted())]);
        let settings = table.settings("a.b");
        assert_eq!((settings.retention_ms, settings.compaction), (Some(3 * DAY_MS), false));
        assert!(table.settings("a.c").compaction);
        assert_eq!(table.settings("b"), TopicOptions::default().settings("b"));
        table.set_own("a.b", TopicOptions { retention_ms: Some(5), ..TopicOptions::default() });
        let settings = table.settings("a.b");
        assert_eq!((settings.retention_ms, settings.max_attempts), (Some(5), Some(7)));
        table.set_own("a.b", TopicOptions::default());
        assert_eq!(table.settings("a.b").retention_ms, Some(3 * DAY_MS));
    }

    #[test]
    fn snapshot_topics_are_compacted_and_have_no_snapshots() {
        let mut table = SettingsTable::default();
        let named = TopicOptions { snapshot_topic: Some("elsewhere".into()), ..compacted() };
        table.set_rules(vec![rule("kv", named), rule("**", compacted())]);
        assert_eq!(table.settings("a").snapshot_topic, Topic::new("a.snapshot").ok());
        for snapshot in ["a.snapshot", "elsewhere"] {
            let settings = table.settings(snapshot);
            assert!(settings.compaction, "{snapshot}");
            assert_eq!(settings.snapshot_topic, None, "{snapshot}");
        }
        table.set_own("a", TopicOptions { retention_ms: Some(9), ..TopicOptions::default() });
        assert_eq!(table.settings("a.snapshot").retention_ms, Some(9));
        table.set_own("a", TopicOptions { tombstone_ms: Some(7), ..TopicOptions::default() });
        assert_eq!(table.settings("a.snapshot").tombstone_ms, 7);
        table.set_own("a.snapshot", TopicOptions { tombstone_ms: Some(8), ..TopicOptions::default() });
        assert_eq!(table.settings("a.snapshot").tombstone_ms, 8);
        assert_eq!(table.settings("elsewhere").retention_ms, None);
        // kv has another snapshot topic, so this is an ordinary topic.
        assert!(table.settings("kv.snapshot").snapshot_topic.is_some());
    }

    #[test]
    fn values_out_of_range_are_named() {
        let name = |options: TopicOptions| options.check().map_err(|error| error.name);
        let none = TopicOptions::default;
        assert_eq!(name(none()), Ok(()));
        assert_eq!(name(TopicOptions { retention_ms: Some(0), ..none() }), Err("retention_ms"));
        assert_eq!(name(TopicOptions { retention_days: Some(f64::NAN), ..none() }), Err("retention_days"));
        let both = TopicOptions { retention_days: Some(1.0), retention_ms: Some(1), ..none() };
        assert_eq!(name(both), Err("retention_days"));
        assert_eq!(
            name(TopicOptions { snapshot_interval_ms: Some(1), ..none() }),
            Err("snapshot_interval_ms")
        );
        assert_eq!(
            name(TopicOptions { snapshot_topic: Some("a b".into()), ..none() }),
            Err("snapshot_topic")
        );
        assert_eq!(name(TopicOptions { max_attempts: Some(0), ..none() }), Err("max_attempts"));
        assert_eq!(name(TopicOptions { publish_rate: Some(0.0), ..none() }), Err("publish_rate"));
        assert_eq!(name(TopicOptions { publish_burst: Some(5.0), ..none() }), Err("publish_burst"));
        let shared = TopicOptions { snapshot_topic: Some("s".into()), ..compacted() };
        assert!(TopicRule::new("a.*", shared).is_err());
        let itself = TopicOptions { snapshot_topic: Some("kv".into()), ..compacted() };
        assert_eq!(TopicRule::new("kv", itself).map_err(|error| error.name), Err("snapshot_topic"));
    }
}
