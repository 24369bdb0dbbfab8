//! The file operations of the log. All access to files goes through [`Storage`].
//!
//! There are three implementations: [`Folder`] is a real folder, [`RamStorage`] keeps files in memory, and
//! `simulated::Disk` is a disk that loses unsynced writes. Every sync has a [`SyncPoint`], so that a test can disable one
//! kind of sync and prove that it is needed.
//!
//! There is deliberately no append, no truncate and no mmap: the log writes at known positions, into blocks that already
//! exist.

mod folder;
mod ram;
#[cfg(any(test, feature = "test-util"))]
pub mod simulated;

pub use folder::Folder;
pub use ram::RamStorage;

use std::io;
use std::sync::Arc;

/// Bytes per write when a file is filled with zeros. A commit waits for one such write at most.
const ZEROS_BYTES: usize = 256 << 10;

/// The durability step that a sync belongs to. Real storage ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncPoint {
    /// A batch of the log, before it is acknowledged.
    LogData,
    /// A zero-filled or recycled segment with its header, before the manifest lists it.
    Segment,
    /// The folder, after a segment file was created or renamed.
    SegmentFolder,
    /// The new manifest, before it replaces the old one.
    Manifest,
    /// The folder, after the new manifest was renamed over the old one.
    ManifestFolder,
    /// A checkpoint, before the manifest lists it.
    Checkpoint,
    /// The folder, after a checkpoint was created.
    CheckpointFolder,
    /// The batches that recovery found after the last checkpoint, before they are served.
    RecoveredTail,
    /// A cut file, which keeps bytes that recovery cut off.
    Cut,
    /// An index file, which can always be rebuilt.
    Index,
    /// A segment that cleaning wrote, before the manifest lists it instead of the originals.
    Rewritten,
    /// The folder, after cleaning wrote a segment.
    RewrittenFolder,
    /// A kept index with the ids of events that are cleaned away, before the manifest lists it.
    KeptIndex,
    /// The folder, before the manifest lists a kept index.
    KeptIndexFolder,
    /// A file of a backup.
    Backup,
    /// The backup's folder, before its manifest is written.
    BackupFolder,
    /// The list of accepted losses, and the folder after the list was renamed.
    AcceptedLosses,
}

/// How [`Storage::open`] opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, to read.
    Read,
    /// An existing file, to read and write.
    Write,
    /// A new file, to read and write. Fails if a file of that name exists.
    Create,
}

/// One folder of files.
///
/// A name is durable only after [`sync_folder`](Storage::sync_folder), and the bytes of a file only after
/// [`StorageFile::sync`]. Neither implies the other.
pub trait Storage: Send + Sync + 'static {
    /// The names of all files in the folder, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Opens a file of the folder.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>>;
    /// Renames a file, replacing a file of the new name. Open handles stay valid.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file's name. Open handles stay valid.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all names of the folder durable.
    fn sync_folder(&self, point: SyncPoint) -> io::Result<()>;
    /// Takes the folder's exclusive lock. Returns `None` if another process or handle holds it. Dropping the lock releases
    /// it.
    fn lock(&self) -> io::Result<Option<Box<dyn Lock>>>;
    /// Random bits for salts and ids.
    fn random(&self) -> u64;
    /// Whether unused segment files are kept and overwritten. On a disk this is cheaper than creating new ones.
    fn recycles_segments(&self) -> bool {
        true
    }
    /// The free space in bytes, if it is known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    /// The location of the folder, for messages.
    fn location(&self) -> String;
}

/// One open file.
pub trait StorageFile: Send + Sync {
    /// The file's length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Reads up to `buffer.len()` bytes at `position`; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;
    /// Writes all of `bytes` at `position`. The file grows as needed.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;
    /// Fills a new file with `length` zeros in small pieces, so that its blocks are allocated and written. Calls `between`
    /// after each piece with the number of bytes filled so far. Bypasses the page cache if possible, because the zeros are
    /// never read.
    fn write_zeros(&self, length: u64, between: &mut dyn FnMut(u64)) -> io::Result<()> {
        write_repeatedly(self, &vec![0; ZEROS_BYTES.min(length as usize)], length, between)
    }
    /// Makes the bytes (and the length) durable: fdatasync.
    fn sync(&self, point: SyncPoint) -> io::Result<()>;
}

/// The lock of a folder. Dropping it releases the folder.
pub trait Lock: Send + Sync {}

/// Fills the first `length` bytes of a file with copies of `bytes`.
fn write_repeatedly<F: StorageFile + ?Sized>(
    file: &F,
    bytes: &[u8],
    length: u64,
    between: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut position = 0;
    while position < length {
        let part = bytes.len().min((length - position) as usize);
        file.write_at(&bytes[..part], position)?;
        position += part as u64;
        between(position);
    }
    Ok(())
}

/// Reads a whole file.
pub(crate) fn read_whole(file: &dyn StorageFile) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.len()?).map_err(|_| io::Error::other("file larger than memory"))?;
    let mut bytes = vec![0; length];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Removes a file if it exists.
pub(crate) fn remove_if_there(storage: &dyn Storage, name: &str) -> io::Result<()> {
    match storage.remove(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Creates a file with these bytes. Replaces an existing file.
pub(crate) fn write_new(storage: &dyn Storage, name: &str, bytes: &[u8]) -> io::Result<Arc<dyn StorageFile>> {
    remove_if_there(storage, name)?;
    let file = storage.open(name, OpenMode::Create)?;
    file.write_at(bytes, 0)?;
    Ok(file)
}

/// Random bits from the operating system.
fn system_random() -> u64 {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .expect("getrandom of 8 bytes does not fail once the system is up");
    u64::from_le_bytes(bytes)
}

/// Whether an error means that disk space, file descriptors or memory are exhausted. The condition may be temporary.
pub(crate) fn is_full(error: &io::Error) -> bool {
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        || matches!(error.raw_os_error(), Some(ENOMEM | ENFILE | EMFILE))
}

/// Whether an error means that the disk cannot read some bytes.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    error.raw_os_error() == Some(EIO)
}
