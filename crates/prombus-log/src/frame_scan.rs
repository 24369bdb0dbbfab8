//! Scans the frames of a part of a segment. After damage it finds the next frame by its magic and salted header checksum.
//!
//! If a header is valid, its length is trusted and the body is skipped. So nothing inside a body is ever taken for a frame.

use crate::layout::FRAME_MAGIC;
use crate::record::{self, HEADER_BYTES, Header};
use crate::storage::StorageFile;
use crate::unreadable_ranges::{UnreadableRanges, read_around};
use std::io;

/// Bytes per read.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// What a scan found at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A frame with a valid header. If the scan does not check bodies, `is_body_valid` only means that the body is
    /// there.
    Frame { position: u64, header: Header, is_body_valid: bool },
    /// Bytes up to `end` that are not a frame: damage, or bytes from an earlier use of the file.
    Gap { position: u64, end: u64 },
}

/// Scans the frames of `position..end` of a file.
pub(crate) struct Scan<'a> {
    file: &'a dyn StorageFile,
    salt: u32,
    /// Where the next frame is expected.
    position: u64,
    /// Where the scan ends.
    end: u64,
    check_bodies: bool,
    buffer: Vec<u8>,
    /// Where the buffer starts in the file.
    buffer_start: u64,
    /// The frame found last, in the buffer.
    frame: std::ops::Range<usize>,
    /// Collects the unreadable ranges. If it is `None`, the first unreadable byte ends the scan with an error.
    holes: Option<UnreadableRanges>,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(
        file: &'a dyn StorageFile,
        salt: u32,
        position: u64,
        end: u64,
        check_bodies: bool,
    ) -> Self {
        let buffer = Vec::new();
        Self {
            file,
            salt,
            position,
            end,
            check_bodies,
            buffer,
            buffer_start: position,
            frame: 0..0,
            holes: None,
        }
    }

    /// Makes the scan continue past unreadable ranges and collect them. A frame that overlaps one is found as damaged or
    /// not at all: the caller must compare the result with [`holes`](Self::holes) before it concludes anything.
    pub(crate) fn around_holes(mut self) -> Self {
        self.holes = Some(UnreadableRanges::default());
        self
    }

    /// The unreadable ranges found so far.
    pub(crate) fn holes(&self) -> &UnreadableRanges {
        static NONE: UnreadableRanges = UnreadableRanges::none();
        self.holes.as_ref().unwrap_or(&NONE)
    }

    pub(crate) fn into_holes(self) -> UnreadableRanges {
        self.holes.unwrap_or_default()
    }

    /// The bytes of the frame found last.
    pub(crate) fn frame(&self) -> &[u8] {
        &self.buffer[self.frame.clone()]
    }

    /// Where the next frame is expected.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn next(&mut self) -> io::Result<Option<Found>> {
        if self.position >= self.end {
            return Ok(None);
        }
        let position = self.position;
        if let Some(header) = self.header_at(position)? {
            let end = position + header.frame_length() as u64;
            if end > self.end || !self.fill(position, header.frame_length())? {
                // The header is valid but the body is missing: continue the search after the header.
                self.frame = 0..0;
                self.position = position + HEADER_BYTES as u64;
                return Ok(Some(Found::Frame { position, header, is_body_valid: false }));
            }
            let start = (position - self.buffer_start) as usize;
            self.frame = start..start + header.frame_length();
            let is_body_valid = !self.check_bodies || record::is_body_valid(&header, self.frame());
            self.position = end;
            return Ok(Some(Found::Frame { position, header, is_body_valid }));
        }
        let end = self.search(position + 1)?;
        self.position = end;
        Ok(Some(Found::Gap { position, end }))
    }

    fn header_at(&mut self, position: u64) -> io::Result<Option<Header>> {
        if position + HEADER_BYTES as u64 > self.end || !self.fill(position, HEADER_BYTES)? {
            return Ok(None);
        }
        let start = (position - self.buffer_start) as usize;
        Ok(Header::checked(&self.buffer[start..], self.salt))
    }

    /// The next position with a valid header, or the end.
    fn search(&mut self, from: u64) -> io::Result<u64> {
        let mut position = from;
        while position + (HEADER_BYTES as u64) <= self.end {
            if !self.fill(position, HEADER_BYTES)? {
                break;
            }
            let start = (position - self.buffer_start) as usize;
            // A header may start in the last bytes of the buffer and continue after the buffer, so these bytes are
            // searched after the next read.
            let searchable = &self.buffer[start..self.buffer.len() - HEADER_BYTES + 1];
            match searchable.iter().position(|&byte| byte == FRAME_MAGIC[0]) {
                None => position += searchable.len() as u64,
                Some(skipped) => {
                    position += skipped as u64;
                    let start = (position - self.buffer_start) as usize;
                    if Header::checked(&self.buffer[start..], self.salt).is_some() {
                        return Ok(position);
                    }
                    position += 1;
                }
            }
        }
        Ok(self.end)
    }

    /// Reads until the buffer contains `length` bytes at `position`. Returns false if the file ends before that.
    fn fill(&mut self, position: u64, length: usize) -> io::Result<bool> {
        let have_end = self.buffer_start + self.buffer.len() as u64;
        if position >= self.buffer_start && position + length as u64 <= have_end {
            return Ok(true);
        }
        let wanted = length.max(PIECE_BYTES).min((self.end - position) as usize);
        self.buffer.resize(wanted, 0);
        self.buffer_start = position;
        let read = match &mut self.holes {
            Some(holes) => read_around(self.file, &mut self.buffer, position, holes)?,
            None => self.file.read_at(&mut self.buffer, position)?,
        };
        self.buffer.truncate(read);
        Ok(read >= length)
    }
}

/// The position after the last non-zero byte in `position..end`, or `None` if all are zero. Adds unreadable ranges to
/// `holes`.
pub(crate) fn end_of_nonzero(
    file: &dyn StorageFile,
    position: u64,
    end: u64,
    holes: &mut UnreadableRanges,
) -> io::Result<Option<u64>> {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut last = None;
    let mut at = position;
    while at < end {
        let length = buffer.len().min((end - at) as usize);
        let read = read_around(file, &mut buffer[..length], at, holes)?;
        if read == 0 {
            break;
        }
        if let Some(offset) = buffer[..read].iter().rposition(|&byte| byte != 0) {
            last = Some(at + offset as u64 + 1);
        }
        at += read as u64;
    }
    Ok(last)
}
