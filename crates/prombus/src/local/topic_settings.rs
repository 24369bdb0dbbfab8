//! The settings of topics: the rules of the configuration, and the own settings of single topics, which override the
//! rules.

use crate::engine::RestoredState;
use crate::error::OpenError;
use crate::settings::{PublishRate, SettingsTable, TopicOptions, TopicRule, TopicSettings};
use parking_lot::{RwLock, RwLockWriteGuard};
use prombus_protocol::Pattern;
use std::sync::atomic::{AtomicU64, Ordering};

/// The settings of all topics.
pub(super) struct TopicSettingsTable {
    table: RwLock<SettingsTable>,
    /// Rises with every change.
    version: AtomicU64,
}

impl TopicSettingsTable {
    /// A table that contains the own settings of topics, as the engine has stored them.
    pub(super) fn restore(restored: &RestoredState) -> Result<Self, OpenError> {
        let mut table = SettingsTable::default();
        for (topic, json) in &restored.topic_settings {
            let options: TopicOptions = serde_json::from_str(json)
                .map_err(|error| OpenError::Groups(format!("the settings of {topic}: {error}")))?;
            table.set_own(topic, options);
        }
        Ok(Self { table: RwLock::new(table), version: AtomicU64::new(1) })
    }

    /// The settings in effect for a topic of this name.
    pub(super) fn of(&self, topic: &str) -> TopicSettings {
        self.table.read().settings(topic)
    }

    /// The own settings of this topic, without those of the rules.
    pub(super) fn own(&self, topic: &str) -> TopicOptions {
        self.table.read().own(topic)
    }

    /// Whether there are neither rules nor settings.
    pub(super) fn is_empty(&self) -> bool {
        self.table.read().is_empty()
    }

    pub(super) fn set_rules(&self, rules: Vec<TopicRule>) {
        self.table.write().set_rules(rules);
        self.changed();
    }

    /// Locks the settings. The caller holds the lock while it changes them and appends the record, so that the
    /// settings in memory are always those of the last record.
    pub(super) fn lock(&self) -> RwLockWriteGuard<'_, SettingsTable> {
        self.table.write()
    }

    /// Raises the version. Called after the settings have changed.
    pub(super) fn changed(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn publish_rates(&self) -> Vec<(Pattern, Option<PublishRate>)> {
        self.table.read().publish_rates()
    }
}
