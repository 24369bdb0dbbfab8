//! From a time, an id or a key to a seq, over all segments.

use crate::error::{Fault, FaultKind, ReadError};
use crate::id::{EventId, is_own};
use crate::index::{Entry, IdEntry, Index, KeyEntry, TopicSpan};
use crate::index_file::{IndexError, IndexFile};
use crate::kept_ids::KeptIds;
use crate::layout::{SEGMENT_DATA_START, index_name};
use crate::log::Shared;
use crate::observer::Notice;
use crate::own_ids::OwnIds;
use crate::reader::{Chunk, ReadLimit};
use crate::record::FLAG_KEY;
use crate::record::HEADER_BYTES;
use crate::replay::index_segment;
use crate::segment::{Segment, SegmentIndex};
use crate::storage::is_unreadable;
use std::io;
use std::sync::Arc;

/// A segment whose index file knows publishers' ids. The ranges stand side by side in memory, because every publish with an
/// id looks at all of them.
#[derive(Clone)]
pub(crate) struct IdFile {
    first: EventId,
    last: EventId,
    has_unordered: bool,
    /// No older segment has a time-ordered id above this one.
    last_so_far: EventId,
    owner: IdOwner,
}

/// Whose ids they are.
#[derive(Clone)]
enum IdOwner {
    Segment {
        file: Arc<IndexFile>,
        segment: Arc<Segment>,
    },
    /// Their events are gone.
    Kept(Arc<KeptIds>),
}

impl IdOwner {
    fn file(&self) -> &IndexFile {
        match self {
            Self::Segment { file, .. } => file,
            Self::Kept(kept) => &kept.file,
        }
    }
}

impl IdFile {
    fn may_contain(&self, id: EventId, hash: u64) -> bool {
        let in_range =
            if id.is_time_ordered() { self.first <= id && id <= self.last } else { self.has_unordered };
        in_range && self.owner.file().may_contain_id(hash)
    }
}

/// The list that publishers' ids are looked up in: first what is kept of events that are gone, then the segments.
pub(crate) fn id_files(segments: &[Arc<Segment>], kept: &[Arc<KeptIds>], before: &[IdFile]) -> Vec<IdFile> {
    let mut owners: Vec<IdOwner> = kept.iter().cloned().map(IdOwner::Kept).collect();
    for segment in segments {
        let is_same =
            |owner: &IdOwner| matches!(owner, IdOwner::Segment { segment: old, .. } if old.id == segment.id);
        match &*segment.index.read() {
            SegmentIndex::File(file) => {
                owners.push(IdOwner::Segment { file: Arc::clone(file), segment: Arc::clone(segment) });
            }
            // One whose file is being made again: its old filter still holds, and its index answers from memory.
            _ => owners.extend(before.iter().map(|old| &old.owner).find(|owner| is_same(owner)).cloned()),
        }
    }
    let mut files: Vec<IdFile> = Vec::new();
    let mut last_so_far = EventId::default();
    for owner in owners {
        let summary = *owner.file().summary();
        if summary.first_client_id <= summary.last_client_id || summary.unordered_ids > 0 {
            last_so_far = last_so_far.max(summary.last_client_id);
            files.push(IdFile {
                first: summary.first_client_id,
                last: summary.last_client_id,
                has_unordered: summary.unordered_ids > 0,
                last_so_far,
                owner,
            });
        }
    }
    files
}

impl Shared {
    /// Calls `use_entries` with a topic's entries in a segment, wherever they are kept.
    pub(crate) fn with_entries<R>(
        &self,
        segment: &Segment,
        topic: u32,
        use_entries: impl FnOnce(&[Entry]) -> R,
    ) -> Result<R, ReadError> {
        let file = {
            // The view first: under it a segment never turns from growing to sealed.
            let view = self.view.read();
            match &*segment.index.read() {
                SegmentIndex::Growing => return Ok(use_entries(view.active_index.entries(topic))),
                SegmentIndex::Memory(index) => return Ok(use_entries(index.entries(topic))),
                SegmentIndex::File(file) => Arc::clone(file),
            }
        };
        match file.directory() {
            Ok(directory) => Ok(use_entries(directory.entries(topic))),
            Err(error) => Ok(use_entries(self.rebuild_index(segment, error)?.entries(topic))),
        }
    }

    /// Asks a segment's index, in its file or in memory.
    fn ask_index<R>(
        &self,
        segment: &Segment,
        ask_file: impl FnOnce(&IndexFile) -> Result<R, IndexError>,
        ask_memory: impl FnOnce(&Index) -> R,
    ) -> Result<R, ReadError> {
        let file = {
            let view = self.view.read();
            match &*segment.index.read() {
                SegmentIndex::Growing => return Ok(ask_memory(&view.active_index)),
                SegmentIndex::Memory(index) => return Ok(ask_memory(index)),
                SegmentIndex::File(file) => Arc::clone(file),
            }
        };
        match ask_file(&file) {
            Ok(answer) => Ok(answer),
            Err(error) => Ok(ask_memory(&*self.rebuild_index(segment, error)?)),
        }
    }

