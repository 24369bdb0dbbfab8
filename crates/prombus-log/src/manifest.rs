//! The manifest, the root of the log. It lists the segments in log order and the checkpoints to start from.
//!
//! It is small: each change rewrites the whole file and renames it into place. The file contains the same content twice, so
//! that a flipped bit is reported and does no harm.

use crate::accepted_losses::{Loss, LossKind};
use crate::error::{Fault, FaultKind};
use crate::fields::Fields;
use crate::layout::{
    FORMAT_VERSION, MANIFEST, MANIFEST_MAGIC, MANIFEST_NEW, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN,
    SEGMENT_DATA_START,
};
use crate::segment::{SegmentId, SegmentKind};
use crate::storage::{OpenMode, Storage, SyncPoint, write_new};
use crate::unreadable_ranges::{UnreadableRanges, read_around};
use bytes::BufMut as _;
use std::io;

const COPY_HEAD_BYTES: usize = 24;
const COPY_ALIGN_BYTES: usize = 512;

/// A segment in the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRow {
    pub(crate) id: SegmentId,
    /// The end of the last batch; `None` while the segment is being written or not begun.
    pub(crate) sealed: Option<u64>,
    /// Whether this is one of the small segments that are reserved for a full disk. Only state records and deletions of
    /// topics are written to it.
    pub(crate) reserve: bool,
}

/// An index that is kept for its ids after its segment was cleaned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptIndex {
    /// The number of the index file.
    pub(crate) number: u64,
    /// The salt that the head of the file contains.
    pub(crate) salt: u32,
    /// The indexed length of the segment, which the head of the file contains.
    pub(crate) covered: u64,
    /// When the ids expire.
    pub(crate) expires_ms: i64,
}

/// The content of the MANIFEST file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// A random number per log. Segment headers repeat it.
    pub(crate) log_id: u64,
    /// The seed of the hashes of ids and keys.
    pub(crate) hash_seed: [u64; 2],
    /// How often this file was written.
    pub(crate) generation: u64,
    /// Whether the log was closed and the newest checkpoint covers all batches.
    pub(crate) clean: bool,
    /// No file has had this number or a higher one.
    pub(crate) next_number: u64,
    /// The segments in log order. Prepared segments that are not begun come last.
    pub(crate) segments: Vec<SegmentRow>,
    /// The kept indexes.
    pub(crate) kept_indexes: Vec<KeptIndex>,
    /// The numbers of the two checkpoint files, the older one first. Both may be the same file, as in a backup.
    pub(crate) checkpoints: [u64; 2],
}

/// What reading the manifest found.
pub(crate) enum ManifestRead {
    Missing,
    /// A newer version of prombus wrote it, with this format version.
    Newer(u32),
    Damaged(Fault),
    Found {
        manifest: Manifest,
        /// The damage, if one of the two copies is damaged.
        fault: Option<Fault>,
    },
}

