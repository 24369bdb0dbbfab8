//! Cuts off the torn tail of the log: the bytes of an unfinished batch are copied to a cut file. The batches before it are
//! made durable again.

use crate::error::OpenError;
use crate::frame_scan::PIECE_BYTES;
use crate::layout::cut_name;
use crate::observer::Notice;
use crate::recover::recovery::{Recovery, UsedSegment};
use crate::storage::{SyncPoint, is_full, write_new};
use crate::unreadable_ranges::{UnreadableAt, UnreadableRanges, read_around, read_around_exactly};
use std::io;

impl Recovery {
    /// Copies the bytes of an unfinished batch to a cut file. The segment is later sealed where these bytes start, and
    /// never appended to again.
    pub(super) fn cut(&self, one: &UsedSegment) -> io::Result<()> {
        let Some(torn_to) = one.torn_to else { return Ok(()) };
        let mut bytes = vec![0; (torn_to - one.end) as usize];
        // These bytes are kept for inspection only: unreadable ones are zeros in the copy.
        let read = read_around(&*one.segment.file()?, &mut bytes, one.end, &mut UnreadableRanges::default())?;
        bytes.truncate(read);
        let name = cut_name(one.segment.id.number, one.end);
        let kept = write_new(&*self.context.storage, &name, &bytes)
            .and_then(|file| file.sync(SyncPoint::Cut))
            .and_then(|()| self.context.storage.sync_folder(SyncPoint::Cut));
        let kept_in = match kept {
            Ok(()) => name,
            Err(error) if is_full(&error) => {
                let _ = self.context.storage.remove(&name);
                one.segment.name()
            }
            Err(error) => return Err(error),
        };
        self.notice(&Notice::TornTail {
            file: one.segment.name(),
            position: one.end,
            kept_in,
            bytes: bytes.len() as u64,
        });
        Ok(())
    }

    /// Writes the recovered batches again and syncs them before they are served. This is necessary because the page cache
    /// may contain unsynced bytes after `kill -9`, and may differ from the disk after a failed fsync. Accepted losses are
    /// not overwritten, because they may become readable again.
    pub(super) fn make_durable(&self, one: &UsedSegment) -> Result<(), OpenError> {
        if self.manifest.clean || one.from >= one.end {
            return Ok(());
        }
        let unreadable = |at: UnreadableAt| self.unreadable(one.segment.name(), at);
        let write_error = |error| self.error("rewrite the recovered tail", error);
        let file = one.segment.unmasked_file().map_err(|error| unreadable(error.into()))?;
        let mut buffer = vec![0; PIECE_BYTES.min((one.end - one.from) as usize)];
        let mut position = one.from;
        while position < one.end {
            let length = buffer.len().min((one.end - position) as usize);
            let mut holes = UnreadableRanges::default();
            let read = read_around_exactly(&*file, &mut buffer[..length], position, &mut holes);
            let read = read.map_err(|error| unreadable(error.into()))?;
            if read == 0 {
                break;
            }
            if let Some(hole) = holes.ranges().iter().find(|hole| !one.segment.accepts_loss_of(hole)) {
                return Err(unreadable(UnreadableAt { position: hole.start, source: holes.error() }));
            }
            let end = position + read as u64;
            let mut start = position;
            for hole in holes.ranges().iter().cloned().chain(std::iter::once(end..end)) {
                let part = (start - position) as usize..(hole.start - position) as usize;
                file.write_at(&buffer[part], start).map_err(write_error)?;
                start = hole.end;
            }
            position = end;
        }
        file.sync(SyncPoint::RecoveredTail).map_err(write_error)
    }
}
