//! Takes the snapshots of topics when they are due. A snapshot publishes the newest event of each key to a snapshot topic.

use super::Maintenance;
use super::round_state::{MaintainedTopic, RoundState};
use crate::backend::{BoxFuture, LatestPage, LatestQuery};
use crate::delivery::Millis;
use crate::engine::TopicId;
use crate::error::ReadError;
use crate::publish::PublishBatch;
use crate::publishing::{PublishLine as _, Publishing};
use crate::state::{SnapshotSource, snapshot_of};
use prombus_protocol::{Start, Topic};
use std::collections::HashMap;
use std::sync::Arc;

/// How long the creation time of a new topic is remembered until the topic is durable. If the topic becomes durable later,
/// its first snapshot interval begins with the round that finds it.
const CREATED_MAX_MS: Millis = 10_000;

impl Maintenance {
    /// Takes the snapshots that are due. Returns when the next one is due.
    pub(super) async fn take_snapshots(
        &self,
        compacted: &[&MaintainedTopic],
        round_state: &mut RoundState,
    ) -> Option<Millis> {
        let clock = &self.reading.clock;
        let mut next: Option<Millis> = None;
        let mut created: HashMap<TopicId, Millis> = self.schedule.take_created().into_iter().collect();
        for MaintainedTopic { topic, settings } in compacted {
            let Some(snapshots) = &settings.snapshot_topic else { continue };
            if !settings.has_snapshots() || self.schedule.is_stopped() {
                continue;
            }
            let now = clock.steady_ms();
            let own = round_state.topics.entry(topic.id).or_default();
            let since = created.remove(&topic.id).unwrap_or(now);
            let at = own.snapshot_at.get_or_insert(since.saturating_add(settings.snapshot_interval_ms));
            *at = (*at).min(now.saturating_add(settings.snapshot_interval_ms));
            if *at <= now {
                *at = now.saturating_add(settings.snapshot_interval_ms);
                let last_seq = self.reading.engine.last_seq(topic.id);
                match snapshot_of(self, &topic.name, snapshots).await {
                    Ok(_) => {
                        own.snapshot_fault.succeeded();
                        own.snapshot_to = last_seq;
                    }
                    Err(error) if !self.reading.commits.is_closed() => {
                        own.snapshot_fault.log_once(&topic.name, "snapshot", &error);
                    }
                    Err(_) => {}
                }
            }
            let at = own.snapshot_at.unwrap_or(now);
            next = Some(next.map_or(at, |next| next.min(at)));
        }
        // New topics that are not durable yet are not in `compacted`. Their creation times are kept for the next round.
        let now = clock.steady_ms();
        created.retain(|_, since| now.saturating_sub(*since) < CREATED_MAX_MS);
        if !created.is_empty() {
            self.schedule.put_back_created(created);
            next = Some(now);
        }
        next
    }
}

impl SnapshotSource for Maintenance {
    fn has_topic(&self, name: &str) -> bool {
        self.reading.registry.topics(|topics| topics.topic(name).is_some())
    }

    fn latest<'a>(
        &'a self,
        topic: &'a Topic,
        query: LatestQuery,
    ) -> BoxFuture<'a, Result<LatestPage, ReadError>> {
        Box::pin(async move { self.latest.latest(self.reading.topic_id(topic)?, topic, query).await })
    }

    fn locate<'a>(&'a self, topic: &'a Topic, start: Start) -> BoxFuture<'a, Result<u64, ReadError>> {
        Box::pin(self.reading.locate(topic, start))
    }

    fn batch(&self) -> PublishBatch {
        self.publishing.batch()
    }

    fn publish(&self, batch: PublishBatch) -> Publishing {
        Arc::clone(&self.publishing).enter(batch)
    }
}
