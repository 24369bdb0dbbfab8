//! What the disk gives: the batches that the log committed, written again with pwrite and fdatasync and nothing else. No
//! checksums, no index, no other thread.
//!
//! The files are filled with zeros and synced before, so that their blocks are written ones, as a log's are. When the
//! last file is full the first one is written over. A burst uses one file of 64 MiB; a sustained round uses several, so that
//! it dirties about as many different pages as a log that recycles its segments.

use crate::Failure;
use crate::recorder::Latencies;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 64 << 20;
const PIECE_BYTES: usize = 1 << 20;

/// The loop, its files, and what it measured so far.
pub struct RawLoop {
    files: Vec<File>,
    /// Where the next batch goes.
    at: usize,
    position: u64,
    bytes: Vec<u8>,
    pub elapsed: Duration,
    pub latencies: Latencies,
}

impl RawLoop {
    /// Makes the files.
    pub fn new(folder: &Path, files: usize) -> Result<Self, Failure> {
        std::fs::create_dir_all(folder)?;
        let files =
            (0..files).map(|number| make_file(folder, number)).collect::<Result<_, std::io::Error>>()?;
        File::open(folder)?.sync_all()?;
        let (elapsed, latencies) = (Duration::ZERO, Latencies::new());
        Ok(Self { files, at: 0, position: 0, bytes: Vec::new(), elapsed, latencies })
    }

    /// Writes batches of these sizes, in order, each with its own fdatasync.
    pub fn replay(&mut self, batch_bytes: &[usize]) -> Result<(), Failure> {
        let largest = batch_bytes.iter().copied().max().unwrap_or(0);
        self.bytes = (0..largest).map(|at| (at % 251) as u8).collect();
        let started = Instant::now();
        let mut last = started;
        for &bytes in batch_bytes {
            if self.position + bytes as u64 > FILE_BYTES {
                self.at = (self.at + 1) % self.files.len();
                self.position = 0;
            }
            let file = &self.files[self.at];
            file.write_all_at(&self.bytes[..bytes], self.position)?;
            file.sync_data()?;
            self.position += bytes as u64;
            let now = Instant::now();
            self.latencies.add(now - last, 1);
            last = now;
        }
        self.elapsed += last - started;
        Ok(())
    }
}

fn make_file(folder: &Path, number: usize) -> std::io::Result<File> {
    let path = folder.join(format!("raw-{number}"));
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let zeros = vec![0; PIECE_BYTES];
    for position in (0..FILE_BYTES).step_by(PIECE_BYTES) {
        file.write_all_at(&zeros, position)?;
    }
    file.sync_all()?;
    Ok(file)
}