    /// What a segment has of each topic, by its index.
    pub(crate) fn topic_spans(&self, segment: &Segment) -> Result<Vec<TopicSpan>, ReadError> {
        self.ask_index(segment, IndexFile::topics, Index::spans)
    }

    /// Makes a segment's index again from the segment, and names what is wrong. It answers from memory until the housekeeper
    /// has written the file.
    pub(crate) fn rebuild_index(
        &self,
        segment: &Segment,
        error: IndexError,
    ) -> Result<Arc<Index>, ReadError> {
        let name = index_name(segment.id.number);
        match error {
            // The segment is the second copy of what an index says.
            IndexError::Io(source) if is_unreadable(&source) => {
                self.index_error(name.clone(), source);
            }
            IndexError::Io(source) => return Err(self.index_error(name, source)),
            IndexError::Stale => {}
            IndexError::Damaged { position } => {
                self.report_fault(Fault::new(&name, position, FaultKind::Index));
            }
        }
        let sealed = segment.sealed().unwrap_or(SEGMENT_DATA_START);
        let mut index = index_segment(segment, sealed, self.hash).map_err(|at| {
            let error = segment.read_error(at.position)(at.source);
            self.note_read_error(&error);
            error
        })?;
        self.cover_lost_seqs(segment, &mut index).map_err(|at| {
            let error = segment.read_error(at.position)(at.source);
            self.note_read_error(&error);
            error
        })?;
        let index = Arc::new(index);
        *segment.index.write() = SegmentIndex::Memory(Arc::clone(&index));
        self.observer().notice(&Notice::IndexRebuilt { file: name });
        self.wake_housekeeper();
        Ok(index)
    }

    /// Counts that an index could not be read.
    pub(crate) fn index_error(&self, file: String, source: io::Error) -> ReadError {
        let error = ReadError::Io { file, position: 0, source };
        self.note_read_error(&error);
        error
    }

    pub(crate) fn index_memory_bytes(&self, segments: &[Arc<Segment>]) -> usize {
        let of_segment = |segment: &Arc<Segment>| match &*segment.index.read() {
            SegmentIndex::File(file) => file.memory_bytes(),
            _ => 0,
        };
        let kept: usize = self.kept.read().iter().map(|kept| kept.file.memory_bytes()).sum();
        kept + segments.iter().map(of_segment).sum::<usize>()
    }

    pub(crate) fn segments(&self) -> Arc<Vec<Arc<Segment>>> {
        Arc::clone(&self.view.read().segments)
    }

    pub(crate) fn first_seq(&self, topic: u32) -> Result<Option<u64>, ReadError> {
        let segments = self.segments();
        self.durable_seq(topic)?;
        match self.first_segment_reaching(&segments, topic, 1)? {
            None => Ok(None),
            Some(at) => self
                .with_entries(&segments[at], topic, |entries| entries.first().map(|entry| entry.first_seq)),
        }
    }

