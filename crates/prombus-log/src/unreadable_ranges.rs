//! Reading around the places of a file that the disk cannot read.
//!
//! **Invariant:** an unreadable place is neither damaged nor empty. The bytes of a hole are zeros in the caller's buffer only
//! to keep positions right. A caller checks [`UnreadableRanges`] before it interprets a byte, and concludes nothing from bytes
//! in a hole.

use crate::storage::{StorageFile, is_unreadable};
use std::io;
use std::ops::Range;

/// The unit that a disk fails to read.
const SECTOR_BYTES: u64 = 512;
/// After this many failed reads the rest of a failing block counts as one hole: each failure may take the disk seconds.
const FAILED_READS_MAX: usize = 64;

/// Places of a file that could not be read, in order, and what the system said about the first.
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

    /// The first hole that has a byte in common with this range.
    pub(crate) fn overlapping(&self, range: Range<u64>) -> Option<&Range<u64>> {
        self.ranges.iter().find(|hole| hole.start < range.end && hole.end > range.start)
    }

    /// An error at the first hole, if there is one.
    pub(crate) fn check(&self) -> Result<(), UnreadableAt> {
        match self.ranges.first() {
            None => Ok(()),
            Some(hole) => Err(UnreadableAt { position: hole.start, source: self.error() }),
        }
    }

    /// What the system said, once more for another caller.
    pub(crate) fn error(&self) -> io::Error {
        self.error.as_ref().map_or_else(|| io::Error::other("unreadable"), copy_of)
    }

    /// Adds the holes of another read of the same file.
    pub(crate) fn append(&mut self, other: Self) {
        let Some(error) = other.error else { return };
        self.error.get_or_insert(error);
        other.ranges.into_iter().for_each(|range| self.add_range(range));
    }

    /// Adds a place.
    fn add(&mut self, range: Range<u64>, error: io::Error) {
        self.error.get_or_insert(error);
        self.add_range(range);
    }

    /// Places that touch become one.
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

/// Where a file could not be read, and what the system said.
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

/// An `io::Error` cannot be cloned; its code or its kind and text can.
fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Reads like [`StorageFile::read_at`]. Sectors that the disk cannot read become zeros and are added to `holes`; where there
/// are many, some that can be read count too.
///
/// # Errors
/// Everything but EIO: then the file as a whole cannot be read now.
pub(crate) fn read_around(
    file: &dyn StorageFile,
    buffer: &mut [u8],
    position: u64,
    holes: &mut UnreadableRanges,
) -> io::Result<usize> {
    read_around_with(file, buffer, position, holes, FAILED_READS_MAX)
}

/// Like [`read_around`], but every sector is tried, however long that takes.
pub(crate) fn read_around_exactly(
    file: &dyn StorageFile,
    buffer: &mut [u8],
    position: u64,
    holes: &mut UnreadableRanges,
) -> io::Result<usize> {
    read_around_with(file, buffer, position, holes, usize::MAX)
}

/// Finds out which sectors of a range cannot be read, each by itself. The range is extended to whole sectors, so that a later
/// read finds the same ones wherever it starts.
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
    // Blocks that failed or were not tried yet, the next one on top.
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
