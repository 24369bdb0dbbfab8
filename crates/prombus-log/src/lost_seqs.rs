//! Finds the seqs that were lost in a damaged part of a segment, for the case that the COMMIT frames of its batches are lost too.
//! (If the COMMIT of a batch is intact, its run table tells which records were lost: see `rebuild_index.rs`.)
//!
//! A topic's seqs have no gaps. So a seq that no index has was either cleaned or is in a damaged part. If there is a
//! damaged part between the neighbours of the seq, the index gets an entry that covers the seq: a reader then finds the
//! damage and reports it, instead of taking the seq for cleaned.

use crate::event_id::EventId;
use crate::index::{Entry, Index, TopicSpan};
use crate::keyed_hash::KeyedHash;
use crate::layout::SEGMENT_DATA_START;
use crate::rebuild_index::index_segment;
use crate::record::HEADER_BYTES;
use crate::segment::{Segment, SegmentIndex};
use crate::topics::TopicView;
use crate::unreadable_ranges::UnreadableAt;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The maximum size of an entry for lost seqs, because readers read an entry in one piece.
const ENTRY_BYTES_MAX: u64 = 1 << 20;

/// The nearest seqs of a topic before and after those in the damaged segment.
#[derive(Clone, Copy, Debug)]
struct Around {
    topic: u32,
    /// The last seq in earlier segments, if any contains the topic.
    before: Option<u64>,
    /// The first seq in later segments, or the topic's next seq.
    after: u64,
}

/// The seqs of each topic in all segments except the damaged one.
pub(crate) struct OtherSegments {
    /// The index of the damaged segment in log order.
    at: usize,
    topics: HashMap<u32, Around>,
}

impl OtherSegments {
    /// Starts with all topics, as if the log had only the damaged segment. `at` is its index in log order.
    pub(crate) fn new(at: usize, topics: &[Option<TopicView>]) -> Self {
        let live = topics.iter().enumerate().filter_map(|(id, topic)| {
            let topic = topic.as_ref().filter(|topic| !topic.is_deleted)?;
            Some((id as u32, Around { topic: id as u32, before: None, after: topic.last_seq + 1 }))
        });
        Self { at, topics: live.collect() }
    }

    /// Adds the spans of another segment, whose index in log order is `other_at`.
    pub(crate) fn add(&mut self, other_at: usize, spans: &[TopicSpan]) {
        for span in spans {
            match self.topics.get_mut(&span.topic) {
                Some(around) if other_at < self.at => around.before = around.before.max(Some(span.last_seq)),
                Some(around) => around.after = around.after.min(span.first_seq),
                None => {}
            }
        }
    }

    /// Adds entries for the lost seqs to the index of the damaged segment.
    pub(crate) fn cover_lost_seqs(self, index: &mut Index) {
        self.topics.into_values().for_each(|around| index.cover_lost_seqs(around));
    }
}

/// The spans of all topics in a sealed segment: from its index file, or from its frames if the index file is missing,
/// damaged or unreadable.
///
/// # Errors
/// Neither can be read. Then the seqs of the segment are unknown, and nothing may be concluded about other segments.
pub(crate) fn spans_of(segment: &Segment, hash: KeyedHash) -> Result<Vec<TopicSpan>, UnreadableAt> {
    // The lock is released before the file is read: a slow disk must not block other users of the lock.
    let file = match &*segment.index() {
        SegmentIndex::Memory(index) => return Ok(index.spans()),
        SegmentIndex::File(file) => Some(Arc::clone(file)),
        SegmentIndex::Growing => None,
    };
    let spans = match file {
        Some(file) => file.topics(),
        None => segment.index_file().and_then(|file| file.topics()),
    };
    if let Ok(spans) = spans {
        return Ok(spans);
    }
    let sealed = segment.sealed().unwrap_or(SEGMENT_DATA_START);
    Ok(index_segment(segment, sealed, hash)?.spans())
}

impl Index {
    /// Adds entries for the seqs of a topic that may have been in the damaged parts of the segment.
    fn cover_lost_seqs(&mut self, around: Around) {
        let entries = self.topics.remove(&around.topic).unwrap_or_default();
        let mut covered = Vec::with_capacity(entries.len());
        let (mut last_seq, mut end) = (around.before, SEGMENT_DATA_START);
        for entry in entries {
            let region = end..u64::from(entry.position);
            covered.extend(lost_entry(&self.damage, last_seq, entry.first_seq, region));
            covered.push(entry);
            (last_seq, end) = (Some(entry.last_seq), u64::from(entry.end));
        }
        covered.extend(lost_entry(&self.damage, last_seq, around.after, end..u64::MAX));
        if !covered.is_empty() {
            self.topics.insert(around.topic, covered);
        }
    }
}

/// The entry for the lost seqs between the known seqs `last` and `next`, if damaged parts of `region` can have contained
/// any.
fn lost_entry(damage: &[Range<u64>], last: Option<u64>, next: u64, region: Range<u64>) -> Option<Entry> {
    let is_hit = |part: &&Range<u64>| part.start < region.end && part.end > region.start;
    let parts: Vec<Range<u64>> = damage
        .iter()
        .filter(is_hit)
        .map(|part| part.start.max(region.start)..part.end.min(region.end))
        .collect();
    let (first_part, last_part) = (parts.first()?, parts.last()?);
    let lost_max = parts.iter().map(|part| (part.end - part.start) / HEADER_BYTES as u64).sum::<u64>();
    let first = match last {
        Some(last) => (last + 1).max(next.saturating_sub(lost_max)),
        // `next` is the topic's first known seq. If all earlier events fit into the damage, they count as lost;
        // otherwise they were cleaned.
        None if next.saturating_sub(1) <= lost_max => 1,
        None => return None,
    };
    if first >= next {
        return None;
    }
    let is_near = last_part.end - first_part.start <= ENTRY_BYTES_MAX;
    let position = if is_near { first_part.start } else { last_part.start };
    // A reader finds the damage even if the entry covers only a part of it.
    let position = position.max(last_part.end.saturating_sub(ENTRY_BYTES_MAX));
    Some(Entry {
        first_seq: first,
        last_seq: next - 1,
        min_ts: i64::MIN,
        max_ts: i64::MAX,
        first_server_id: EventId::default(),
        position: position as u32,
        end: last_part.end as u32,
        count: u32::try_from(next - first).unwrap_or(u32::MAX),
        bytes: (last_part.end - position) as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_seqs_are_those_that_fit_into_the_damage() {
        let part = 8192..8704;
        let damage = std::slice::from_ref(&part);
        let lost = |last, next| {
            let entry = lost_entry(damage, last, next, 4096..16_384)?;
            Some((entry.first_seq, entry.last_seq, entry.position, entry.end))
        };
        assert_eq!(lost(Some(4), 5), None, "no seq is missing");
        assert_eq!(lost(Some(4), 7), Some((5, 6, 8192, 8704)));
        assert_eq!(lost(Some(4), 100), Some((92, 99, 8192, 8704)), "the others were cleaned");
        assert_eq!(lost(None, 3), Some((1, 2, 8192, 8704)));
        assert_eq!(lost(None, 100), None, "all were cleaned");
        assert_eq!(lost_entry(damage, Some(4), 7, 9000..16_384), None, "the damage is elsewhere");
    }
}