    pub(crate) fn first_at_or_after(&self, topic: u32, ts: i64, from: u64) -> Result<Option<u64>, ReadError> {
        self.durable_seq(topic)?;
        let mut chunk = Chunk::default();
        let mut candidates = Vec::new();
        for segment in self.segments().iter() {
            candidates.clear();
            self.with_entries(segment, topic, |entries| {
                let is_wanted = |entry: &&Entry| entry.max_ts >= ts && entry.last_seq >= from;
                candidates.extend(entries.iter().filter(is_wanted));
            })?;
            for entry in &candidates {
                let found = self.in_entry(topic, entry, &mut chunk, |chunk| {
                    chunk.events().find(|event| event.ts >= ts && event.seq >= from).map(|event| event.seq)
                })?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    pub(crate) fn last_at_or_before(&self, topic: u32, ts: i64) -> Result<Option<u64>, ReadError> {
        self.durable_seq(topic)?;
        let mut chunk = Chunk::default();
        let mut candidates = Vec::new();
        for segment in self.segments().iter().rev() {
            candidates.clear();
            self.with_entries(segment, topic, |entries| {
                candidates.extend(entries.iter().rev().filter(|entry| entry.min_ts <= ts));
            })?;
            for entry in &candidates {
                let mut last = None;
                self.in_entry(topic, entry, &mut chunk, |chunk| {
                    let in_chunk =
                        chunk.events().filter(|event| event.ts <= ts).map(|event| event.seq).last();
                    last = in_chunk.or(last);
                    None::<()>
                })?;
                if last.is_some() {
                    return Ok(last);
                }
            }
        }
        Ok(None)
    }

    /// Reads the events of an entry, chunk by chunk, until `look` finds something.
    pub(crate) fn in_entry<R>(
        &self,
        topic: u32,
        entry: &Entry,
        chunk: &mut Chunk,
        mut look: impl FnMut(&Chunk) -> Option<R>,
    ) -> Result<Option<R>, ReadError> {
        let mut seq = entry.first_seq;
        while seq <= entry.last_seq {
            let limit = ReadLimit {
                events: (entry.last_seq - seq + 1) as usize,
                bytes: (entry.end - entry.position) as usize,
            };
            self.read_few(topic, seq, limit, chunk)?;
            if let Some(found) = look(chunk) {
                return Ok(Some(found));
            }
            if chunk.next_seq() == seq {
                break;
            }
            seq = chunk.next_seq();
        }
        Ok(None)
    }

    pub(crate) fn find_id(&self, topic: u32, id: EventId) -> Result<Option<u64>, ReadError> {
        // Ids that only memory has belong to the newest segments, and may not be durable yet.
        let hash = self.hash.of_id(topic, id);
        let recent = self.append.lock().recent_ids.get(topic, id, hash);
        let last = self.durable_seq(topic)?;
        if let Some(seq) = recent {
            return Ok((seq <= last).then_some(seq));
        }
        let files = Arc::clone(&self.id_files.read());
        if let Some(seq) = self.find_client_id(&files, topic, id, hash)? {
            return Ok(Some(seq));
        }
        if is_own(self.hash, id) { self.find_own_id(topic, id, &mut OwnIds::default()) } else { Ok(None) }
    }

    /// Looks a publisher's id up in the index files.
    pub(crate) fn find_client_id(
        &self,
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
                IdOwner::Segment { segment, .. } => self.ask_index(
                    segment,
                    |file| file.find_id(topic, id, hash, self.hash),
                    |index| index.ids.iter().find(|entry| entry.id == id && entry.topic == topic).copied(),
                )?,
                IdOwner::Kept(kept) => self.find_kept_id(kept, topic, id, hash)?,
            };
            if let Some(entry) = found {
                return Ok(Some(entry.seq));
            }
        }
        Ok(None)
    }

    /// Looks an id up among those whose events are gone. There is nothing to make a damaged file again from.
    fn find_kept_id(
        &self,
        kept: &KeptIds,
        topic: u32,
        id: EventId,
        hash: u64,
    ) -> Result<Option<IdEntry>, ReadError> {
        let file = || index_name(kept.row.number);
        match kept.file.find_id(topic, id, hash, self.hash) {
            Ok(found) => Ok(found),
            Err(IndexError::Io(source)) => Err(self.index_error(file(), source)),
            // Its time is over, and it went since the list was made.
            Err(IndexError::Stale) => Ok(None),
            Err(IndexError::Damaged { position }) => {
                self.report_fault(Fault::new(file(), position, FaultKind::Index));
                Ok(None)
            }
        }
    }

    /// Makes the list that publishers' ids are looked up in, after an index file came or a segment went.
    pub(crate) fn refresh_id_files(&self) {
        let segments = self.segments();
        let kept = Arc::clone(&self.kept.read());
        let mut files = self.id_files.write();
        *files = Arc::new(id_files(&segments, &kept, &files));
    }

    pub(crate) fn find_key(&self, topic: u32, key: &[u8]) -> Result<Option<u64>, ReadError> {
        self.durable_seq(topic)?;
        let hash = self.hash.of_key(topic, key);
        for segment in self.segments().iter().rev() {
            let Some(entry) = self.key_entry(segment, hash)? else { continue };
            if entry.topic != topic {
                continue;
            }
            // The index knows hashes; the record has the key. A damaged record leaves the one before it.
            let Some((header, frame)) = self.read_frame(segment, entry.position)? else {
                let topic = self.topic_name(topic);
                let place = Fault::new(segment.name(), u64::from(entry.position), FaultKind::Event);
                self.report_fault(Fault { topic, ..place });
                continue;
            };
            let found = &frame[HEADER_BYTES..HEADER_BYTES + header.key_length as usize];
            if header.topic == topic && header.flags & FLAG_KEY != 0 && found == key {
                return Ok(Some(header.seq));
            }
        }
        Ok(None)
    }

    pub(crate) fn has_key_before(&self, topic: u32, key: &[u8], seq: u64) -> Result<bool, ReadError> {
        self.durable_seq(topic)?;
        let hash = self.hash.of_key(topic, key);
        for segment in self.segments().iter() {
            let Some(entry) = self.key_entry(segment, hash)?.filter(|entry| entry.topic == topic) else {
                continue;
            };
            // What cannot be read may be one: it stays on the safe side.
            let Some((header, _)) = self.read_frame(segment, entry.position)? else { return Ok(true) };
            if header.seq < seq {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn key_entry(&self, segment: &Segment, hash: u64) -> Result<Option<KeyEntry>, ReadError> {
        self.ask_index(segment, |file| file.find_key(hash), |index| index.keys.get(&hash).copied())
    }
}