impl Manifest {
    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_u64_le(self.log_id);
        body.put_u64_le(self.hash_seed[0]);
        body.put_u64_le(self.hash_seed[1]);
        body.put_u64_le(self.generation);
        body.put_u8(u8::from(self.clean));
        body.put_u64_le(self.next_number);
        body.put_u64_le(self.checkpoints[0]);
        body.put_u64_le(self.checkpoints[1]);
        body.put_u32_le(self.segments.len() as u32);
        for row in &self.segments {
            body.put_u64_le(row.id.number);
            body.put_u32_le(row.id.salt);
            body.put_u8(row.id.kind as u8);
            body.put_u8(u8::from(row.reserve));
            body.put_u64_le(row.id.capacity);
            body.put_u32_le(row.id.life);
            body.put_u64_le(row.sealed.unwrap_or(0));
        }
        body.put_u32_le(self.kept_indexes.len() as u32);
        for kept in &self.kept_indexes {
            body.put_u64_le(kept.number);
            body.put_u32_le(kept.salt);
            body.put_u64_le(kept.covered);
            body.put_i64_le(kept.expires_ms);
        }
        let mut copy = Vec::with_capacity(COPY_HEAD_BYTES + body.len());
        copy.extend_from_slice(&MANIFEST_MAGIC);
        copy.put_u32_le(0);
        copy.put_u32_le(FORMAT_VERSION);
        copy.put_u64_le(body.len() as u64);
        copy.extend_from_slice(&body);
        let crc = crc32c::crc32c(&copy[12..]);
        copy[8..12].copy_from_slice(&crc.to_le_bytes());
        copy.resize(copy.len().next_multiple_of(COPY_ALIGN_BYTES), 0);
        copy.extend_from_within(..);
        copy
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(body);
        let log_id = fields.u64()?;
        let hash_seed = [fields.u64()?, fields.u64()?];
        let generation = fields.u64()?;
        let clean = fields.u8()? != 0;
        let next_number = fields.u64()?;
        let checkpoints = [fields.u64()?, fields.u64()?];
        let mut segments = Vec::new();
        for _ in 0..fields.count(34)? {
            let number = fields.u64()?;
            let salt = fields.u32()?;
            let kind = SegmentKind::from_number(fields.u8()?)?;
            let reserve = fields.u8()? != 0;
            let capacity = fields.u64()?;
            let life = fields.u32()?;
            let sealed = fields.u64()?;
            let is_sound = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&capacity)
                && (sealed == 0 || (SEGMENT_DATA_START..=capacity).contains(&sealed));
            if !is_sound {
                return None;
            }
            segments.push(SegmentRow {
                id: SegmentId { number, salt, kind, capacity, life },
                sealed: (sealed != 0).then_some(sealed),
                reserve,
            });
        }
        let mut kept_indexes = Vec::new();
        for _ in 0..fields.count(28)? {
            kept_indexes.push(KeptIndex {
                number: fields.u64()?,
                salt: fields.u32()?,
                covered: fields.u64()?,
                expires_ms: fields.i64()?,
            });
        }
        Some(Self { log_id, hash_seed, generation, clean, next_number, segments, kept_indexes, checkpoints })
    }

    /// Replaces the manifest on disk. After an error, either the old or the new manifest is on disk, and it is intact.
    pub(crate) fn write(&self, storage: &dyn Storage) -> io::Result<()> {
        let file = write_new(storage, MANIFEST_NEW, &self.encode())?;
        // Synced before the rename. Otherwise a power cut can leave an empty MANIFEST.
        file.sync(SyncPoint::Manifest)?;
        storage.rename(MANIFEST_NEW, MANIFEST)?;
        // Until this sync has succeeded, a crash may leave either manifest. So its error must not look like a full
        // disk, after which callers continue and retry.
        storage.sync_folder(SyncPoint::ManifestFolder).map_err(io::Error::other)
    }

    pub(crate) fn read(storage: &dyn Storage) -> io::Result<ManifestRead> {
        let file = match storage.open(MANIFEST, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ManifestRead::Missing),
            opened => opened?,
        };
        let length = usize::try_from(file.len()?).map_err(|_| io::Error::other("file larger than memory"))?;
        let (mut bytes, mut holes) = (vec![0; length], UnreadableRanges::default());
        let read = read_around(&*file, &mut bytes, 0, &mut holes)?;
        bytes.truncate(read);
        match Self::parse(&bytes) {
            // An unreadable copy is not reported as damaged. The other copy is used; if both are bad, the read error is
            // returned.
            ManifestRead::Found { manifest, .. } if !holes.is_empty() => {
                Ok(ManifestRead::Found { manifest, fault: None })
            }
            ManifestRead::Damaged(_) if !holes.is_empty() => Err(holes.error()),
            found => Ok(found),
        }
    }

    /// Whether the manifest still lists the file that contains a loss.
    pub(crate) fn lists_file_of(&self, loss: &Loss) -> bool {
        match loss.kind {
            LossKind::Segment => self.segments.iter().any(|row| row.id.number == loss.number),
            LossKind::KeptIndex => self.kept_indexes.iter().any(|row| row.number == loss.number),
        }
    }

    /// Reads the first copy from the start of the file. Its head gives its length, so the length of the file does not
    /// matter. If the first copy is damaged, the position of the second one is unknown and is searched for.
    pub(crate) fn parse(bytes: &[u8]) -> ManifestRead {
        let fault = |position: usize| Some(Fault::new(MANIFEST, position as u64, FaultKind::Manifest));
        let damaged = match parse_copy(bytes) {
            ManifestCopy::Newer(version) => return ManifestRead::Newer(version),
            ManifestCopy::Whole { manifest, end } => {
                let second = end.next_multiple_of(COPY_ALIGN_BYTES);
                let padding = bytes.get(end..second).unwrap_or_default();
                let is_whole = bytes.len() == 2 * second && bytes[..second] == bytes[second..];
                return match padding.iter().position(|&byte| byte != 0) {
                    Some(at) => ManifestRead::Found { manifest, fault: fault(end + at) },
                    None if is_whole => ManifestRead::Found { manifest, fault: None },
                    None => ManifestRead::Found { manifest, fault: fault(second) },
                };
            }
            ManifestCopy::Damaged => Fault::new(MANIFEST, 0, FaultKind::Manifest),
        };
        for start in (COPY_ALIGN_BYTES..bytes.len()).step_by(COPY_ALIGN_BYTES) {
            match parse_copy(&bytes[start..]) {
                ManifestCopy::Newer(version) => return ManifestRead::Newer(version),
                ManifestCopy::Whole { manifest, .. } => {
                    return ManifestRead::Found { manifest, fault: Some(damaged) };
                }
                ManifestCopy::Damaged => {}
            }
        }
        ManifestRead::Damaged(damaged)
    }
}

