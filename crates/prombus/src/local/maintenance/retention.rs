//! Retention by age and by size: raises the first seqs of topics, and moves groups that have not settled the removed events.

use super::Maintenance;
use super::round_state::{MaintainedTopic, RoundState, TopicRoundState};
use crate::deferred_wakes::DeferredWakes;
use crate::engine::{EventHead, TopicId};
use crate::error::{ReadError, StoreError};
use crate::settings::TopicSettings;

/// The maximum number of topics in one retention record. A larger record might not fit into a small segment of the log.
const CUTS_MAX: usize = 250;

impl Maintenance {
    /// Applies retention to these topics. Returns whether it raised the first seq of any topic.
    pub(super) async fn apply_retention(
        &self,
        topics: &[MaintainedTopic],
        round_state: &mut RoundState,
    ) -> bool {
        let engine = &self.reading.engine;
        let mut firsts = Vec::new();
        let now = self.reading.clock.steady_ms();
        for MaintainedTopic { topic, settings } in topics {
            let own = round_state.topics.entry(topic.id).or_default();
            let ages = settings.retention_ms.into_iter();
            let ages = ages.chain(settings.compaction.then_some(settings.tombstone_ms));
            if let (Some(shortest), Some(longest)) = (ages.clone().min(), ages.max()) {
                own.ages.note(now, engine.last_seq(topic.id), shortest, longest);
            }
            match self.first_kept(topic.id, settings, own).await {
                Ok(first) => {
                    own.retention_fault.succeeded();
                    if first > engine.retained_from(topic.id).max(1) {
                        firsts.push((topic.id, first));
                    }
                }
                Err(ReadError::UnknownTopic(_)) => {}
                Err(error) => drop(own.retention_fault.log_once(&topic.name, "retention", &error)),
            }
        }
        let mut is_cut = false;
        for part in firsts.chunks(CUTS_MAX) {
            match self.cut(part) {
                Ok(()) => {
                    is_cut = true;
                    round_state.has_logged_full = false;
                }
                Err(error) => {
                    // Makes the next round measure the size of these topics again.
                    for (id, _) in part {
                        round_state.topics.entry(*id).or_default().measured = None;
                    }
                    let is_full = matches!(error, StoreError::Full);
                    let is_logged = is_full && std::mem::replace(&mut round_state.has_logged_full, true);
                    if !matches!(error, StoreError::Busy) && !is_logged && !self.reading.commits.is_closed() {
                        tracing::error!("retention failed: {error}; it will be retried");
                    }
                }
            }
        }
        is_cut
    }

    /// Raises the first seqs of topics to these values, for readers and for groups.
    fn cut(&self, firsts: &[(TopicId, u64)]) -> Result<(), StoreError> {
        let _deferred = DeferredWakes::enter();
        self.reading.engine.retain_from(firsts)?;
        for &(topic, first_seq) in firsts {
            self.latest.cut(topic, first_seq);
            for (cell, source) in self.reading.registry.readers(topic) {
                self.groups.cut_group(&cell, source, first_seq);
            }
        }
        Ok(())
    }

    /// The seq of the first event of a topic that retention keeps; zero if there is nothing to remove.
    async fn first_kept(
        &self,
        id: TopicId,
        settings: &TopicSettings,
        topic_state: &mut TopicRoundState,
    ) -> Result<u64, ReadError> {
        let (engine, clock) = (&self.reading.engine, &self.reading.clock);
        let mut first = 0;
        let now = clock.wall_ms();
        if let Some(retention_ms) = settings.retention_ms {
            let is_due = topic_state.expires.is_none_or(|(setting, at)| setting != retention_ms || at <= now);
            if is_due && let Some(oldest) = self.readable_head(id, 0).await? {
                let expires = oldest.commit_ms.saturating_add_unsigned(retention_ms);
                topic_state.expires = Some((retention_ms, expires));
                if expires <= now {
                    let expired_ms = now.saturating_sub_unsigned(retention_ms);
                    first = self.first_committed_after(id, oldest.seq, expired_ms).await?;
                    topic_state.expires = None;
                }
            }
            // If the wall clock was set back, commit times are in the future, and no event would expire. So events whose age
            // is known by the steady clock expire as well.
            let old_seq = topic_state.ages.seq_of_age(clock.steady_ms(), retention_ms);
            if old_seq > 0 && old_seq >= first && engine.retained_from(id) <= old_seq {
                first = old_seq + 1;
                topic_state.expires = None;
            }
        }
        if let Some(retention_bytes) = settings.retention_bytes {
            let measured = (retention_bytes, engine.last_seq(id));
            if topic_state.measured != Some(measured) {
                first = first.max(engine.first_within_bytes(id, retention_bytes).await?);
                topic_state.measured = Some(measured);
            }
        }
        Ok(first)
    }

    /// The first readable event with this seq or a higher one. Unreadable events before it are skipped: commit times never
    /// decrease, so they are at least as old as it is, and retention may remove them without reading them.
    async fn readable_head(&self, id: TopicId, seq: u64) -> Result<Option<EventHead>, ReadError> {
        let mut seq = seq;
        loop {
            match self.reading.engine.head_at_or_after(id, seq).await {
                Err(ReadError::Unreadable { last_seq, .. }) => seq = last_seq + 1,
                head => return head,
            }
        }
    }

    /// The first seq from `from` on whose event was committed after this time. It is found by a search, because commit times
    /// never decrease.
    async fn first_committed_after(&self, id: TopicId, from: u64, ms: i64) -> Result<u64, ReadError> {
        let old_seq = async |seq| {
            let head = self.readable_head(id, seq).await?;
            Ok::<_, ReadError>(head.filter(|head| head.commit_ms <= ms).map(|head| head.seq))
        };
        // Usually only a few events have expired since the last round, so growing steps find the boundary quickly.
        let (mut low, mut leap) = (from, 64);
        let end = self.reading.engine.last_seq(id) + 1;
        let mut high = end;
        while low + leap < end {
            match old_seq(low + leap).await? {
                Some(seq) => low = seq + 1,
                None => {
                    high = low + leap;
                    break;
                }
            }
            leap *= 4;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match old_seq(middle).await? {
                Some(seq) => low = seq + 1,
                None => high = middle,
            }
        }
        Ok(low)
    }
}
