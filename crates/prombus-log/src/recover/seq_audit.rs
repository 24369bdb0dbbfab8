//! Finds the seqs that were lost together with their COMMIT, while batches are replayed.

use crate::record::HEADER_BYTES;
use std::collections::HashMap;
use std::ops::Range;

/// Lost seqs of a topic, and the position of the damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostSeqs {
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    /// The segment's number.
    pub(crate) segment: u64,
    /// Where the damage starts in the segment.
    pub(crate) position: u64,
}

/// A damaged range in a batch that lost its COMMIT.
struct DamagedPlace {
    /// The segment's number.
    segment: u64,
    /// Where the damage starts in the segment.
    position: u64,
    /// The length of the damaged range.
    bytes: u64,
}

/// Follows the seqs of all topics through the log, in order.
#[derive(Default)]
pub(crate) struct SeqAudit {
    /// Per topic: the newest seq so far, and the length of `places` at that time.
    topics: HashMap<u32, (u64, usize)>,
    /// The damaged ranges so far, in log order.
    places: Vec<DamagedPlace>,
}

impl SeqAudit {
    /// Marks the seqs of a topic up to this one as found or reported.
    pub(crate) fn account(&mut self, topic: u32, seq: u64) {
        let known = self.topics.entry(topic).or_default();
        *known = (known.0.max(seq), self.places.len());
    }

    /// Adds a damaged range of a batch that lost its COMMIT.
    pub(crate) fn add_damage(&mut self, segment: u64, range: Range<u64>) {
        self.places.push(DamagedPlace { segment, position: range.start, bytes: range.end - range.start });
    }

    /// The seqs of a topic before `seq` that were lost in damaged ranges; `None` if no seq is missing or there is no
    /// such range.
    pub(crate) fn lost_before(&self, topic: u32, seq: u64) -> Option<LostSeqs> {
        let (known, places_then) = self.topics.get(&topic).copied().unwrap_or_default();
        let since = &self.places[places_then..];
        let first = since.first().filter(|_| known + 1 < seq)?;
        let bytes: u64 = since.iter().map(|place| place.bytes).sum();
        // An event takes at least the size of a header. If more seqs are missing than fit into the damage, the oldest
        // of them were cleaned earlier.
        let most = bytes.div_ceil(HEADER_BYTES as u64);
        let first_seq = (known + 1).max(seq.saturating_sub(most));
        Some(LostSeqs { first_seq, last_seq: seq - 1, segment: first.segment, position: first.position })
    }
}
