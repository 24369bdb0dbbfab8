//! From an id to a seq: ids of publishers by index files, ids that the server made by their order.
//!
//! The server's ids rise with the log, so the index leads to the 16 KiB that may hold one. No table of them is kept: an append
//! without ids of its own costs nothing for this, neither time nor memory.

use crate::error::{Fault, FaultKind, ReadError};
use crate::event_id::EventId;
use crate::index::{EntrySearch, IdEntry};
use crate::index_file::IndexError;
use crate::layout::index_name;
use crate::read::chunk::Chunk;
use crate::read::committed_log::CommittedLog;
use crate::read::id_files::{IdFile, IdOwner};
use crate::read::kept_ids::KeptIds;
use crate::segment::{Segment, SegmentIndex};
use crate::server_ids::is_own;

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

/// Looks an id up in what is durable, but not among the ids that only memory has.
pub(crate) fn find_older_id(
    log: &CommittedLog,
    topic: u32,
    id: EventId,
    hash: u64,
) -> Result<Option<u64>, ReadError> {
    if let Some(seq) = find_client_id(log, &log.ids.files(), topic, id, hash)? {
        return Ok(Some(seq));
    }
    if is_own(log.context.hash, id) { find_own_id(log, topic, id, &mut OwnIds::default()) } else { Ok(None) }
}

/// Looks a publisher's id up in the index files.
pub(crate) fn find_client_id(
    log: &CommittedLog,
    files: &[IdFile],
    topic: u32,
    id: EventId,
    hash: u64,
) -> Result<Option<u64>, ReadError> {
    let is_newer = |candidate: &&IdFile| id.is_time_ordered() && id > candidate.last_so_far;
    // A new time-ordered id is above all that are there, so it is known to be new after one comparison.
    let candidates = files.iter().rev().take_while(|candidate| !is_newer(candidate));
    for candidate in candidates.filter(|candidate| candidate.may_contain(id, hash)) {
        let found = match &candidate.owner {
            IdOwner::Segment { segment, .. } => log.ask_index(
                segment,
                |file| file.find_id(topic, id, hash, log.context.hash),
                |index| index.ids.iter().find(|entry| entry.id == id && entry.topic == topic).copied(),
            )?,
            IdOwner::Kept(kept) => find_kept_id(log, kept, topic, id, hash)?,
        };
        if let Some(entry) = found {
            return Ok(Some(entry.seq));
        }
    }
    Ok(None)
}

/// Looks an id up among those whose events are gone. There is nothing to make a damaged file again from.
fn find_kept_id(
    log: &CommittedLog,
    kept: &KeptIds,
    topic: u32,
    id: EventId,
    hash: u64,
) -> Result<Option<IdEntry>, ReadError> {
    let file = || index_name(kept.row.number);
    match kept.file.find_id(topic, id, hash, log.context.hash) {
        Ok(found) => Ok(found),
        Err(IndexError::Io(source)) => Err(log.index_error(file(), source)),
        // Its time is over, and it went since the list was made.
        Err(IndexError::Stale) => Ok(None),
        Err(IndexError::Damaged { position }) => {
            log.damage.report(Fault::new(file(), position, FaultKind::Index));
            Ok(None)
        }
    }
}

/// Looks up an id that the log made.
pub(crate) fn find_own_id(
    log: &CommittedLog,
    topic: u32,
    id: EventId,
    seen: &mut OwnIds,
) -> Result<Option<u64>, ReadError> {
    if let Some(known) = seen.known(topic, id) {
        return Ok(known);
    }
    let segments = log.segments();
    let may_have = |segment: &Segment| {
        let view = log.view();
        match &*segment.index() {
            SegmentIndex::Growing => view.active_index.summary.may_have_own_id(id),
            SegmentIndex::Memory(index) => index.summary.may_have_own_id(id),
            SegmentIndex::File(file) => file.summary().may_have_own_id(id),
        }
    };
    for segment in segments.iter().rev().filter(|segment| may_have(segment)) {
        let Some(entry) = log.with_entries(segment, topic, |entries| entries.for_own_id(id))? else {
            continue;
        };
        seen.range = None;
        let found = log.search_entry(topic, &entry, &mut seen.chunk, |chunk| {
            chunk.events().find(|event| event.id == id).map(|event| event.seq)
        })?;
        if found.is_some() {
            seen.note(topic);
            return Ok(found);
        }
    }
    Ok(None)
}
