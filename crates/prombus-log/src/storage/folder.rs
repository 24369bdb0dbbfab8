//! Storage in a folder of the file system.

use super::{Lock, OpenMode, Storage, StorageFile, SyncPoint, ZEROS_BYTES, system_random, write_repeatedly};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LOCK_NAME: &str = "LOCK";

/// A folder of the file system.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The open folder. File names are resolved against it, and it is synced to make names durable.
    handle: File,
}

impl Folder {
    /// Opens the folder. Creates it durably if it does not exist.
    pub fn open_or_create(path: &Path) -> io::Result<Self> {
        if !path.try_exists()? {
            create_durably(path)?;
        }
        Self::open(path)
    }

    /// Opens an existing folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        let handle = File::open(path)?;
        if !handle.metadata()?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "not a folder"));
        }
        Ok(Self { path: path.to_owned(), handle })
    }
}

/// Creates the folder and its parents, and syncs each parent, so that the folder survives a power cut.
fn create_durably(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !parent.try_exists()? {
        create_durably(parent)?;
    }
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    File::open(parent)?.sync_all()
}

impl Storage for Folder {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let flags = match mode {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::Write => OFlags::RDWR,
            OpenMode::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        let file =
            rustix::fs::openat(&self.handle, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))?;
        Ok(Arc::new(RealFile { file: File::from(file) }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.handle, from, &self.handle, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.handle, name, rustix::fs::AtFlags::empty())?)
    }

    fn sync_folder(&self, _point: SyncPoint) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Lock>>> {
        // Locks the folder itself, because LOCK can be deleted while a server runs. Locks LOCK too, because older builds
        // lock only that file.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&self.handle, ".", flags, Mode::empty())?;
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            // Network file systems emulate flock with record locks, which a folder cannot have. On these, only LOCK is
            // locked.
            Ok(()) | Err(Errno::BADF | Errno::INVAL | Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK) => {}
            Err(error) => return Err(error.into()),
        }
        // An existing LOCK can be locked without write access, for example to verify a log on a read-only mount.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.handle, LOCK_NAME, flags, Mode::from_raw_mode(0o644)) {
            Err(refused @ (Errno::ROFS | Errno::ACCESS)) => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                // If there is no LOCK, the first error is returned: it shows the actual problem.
                rustix::fs::openat(&self.handle, LOCK_NAME, flags, Mode::empty()).map_err(|_| refused)?
            }
            opened => opened?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(FolderLock { _files: [folder, file] }))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn random(&self) -> u64 {
        system_random()
    }

    fn free_bytes(&self) -> Option<u64> {
        let stats = rustix::fs::fstatvfs(&self.handle).ok()?;
        stats.f_bavail.checked_mul(stats.f_frsize)
    }

    fn location(&self) -> String {
        self.path.display().to_string()
    }
}

struct FolderLock {
    /// Each flock lasts as long as its descriptor.
    _files: [OwnedFd; 2],
}

impl Lock for FolderLock {}

/// The alignment that direct writes need for memory, positions and lengths.
const DIRECT_ALIGN: usize = 4096;

struct RealFile {
    file: File,
}

impl RealFile {
    fn set_direct(&self, on: bool) -> io::Result<()> {
        let mut flags = rustix::fs::fcntl_getfl(&self.file)?;
        flags.set(OFlags::DIRECT, on);
        Ok(rustix::fs::fcntl_setfl(&self.file, flags)?)
    }

    /// Writes zeros past the page cache: they are not copied, and do not displace cached pages.
    fn write_zeros_direct(&self, length: u64, between: &mut dyn FnMut(u64)) -> io::Result<()> {
        let buffer = vec![0; ZEROS_BYTES + DIRECT_ALIGN];
        let zeros = &buffer[buffer.as_ptr().align_offset(DIRECT_ALIGN)..][..ZEROS_BYTES];
        write_repeatedly(self, zeros, length, between)
    }

    fn write_zeros_cached(&self, length: u64, between: &mut dyn FnMut(u64)) -> io::Result<()> {
        write_repeatedly(self, &vec![0; ZEROS_BYTES], length, between)
    }
}

impl StorageFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], position + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, position)
    }

    fn write_zeros(&self, length: u64, between: &mut dyn FnMut(u64)) -> io::Result<()> {
        if length % DIRECT_ALIGN as u64 != 0 || self.set_direct(true).is_err() {
            return self.write_zeros_cached(length, between);
        }
        let written = self.write_zeros_direct(length, between);
        self.set_direct(false)?;
        match written {
            // Some file systems accept the flag and then refuse the write.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.write_zeros_cached(length, between)
            }
            written => written,
        }
    }

    fn sync(&self, _point: SyncPoint) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.file)?)
    }
}
