//! Queries a segment's index in memory or in its file, and rebuilds it from the segment if the file is damaged.

use crate::error::{Fault, FaultKind, ReadError};
use crate::index::{Entry, Index, TopicSpan};
use crate::index_file::{IndexError, IndexFile};
use crate::layout::{SEGMENT_DATA_START, index_name};
use crate::lost_seqs::{OtherSegments, spans_of};
use crate::observer::Notice;
use crate::read::committed_log::CommittedLog;
use crate::rebuild_index::index_segment;
use crate::segment::{Segment, SegmentIndex};
use crate::storage::is_unreadable;
use crate::unreadable_ranges::UnreadableAt;
use std::io;
use std::sync::Arc;

impl CommittedLog {
    /// Calls `use_entries` with the entries of a topic in a segment.
    pub(crate) fn with_entries<R>(
        &self,
        segment: &Segment,
        topic: u32,
        use_entries: impl FnOnce(&[Entry]) -> R,
    ) -> Result<R, ReadError> {
        let file = {
            // The view is locked first: while it is locked, a growing segment is not sealed.
            let view = self.view();
            match &*segment.index() {
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

    /// Queries a segment's index, in its file or in memory.
    pub(super) fn query_index<R>(
        &self,
        segment: &Segment,
        query_file: impl FnOnce(&IndexFile) -> Result<R, IndexError>,
        query_memory: impl FnOnce(&Index) -> R,
    ) -> Result<R, ReadError> {
        let file = {
            let view = self.view();
            match &*segment.index() {
                SegmentIndex::Growing => return Ok(query_memory(&view.active_index)),
                SegmentIndex::Memory(index) => return Ok(query_memory(index)),
                SegmentIndex::File(file) => Arc::clone(file),
            }
        };
        match query_file(&file) {
            Ok(answer) => Ok(answer),
            Err(error) => Ok(query_memory(&*self.rebuild_index(segment, error)?)),
        }
    }

    /// The span of each topic in a segment.
    pub(crate) fn topic_spans(&self, segment: &Segment) -> Result<Vec<TopicSpan>, ReadError> {
        self.query_index(segment, IndexFile::topics, Index::spans)
    }

    /// Rebuilds a segment's index from the segment, and reports the damage. The index stays in memory until maintenance has
    /// written it to a file.
    pub(crate) fn rebuild_index(
        &self,
        segment: &Segment,
        error: IndexError,
    ) -> Result<Arc<Index>, ReadError> {
        let name = index_name(segment.id.number);
        match error {
            // The index can be rebuilt from the segment, so this is not an error for the caller.
            IndexError::Io(source) if is_unreadable(&source) => {
                self.index_error(name.clone(), source);
            }
            IndexError::Io(source) => return Err(self.index_error(name, source)),
            IndexError::Stale => {}
            IndexError::Damaged { position } => {
                self.damage.report(Fault::new(&name, position, FaultKind::Index));
            }
        }
        let sealed = segment.sealed().unwrap_or(SEGMENT_DATA_START);
        let made = index_segment(segment, sealed, self.context.hash).and_then(|mut index| {
            self.cover_lost_seqs(segment, &mut index)?;
            Ok(index)
        });
        let index = made.map_err(|at| {
            let error = segment.read_error(at.position)(at.source);
            self.read_errors.note_error(&error);
            error
        })?;
        let index = Arc::new(index);
        segment.set_index(SegmentIndex::Memory(Arc::clone(&index)));
        self.context.observer().notice(&Notice::IndexRebuilt { file: name });
        self.maintenance_due.notify();
        Ok(index)
    }

    /// Adds entries for lost seqs to the index of a damaged segment. The seqs follow from those in the other segments.
    ///
    /// # Errors
    /// One of the other segments cannot be read.
    fn cover_lost_seqs(&self, segment: &Segment, index: &mut Index) -> Result<(), UnreadableAt> {
        if index.damage.is_empty() {
            return Ok(());
        }
        let view = self.view();
        let segments = Arc::clone(&view.segments);
        let Some(at) = segments.iter().position(|other| other.id == segment.id) else { return Ok(()) };
        let mut others = OtherSegments::new(at, &view.topics);
        let growing = view.active_index.spans();
        drop(view);
        for (other_at, other) in segments.iter().enumerate().filter(|(other_at, _)| *other_at != at) {
            match other.sealed() {
                Some(_) => others.add(other_at, &spans_of(other, self.context.hash)?),
                None => others.add(other_at, &growing),
            }
        }
        others.cover_lost_seqs(index);
        Ok(())
    }

    /// Counts a failed read of an index, and returns its error.
    pub(crate) fn index_error(&self, file: String, source: io::Error) -> ReadError {
        let error = ReadError::Io { file, position: 0, source };
        self.read_errors.note_error(&error);
        error
    }

    pub(crate) fn index_memory_bytes(&self, segments: &[Arc<Segment>]) -> usize {
        let of_segment = |segment: &Arc<Segment>| match &*segment.index() {
            SegmentIndex::File(file) => file.memory_bytes(),
            _ => 0,
        };
        let kept: usize = self.ids.kept().iter().map(|kept| kept.file.memory_bytes()).sum();
        kept + segments.iter().map(of_segment).sum::<usize>()
    }

    /// The index of the first segment that contains this seq of the topic or a later one; `None` if there is none.
    pub(crate) fn first_segment_reaching(
        &self,
        segments: &[Arc<Segment>],
        topic: u32,
        seq: u64,
    ) -> Result<Option<usize>, ReadError> {
        let mut low = 0;
        let mut high = segments.len();
        let mut found = None;
        while low < high {
            let middle = low + (high - low) / 2;
            // A segment without the topic does not help the search: use an earlier one.
            let mut probe = None;
            for at in (low..=middle).rev() {
                let last = self.with_entries(&segments[at], topic, |entries| entries.last().copied())?;
                if let Some(last) = last {
                    probe = Some((at, last.last_seq));
                    break;
                }
            }
            match probe {
                Some((at, last_seq)) if last_seq >= seq => {
                    found = Some(at);
                    high = at;
                }
                _ => low = middle + 1,
            }
        }
        Ok(found)
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
}
