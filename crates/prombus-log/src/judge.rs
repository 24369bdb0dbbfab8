//! What lives in a segment, judged by its index and not by reading it, and which segments are worth rewriting together.

use crate::append::TopicId;
use crate::clean::{CleanOptions, LiveCount, Liveness};
use crate::error::ReadError;
use crate::index::{Entry, TopicSpan};
use crate::jobs::Pace;
use crate::layout::SEGMENT_DATA_START;
use crate::log::Shared;
use crate::rewrite::Broken;
use crate::segment::Segment;
use std::collections::HashSet;
use std::sync::Arc;

/// What is written at once takes at least a page.
const PAGE_BYTES: u64 = 4096;

/// Says which events live, with deleted topics and the options counted in.
pub(crate) struct Judge<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) liveness: &'a dyn Liveness,
    pub(crate) options: &'a CleanOptions,
}

/// A topic whose events are judged one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JudgedTopic {
    pub(crate) id: TopicId,
    /// It is not deleted.
    pub(crate) is_kept: bool,
    first_live: u64,
    is_sparse: bool,
}

/// What is in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) events: u64,
    pub(crate) live: LiveCount,
}

impl Judge<'_> {
    /// Whether a topic is there; the events of one that is not are dead.
    pub(crate) fn is_kept(&self, topic: u32) -> bool {
        self.shared.view.read().last_seq(topic).is_some()
    }

    /// What counts for all events of a topic. It may be asked again later: more is dead by then, never less.
    pub(crate) fn topic(&self, topic: u32) -> JudgedTopic {
        let id = TopicId(topic);
        if !self.is_kept(topic) {
            return JudgedTopic { id, is_kept: false, first_live: u64::MAX, is_sparse: false };
        }
        let is_sparse = self.options.compact && self.liveness.is_sparse(id);
        JudgedTopic { id, is_kept: true, first_live: self.liveness.first_live(id), is_sparse }
    }

    pub(crate) fn is_live(&self, topic: &JudgedTopic, seq: u64) -> bool {
        topic.is_kept && seq >= topic.first_live && (!topic.is_sparse || self.liveness.is_live(topic.id, seq))
    }

    pub(crate) fn census(&self, segment: &Segment) -> Result<Census, ReadError> {
        let mut census = Census::default();
        for span in self.shared.topic_spans(segment)? {
            census.events = census.events.saturating_add(span.events);
            let live = self.live_of(segment, &span)?;
            census.live.events = census.live.events.saturating_add(live.events);
            census.live.bytes = census.live.bytes.saturating_add(live.bytes);
        }
        // An index of an early build does not know what the events take, only where they stand.
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
            self.shared.with_entries(segment, span.topic, |entries| count_from(entries, first_live))?
        };
        if !self.options.compact || !self.liveness.is_sparse(topic) {
            return Ok(above);
        }
        match self.liveness.live_in(topic, first_live, span.last_seq) {
            Some(live) if live.events < above.events => {
                Ok(LiveCount { events: live.events, bytes: live.bytes.min(above.bytes) })
            }
            // All of them: what the index says of their bytes is exact.
            _ => Ok(above),
        }
    }
}

/// What the entries hold from a seq on; one that is cut in the middle counts in proportion, and at least one event of it.
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

/// Neighbours that are rewritten together.
pub(crate) struct Group {
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Where the last of them stands in the log.
    pub(crate) last: usize,
    pub(crate) live_bytes: u64,
}

/// What there is to clean.
#[derive(Default)]
pub(crate) struct Plan {
    /// Segments without a live event, where they stand, and how many events they hold.
    pub(crate) dead: Vec<(usize, Arc<Segment>, u64)>,
    pub(crate) groups: Vec<Group>,
    /// Segments were left out because they cannot be read.
    pub(crate) was_unreadable: bool,
}

impl Plan {
    /// How many segments from the oldest on must be covered by both checkpoints for all of it.
    pub(crate) fn needs_covered(&self) -> usize {
        let dead = self.dead.iter().map(|(at, _, _)| at + 1);
        dead.chain(self.groups.iter().map(|group| group.last + 1)).max().unwrap_or(0)
    }

    /// Leaves out what is not covered.
    pub(crate) fn limit_to(&mut self, covered: usize) {
        self.dead.retain(|(at, _, _)| *at < covered);
        self.groups.retain(|group| group.last < covered);
    }
}

impl Judge<'_> {
    /// Judges these segments, oldest first. Those in `left_alone`, and those whose index cannot be read now, stay as they are
    /// while anything in them lives.
    pub(crate) fn plan(
        &self,
        segments: &[Arc<Segment>],
        left_alone: &HashSet<u64>,
        room: u64,
        pace: &mut Pace<'_>,
    ) -> Result<Plan, Broken> {
        let mut plan = Plan::default();
        let mut group: Option<Group> = None;
        for (at, segment) in segments.iter().enumerate() {
            if !pace.rest() {
                return Err(Broken::Stopped);
            }
            // What compaction knows of a topic it knows by reading: about a segment that cannot be read it does not decide.
            let is_unreadable = self.shared.unreadable.has_file(&segment.name());
            let census = if is_unreadable {
                let options = &CleanOptions { compact: false, ..*self.options };
                Judge { options, ..*self }.census(segment)
            } else {
                self.census(segment)
            };
            plan.was_unreadable |= is_unreadable || census.is_err();
            if let Ok(Census { events, live: LiveCount { events: 0, .. } }) = census {
                // Its neighbours become each other's.
                plan.dead.push((at, Arc::clone(segment), events));
                continue;
            }
            let live_bytes = match census {
                Ok(census) if !is_unreadable && !left_alone.contains(&segment.id.number) => census.live.bytes,
                _ => {
                    plan.groups.extend(group.take());
                    continue;
                }
            };
            match &mut group {
                Some(group) if group.live_bytes + live_bytes <= room => {
                    group.segments.push(Arc::clone(segment));
                    group.last = at;
                    group.live_bytes += live_bytes;
                }
                _ => {
                    let segments = vec![Arc::clone(segment)];
                    plan.groups.extend(group.replace(Group { segments, last: at, live_bytes }));
                }
            }
        }
        plan.groups.extend(group);
        plan.groups.retain(Group::is_worth_it);
        Ok(plan)
    }
}

impl Group {
    /// Each merge leaves fewer segments, and a lone one gets half as large at least: nothing is written again and again.
    fn is_worth_it(&self) -> bool {
        let capacity = self.segments[0].id.capacity;
        self.segments.len() > 1
            || (self.live_bytes * 2 <= capacity
                && SEGMENT_DATA_START + self.live_bytes + 2 * PAGE_BYTES <= capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::EventId;

    #[test]
    fn an_entry_that_is_cut_counts_in_proportion() {
        let entry = |first_seq, count: u32| Entry {
            first_seq,
            last_seq: first_seq + 9,
            min_ts: 0,
            max_ts: 0,
            first_own_id: EventId::default(),
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
