//! Looking up ids that the log made itself. They rise with the log, so the index leads to the 16 KiB that may hold one.
//!
//! No table of them is kept: an append without ids of its own costs nothing for this, and neither does memory.

use crate::error::ReadError;
use crate::id::EventId;
use crate::index::EntrySearch as _;
use crate::log::Shared;
use crate::reader::Chunk;
use crate::segment::{Segment, SegmentIndex};

/// The events that the last look-up read: ids that are looked up one after another are mostly neighbours.
#[derive(Default)]
pub(crate) struct OwnIds {
    chunk: Chunk,
    topic: u32,
    /// The lowest and the highest id in the chunk that the log made.
    range: Option<(EventId, EventId)>,
    /// Where the last one was found.
    at: usize,
}

impl OwnIds {
    /// The seq of an id among the events that were read; `None` when it would not be among them.
    fn known(&mut self, topic: u32, id: EventId) -> Option<Option<u64>> {
        let (first, last) = self.range.filter(|_| self.topic == topic)?;
        if id < first || last < id {
            return None;
        }
        let count = self.chunk.len();
        let places = (self.at..count).chain(0..self.at);
        let found = places.map(|at| (at, self.chunk.event(at))).find(|(_, event)| event.id == id);
        Some(found.map(|(at, event)| {
            let seq = event.seq;
            self.at = at;
            seq
        }))
    }

    /// Takes note of what was read for a topic.
    fn note(&mut self, topic: u32) {
        let mut ids = self.chunk.events().filter(|event| !event.client_id).map(|event| event.id);
        let first = ids.next();
        self.range = first.map(|first| (first, ids.last().unwrap_or(first)));
        self.topic = topic;
        self.at = 0;
    }
}

impl Shared {
    /// Looks up an id that the log made.
    pub(crate) fn find_own_id(
        &self,
        topic: u32,
        id: EventId,
        seen: &mut OwnIds,
    ) -> Result<Option<u64>, ReadError> {
        if let Some(known) = seen.known(topic, id) {
            return Ok(known);
        }
        let segments = self.segments();
        let may_have = |segment: &Segment| {
            let view = self.view.read();
            match &*segment.index.read() {
                SegmentIndex::Growing => view.active_index.summary.may_have_own_id(id),
                SegmentIndex::Memory(index) => index.summary.may_have_own_id(id),
                SegmentIndex::File(file) => file.summary().may_have_own_id(id),
            }
        };
        for segment in segments.iter().rev().filter(|segment| may_have(segment)) {
            let Some(entry) = self.with_entries(segment, topic, |entries| entries.for_own_id(id))? else {
                continue;
            };
            seen.range = None;
            let found = self.in_entry(topic, &entry, &mut seen.chunk, |chunk| {
                chunk.events().find(|event| event.id == id).map(|event| event.seq)
            })?;
            if found.is_some() {
                seen.note(topic);
                return Ok(found);
            }
        }
        Ok(None)
    }
}
