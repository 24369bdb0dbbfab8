//! The state that maintenance keeps between rounds.

use super::age_samples::AgeSamples;
use super::tombstone_sweep::TombstoneSweep;
use crate::delivery::Millis;
use crate::engine::{StoredTopic, TopicId};
use crate::settings::TopicSettings;
use prombus_protocol::Topic;
use std::collections::HashMap;

/// A topic that has compaction or retention.
pub(super) struct MaintainedTopic {
    pub(super) topic: StoredTopic,
    pub(super) settings: TopicSettings,
}

/// The state that is kept between rounds.
#[derive(Default)]
pub(super) struct RoundState {
    pub(super) topics: HashMap<TopicId, TopicRoundState>,
    pub(super) cleaning: CleaningState,
    /// It was logged that the disk has no space for retention records.
    pub(super) has_logged_full: bool,
}

#[derive(Default)]
pub(super) struct TopicRoundState {
    /// The retention time in effect, and the wall clock time until which it keeps the oldest event.
    pub(super) expires: Option<(u64, i64)>,
    /// The size limit in effect and the newest seq, when the size of the topic was last measured.
    pub(super) measured: Option<(u64, u64)>,
    /// When the next snapshot is due.
    pub(super) snapshot_at: Option<Millis>,
    /// The seq up to which the snapshots are complete.
    pub(super) snapshot_to: u64,
    /// The ages of the events, for when their commit times say nothing about them.
    pub(super) ages: AgeSamples,
    /// The progress of the sweep of old tombstones.
    pub(super) tombstones: TombstoneSweep,
    /// A fault was logged. Only the first one is.
    pub(super) has_logged_fault: bool,
}

impl TopicRoundState {
    pub(super) fn log_fault_once(&mut self, topic: &Topic, what: &str, error: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.has_logged_fault, true) {
            tracing::error!("{what} of {topic} failed: {error}; it will be retried");
        }
    }
}

/// The state of cleaning between rounds.
#[derive(Default)]
pub(super) struct CleaningState {
    /// When the last compaction ran.
    pub(super) compacted_at: Millis,
    /// When to clean again, if the last cleaning did not finish.
    pub(super) clean_again_at: Option<Millis>,
    /// When a full disk is cleaned next, whatever the topics need.
    pub(super) clean_full_at: Millis,
    /// The number of tombstones that were dropped since the last compaction.
    pub(super) tombstones_dropped: u64,
    /// Some old tombstones were not examined yet, so the next round begins at once.
    pub(super) has_more_tombstones: bool,
}
