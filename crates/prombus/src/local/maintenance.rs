//! Maintenance: retention, compaction, the removal of old tombstones (events that delete a key), and snapshots of topics. One
//! thread runs it in rounds; each round determines what there is to do.

mod age_samples;
mod cleaning;
mod retention;
mod round_state;
pub(super) mod schedule;
mod snapshot_schedule;
mod tombstone_sweep;
mod tombstones;

use super::groups::Groups;
use super::latest_by_key::LatestByKey;
use super::publish_queue::PublishQueue;
use super::reading::Reading;
use super::topic_settings::TopicSettingsTable;
use crate::delivery::Millis;
use crate::engine::{MayBlock, TopicId};
use crate::settings::TopicSettings;
use round_state::{MaintainedTopic, RoundState};
use schedule::MaintenanceSchedule;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Mutex;

/// The maximum time between rounds.
const ROUND_MS: Millis = 5_000;
/// Maps from keys to their newest events are removed if they were not queried for this long.
const STATE_UNUSED_MS: Millis = 5 * 60_000;

/// The parts that maintenance uses, and the state that it keeps between rounds.
pub(super) struct Maintenance {
    reading: Arc<Reading>,
    settings: Arc<TopicSettingsTable>,
    groups: Arc<Groups>,
    latest: Arc<LatestByKey>,
    publishing: Arc<PublishQueue>,
    pub(super) schedule: Arc<MaintenanceSchedule>,
    round_state: Mutex<RoundState>,
    /// The number of events that cleaning has removed.
    cleaned_events: AtomicU64,
    /// The size of the events that cleaning has removed.
    cleaned_bytes: AtomicU64,
}

impl Maintenance {
    pub(super) fn new(
        reading: Arc<Reading>,
        settings: Arc<TopicSettingsTable>,
        groups: Arc<Groups>,
        latest: Arc<LatestByKey>,
        publishing: Arc<PublishQueue>,
        schedule: Arc<MaintenanceSchedule>,
    ) -> Self {
        // Requests a cleaning in the first round: events that were deleted before the restart may still be stored.
        schedule.clean_next();
        Self {
            reading,
            settings,
            groups,
            latest,
            publishing,
            schedule,
            round_state: Mutex::default(),
            cleaned_events: AtomicU64::new(0),
            cleaned_bytes: AtomicU64::new(0),
        }
    }

    /// The number and size of all events that cleaning has removed.
    pub(super) fn cleaned(&self) -> (u64, u64) {
        (self.cleaned_events.load(Ordering::Relaxed), self.cleaned_bytes.load(Ordering::Relaxed))
    }

    /// Runs one round. Returns the time until the next round is due.
    pub(super) async fn run_round(&self, may_block: MayBlock) -> Millis {
        if self.reading.commits.is_closed() {
            return ROUND_MS;
        }
        let clock = &self.reading.clock;
        let mut round_state = self.round_state.lock().await;
        if let Some(files) = self.reading.engine.local_files() {
            files.probe_unreadable(may_block);
        }
        let topics = self.maintained_topics();
        let is_cut = self.apply_retention(&topics, &mut round_state).await;
        let compacted: Vec<&MaintainedTopic> = topics.iter().filter(|it| it.settings.compaction).collect();
        self.clean_if_due(&compacted, is_cut, &mut round_state, may_block).await;
        let compacted_ids: HashSet<TopicId> = compacted.iter().map(|it| it.topic.id).collect();
        let unused_before = clock.steady_ms().saturating_sub(STATE_UNUSED_MS);
        self.latest.forget_unused(unused_before, |id| compacted_ids.contains(&id));
        let next = self.take_snapshots(&compacted, &mut round_state).await;
        let known: HashSet<TopicId> = topics.iter().map(|it| it.topic.id).collect();
        round_state.topics.retain(|id, _| known.contains(id));
        if round_state.cleaning.has_more_tombstones {
            return 0;
        }
        next.map_or(ROUND_MS, |at| at.saturating_sub(clock.steady_ms()).min(ROUND_MS))
    }

    /// The topics whose settings include compaction or retention.
    fn maintained_topics(&self) -> Vec<MaintainedTopic> {
        if self.settings.is_empty() {
            return Vec::new();
        }
        let topics = self.reading.engine.topics().into_iter().map(|topic| {
            let settings = self.settings.of(topic.name.as_str());
            MaintainedTopic { topic, settings }
        });
        let matters = |settings: &TopicSettings| {
            settings.compaction || settings.retention_ms.is_some() || settings.retention_bytes.is_some()
        };
        topics.filter(|it| matters(&it.settings)).collect()
    }
}

/// Runs the loop of the maintenance thread, until it is stopped. The thread does not hold a handle of the backend, so dropping
/// the last handle closes the engine even during a round, and that ends the round.
pub(super) fn run(
    maintenance: &Weak<Maintenance>,
    schedule: &MaintenanceSchedule,
    runtime: &tokio::runtime::Runtime,
) {
    let may_block = MayBlock::on_this_thread();
    loop {
        let Some(strong) = maintenance.upgrade() else { return };
        // After a panic in one round, maintenance continues with the next.
        let round = catch_unwind(AssertUnwindSafe(|| runtime.block_on(strong.run_round(may_block))));
        let wait_ms = round.unwrap_or_else(|_| {
            tracing::error!("a round of maintenance panicked; this is a bug in prombus");
            ROUND_MS
        });
        drop(strong);
        if !schedule.sleep(wait_ms, may_block) {
            return;
        }
    }
}
