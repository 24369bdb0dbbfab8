//! Positions in the sequence of all events, which is ordered by commit time.

use crate::backend::event_id_of;
use crate::engine::{Engine, EventHead, TopicId};
use crate::error::ReadError;
use crate::local::reading::Reading;
use crate::local::run_reads::run_reads;
use crate::merged::BusPosition;
use prombus_protocol::{Pattern, Start, Topic, Uuid};
use std::sync::Arc;

/// Readers that start at the end may make commit times run ahead of the clock by at most this time.
const LEAD_MS: i64 = 50;

impl Reading {
    /// Closes the commit times of all events that were appended so far, so that later events get later times, and returns the
    /// newest closed time. This may make commit times run a little ahead of the clock. If there are many calls within a
    /// millisecond, the newest time may stay open.
    pub(super) fn close_commit_time(&self) -> i64 {
        let open_ms = self.engine.commit_times(i64::MIN).closed_ms.saturating_add(1);
        let closing = if open_ms <= self.clock.wall_ms() + LEAD_MS { open_ms } else { i64::MIN };
        self.engine.commit_times(closing).closed_ms
    }

    /// Converts a start position to a position in the sequence of a pattern's topics. Files are read off the async threads.
    pub(in crate::local) async fn place_of(
        self: &Arc<Self>,
        pattern: &Pattern,
        start: Start,
    ) -> Result<BusPosition, ReadError> {
        self.commits.check_open()?;
        let (reading, pattern) = (Arc::clone(self), pattern.clone());
        match start {
            Start::Earliest => Ok(BusPosition::START),
            // After all events that were published before, including those that are not durable yet.
            Start::Latest => Ok(BusPosition::after_time(self.close_commit_time())),
            Start::Ts(ts) => {
                run_reads(&*self.engine, async move { reading.place_at_time(&pattern, ts).await }).await
            }
            Start::AfterId(id) => {
                run_reads(&*self.engine, async move { reading.place_after_id(&pattern, id).await }).await
            }
        }
    }

    /// The position before the first event of the pattern's topics that has this `ts` or a later one.
    async fn place_at_time(&self, pattern: &Pattern, ts: i64) -> Result<BusPosition, ReadError> {
        let mut first_ms = None;
        for (id, _) in self.registry.topics_matching(pattern) {
            let Some(seq) = self.engine.first_at_or_after(id, ts).await? else { continue };
            let Some(head) = self.engine.head_at_or_after(id, seq).await? else { continue };
            first_ms = Some(first_ms.map_or(head.commit_ms, |ms: i64| ms.min(head.commit_ms)));
        }
        let before = |ms: i64| ms.saturating_sub(1);
        Ok(BusPosition::after_time(first_ms.map_or_else(|| self.close_commit_time(), before)))
    }

    /// The position after the event with this id.
    async fn place_after_id(&self, pattern: &Pattern, id: Uuid) -> Result<BusPosition, ReadError> {
        for (topic, _) in self.registry.topics_matching(pattern) {
            if let Some(seq) = self.engine.find(topic, event_id_of(id)).await?
                && let Some(head) = self.engine.head_at_or_after(topic, seq).await?
                // If the event was removed, its id may be known, but not its commit time.
                && head.seq == seq
            {
                return Ok(BusPosition { commit_ms: head.commit_ms, topic: topic.number(), seq });
            }
        }
        Err(ReadError::UnknownId(id))
    }

    /// The first seq of a topic after a position. Files are read off the async threads.
    pub(in crate::local) async fn first_after(
        &self,
        topic: &Topic,
        place: BusPosition,
    ) -> Result<u64, ReadError> {
        let id = self.topic_id(topic)?;
        let engine = Arc::clone(&self.engine);
        run_reads(&*self.engine, async move { first_after(&*engine, id, place).await }).await
    }

    /// The position just before a seq of a topic, even if the topic does not exist yet.
    pub(in crate::local) fn place_before(&self, topic: &Topic, next_seq: u64) -> BusPosition {
        let closed_ms = self.engine.commit_times(i64::MIN).closed_ms;
        match self.registry.topic_id(topic) {
            Some(id) => {
                BusPosition { commit_ms: closed_ms, topic: id.number(), seq: next_seq.saturating_sub(1) }
            }
            None => BusPosition::after_time(closed_ms),
        }
    }
}

/// The first seq of a topic after a position.
pub(super) async fn first_after(
    engine: &dyn Engine,
    topic: TopicId,
    place: BusPosition,
) -> Result<u64, ReadError> {
    let number = topic.number();
    if number == place.topic {
        let is_known = place.seq <= engine.appended_seq(topic).await?;
        return if is_known { Ok(place.seq + 1) } else { Err(ReadError::UnknownPosition) };
    }
    let is_after = |head: &EventHead| (head.commit_ms, number) > (place.commit_ms, place.topic);
    if place == BusPosition::START {
        return Ok(1);
    }
    // Within a topic, commit times never decrease. Most topics have few or no events after the position, so the search goes
    // back from the end in growing steps, and then bisects.
    let last_seq = engine.last_seq(topic);
    let (mut low, mut high, mut step) = (1, last_seq + 1, 1);
    let mut probe = last_seq;
    while probe >= low && low < high {
        match engine.head_at_or_after(topic, probe).await? {
            Some(head) if !is_after(&head) => {
                low = head.seq + 1;
                break;
            }
            _ => high = probe,
        }
        probe = last_seq.saturating_sub(step);
        step = step.saturating_mul(2);
    }
    while low < high {
        let middle = low + (high - low) / 2;
        match engine.head_at_or_after(topic, middle).await? {
            Some(head) if !is_after(&head) => low = head.seq + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}
