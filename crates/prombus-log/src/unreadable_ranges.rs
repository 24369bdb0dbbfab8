//! Reads a file around the ranges that the disk cannot read, called *holes*.
//!
//! **Invariant:** an unreadable range is neither damaged nor empty. In the caller's buffer the bytes of a hole are zeros,
//! but only to keep positions right. A caller checks [`UnreadableRanges`] before it interprets a byte, and concludes
//! nothing from bytes in a hole.

use crate::storage::{StorageFile, is_unreadable};
use std::io;
use std::ops::Range;

/// Disks fail to read in units of this size.
const SECTOR_BYTES: u64 = 512;
/// After this many failed reads the rest of a failing block counts as one hole, because each failure may take seconds.
const FAILED_READS_MAX: usize = 64;

/// The unreadable ranges of a file, in order, and the system's error for the first one.
#[derive(Debug, Default)]
pub(crate) struct UnreadableRanges {
    ranges: Vec<Range<u64>>,
    error: Option<io::Error>,
}

impl UnreadableRanges {
    pub(crate) const fn none() -> Self {
        Self { ranges: Vec::new(), error: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// The first hole that overlaps this range.
    pub(crate) fn overlapping(&self, range: Range<u64>) -> Option<&Range<u64>> {
        self.ranges.iter().find(|hole| hole.start < range.end && hole.end > range.start)
    }

    /// Returns an error for the first hole, if there is one.
    pub(crate) fn check(&self) -> Result<(), UnreadableAt> {
        match self.ranges.first() {
            None => Ok(()),
            Some(hole) => Err(UnreadableAt { position: hole.start, source: self.error() }),
        }
    }

    /// A copy of the system's error.
    pub(crate) fn error(&self) -> io::Error {
        self.error.as_ref().map_or_else(|| io::Error::other("unreadable"), copy_of)
    }

    /// Adds the holes of another read of the same file.
    pub(crate) fn append(&mut self, other: Self) {
        let Some(error) = other.error else { return };
        self.error.get_or_insert(error);
        other.ranges.into_iter().for_each(|range| self.add_range(range));
    }

    /// Adds a range.
    fn add(&mut self, range: Range<u64>, error: io::Error) {
        self.error.get_or_insert(error);
        self.add_range(range);
    }

    /// Adds a range. Ranges that touch are merged.
    fn add_range(&mut self, range: Range<u64>) {
        let at = self.ranges.partition_point(|hole| hole.end < range.start);
        let mut merged = range;
        while let Some(hole) = self.ranges.get(at).filter(|hole| hole.start <= merged.end) {
            merged = hole.start.min(merged.start)..hole.end.max(merged.end);
            self.ranges.remove(at);
        }
        self.ranges.insert(at, merged);
    }
}

/// The position where a file could not be read, and the system's error.
#[derive(Debug)]
pub(crate) struct UnreadableAt {
    pub(crate) position: u64,
    pub(crate) source: io::Error,
}

impl From<io::Error> for UnreadableAt {
    fn from(source: io::Error) -> Self {
        Self { position: 0, source }
    }
}

/// Rebuilds an `io::Error` from its code, or from its kind and text, because it cannot be cloned.
fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Reads like [`StorageFile::read_at`]. Unreadable sectors become zeros and are added to `holes`. If there are many, the
/// holes may also include readable sectors.
///
/// # Errors
/// Any error except EIO. The file as a whole then cannot be read at present.
pub(crate) fn read_around(
    file: &dyn StorageFile,
    buffer: &mut [u8],
    position: u64,
    holes: &mut UnreadableRanges,
) -> io::Result<usize> {
    read_around_with(file, buffer, position, holes, FAILED_READS_MAX)
}

/// Like [`read_around`], but tries every sector, however long that takes.
pub(crate) fn read_around_exactly(
    file: &dyn StorageFile,
    buffer: &mut [u8],
    position: u64,
    holes: &mut UnreadableRanges,
) -> io::Result<usize> {
    read_around_with(file, buffer, position, holes, usize::MAX)
}

/// Finds the unreadable sectors of a range. The range is extended to whole sectors, so that a later read finds the same
/// sectors wherever it starts.
pub(crate) fn unreadable_sectors(file: &dyn StorageFile, range: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let start = range.start / SECTOR_BYTES * SECTOR_BYTES;
    let mut buffer = vec![0; (range.end.next_multiple_of(SECTOR_BYTES) - start) as usize];
    let mut holes = UnreadableRanges::default();
    read_around_exactly(file, &mut buffer, start, &mut holes)?;
    Ok(holes.ranges)
}

fn read_around_with(
    file: &dyn StorageFile,
    buffer: &mut [u8],
    position: u64,
    holes: &mut UnreadableRanges,
    failures_max: usize,
) -> io::Result<usize> {
    let first_error = match file.read_at(buffer, position) {
        Err(error) if is_unreadable(&error) => error,
        read => return read,
    };
    let in_file = usize::try_from(file.len()?.saturating_sub(position)).unwrap_or(usize::MAX);
    let length = buffer.len().min(in_file);
    let mut failures_left = failures_max;
    // A stack of blocks that failed or were not tried yet.
    let mut blocks = vec![(0..length, Some(first_error))];
    while let Some((block, failed)) = blocks.pop() {
        let at = position + block.start as u64;
        let error = match failed {
            Some(error) => error,
            None => match file.read_at(&mut buffer[block.clone()], at) {
                Ok(_) => continue,
                Err(error) if is_unreadable(&error) => error,
                Err(error) => return Err(error),
            },
        };
        failures_left = failures_left.saturating_sub(1);
        let end = position + block.end as u64;
        let mut middle = (at + (end - at) / 2).next_multiple_of(SECTOR_BYTES);
        if middle >= end {
            middle = middle.saturating_sub(SECTOR_BYTES);
        }
        if failures_left == 0 || middle <= at {
            buffer[block.clone()].fill(0);
            holes.add(at..end, error);
            continue;
        }
        let middle = (middle - position) as usize;
        blocks.push((middle..block.end, None));
        blocks.push((block.start..middle, None));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SyncPoint;
    use crate::storage::simulated::Disk;
    use crate::storage::{OpenMode, Storage};

    const LENGTH: usize = 64 * 1024;

    fn disk() -> Disk {
        let disk = Disk::new(1);
        let file = disk.open("f", OpenMode::Create).unwrap();
        file.write_at(&(0..LENGTH).map(|at| (at % 251) as u8).collect::<Vec<u8>>(), 0).unwrap();
        file.sync(SyncPoint::LogData).unwrap();
        disk
    }

    #[test]
    fn only_sectors_that_cannot_be_read_become_holes() {
        let disk = disk();
        disk.make_unreadable("f", 1_000..1_001);
        disk.make_unreadable("f", 40_000..41_000);
        let file = disk.open("f", OpenMode::Read).unwrap();
        let (mut buffer, mut holes) = (vec![1; 60_000], UnreadableRanges::default());
        assert_eq!(read_around(&*file, &mut buffer, 100, &mut holes).unwrap(), 60_000);
        assert_eq!(holes.ranges(), [512..1_024, 39_936..41_472]);
        for (at, &byte) in buffer.iter().enumerate() {
            let position = at as u64 + 100;
            let is_hole = holes.overlapping(position..position + 1).is_some();
            let expected = if is_hole { 0 } else { (position % 251) as u8 };
            assert_eq!(byte, expected, "position {position}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_at_all_is_one_hole() {
        let disk = disk();
        disk.make_unreadable("f", 0..LENGTH as u64);
        let file = disk.open("f", OpenMode::Read).unwrap();
        let (mut buffer, mut holes) = (vec![1; LENGTH + 10], UnreadableRanges::default());
        assert_eq!(read_around(&*file, &mut buffer, 0, &mut holes).unwrap(), LENGTH);
        assert_eq!(holes.ranges(), std::slice::from_ref(&(0..LENGTH as u64)));
    }
}
