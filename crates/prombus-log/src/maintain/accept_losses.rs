//! Giving up what cannot be read in a running log: the bytes that the disk cannot read count as damaged from then on.
//!
//! Nothing here writes to a segment or removes a file: `LOSSES` names bytes.

use crate::accepted_losses::{Loss, LossKind, Losses};
use crate::maintain::maintenance::Maintenance;
use crate::read::probe_unreadable::{list_unreadable, probe_unreadable};
use crate::read::read_health::UnreadableEvents;
use crate::unreadable_ranges::unreadable_sectors;
use std::io;

impl Maintenance {
    /// Gives up what is known to be unreadable now; returns it.
    pub(crate) fn accept_losses(&self) -> io::Result<Vec<UnreadableEvents>> {
        let mut given_up = list_unreadable(&self.committed);
        let mut added = Vec::new();
        given_up.retain_mut(|events| {
            let Some(segment) = self.committed.segment_named(&events.file) else { return false };
            // A reader stops early in a large place that fails, and remembers places that it could read later: only what
            // fails now, sector by sector, is given up. Where a whole file cannot be opened, no byte is known to be bad.
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
        // Also prepared segments, which no reader sees.
        let manifest = self.manifest();
        let mut losses = self.losses.lock();
        let mut changed = losses.clone();
        // An open that could not read the list started without it.
        added.extend(Losses::read(&*self.context.storage)?.0.rows);
        let segments = self.committed.segments();
        changed.add(added, |loss| manifest.names_file_of(loss));
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
