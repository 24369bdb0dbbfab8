//! A segment, one file of the log: a header page, then frames. All blocks of the file are written before the segment is
//! used, because an fdatasync of existing blocks is twice as fast as one that has to allocate them.

use crate::accepted_losses::LossyFile;
use crate::error::{Fault, FaultKind, ReadError};
use crate::fields::{u32_at, u64_at};
use crate::index::Index;
use crate::index_file::{IndexError, IndexFile};
use crate::layout::{FORMAT_VERSION, SEGMENT_DATA_START, SEGMENT_MAGIC, segment_name};
use crate::storage::{OpenMode, Storage, StorageFile, SyncPoint};
use bytes::BufMut as _;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const HEADER_BYTES: usize = 64;

/// How the records of a segment are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SegmentKind {
    /// Batches in commit order.
    Log = 0,
    /// Records that cleaning kept of other segments, grouped by topic. Sealed from the start.
    Rewritten = 1,
}

impl SegmentKind {
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Log),
            1 => Some(Self::Rewritten),
            _ => None,
        }
    }
}

/// The properties of a segment that the manifest and the segment's header both contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentId {
    pub(crate) number: u64,
    /// A random number for each use of the file. It salts every checksum in the file.
    pub(crate) salt: u32,
    pub(crate) kind: SegmentKind,
    /// The length of the file.
    pub(crate) capacity: u64,
    /// How often the file was recycled; zero for a file that was filled with zeros.
    pub(crate) life: u32,
}

/// Where a segment's index is.
pub(crate) enum SegmentIndex {
    /// In the view (`View::active_index`): the segment is being written.
    Growing,
    /// In memory: the segment is sealed, and its index file is not written yet.
    Memory(Arc<Index>),
    File(Arc<IndexFile>),
}

/// One segment, shared by the committer and all readers.
pub(crate) struct Segment {
    pub(crate) id: SegmentId,
    /// The end of the last batch if the segment is sealed, otherwise zero.
    sealed: AtomicU64,
    index: RwLock<SegmentIndex>,
    storage: Arc<dyn Storage>,
    mode: OpenMode,
    /// The file, if it is open. It is closed when it is not used, because a log may have more segments than a process
    /// may have open files.
    file: Mutex<Option<Arc<dyn StorageFile>>>,
    /// Ranges that count as damaged while they cannot be read; see `accepted_losses.rs`.
    accepted_losses: Mutex<Arc<[Range<u64>]>>,
}

impl Segment {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        id: SegmentId,
        sealed: Option<u64>,
        index: SegmentIndex,
    ) -> Self {
        let sealed = AtomicU64::new(sealed.unwrap_or(0));
        let (index, file) = (RwLock::new(index), Mutex::new(None));
        let accepted_losses = Mutex::new(Arc::from([]));
        Self { id, sealed, index, storage, mode: OpenMode::Write, file, accepted_losses }
    }

    /// A segment that is only read. Its folder may be read-only.
    pub(crate) fn new_read_only(
        storage: Arc<dyn Storage>,
        id: SegmentId,
        sealed: Option<u64>,
        index: SegmentIndex,
    ) -> Self {
        Self { mode: OpenMode::Read, ..Self::new(storage, id, sealed, index) }
    }

    pub(crate) fn name(&self) -> String {
        segment_name(self.id.number)
    }

    pub(crate) fn sealed(&self) -> Option<u64> {
        match self.sealed.load(Ordering::Acquire) {
            0 => None,
            length => Some(length),
        }
    }

    pub(crate) fn seal(&self, length: u64) {
        self.sealed.store(length, Ordering::Release);
    }

    /// Where the index is at present.
    #[inline]
    pub(crate) fn index(&self) -> RwLockReadGuard<'_, SegmentIndex> {
        self.index.read()
    }

    pub(crate) fn set_index(&self, index: SegmentIndex) {
        *self.index.write() = index;
    }

    /// Bytes for frames in an empty segment.
    pub(crate) fn room(&self) -> u64 {
        self.id.capacity - SEGMENT_DATA_START
    }

    /// The file. Opens it if necessary. The file keeps its name as long as anything besides the list of retired
    /// segments holds this `Segment`.
    pub(crate) fn file(&self) -> io::Result<Arc<dyn StorageFile>> {
        let mut file = self.file.lock();
        if let Some(file) = &*file {
            return Ok(Arc::clone(file));
        }
        let mut opened = self.storage.open(&self.name(), self.mode)?;
        let accepted = Arc::clone(&self.accepted_losses.lock());
        if !accepted.is_empty() {
            opened = Arc::new(LossyFile { file: opened, accepted });
        }
        *file = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Makes these ranges count as damaged while they cannot be read.
    pub(crate) fn accept_losses(&self, ranges: Vec<Range<u64>>) {
        let accepted: Arc<[Range<u64>]> = ranges.into();
        let mut file = self.file.lock();
        *self.accepted_losses.lock() = Arc::clone(&accepted);
        // An open file stays open, because the committer must not depend on opening it again.
        if let Some(open) = file.take_if(|_| !accepted.is_empty()) {
            *file = Some(Arc::new(LossyFile { file: open, accepted }));
        }
    }

    pub(crate) fn has_accepted_losses(&self) -> bool {
        !self.accepted_losses.lock().is_empty()
    }

    /// Whether a part of this range is an accepted loss.
    pub(crate) fn accepted_loss_in(&self, range: &Range<u64>) -> bool {
        self.accepted_losses.lock().iter().any(|loss| loss.start < range.end && loss.end > range.start)
    }

    /// Whether all of this range is an accepted loss.
    pub(crate) fn accepts_loss_of(&self, range: &Range<u64>) -> bool {
        self.accepted_losses.lock().iter().any(|loss| loss.start <= range.start && range.end <= loss.end)
    }

    /// The file without accepted losses: reading an unreadable byte is an error.
    pub(crate) fn unmasked_file(&self) -> io::Result<Arc<dyn StorageFile>> {
        if self.has_accepted_losses() { self.storage.open(&self.name(), self.mode) } else { self.file() }
    }

    /// Opens the index file of a sealed segment.
    pub(crate) fn index_file(&self) -> Result<IndexFile, IndexError> {
        let sealed = self.sealed().ok_or(IndexError::Stale)?;
        IndexFile::open(&self.storage, self.id.number, self.id.salt, sealed)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.file.lock().is_some()
    }

    /// Closes the file as soon as its last reader is done.
    pub(crate) fn close_file(&self) {
        *self.file.lock() = None;
    }

    pub(crate) fn read_error(&self, position: u64) -> impl FnOnce(io::Error) -> ReadError {
        move |source| ReadError::Io { file: self.name(), position, source }
    }
}

