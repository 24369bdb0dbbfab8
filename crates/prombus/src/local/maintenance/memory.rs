//! What rounds of maintenance remember.

use super::age_samples::AgeSamples;
use super::tombstone_sweep::TombstoneSweep;
use crate::delivery::Millis;
use crate::engine::{StoredTopic, TopicId};
use crate::settings::TopicSettings;
use prombus_protocol::Topic;
use std::collections::HashMap;

/// A topic about which something is set that matters here.
pub(super) struct KeptTopic {
    pub(super) topic: StoredTopic,
    pub(super) settings: TopicSettings,
}

/// What rounds remember.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) topics: HashMap<TopicId, TopicMemory>,
    pub(super) cleaning: CleaningMemory,
    /// It was logged that the disk has no room for the records of retention.
    pub(super) has_told_full: bool,
}

#[derive(Default)]
pub(super) struct TopicMemory {
    /// Its oldest event is kept until then, by the wall clock, at this setting.
    pub(super) expires: Option<(u64, i64)>,
    /// Its newest seq when its bytes were measured, at this setting.
    pub(super) measured: Option<(u64, u64)>,
    /// When its next snapshot is due.
    pub(super) snapshot_at: Option<Millis>,
    /// Up to which seq its snapshots are complete.
    pub(super) snapshot_to: u64,
    /// How old its events are, for when their commit times do not tell.
    pub(super) ages: AgeSamples,
    /// How far its old tombstones were looked at.
    pub(super) tombstones: TombstoneSweep,
    /// A fault is logged once.
    pub(super) has_complained: bool,
}

impl TopicMemory {
    pub(super) fn complain(&mut self, topic: &Topic, what: &str, error: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.has_complained, true) {
            tracing::error!("{what} of {topic}: {error}; it is tried again");
        }
    }
}

/// What rounds remember of cleaning.
#[derive(Default)]
pub(super) struct CleaningMemory {
    pub(super) compacted_at: Millis,
    /// The last cleaning did not finish; the next one begins then.
    pub(super) clean_again_at: Option<Millis>,
    /// When a full disk is cleaned next, whatever the topics say.
    pub(super) clean_full_at: Millis,
    /// Tombstones that were dropped since the last compaction.
    pub(super) tombstones_dropped: u64,
    /// Old tombstones are left that were not looked at: the next round begins soon.
    pub(super) has_more_tombstones: bool,
}
