//! Accepted losses: unreadable byte ranges that an operator has given up. The file `LOSSES` lists them, and they count as
//! damaged while they cannot be read.
//!
//! The bytes are not overwritten. So a loss can also be accepted on a disk that refuses to write there, and a copy of the
//! disk can still be searched for the bytes. A loss applies to one use of a segment's file (number and salt) and ends
//! with that use. It applies only where a read fails: bytes that become readable are served again.

use crate::error::{Fault, FaultKind};
use crate::fields::Fields;
use crate::layout::{FORMAT_VERSION, LOSSES, LOSSES_MAGIC, LOSSES_NEW};
use crate::storage::{OpenMode, Storage, StorageFile, SyncPoint, is_unreadable, read_whole, write_new};
use crate::unreadable_ranges::{UnreadableRanges, read_around_exactly};
use bytes::BufMut as _;
use std::io;
use std::ops::Range;
use std::sync::Arc;

const ROW_BYTES: usize = 29;
/// Number of attempts to read the list before it counts as unreadable.
const READ_TRIES: usize = 4;

/// Which kind of file a loss is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossKind {
    Segment,
    /// An index that is kept for its ids. It is given up as a whole.
    KeptIndex,
}

/// A byte range that counts as damaged while it cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) kind: LossKind,
    /// The number of the file.
    pub(crate) number: u64,
    /// The salt of the file.
    pub(crate) salt: u32,
    pub(crate) range: Range<u64>,
}

/// All accepted losses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    pub(crate) rows: Vec<Loss>,
}

impl Losses {
    /// Reads the list. A missing list counts as empty, a damaged one as empty with a fault.
    pub(crate) fn read(storage: &dyn Storage) -> io::Result<(Self, Option<Fault>)> {
        let file = match storage.open(LOSSES, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Self::default(), None)),
            opened => opened?,
        };
        // Without the list no loss applies and readers wait, so the read is retried.
        let mut bytes = read_whole(&*file);
        for _ in 1..READ_TRIES {
            if bytes.as_ref().is_err_and(is_unreadable) {
                bytes = read_whole(&*file);
            }
        }
        match Self::parse(&bytes?) {
            Some(losses) => Ok((losses, None)),
            None => Ok((Self::default(), Some(Self::fault(LOSSES)))),
        }
    }

    /// Like [`read`](Self::read), but an unreadable list counts as empty. This is safe: without the list, readers wait
    /// until the bytes are readable.
    pub(crate) fn read_if_readable(storage: &dyn Storage, faults: &mut Vec<Fault>) -> io::Result<Self> {
        match Self::read(storage) {
            Ok((losses, fault)) => {
                faults.extend(fault);
                Ok(losses)
            }
            Err(error) if is_unreadable(&error) => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut file = Vec::with_capacity(20 + self.rows.len() * ROW_BYTES);
        file.extend_from_slice(&LOSSES_MAGIC);
        file.put_u32_le(0);
        file.put_u32_le(FORMAT_VERSION);
        file.put_u32_le(self.rows.len() as u32);
        for row in &self.rows {
            file.put_u8(match row.kind {
                LossKind::Segment => 0,
                LossKind::KeptIndex => 1,
            });
            file.put_u64_le(row.number);
            file.put_u32_le(row.salt);
            file.put_u64_le(row.range.start);
            file.put_u64_le(row.range.end);
        }
        let crc = crc32c::crc32c(&file[12..]);
        file[8..12].copy_from_slice(&crc.to_le_bytes());
        file
    }

    /// What a damaged list is reported as.
    pub(crate) fn fault(file: &str) -> Fault {
        Fault::new(file, 0, FaultKind::Losses)
    }

    /// Parses a list; `None` if it is damaged.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let magic = fields.bytes(8)?;
        let crc = fields.u32()?;
        if magic != LOSSES_MAGIC || crc32c::crc32c(&bytes[12..]) != crc || fields.u32()? != FORMAT_VERSION {
            return None;
        }
        let mut rows = Vec::new();
        for _ in 0..fields.count(ROW_BYTES)? {
            let kind = match fields.u8()? {
                0 => LossKind::Segment,
                1 => LossKind::KeptIndex,
                _ => return None,
            };
            let (number, salt) = (fields.u64()?, fields.u32()?);
            rows.push(Loss { kind, number, salt, range: fields.u64()?..fields.u64()? });
        }
        Some(Self { rows })
    }

    /// Replaces the list on disk.
    pub(crate) fn write(&self, storage: &dyn Storage) -> io::Result<()> {
        let file = write_new(storage, LOSSES_NEW, &self.encode())?;
        // Synced before the rename. Otherwise a power cut can leave an empty list, and the given-up bytes block readers
        // again.
        file.sync(SyncPoint::AcceptedLosses)?;
        storage.rename(LOSSES_NEW, LOSSES)?;
        storage.sync_folder(SyncPoint::AcceptedLosses)
    }

    /// Adds losses, and removes those of files for which `is_there` returns false.
    pub(crate) fn add(&mut self, added: Vec<Loss>, is_there: impl Fn(&Loss) -> bool) {
        for loss in added {
            if !self.rows.contains(&loss) {
                self.rows.push(loss);
            }
        }
        self.rows.retain(is_there);
    }

    /// The accepted ranges of a segment.
    pub(crate) fn of_segment(&self, number: u64, salt: u32) -> Vec<Range<u64>> {
        let is_its =
            |loss: &&Loss| loss.kind == LossKind::Segment && (loss.number, loss.salt) == (number, salt);
        let mut ranges: Vec<Range<u64>> =
            self.rows.iter().filter(is_its).map(|loss| loss.range.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        // Adjacent ranges are merged, so that an unreadable range that spans both is inside one accepted range.
        ranges.dedup_by(|later, earlier| {
            let is_joined = later.start <= earlier.end;
            if is_joined {
                earlier.end = earlier.end.max(later.end);
            }
            is_joined
        });
        ranges
    }

    /// Whether the ids of a kept index are given up.
    pub(crate) fn has_kept_index(&self, number: u64, salt: u32) -> bool {
        let is_it =
            |loss: &Loss| loss.kind == LossKind::KeptIndex && (loss.number, loss.salt) == (number, salt);
        self.rows.iter().any(is_it)
    }
}

