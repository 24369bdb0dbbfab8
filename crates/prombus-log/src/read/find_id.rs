//! Finds the seq of an event by its id. Publishers' ids are looked up in index files, server ids by their order.
//!
//! Server ids increase with each append, so the index leads to the 16 KiB that may contain one. There is no table of server
//! ids: an append without publishers' ids spends neither time nor memory on this.

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

/// Caches the events that the last lookup of a server id read, because successive lookups are mostly for neighbouring
/// events.
#[derive(Default)]
pub(crate) struct ServerIdCache {
    chunk: Chunk,
    /// The topic of the chunk.
    topic: u32,
    /// The lowest and the highest server id in the chunk.
    range: Option<(EventId, EventId)>,
    /// The index in the chunk of the event that the last lookup found.
    at: usize,
}

impl ServerIdCache {
    /// Looks an id up in the cached events. `None` if the id is outside the range of their ids, `Some(None)` if it is
    /// inside and no event has it.
    fn find(&mut self, topic: u32, id: EventId) -> Option<Option<u64>> {
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

    /// Records the id range of the cached events, which belong to `topic`.
    fn note(&mut self, topic: u32) {
        let mut ids = self.chunk.events().filter(|event| !event.client_id).map(|event| event.id);
        let first = ids.next();
        self.range = first.map(|first| (first, ids.last().unwrap_or(first)));
        self.topic = topic;
        self.at = 0;
    }
}

/// Looks an id up in the durable log, except for publishers' ids that are only in memory (`recent_ids.rs`).
pub(crate) fn find_older_id(
    log: &CommittedLog,
    topic: u32,
    id: EventId,
    hash: u64,
) -> Result<Option<u64>, ReadError> {
    if let Some(seq) = find_client_id(log, &log.ids.files(), topic, id, hash)? {
        return Ok(Some(seq));
    }
    if is_own(log.context.hash, id) {
        find_server_id(log, topic, id, &mut ServerIdCache::default())
    } else {
        Ok(None)
    }
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
    // A new time-ordered id is usually higher than all existing ones. Then one comparison shows that it is new.
    let candidates = files.iter().rev().take_while(|candidate| !is_newer(candidate));
    for candidate in candidates.filter(|candidate| candidate.may_contain(id, hash)) {
        let found = match &candidate.owner {
            IdOwner::Segment { segment, .. } => log.query_index(
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

/// Looks an id up in a kept index, whose events were cleaned away. A damaged kept index cannot be rebuilt.
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
        // The ids expired, and the file was removed after the caller got the list of files.
        Err(IndexError::Stale) => Ok(None),
        Err(IndexError::Damaged { position }) => {
            log.damage.report(Fault::new(file(), position, FaultKind::Index));
            Ok(None)
        }
    }
}

/// Looks up a server id.
pub(crate) fn find_server_id(
    log: &CommittedLog,
    topic: u32,
    id: EventId,
    cache: &mut ServerIdCache,
) -> Result<Option<u64>, ReadError> {
    if let Some(found) = cache.find(topic, id) {
        return Ok(found);
    }
    let segments = log.segments();
    let may_have = |segment: &Segment| {
        let view = log.view();
        match &*segment.index() {
            SegmentIndex::Growing => view.active_index.summary.may_have_server_id(id),
            SegmentIndex::Memory(index) => index.summary.may_have_server_id(id),
            SegmentIndex::File(file) => file.summary().may_have_server_id(id),
        }
    };
    for segment in segments.iter().rev().filter(|segment| may_have(segment)) {
        let Some(entry) = log.with_entries(segment, topic, |entries| entries.for_server_id(id))? else {
            continue;
        };
        cache.range = None;
        let found = log.search_entry(topic, &entry, &mut cache.chunk, |chunk| {
            chunk.events().find(|event| event.id == id).map(|event| event.seq)
        })?;
        if found.is_some() {
            cache.note(topic);
            return Ok(found);
        }
    }
    Ok(None)
}
