//! Storage in memory. The log is lost when the process ends.
//!
//! Memory is allocated when bytes are written, and not for the length of a file: a prepared segment of zeros uses none.
//! But the limit applies to the total length of the files, as on a disk. So the limit is reached when a segment is
//! prepared, where the log expects a full disk, and never when a batch is written.
//!
//! Compaction needs room for a new segment before it can free the old ones. So a part of the limit can be reserved for
//! rewritten segments: files that are filled with zeros cannot use that part.

use super::{Lock, OpenMode, Storage, StorageFile, SyncPoint, system_random};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The unit in which memory is allocated.
const CHUNK_BYTES: usize = 64 << 10;

/// A folder of files in memory. Clones share the files, which exist until the last clone and the last open file are
/// dropped.
#[derive(Clone, Debug)]
pub struct RamStorage {
    files: Arc<Mutex<BTreeMap<String, Arc<Content>>>>,
    usage: Arc<Usage>,
    is_locked: Arc<AtomicBool>,
}

impl RamStorage {
    /// An empty folder without a limit.
    pub fn new() -> Self {
        Self::with_limit(u64::MAX)
    }

    /// An empty folder with a limit for the total length of its files. A write beyond it fails like on a full disk.
    pub fn with_limit(limit_bytes: u64) -> Self {
        Self::with_limits(limit_bytes, limit_bytes)
    }

    /// Returns an empty folder whose limit is higher by `bytes`. Files that are filled with zeros (prepared segments)
    /// cannot use these additional bytes, so they remain for rewritten segments.
    #[must_use]
    pub fn and_room_for_rewriting(self, bytes: u64) -> Self {
        let zeros_limit_bytes = self.usage.zeros_limit_bytes;
        Self::with_limits(self.usage.limit_bytes.saturating_add(bytes), zeros_limit_bytes)
    }

    fn with_limits(limit_bytes: u64, zeros_limit_bytes: u64) -> Self {
        let (length_bytes, memory_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let usage = Usage { limit_bytes, zeros_limit_bytes, length_bytes, memory_bytes };
        Self { files: Arc::default(), usage: Arc::new(usage), is_locked: Arc::default() }
    }

    /// The total length of all files, to which the limit applies.
    pub fn length_bytes(&self) -> u64 {
        self.usage.length_bytes.load(Ordering::Relaxed)
    }

    /// The memory that all files use. Parts of a file that were not written yet use none.
    pub fn memory_bytes(&self) -> u64 {
        self.usage.memory_bytes.load(Ordering::Relaxed)
    }
}

impl Default for RamStorage {
    fn default() -> Self {
        Self::new()
    }
}

impl Storage for RamStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files.lock().keys().cloned().collect())
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let mut files = self.files.lock();
        let content = match (files.get(name), mode) {
            (Some(_), OpenMode::Create) => return Err(Errno::EXIST.into()),
            (Some(content), _) => Arc::clone(content),
            (None, OpenMode::Create) => {
                let content = Arc::new(Content::new(Arc::clone(&self.usage)));
                files.insert(name.to_owned(), Arc::clone(&content));
                content
            }
            (None, _) => return Err(Errno::NOENT.into()),
        };
        Ok(Arc::new(RamFile { content, is_writable: mode != OpenMode::Read }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files.lock();
        let content = files.remove(from).ok_or(Errno::NOENT)?;
        files.insert(to.to_owned(), content);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self.files.lock().remove(name);
        // Dropped after the lock is released, because freeing a large file takes a while.
        removed.map(drop).ok_or(Errno::NOENT.into())
    }

    fn sync_folder(&self, _point: SyncPoint) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Lock>>> {
        if self.is_locked.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        Ok(Some(Box::new(RamLock { is_locked: Arc::clone(&self.is_locked) })))
    }

    fn random(&self) -> u64 {
        system_random()
    }

    /// False: a used file occupies memory, a new one does not.
    fn recycles_segments(&self) -> bool {
        false
    }

    fn location(&self) -> String {
        "memory".to_owned()
    }
}

struct RamLock {
    is_locked: Arc<AtomicBool>,
}

impl Lock for RamLock {}

impl Drop for RamLock {
    fn drop(&mut self) {
        self.is_locked.store(false, Ordering::Release);
    }
}

/// The size of all files of a folder, and the limits.
#[derive(Debug)]
struct Usage {
    limit_bytes: u64,
    /// The limit for files that are filled with zeros.
    zeros_limit_bytes: u64,
    length_bytes: AtomicU64,
    memory_bytes: AtomicU64,
}

