//! Names the seqs that damage took together with the COMMIT that would have named them.
//!
//! A topic's seqs rise without gaps, so seqs that are missing after damage whose batch lost its COMMIT were lost there. Without
//! such damage in between, missing seqs are cleaned ones.

use crate::checkpoint::{Checkpoint, Mark};
use crate::error::{Fault, FaultKind};
use crate::index::{Damage, Index};
use crate::index_file::IndexFile;
use crate::layout::{SEGMENT_DATA_START, segment_name};
use crate::record::HEADER_BYTES;
use crate::segment::Segment;
use crate::storage::Storage;
use crate::view::TopicView;
use std::collections::HashMap;
use std::sync::Arc;

/// Seqs of a topic that are missing, and where the damage is that took them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LostSeqs {
    pub(crate) topic: u32,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    /// The segment's number.
    pub(crate) segment: u64,
    pub(crate) position: u64,
}

impl LostSeqs {
    pub(crate) fn fault(&self, file: String, topic: Option<String>) -> Fault {
        Fault {
            topic,
            seq: Some(self.first_seq),
            last_seq: (self.last_seq > self.first_seq).then_some(self.last_seq),
            ..Fault::new(file, self.position, FaultKind::Event)
        }
    }
}

/// The first of the missing seqs `first..=last` that damage of this length can have taken: each event took a header at least.
pub(crate) fn first_that_fits(first_seq: u64, last_seq: u64, damaged_bytes: u64) -> u64 {
    let most = damaged_bytes.div_ceil(HEADER_BYTES as u64);
    first_seq.max((last_seq + 1).saturating_sub(most))
}

/// Follows the seqs of all topics through the log, in order.
#[derive(Default)]
pub(crate) struct SeqAudit {
    /// Per topic the newest seq so far, and how many places were damaged by then.
    topics: HashMap<u32, (u64, usize)>,
    /// Damage whose batch lost its COMMIT: segment, position, length.
    places: Vec<(u64, u64, u64)>,
}

impl SeqAudit {
    /// Everything of a topic up to this seq is accounted for.
    pub(crate) fn account(&mut self, topic: u32, seq: u64) {
        let known = self.topics.entry(topic).or_default();
        *known = (known.0.max(seq), self.places.len());
    }

    /// A batch lost its COMMIT here.
    pub(crate) fn add_damage(&mut self, segment: u64, damage: Damage) {
        self.places.push((segment, damage.position, damage.end - damage.position));
    }

    /// What damage took of a topic before this seq.
    pub(crate) fn lost_before(&self, topic: u32, seq: u64) -> Option<LostSeqs> {
        let (known, places_then) = self.topics.get(&topic).copied().unwrap_or_default();
        let since = &self.places[places_then..];
        let &(segment, position, _) = since.first().filter(|_| known + 1 < seq)?;
        let bytes = since.iter().map(|(_, _, length)| length).sum();
        let first_seq = first_that_fits(known + 1, seq - 1, bytes);
        Some(LostSeqs { topic, first_seq, last_seq: seq - 1, segment, position })
    }
}

/// What a checkpoint knows about the segment that holds its mark.
pub(crate) struct Checkpointed<'a> {
    pub(crate) segment: &'a Segment,
    pub(crate) mark: Mark,
    pub(crate) topics: &'a [Option<TopicView>],
    /// The number of the older checkpoint.
    pub(crate) older: u64,
}

/// Finds what damage took before the mark of a checkpoint, in the segment that holds the mark, together with its COMMITs. The
/// checkpoint knows the newest seq of each topic, and the segments before this one know where the topic was when it began: what is
/// missing in between is covered, so that readers come across the damage. Returns it as faults.
pub(crate) fn cover_lost_before_mark(
    storage: &Arc<dyn Storage>,
    index: &mut Index,
    checkpointed: &Checkpointed<'_>,
    before: &[Arc<Segment>],
) -> Vec<Fault> {
    let Checkpointed { segment, mark, topics, older } = *checkpointed;
    let mut faults = Vec::new();
    let Some(damage) = index.unattributed.first().copied() else { return faults };
    let mut known = last_seqs(storage, before);
    // Topics of which nothing was appended since the older checkpoint lost nothing in damage after its mark.
    if let Ok(Ok(older)) = Checkpoint::read(&**storage, older) {
        let is_before = if older.mark.segment == segment.id.number {
            older.mark.position <= damage.position
        } else {
            older.mark.segment == 0 || before.iter().any(|one| one.id.number == older.mark.segment)
        };
        for row in older.topics.iter().filter(|_| is_before) {
            let seq = known.entry(row.id).or_default();
            *seq = row.last_seq.max(*seq);
        }
    }
    for (id, topic) in topics.iter().enumerate() {
        let (id, Some(topic)) = (id as u32, topic) else { continue };
        let known = known.get(&id).copied().unwrap_or(0);
        let entries = index.entries(id);
        let first = entries.first().map(|first| (first.first_seq, u64::from(first.position)));
        let last = entries.last().map(|last| (last.last_seq, u64::from(last.end)));
        // Before the first event that was found, and after the last one.
        let (first_found, position) = first.unwrap_or((0, 0));
        let (last_found, end) = last.unwrap_or((0, SEGMENT_DATA_START));
        let parts = [
            (known + 1, first_found.saturating_sub(1), SEGMENT_DATA_START..position),
            (last_found.max(known) + 1, topic.last_seq, end..mark.position),
        ];
        for (first_seq, last_seq, part) in parts.into_iter().filter(|(first, last, _)| first <= last) {
            if let Some((position, first_seq)) = index.cover_lost(id, first_seq, last_seq, part) {
                let segment = segment.id.number;
                let lost = LostSeqs { topic: id, first_seq, last_seq, segment, position };
                faults.push(lost.fault(segment_name(segment), Some(topic.name.to_string())));
            }
        }
    }
    faults
}

/// The newest seq of each topic in these segments, as far as their index files can be read.
fn last_seqs(storage: &Arc<dyn Storage>, segments: &[Arc<Segment>]) -> HashMap<u32, u64> {
    let mut last_seqs = HashMap::new();
    for segment in segments {
        let (id, sealed) = (segment.id, segment.sealed().unwrap_or(SEGMENT_DATA_START));
        let opened = IndexFile::open(storage, id.number, id.salt, sealed);
        for span in opened.and_then(|index| index.topics()).unwrap_or_default() {
            let seq: &mut u64 = last_seqs.entry(span.topic).or_default();
            *seq = span.last_seq.max(*seq);
        }
    }
    last_seqs
}
