//! Finds seqs that are lost in damaged parts of a segment whose COMMITs are lost too.
//!
//! The seqs of a topic follow each other, so one that no entry of any index has was cleaned, or it stood in a damaged part. Where
//! there is such a part in the right place the index gets an entry for it: a reader then comes across the damage and names it,
//! instead of taking the seqs for cleaned.
//!
//! [`SeqAudit`] names them while batches are replayed, for open and `verify`.

use crate::holes::UnreadableAt;
use crate::id::{EventId, KeyedHash};
use crate::index::{Entry, Index, TopicSpan};
use crate::layout::SEGMENT_DATA_START;
use crate::log::Shared;
use crate::record::HEADER_BYTES;
use crate::replay::index_segment;
use crate::segment::{Segment, SegmentIndex};
use crate::view::TopicView;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A reader reads an entry in one go: damaged parts further apart than this do not share one.
const ENTRY_BYTES_MAX: u64 = 1 << 20;

/// What the segments around a damaged one have of a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around {
    pub(crate) topic: u32,
    /// The last seq in an earlier segment, if one has the topic.
    pub(crate) before: Option<u64>,
    /// The first seq in a later segment, or the one that the topic gets next.
    pub(crate) after: u64,
}

/// All topics, as if there were only the damaged segment.
pub(crate) fn around(topics: &[Option<TopicView>]) -> HashMap<u32, Around> {
    let live = topics.iter().enumerate().filter_map(|(id, topic)| {
        let topic = topic.as_ref().filter(|topic| !topic.is_deleted)?;
        Some((id as u32, Around { topic: id as u32, before: None, after: topic.last_seq + 1 }))
    });
    live.collect()
}

/// Takes in what an earlier segment has.
pub(crate) fn add_before(around: &mut HashMap<u32, Around>, span: &TopicSpan) {
    if let Some(around) = around.get_mut(&span.topic) {
        around.before = around.before.max(Some(span.last_seq));
    }
}

/// Takes in what a later segment has.
pub(crate) fn add_after(around: &mut HashMap<u32, Around>, span: &TopicSpan) {
    if let Some(around) = around.get_mut(&span.topic) {
        around.after = around.after.min(span.first_seq);
    }
}

/// What a sealed segment has of each topic: by its index file, or by its frames where that is missing, damaged or unreadable.
///
/// # Errors
/// Neither can be read. Then it is not known which seqs the segment has, and nothing may be concluded about its neighbours.
pub(crate) fn spans_of(segment: &Segment, hash: KeyedHash) -> Result<Vec<TopicSpan>, UnreadableAt> {
    // Out of the lock first: a slow disk must not hold up those who wait for it.
    let file = match &*segment.index.read() {
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

impl Shared {
    /// Lets the index of a damaged segment know which seqs are lost in it, by what the other segments have.
    ///
    /// # Errors
    /// One of the other segments cannot be read.
    pub(crate) fn cover_lost_seqs(&self, segment: &Segment, index: &mut Index) -> Result<(), UnreadableAt> {
        if index.damage.is_empty() {
            return Ok(());
        }
        let (segments, mut around, growing) = {
            let view = self.view.read();
            (Arc::clone(&view.segments), around(&view.topics), view.active_index.spans())
        };
        let Some(at) = segments.iter().position(|other| other.id == segment.id) else { return Ok(()) };
        for (other_at, other) in segments.iter().enumerate().filter(|(other_at, _)| *other_at != at) {
            let spans = match other.sealed() {
                Some(_) => spans_of(other, self.hash)?,
                None => growing.clone(),
            };
            let add = if other_at < at { add_before } else { add_after };
            spans.iter().for_each(|span| add(&mut around, span));
        }
        around.into_values().for_each(|around| index.cover_lost_seqs(around));
        Ok(())
    }
}

impl Index {
    /// Adds entries for the seqs of a topic that the damaged parts of the segment may have held.
    pub(crate) fn cover_lost_seqs(&mut self, around: Around) {
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

/// The entry of the seqs between two that are known, if a damaged part of `region` can have held them.
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
        // The first ones of a topic: what is more than fits was cleaned before.
        None if next.saturating_sub(1) <= lost_max => 1,
        None => return None,
    };
    if first >= next {
        return None;
    }
    let is_near = last_part.end - first_part.start <= ENTRY_BYTES_MAX;
    let position = if is_near { first_part.start } else { last_part.start };
    // Any part of the damage is enough for a reader to come across it.
    let position = position.max(last_part.end.saturating_sub(ENTRY_BYTES_MAX));
    Some(Entry {
        first_seq: first,
        last_seq: next - 1,
        min_ts: i64::MIN,
        max_ts: i64::MAX,
        first_own_id: EventId::default(),
        position: position as u32,
        end: last_part.end as u32,
        count: u32::try_from(next - first).unwrap_or(u32::MAX),
        bytes: (last_part.end - position) as u32,
    })
}

/// Seqs of a topic that are missing, and where the damage is that took them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostSeqs {
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    /// The segment's number.
    pub(crate) segment: u64,
    pub(crate) position: u64,
}

/// Damage in a batch that lost its COMMIT.
struct DamagedPlace {
    segment: u64,
    position: u64,
    bytes: u64,
}

/// Follows the seqs of all topics through the log, in order.
#[derive(Default)]
pub(crate) struct SeqAudit {
    /// Per topic the newest seq so far, and how many places were damaged by then.
    topics: HashMap<u32, (u64, usize)>,
    places: Vec<DamagedPlace>,
}

impl SeqAudit {
    /// Everything of a topic up to this seq is accounted for.
    pub(crate) fn account(&mut self, topic: u32, seq: u64) {
        let known = self.topics.entry(topic).or_default();
        *known = (known.0.max(seq), self.places.len());
    }

    /// A batch lost its COMMIT, and these bytes are damaged.
    pub(crate) fn add_damage(&mut self, segment: u64, range: Range<u64>) {
        self.places.push(DamagedPlace { segment, position: range.start, bytes: range.end - range.start });
    }

    /// The seqs of a topic that damage took before this seq.
    pub(crate) fn lost_before(&self, topic: u32, seq: u64) -> Option<LostSeqs> {
        let (known, places_then) = self.topics.get(&topic).copied().unwrap_or_default();
        let since = &self.places[places_then..];
        let first = since.first().filter(|_| known + 1 < seq)?;
        let bytes: u64 = since.iter().map(|place| place.bytes).sum();
        // Each event took a header at least; missing seqs that do not fit were cleaned before.
        let most = bytes.div_ceil(HEADER_BYTES as u64);
        let first_seq = (known + 1).max(seq.saturating_sub(most));
        Some(LostSeqs { first_seq, last_seq: seq - 1, segment: first.segment, position: first.position })
    }
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
        assert_eq!(lost(None, 100), None, "cleaned");
        assert_eq!(lost_entry(damage, Some(4), 7, 9000..16_384), None, "the damage is elsewhere");
    }
}
