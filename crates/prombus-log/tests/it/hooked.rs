//! A simulated disk that calls a hook before each read. A hook can count reads, refuse them, or simulate another thread
//! that acts during a read.

use crate::support::{Listener, Remembered, Rig};
use parking_lot::Mutex;
use prombus_log::storage::simulated::Disk;
use prombus_log::storage::{Lock, OpenMode, Storage, StorageFile, SyncPoint};
use prombus_log::{Log, Options};
use std::io;
use std::sync::Arc;

pub type Hook = Arc<Mutex<Option<Box<dyn FnMut(&str, std::ops::Range<u64>) -> io::Result<()> + Send>>>>;

/// Calls a hook before each read of a file.
pub struct Hooked {
    pub disk: Disk,
    pub hook: Hook,
}

struct HookedFile {
    name: String,
    file: Arc<dyn StorageFile>,
    hook: Hook,
}

impl Storage for Hooked {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let file = Storage::open(&self.disk, name, mode)?;
        Ok(Arc::new(HookedFile { name: name.to_owned(), file, hook: Arc::clone(&self.hook) }))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn sync_folder(&self, point: SyncPoint) -> io::Result<()> {
        self.disk.sync_folder(point)
    }
    fn lock(&self) -> io::Result<Option<Box<dyn Lock>>> {
        self.disk.lock()
    }
    fn random(&self) -> u64 {
        self.disk.random()
    }
    fn location(&self) -> String {
        self.disk.location()
    }
}

impl StorageFile for HookedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        // The hook is removed while it runs, because it may read too.
        let hook = self.hook.lock().take();
        if let Some(mut hook) = hook {
            let result = hook(&self.name, position..position + buffer.len() as u64);
            let mut slot = self.hook.lock();
            if slot.is_none() {
                *slot = Some(hook);
            }
            drop(slot);
            result?;
        }
        self.file.read_at(buffer, position)
    }
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.file.write_at(bytes, position)
    }
    fn sync(&self, point: SyncPoint) -> io::Result<()> {
        self.file.sync(point)
    }
}

/// A log on a hooked disk.
pub fn hooked(disk: &Disk, options: Options) -> (Rig, Hook) {
    let hook: Hook = Arc::default();
    let listener = Listener::new();
    let state = Remembered::default();
    let options = Options { observer: Arc::<Listener>::clone(&listener), ..options };
    let storage = Hooked { disk: disk.clone(), hook: Arc::clone(&hook) };
    let log = Log::open_storage(Arc::new(storage), options, Box::new(state.clone())).unwrap();
    (Rig { disk: disk.clone(), log, state, listener }, hook)
}
