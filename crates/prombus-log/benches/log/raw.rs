//! The raw loop, which measures the disk: it writes batches of the sizes that the log committed, with only pwrite and
//! fdatasync. It has no checksums, no index and no other thread.
//!
//! The files are filled with zeros and synced before, so that their blocks are allocated and written, as in a log. When the
//! last file is full, the first one is overwritten. A burst uses one file of 64 MiB. A sustained round uses several, so
//! that it dirties about as many different pages as a log that recycles its segments.

use crate::Failure;
use crate::recorder::Latencies;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 64 << 20;
const PIECE_BYTES: usize = 1 << 20;

/// The loop, its files, and its results so far.
pub struct RawLoop {
    files: Vec<File>,
    /// The file and position of the next batch.
    at: usize,
    position: u64,
    bytes: Vec<u8>,
    pub elapsed: Duration,
    pub latencies: Latencies,
}

impl RawLoop {
    /// Creates the files.
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
