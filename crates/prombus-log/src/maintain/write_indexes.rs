//! Writes the index files of sealed segments, and limits the memory and the open files that segments use.

use crate::context::Context;
use crate::index_file_write::write_index_file;
use crate::layout::SEGMENT_DATA_START;
use crate::read::committed_log::CommittedLog;
use crate::segment::{Segment, SegmentIndex};
use crate::step::Step;
use crate::storage::is_full;
use crate::write::append_queue::AppendQueue;
use std::io;
use std::sync::Arc;

/// The maximum number of sealed segments that stay open.
const OPEN_FILES_MAX: usize = 64;

/// Writes the index file of the oldest sealed segment without one, and removes the segment's ids from memory.
pub(crate) fn write_next_index(
    context: &Context,
    committed: &CommittedLog,
    queue: &AppendQueue,
) -> io::Result<Step> {
    let segments = committed.segments();
    let in_memory = |segment: &&Arc<Segment>| matches!(&*segment.index(), SegmentIndex::Memory(_));
    let Some(segment) = segments.iter().find(in_memory) else { return Ok(Step::Idle) };
    let index = match &*segment.index() {
        SegmentIndex::Memory(index) => Arc::clone(index),
        _ => return Ok(Step::Idle),
    };
    let id = segment.id;
    let sealed = segment.sealed().unwrap_or(SEGMENT_DATA_START);
    let file = match write_index_file(&context.storage, &index, id.number, id.salt, sealed, context.hash) {
        Ok(file) => file,
        // The index stays in memory, and a later step tries again.
        Err(error) if is_full(&error) => return Ok(Step::Idle),
        Err(error) => return Err(error),
    };
    // The file becomes visible before the ids are removed from memory, so that a lookup always finds them in one of the
    // two.
    segment.set_index(SegmentIndex::File(Arc::new(file)));
    committed.refresh_id_files();
    queue.forget_ids(id.number);
    Ok(Step::Worked)
}

/// Drops cached index tables if they use too much memory, oldest segments first.
pub(crate) fn trim_index_cache(context: &Context, committed: &CommittedLog) {
    let segments = committed.segments();
    let mut files = Vec::new();
    for segment in segments.iter() {
        if let SegmentIndex::File(file) = &*segment.index() {
            files.push(Arc::clone(file));
        }
    }
    let mut bytes: usize = files.iter().map(|file| file.directory_bytes()).sum();
    for file in files {
        if bytes <= context.options.index_cache_bytes {
            break;
        }
        bytes -= file.forget_directory();
    }
}

/// Closes the files of the oldest sealed segments if too many are open. Readers reopen them when necessary.
pub(crate) fn close_old_files(committed: &CommittedLog) {
    let segments = committed.segments();
    let is_closable = |segment: &&Arc<Segment>| segment.sealed().is_some() && segment.is_open();
    let open = segments.iter().filter(is_closable).count();
    let surplus = open.saturating_sub(OPEN_FILES_MAX);
    segments.iter().filter(is_closable).take(surplus).for_each(|segment| segment.close_file());
}