impl Usage {
    /// Adds to the total length. Fails if it would exceed the limit.
    fn grow(&self, bytes: u64, limit_bytes: u64) -> io::Result<()> {
        let grown = |length: u64| length.checked_add(bytes).filter(|&length| length <= limit_bytes);
        match self.length_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown) {
            Ok(_) => Ok(()),
            Err(_) => Err(Errno::NOSPC.into()),
        }
    }
}

/// The bytes of one file, with or without a name.
#[derive(Debug)]
struct Content {
    chunks: RwLock<Chunks>,
    usage: Arc<Usage>,
}

impl Content {
    fn new(usage: Arc<Usage>) -> Self {
        Self { chunks: RwLock::default(), usage }
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        let chunks = self.chunks.get_mut();
        self.usage.length_bytes.fetch_sub(chunks.length, Ordering::Relaxed);
        self.usage.memory_bytes.fetch_sub(chunks.memory_bytes(), Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Chunks {
    /// Length of the file.
    length: u64,
    /// The chunks of the file. Each vector ends with the last byte that was written into the chunk; the rest of the
    /// chunk reads as zeros. A file may be longer than its chunks.
    chunks: Vec<Vec<u8>>,
}

impl Chunks {
    fn memory_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.capacity() as u64).sum()
    }

    /// Writes bytes, and returns how much memory was allocated.
    fn write(&mut self, mut bytes: &[u8], position: u64) -> u64 {
        let (mut number, mut offset) = place_of(position);
        let mut taken = 0;
        while !bytes.is_empty() {
            if self.chunks.len() <= number {
                self.chunks.resize_with(number + 1, Vec::new);
            }
            let (now, rest) = bytes.split_at(bytes.len().min(CHUNK_BYTES - offset));
            let chunk = &mut self.chunks[number];
            let before = chunk.capacity();
            put(chunk, now, offset);
            taken += (chunk.capacity() - before) as u64;
            (number, offset, bytes) = (number + 1, 0, rest);
        }
        taken
    }

    fn read(&self, mut buffer: &mut [u8], position: u64) {
        let (mut number, mut offset) = place_of(position);
        while !buffer.is_empty() {
            let (now, rest) = buffer.split_at_mut(buffer.len().min(CHUNK_BYTES - offset));
            let written = self.chunks.get(number).and_then(|chunk| chunk.get(offset..)).unwrap_or_default();
            let (copied, zeros) = now.split_at_mut(now.len().min(written.len()));
            copied.copy_from_slice(&written[..copied.len()]);
            zeros.fill(0);
            (number, offset, buffer) = (number + 1, 0, rest);
        }
    }
}

/// The chunk of a position, and the offset in it.
fn place_of(position: u64) -> (usize, usize) {
    let chunk = CHUNK_BYTES as u64;
    ((position / chunk) as usize, (position % chunk) as usize)
}

/// Writes into one chunk, which grows by doubling up to the chunk size, so that a small file uses little memory.
fn put(chunk: &mut Vec<u8>, bytes: &[u8], offset: usize) {
    let end = offset + bytes.len();
    if chunk.capacity() < end {
        let capacity = end.max(chunk.capacity() * 2).next_power_of_two().min(CHUNK_BYTES);
        chunk.reserve_exact(capacity - chunk.len());
    }
    if chunk.len() == offset {
        return chunk.extend_from_slice(bytes);
    }
    if chunk.len() < end {
        chunk.resize(end, 0);
    }
    chunk[offset..end].copy_from_slice(bytes);
}

struct RamFile {
    content: Arc<Content>,
    is_writable: bool,
}

impl RamFile {
    /// Makes the file at least this long.
    fn grow_to(&self, chunks: &mut Chunks, length: u64, limit_bytes: u64) -> io::Result<()> {
        if length > chunks.length {
            self.content.usage.grow(length - chunks.length, limit_bytes)?;
            chunks.length = length;
        }
        Ok(())
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.is_writable { Ok(()) } else { Err(Errno::BADF.into()) }
    }
}

impl StorageFile for RamFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.content.chunks.read().length)
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let chunks = self.content.chunks.read();
        let left = chunks.length.saturating_sub(position);
        let length = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        chunks.read(&mut buffer[..length], position);
        Ok(length)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.check_writable()?;
        let end = position.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?;
        let mut chunks = self.content.chunks.write();
        self.grow_to(&mut chunks, end, self.content.usage.limit_bytes)?;
        let taken = chunks.write(bytes, position);
        self.content.usage.memory_bytes.fetch_add(taken, Ordering::Relaxed);
        Ok(())
    }

    /// Only sets the length: the zeros use no memory.
    fn write_zeros(&self, length: u64, between: &mut dyn FnMut(u64)) -> io::Result<()> {
        self.check_writable()?;
        self.grow_to(&mut self.content.chunks.write(), length, self.content.usage.zeros_limit_bytes)?;
        between(length);
        Ok(())
    }

    fn sync(&self, _point: SyncPoint) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_back_across_chunks_and_gaps_are_zeros() {
        let ram = RamStorage::new();
        let file = ram.open("a", OpenMode::Create).unwrap();
        let bytes: Vec<u8> = (0..3 * CHUNK_BYTES).map(|at| at as u8 | 1).collect();
        file.write_at(&bytes, 100).unwrap();
        let far = 10 * CHUNK_BYTES as u64;
        file.write_at(b"far", far).unwrap();
        assert_eq!(file.len().unwrap(), far + 3);

        let mut read = vec![9; bytes.len() + 200];
        assert_eq!(file.read_at(&mut read, 0).unwrap(), read.len());
        assert!(read[..100].iter().all(|&byte| byte == 0));
        assert_eq!(read[100..][..bytes.len()], bytes);
        assert!(read[100 + bytes.len()..].iter().all(|&byte| byte == 0));
        let mut end = [9; 8];
        assert_eq!(file.read_at(&mut end, far).unwrap(), 3);
        assert_eq!(end, *b"far\x09\x09\x09\x09\x09");
        assert_eq!(file.read_at(&mut end, far + 3).unwrap(), 0);
    }

    #[test]
    fn zeros_use_no_memory_and_removing_a_file_frees_its_memory() {
        let ram = RamStorage::new();
        let file = ram.open("a", OpenMode::Create).unwrap();
        file.write_zeros(64 << 20, &mut |_| {}).unwrap();
        assert_eq!((ram.length_bytes(), ram.memory_bytes()), (64 << 20, 0));
        file.write_at(&[1; 5000], 0).unwrap();
        assert_eq!(ram.memory_bytes(), 8192);
        ram.remove("a").unwrap();
        assert_eq!(ram.length_bytes(), 64 << 20, "an open file keeps its bytes");
        drop(file);
        assert_eq!((ram.length_bytes(), ram.memory_bytes()), (0, 0));
    }

    #[test]
    fn the_limit_counts_lengths_and_a_refused_write_changes_nothing() {
        let ram = RamStorage::with_limit(1000);
        let file = ram.open("a", OpenMode::Create).unwrap();
        file.write_zeros(900, &mut |_| {}).unwrap();
        file.write_at(&[1; 900], 0).unwrap();
        let refused = file.write_at(&[2; 200], 850).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.len().unwrap(), 900);
        let mut last = [0; 50];
        file.read_at(&mut last, 850).unwrap();
        assert_eq!(last, [1; 50]);
        file.write_at(&[2; 150], 850).unwrap();
        assert_eq!(ram.length_bytes(), 1000);
    }

    #[test]
    fn zeros_leave_room_for_rewriting() {
        let ram = RamStorage::with_limit(1000).and_room_for_rewriting(500);
        let prepared = ram.open("a", OpenMode::Create).unwrap();
        assert_eq!(prepared.write_zeros(1001, &mut |_| {}).unwrap_err().kind(), io::ErrorKind::StorageFull);
        prepared.write_zeros(1000, &mut |_| {}).unwrap();
        let rewritten = ram.open("b", OpenMode::Create).unwrap();
        rewritten.write_at(&[1; 500], 0).unwrap();
        assert_eq!(rewritten.write_at(&[1], 500).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn names_and_the_lock_behave_as_in_a_folder() {
        let ram = RamStorage::new();
        let file = ram.open("a", OpenMode::Create).unwrap();
        file.write_at(b"first", 0).unwrap();
        assert_eq!(ram.open("a", OpenMode::Create).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(ram.open("b", OpenMode::Write).err().unwrap().kind(), io::ErrorKind::NotFound);
        ram.rename("a", "b").unwrap();
        assert_eq!(ram.clone().list().unwrap(), ["b"]);
        let reader = ram.open("b", OpenMode::Read).unwrap();
        assert!(reader.write_at(b"x", 0).is_err());
        assert_eq!(reader.len().unwrap(), 5);
        assert_eq!(ram.remove("a").unwrap_err().kind(), io::ErrorKind::NotFound);

        let lock = ram.lock().unwrap();
        assert!(lock.is_some() && ram.clone().lock().unwrap().is_none());
        drop(lock);
        assert!(ram.lock().unwrap().is_some());
    }
}
