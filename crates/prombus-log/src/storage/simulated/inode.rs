//! The sectors of one file: their content as reads see it, and their durable content.

use super::chance::{Fate, Random};
use std::collections::{BTreeMap, BTreeSet};

/// The unit in which a disk reads and writes.
pub(super) const SECTOR_BYTES: usize = 512;

/// A file without its name.
#[derive(Clone, Default)]
pub(super) struct Inode {
    /// The content that reads see.
    pub(super) current: Vec<u8>,
    /// The durable length of the file. It is never more than the length of `current`, because files are not truncated.
    pub(super) durable_length: usize,
    /// Whether a sync would make the length durable. After a failed sync it is false, even if the length is not
    /// durable.
    pub(super) length_dirty: bool,
    /// The sectors that may differ from the disk, by index. All others are durable as they are in `current`.
    pub(super) unsynced: BTreeMap<usize, UnsyncedSector>,
    pub(super) open_files: usize,
    /// Sectors that the disk cannot read, by index. A sector becomes readable when all of it is written, as on a disk that
    /// remaps it.
    pub(super) unreadable: BTreeSet<usize>,
}

#[derive(Clone)]
pub(super) struct UnsyncedSector {
    /// The durable content; `None` if the sector was beyond the durable length.
    durable: Option<Box<[u8; SECTOR_BYTES]>>,
    /// Whether a sync would write the sector. If so, a power cut may find it written already: then its newest content
    /// survives.
    dirty: bool,
}

impl Inode {
    pub(super) fn write(&mut self, bytes: &[u8], start: usize) {
        if bytes.is_empty() {
            return;
        }
        let end = start + bytes.len();
        for index in start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            self.mark_dirty(index);
            if start <= index * SECTOR_BYTES && end >= (index + 1) * SECTOR_BYTES {
                self.unreadable.remove(&index);
            }
        }
        if end > self.current.len() {
            self.current.resize(end, 0);
            self.length_dirty = true;
        }
        self.current[start..end].copy_from_slice(bytes);
    }

    /// Whether the disk can read all of these bytes.
    pub(super) fn can_read(&self, start: usize, length: usize) -> bool {
        let sectors = start / SECTOR_BYTES..(start + length).div_ceil(SECTOR_BYTES);
        length == 0 || self.unreadable.range(sectors).next().is_none()
    }

    pub(super) fn mark_dirty(&mut self, index: usize) {
        let Self { current, durable_length, unsynced, .. } = self;
        let sector = unsynced.entry(index).or_insert_with(|| {
            let start = index * SECTOR_BYTES;
            let durable = (start < *durable_length).then(|| {
                let on_disk = &current[start..current.len().min(start + SECTOR_BYTES)];
                let mut saved = Box::new([0; SECTOR_BYTES]);
                saved[..on_disk.len()].copy_from_slice(on_disk);
                saved
            });
            UnsyncedSector { durable, dirty: true }
        });
        sector.dirty = true;
    }

    pub(super) fn sync(&mut self) {
        self.durable_length = self.durable_length.max(self.reachable_length());
        self.length_dirty = false;
        self.unsynced.retain(|_, sector| !sector.dirty);
    }

    /// Makes some dirty sectors, and perhaps the length, durable. The others stay dirty.
    pub(super) fn sync_partly(&mut self, chance: &mut Random) {
        let fate = Fate::draw(chance, self.unsynced.len());
        self.durable_length = self.surviving_length(chance, fate);
        let mut index = 0;
        self.unsynced.retain(|_, sector| {
            let kept = sector.dirty && fate.keeps(chance, index);
            index += 1;
            !kept
        });
    }

    /// Marks everything as clean although it was not written, as the kernel does after a failed sync.
    pub(super) fn forget_dirty(&mut self) {
        self.length_dirty = false;
        for sector in self.unsynced.values_mut() {
            sector.dirty = false;
        }
    }

    pub(super) fn settle(&mut self, chance: &mut Random, fate: Option<Fate>) {
        let fate = fate.unwrap_or_else(|| Fate::draw(chance, self.unsynced.len()));
        let length = self.surviving_length(chance, fate);
        for (order, (index, sector)) in std::mem::take(&mut self.unsynced).into_iter().enumerate() {
            if sector.dirty && fate.keeps(chance, order) {
                continue;
            }
            let start = index * SECTOR_BYTES;
            let end = self.current.len().min(start + SECTOR_BYTES);
            let lost = &mut self.current[start..end];
            match sector.durable {
                Some(durable) => lost.copy_from_slice(&durable[..lost.len()]),
                None if start >= self.durable_length && chance.below(16) == 0 => chance.fill(lost),
                None => lost.fill(0),
            }
        }
        self.current.truncate(length);
        self.durable_length = length;
        self.length_dirty = false;
    }

    /// The greatest length that a sync or a power cut can make durable without a further write.
    pub(super) fn reachable_length(&self) -> usize {
        if self.length_dirty {
            return self.current.len();
        }
        let last_dirty = self.unsynced.iter().rev().find(|(_, sector)| sector.dirty);
        let end = last_dirty.map_or(0, |(index, _)| (index + 1) * SECTOR_BYTES);
        end.min(self.current.len()).max(self.durable_length)
    }

    /// The length after a power cut: unsynced growth survives as a whole, not at all, or up to the end of a sector.
    pub(super) fn surviving_length(&self, chance: &mut Random, fate: Fate) -> usize {
        let (shortest, longest) = (self.durable_length, self.reachable_length());
        if shortest == longest {
            return longest;
        }
        match fate {
            Fate::Lost => shortest,
            Fate::Kept => longest,
            Fate::First(_) | Fate::Each { .. } => {
                let first_end = shortest / SECTOR_BYTES + 1;
                let ends = longest.div_ceil(SECTOR_BYTES) - first_end;
                match chance.below(4) {
                    0 => shortest,
                    1 => longest,
                    _ if ends == 0 => longest,
                    _ => (first_end + chance.index_below(ends)) * SECTOR_BYTES,
                }
            }
        }
    }

    pub(super) fn flip_bit(&mut self, position: usize, bit: u8) -> bool {
        let Some(byte) = self.current.get_mut(position) else {
            return false;
        };
        *byte ^= 1 << bit;
        let unsynced = self.unsynced.get_mut(&(position / SECTOR_BYTES));
        if let Some(durable) = unsynced.and_then(|sector| sector.durable.as_mut()) {
            durable[position % SECTOR_BYTES] ^= 1 << bit;
        }
        true
    }
}
