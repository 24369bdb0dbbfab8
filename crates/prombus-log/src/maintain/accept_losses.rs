//! Accepts losses in a running log: bytes that the disk cannot read count as damaged from then on.
//!
//! Only the file `LOSSES`, which lists these bytes, is written. Segments are not changed, and no file is removed.

use crate::accepted_losses::{Loss, LossKind, Losses};
use crate::maintain::maintenance::Maintenance;
use crate::read::probe_unreadable::{list_unreadable, probe_unreadable};
use crate::read::read_health::UnreadableEvents;
use crate::unreadable_ranges::unreadable_sectors;
use std::io;

impl Maintenance {
    /// Gives up the events that are unreadable at present, and returns them.
    pub(crate) fn accept_losses(&self) -> io::Result<Vec<UnreadableEvents>> {
        let mut given_up = list_unreadable(&self.committed);
        let mut added = Vec::new();
        given_up.retain_mut(|events| {
            let Some(segment) = self.committed.segment_named(&events.file) else { return false };
            // The recorded ranges may be too large: a reader does not try every sector of a large failing range, and some
            // sectors may be readable again. So each sector is tried, and only those that fail are given up. If a file
            // cannot be opened at all, no byte of it is known to be bad.
            let sectors = |range| segment.file().and_then(|file| unreadable_sectors(&*file, range)).ok();
            events.bytes = events.bytes.iter().filter_map(sectors).flatten().collect();
            let (number, salt) = (segment.id.number, segment.id.salt);
            added.extend(events.bytes.iter().map(|range| Loss {
                kind: LossKind::Segment,
                number,
                salt,
                range: range.clone(),
            }));
            !events.bytes.is_empty()
        });
        if added.is_empty() {
            return Ok(given_up);
        }
        // The manifest also lists prepared segments, which the committed log does not contain.
        let manifest = self.manifest();
        let mut losses = self.losses.lock();
        let mut changed = losses.clone();
        // The list is read again, because it may have been unreadable when the log was opened.
        added.extend(Losses::read(&*self.context.storage)?.0.rows);
        let segments = self.committed.segments();
        changed.add(added, |loss| manifest.lists_file_of(loss));
        changed.write(&*self.context.storage)?;
        *losses = changed;
        for segment in segments.iter() {
            let ranges = losses.of_segment(segment.id.number, segment.id.salt);
            if !ranges.is_empty() {
                segment.accept_losses(ranges);
                self.queue.leave_segment(segment.id.number);
            }
        }
        drop(losses);
        probe_unreadable(&self.committed);
        Ok(given_up)
    }
}
