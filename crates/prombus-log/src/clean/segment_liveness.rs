//! Determines how many events of a segment live (must be kept), and their size, from its index and without reading the
//! segment.

use crate::clean::liveness::{CleanOptions, LiveCount, Liveness};
use crate::error::ReadError;
use crate::index::{Entry, TopicSpan};
use crate::layout::SEGMENT_DATA_START;
use crate::maintain::maintenance::Maintenance;
use crate::segment::Segment;
use crate::topics::TopicId;

/// Decides which events live, from the caller's [`Liveness`], the deleted topics and the options.
pub(crate) struct SegmentLiveness<'a> {
    pub(crate) maintenance: &'a Maintenance,
    pub(crate) liveness: &'a dyn Liveness,
    pub(crate) options: &'a CleanOptions,
}

/// The liveness of a topic, to decide about its events one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopicLiveness {
    pub(crate) id: TopicId,
    /// False if the topic is deleted.
    pub(crate) is_kept: bool,
    /// See [`Liveness::first_live`].
    first_live: u64,
    /// See [`Liveness::is_sparse`]; false without compaction.
    is_sparse: bool,
}

/// The number of events in a segment, and the number and size of the live ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) events: u64,
    pub(crate) live: LiveCount,
}

impl SegmentLiveness<'_> {
    /// Whether a topic exists. The events of a deleted topic are dead.
    pub(crate) fn is_kept(&self, topic: u32) -> bool {
        self.maintenance.committed.view().last_seq(topic).is_some()
    }

    /// The liveness of a topic. A later call may find more events dead, but never fewer.
    pub(crate) fn topic(&self, topic: u32) -> TopicLiveness {
        let id = TopicId(topic);
        if !self.is_kept(topic) {
            return TopicLiveness { id, is_kept: false, first_live: u64::MAX, is_sparse: false };
        }
        let is_sparse = self.options.compact && self.liveness.is_sparse(id);
        TopicLiveness { id, is_kept: true, first_live: self.liveness.first_live(id), is_sparse }
    }

    pub(crate) fn is_live(&self, topic: &TopicLiveness, seq: u64) -> bool {
        topic.is_kept && seq >= topic.first_live && (!topic.is_sparse || self.liveness.is_live(topic.id, seq))
    }

    pub(crate) fn census(&self, segment: &Segment) -> Result<Census, ReadError> {
        let mut census = Census::default();
        for span in self.maintenance.committed.topic_spans(segment)? {
            census.events = census.events.saturating_add(span.events);
            let live = self.live_of(segment, &span)?;
            census.live.events = census.live.events.saturating_add(live.events);
            census.live.bytes = census.live.bytes.saturating_add(live.bytes);
        }
        // The index of an early build contains only the positions of the events, so the sum may exceed the segment.
        let content = segment.sealed().unwrap_or(SEGMENT_DATA_START) - SEGMENT_DATA_START;
        census.live.bytes = census.live.bytes.min(content);
        Ok(census)
    }

    fn live_of(&self, segment: &Segment, span: &TopicSpan) -> Result<LiveCount, ReadError> {
        let topic = TopicId(span.topic);
        let none = LiveCount { events: 0, bytes: 0 };
        if !self.is_kept(span.topic) {
            return Ok(none);
        }
        let first_live = self.liveness.first_live(topic).max(span.first_seq);
        if first_live > span.last_seq {
            return Ok(none);
        }
        let above = if first_live == span.first_seq && span.bytes > 0 {
            LiveCount { events: span.events, bytes: u64::from(span.bytes) }
        } else {
            self.maintenance
                .committed
                .with_entries(segment, span.topic, |entries| count_from(entries, first_live))?
        };
        if !self.options.compact || !self.liveness.is_sparse(topic) {
            return Ok(above);
        }
        match self.liveness.live_in(topic, first_live, span.last_seq) {
            Some(live) if live.events < above.events => {
                Ok(LiveCount { events: live.events, bytes: live.bytes.min(above.bytes) })
            }
            // All of them live, or count as live because the number is unknown. The index contains their size.
            _ => Ok(above),
        }
    }
}

/// Counts the events of the entries from a seq on. An entry that starts before this seq counts in proportion, and as at
/// least one event.
pub(crate) fn count_from(entries: &[Entry], first_seq: u64) -> LiveCount {
    let mut count = LiveCount { events: 0, bytes: 0 };
    for entry in entries.iter().filter(|entry| entry.last_seq >= first_seq) {
        let seqs = u128::from(entry.last_seq - entry.first_seq) + 1;
        let above = u128::from(entry.last_seq - first_seq.max(entry.first_seq)) + 1;
        let part = |whole: u64| (u128::from(whole) * above).div_ceil(seqs) as u64;
        count.events = count.events.saturating_add(part(u64::from(entry.count)));
        count.bytes = count.bytes.saturating_add(part(entry.frame_bytes()));
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_id::EventId;

    #[test]
    fn an_entry_that_starts_before_the_seq_counts_in_proportion() {
        let entry = |first_seq, count: u32| Entry {
            first_seq,
            last_seq: first_seq + 9,
            min_ts: 0,
            max_ts: 0,
            first_server_id: EventId::default(),
            position: 4096,
            end: 8192,
            count,
            bytes: 100 * count,
        };
        let entries = [entry(1, 10), entry(11, 10), entry(21, 4)];
        let from = |seq| count_from(&entries, seq);
        assert_eq!(from(1), LiveCount { events: 24, bytes: 2400 });
        assert_eq!(from(16), LiveCount { events: 9, bytes: 900 });
        assert_eq!(from(30), LiveCount { events: 1, bytes: 40 });
        assert_eq!(from(31), LiveCount { events: 0, bytes: 0 });
    }
}