/// A file with accepted losses. Accepted bytes that cannot be read are returned as zeros, which no checksum accepts.
pub(crate) struct LossyFile {
    pub(crate) file: Arc<dyn StorageFile>,
    pub(crate) accepted: Arc<[Range<u64>]>,
}

impl StorageFile for LossyFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        match self.file.read_at(buffer, position) {
            Err(error) if is_unreadable(&error) => {}
            read => return read,
        }
        let end = self.file.len()?.min(position + buffer.len() as u64).max(position);
        let mut at = position;
        while at < end {
            // The accepted range at this position, or else the bytes up to the next accepted range.
            let range = self.accepted.iter().find(|range| range.end > at).filter(|range| range.start < end);
            let (part_end, is_accepted) = match range {
                Some(range) if range.start <= at => (range.end.min(end), true),
                Some(range) => (range.start, false),
                None => (end, false),
            };
            let part = &mut buffer[(at - position) as usize..(part_end - position) as usize];
            if is_accepted {
                read_around_exactly(&*self.file, part, at, &mut UnreadableRanges::default())?;
            } else {
                self.file.read_at(part, at)?;
            }
            at = part_end;
        }
        Ok((end - position) as usize)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.file.write_at(bytes, position)
    }

    fn sync(&self, point: SyncPoint) -> io::Result<()> {
        self.file.sync(point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_the_list_is_found() {
        let loss = |kind, number| Loss { kind, number, salt: 7, range: 512..1024 };
        let losses = Losses { rows: vec![loss(LossKind::Segment, 1), loss(LossKind::KeptIndex, 2)] };
        let bytes = losses.encode();
        assert_eq!(Losses::parse(&bytes), Some(losses));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Losses::parse(&damaged), None, "bit {bit} was not found");
        }
    }
}
