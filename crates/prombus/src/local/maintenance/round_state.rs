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
    /// Whether it was logged that the disk has no space for retention records.
    pub(super) has_logged_full: bool,
}

#[derive(Default)]
pub(super) struct TopicRoundState {
    /// The retention time that was applied last, and the wall clock time at which the oldest event expires by it.
    /// `None` if that must be determined.
    pub(super) expires: Option<(u64, i64)>,
    /// The size limit and the newest seq at the time when the size of the topic was last measured. If both are
    /// unchanged, it need not be measured again.
    pub(super) measured: Option<(u64, u64)>,
    /// When the next snapshot of the topic is due; `None` if that was not determined yet.
    pub(super) snapshot_at: Option<Millis>,
    /// The seq up to which the newest snapshot includes the topic's events.
    pub(super) snapshot_to: u64,
    /// Samples from which the age of events is known when their commit times say nothing about it.
    pub(super) ages: AgeSamples,
    /// The progress of the sweep of old tombstones.
    pub(super) tombstones: TombstoneSweep,
    pub(super) retention_fault: FaultNotice,
    pub(super) compaction_fault: FaultNotice,
    pub(super) snapshot_fault: FaultNotice,
}

/// Whether a failure of one job was logged for a topic. Further failures of the job are not logged until it succeeds.
#[derive(Default)]
pub(super) struct FaultNotice {
    is_logged: bool,
}

impl FaultNotice {
    /// Logs the failure of a job, unless it was logged before. Returns whether it was logged now.
    pub(super) fn log_once(&mut self, topic: &Topic, job: &str, error: &dyn std::fmt::Display) -> bool {
        let is_new = !std::mem::replace(&mut self.is_logged, true);
        if is_new {
            tracing::error!("{job} of {topic} failed: {error}; it will be retried");
        }
        is_new
    }

    /// The job has succeeded: its next failure is logged.
    pub(super) fn succeeded(&mut self) {
        self.is_logged = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_logged_once_for_each_job_until_that_job_succeeds() {
        let topic = Topic::new("orders").unwrap();
        let mut state = TopicRoundState::default();
        assert!(state.retention_fault.log_once(&topic, "retention", &"no"));
        assert!(!state.retention_fault.log_once(&topic, "retention", &"no"));
        // The failure and the success of another job change nothing.
        assert!(state.snapshot_fault.log_once(&topic, "snapshot", &"no"));
        state.snapshot_fault.succeeded();
        assert!(!state.retention_fault.log_once(&topic, "retention", &"no"));
        state.retention_fault.succeeded();
        assert!(state.retention_fault.log_once(&topic, "retention", &"no"));
    }
}

/// The state of cleaning between rounds.
#[derive(Default)]
pub(super) struct CleaningState {
    /// When the last compaction ran.
    pub(super) compacted_at: Millis,
    /// When to clean again, if the last cleaning did not finish.
    pub(super) clean_again_at: Option<Millis>,
    /// The earliest time of the next cleaning for the reason that the disk is full.
    pub(super) clean_full_at: Millis,
    /// The number of tombstones that were dropped since the last compaction.
    pub(super) tombstones_dropped: u64,
    /// Whether some old tombstones were not examined yet, so that the next round begins at once.
    pub(super) has_more_tombstones: bool,
}
