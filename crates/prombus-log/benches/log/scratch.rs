//! Temporary folders on a real disk. They are removed afterwards.

use crate::Failure;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The folder of this run.
pub struct Scratch {
    path: PathBuf,
    made: AtomicU32,
}

/// The folder of one round.
pub struct Fresh {
    path: PathBuf,
}

impl Scratch {
    /// Creates a folder in `PROMBUS_BENCH_DIR`, or in the target folder.
    pub fn new() -> Result<Self, Failure> {
        let parent = match std::env::var_os("PROMBUS_BENCH_DIR") {
            Some(folder) => PathBuf::from(folder),
            None => PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
        };
        let path = parent.join(format!("log-bench-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { path, made: AtomicU32::new(0) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path for a new folder, which does not exist yet.
    pub fn fresh(&self) -> Fresh {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        Fresh { path: self.path.join(number.to_string()) }
    }

    /// Waits until all writes of earlier rounds are on the disk.
    pub fn settle(&self) -> Result<(), Failure> {
        Ok(rustix::fs::syncfs(File::open(&self.path)?)?)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

impl Fresh {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    if path.exists()
        && let Err(error) = fs::remove_dir_all(path)
    {
        eprintln!("could not remove {}: {error}", path.display());
    }
}