fn encode_header(id: &SegmentId, log_id: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(&SEGMENT_MAGIC);
    header.put_u32_le(0);
    header.put_u32_le(FORMAT_VERSION);
    header.put_u64_le(id.number);
    header.put_u64_le(log_id);
    header.put_u32_le(id.salt);
    header.put_u32_le(id.kind as u32);
    header.put_u64_le(id.capacity);
    header.put_u32_le(id.life);
    header.resize(HEADER_BYTES, 0);
    let crc = crc32c::crc32c(&header[12..]);
    header[8..12].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Checks that the header on disk matches the manifest.
pub(crate) fn check_header(file: &dyn StorageFile, id: &SegmentId, log_id: u64) -> io::Result<Option<Fault>> {
    let mut header = [0; HEADER_BYTES];
    let read = file.read_at(&mut header, 0)?;
    let name = segment_name(id.number);
    if read == HEADER_BYTES && header[..] == encode_header(id, log_id)[..] {
        return Ok(None);
    }
    Ok(Some(Fault::new(name, 0, FaultKind::SegmentHeader)))
}

/// Describes a segment header, for `inspect`.
pub(crate) fn describe_header(bytes: &[u8]) -> Option<String> {
    let header = bytes.get(..HEADER_BYTES)?;
    if header[..8] != SEGMENT_MAGIC {
        return None;
    }
    let validity = if u32_at(header, 8) == crc32c::crc32c(&header[12..]) { "valid" } else { "DAMAGED" };
    Some(format!(
        "segment {:016x}, version {}, header {validity}, log {:016x}, salt {:08x}, kind {}, capacity {}, life {}",
        u64_at(header, 16),
        u32_at(header, 12),
        u64_at(header, 24),
        u32_at(header, 32),
        u32_at(header, 36),
        u64_at(header, 40),
        u32_at(header, 48)
    ))
}

/// The salt in a header; `None` if the header is invalid.
pub(crate) fn header_salt(bytes: &[u8]) -> Option<u32> {
    let header = bytes.get(..HEADER_BYTES)?;
    (header[..8] == SEGMENT_MAGIC && u32_at(header, 8) == crc32c::crc32c(&header[12..]))
        .then(|| u32_at(header, 32))
}

/// Creates a segment file of zeros with its header, and makes the file and its name durable. The manifest does not list it
/// yet. `between` is called with the number of bytes filled so far; it may block to limit the pace.
pub(crate) fn create(
    storage: &dyn Storage,
    id: &SegmentId,
    log_id: u64,
    between: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let name = segment_name(id.number);
    let made = create_unchecked(storage, id, log_id, &name, between);
    if made.is_err() {
        // Free the disk space. If this fails, the next open removes the file.
        let _ = storage.remove(&name);
    }
    made
}

fn create_unchecked(
    storage: &dyn Storage,
    id: &SegmentId,
    log_id: u64,
    name: &str,
    between: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let file = storage.open(name, OpenMode::Create)?;
    file.write_zeros(id.capacity, between)?;
    finish(storage, &*file, id, log_id)
}

/// Turns a retired file into a new segment with a new number. At this point the manifest lists neither number.
pub(crate) fn recycle(storage: &dyn Storage, old_number: u64, id: &SegmentId, log_id: u64) -> io::Result<()> {
    let name = segment_name(id.number);
    storage.rename(&segment_name(old_number), &name)?;
    let file = storage.open(&name, OpenMode::Write)?;
    finish(storage, &*file, id, log_id)
}

/// Makes the header durable. This must happen before the manifest lists the segment: otherwise a power cut can leave a
/// header with the salt of an earlier use.
fn finish(storage: &dyn Storage, file: &dyn StorageFile, id: &SegmentId, log_id: u64) -> io::Result<()> {
    write_header(file, id, log_id)?;
    file.sync(SyncPoint::Segment)?;
    storage.sync_folder(SyncPoint::SegmentFolder)
}

pub(crate) fn write_header(file: &dyn StorageFile, id: &SegmentId, log_id: u64) -> io::Result<()> {
    // A write of the whole page does not have to read the page first.
    let mut page = encode_header(id, log_id);
    page.resize(SEGMENT_DATA_START as usize, 0);
    file.write_at(&page, 0)
}