enum ManifestCopy {
    Whole {
        manifest: Manifest,
        /// The length of the copy without its padding.
        end: usize,
    },
    Newer(u32),
    Damaged,
}

/// Reads the copy at the start of `bytes` and ignores what follows it.
fn parse_copy(bytes: &[u8]) -> ManifestCopy {
    let mut fields = Fields::new(bytes);
    let head = (|| Some((fields.bytes(8)?, fields.u32()?, fields.u32()?, fields.u64()?)))();
    let Some((magic, crc, version, length)) = head else { return ManifestCopy::Damaged };
    if magic != MANIFEST_MAGIC {
        return ManifestCopy::Damaged;
    }
    let Some(body) = usize::try_from(length).ok().and_then(|length| fields.bytes(length)) else {
        return ManifestCopy::Damaged;
    };
    let end = COPY_HEAD_BYTES + body.len();
    if crc32c::crc32c(&bytes[12..end]) != crc {
        return ManifestCopy::Damaged;
    }
    if version > FORMAT_VERSION {
        return ManifestCopy::Newer(version);
    }
    Manifest::decode(body).map_or(ManifestCopy::Damaged, |manifest| ManifestCopy::Whole { manifest, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let id = SegmentId { number: 3, salt: 9, kind: SegmentKind::Rewritten, capacity: 1 << 20, life: 2 };
        Manifest {
            log_id: 1,
            hash_seed: [2, 3],
            generation: 4,
            clean: true,
            next_number: 17,
            segments: vec![
                SegmentRow { id, sealed: Some(5000), reserve: false },
                SegmentRow { id: SegmentId { number: 4, ..id }, sealed: None, reserve: true },
            ],
            kept_indexes: vec![KeptIndex { number: 1, salt: 2, covered: 3, expires_ms: 4 }],
            checkpoints: [7, 8],
        }
    }

    #[test]
    fn a_flipped_bit_is_found_and_the_other_copy_is_used() {
        let bytes = manifest().encode();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            match Manifest::parse(&damaged) {
                ManifestRead::Found { manifest: read, fault } => {
                    assert_eq!(read, manifest(), "bit {bit}");
                    assert!(fault.is_some(), "bit {bit} was not found");
                }
                ManifestRead::Newer(_) => panic!("bit {bit} looks like a newer version"),
                _ => panic!("bit {bit} made the whole manifest unreadable"),
            }
        }
    }
    #[test]
    fn a_manifest_of_any_other_length_is_read_from_its_intact_copy() {
        let bytes = manifest().encode();
        let copy = COPY_HEAD_BYTES + u64::from_le_bytes(bytes[16..24].try_into().expect("8 bytes")) as usize;
        for length in 0..bytes.len() {
            match Manifest::parse(&bytes[..length]) {
                ManifestRead::Found { manifest: read, fault } => {
                    assert_eq!((read, fault.is_some()), (manifest(), true), "cut to {length}");
                    assert!(length >= copy, "cut to {length}");
                }
                ManifestRead::Damaged(_) => {
                    assert!(length < copy, "cut to {length}, the first copy is intact but was not read");
                }
                _ => panic!("cut to {length}, the manifest was neither read nor damaged"),
            }
        }
        // The first sector is missing, so that all later bytes moved towards the start.
        let moved = Manifest::parse(&bytes[COPY_ALIGN_BYTES..]);
        assert!(
            matches!(moved, ManifestRead::Found { manifest: read, fault: Some(_) } if read == manifest())
        );
        let longer = Manifest::parse(&[&bytes[..], &[1; 700]].concat());
        assert!(
            matches!(longer, ManifestRead::Found { manifest: read, fault: Some(_) } if read == manifest())
        );
    }
}
