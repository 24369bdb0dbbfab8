//! Tests of the simulated disk. The power-cut tests of the log rely on it: with a disk that loses too little they would
//! prove nothing.

use super::errors::{EBADF, EFBIG, EIO};
use super::*;
use std::collections::BTreeSet;
use std::io;

mod bytes;
mod faults;
mod histories;
mod limits;
mod names;
mod processes;

const SEEDS: u64 = 400;

fn create(disk: &Disk, name: &str) -> Arc<dyn StorageFile> {
    disk.open(name, OpenMode::Create).unwrap()
}

fn open(disk: &Disk, name: &str) -> Arc<dyn StorageFile> {
    disk.open(name, OpenMode::Write).unwrap()
}

/// A disk with one durable file "a" of ones.
fn disk_with_ones(seed: u64, length: usize) -> Disk {
    let disk = Disk::new(seed);
    disk.replace("a", vec![1; length]);
    disk
}

/// The results of `run` with each of the seeds.
fn outcomes<T: Ord>(run: impl Fn(u64) -> T) -> BTreeSet<T> {
    (0..SEEDS).map(run).collect()
}

fn sectors(contents: &[u8]) -> Vec<u8> {
    contents
        .chunks(SECTOR_BYTES)
        .map(|sector| {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "torn inside a sector");
            sector[0]
        })
        .collect()
}

fn assert_off<T>(result: io::Result<T>) {
    let error = result.err().expect("the power is off");
    assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::Other, "power is off"));
}

fn assert_os_error<T>(result: io::Result<T>, code: i32) {
    assert_eq!(result.err().expect("an error").raw_os_error(), Some(code));
}

/// One of each mutating operation, in an order in which all of them work.
const SCRIPT: [DiskStep; 6] = [
    DiskStep::Create,
    DiskStep::Write,
    DiskStep::Sync(SyncPoint::Manifest),
    DiskStep::Rename,
    DiskStep::SyncFolder(SyncPoint::ManifestFolder),
    DiskStep::Remove,
];

fn run(disk: &Disk, step: DiskStep) -> io::Result<()> {
    match step {
        DiskStep::Create => disk.open("new", OpenMode::Create).map(drop),
        DiskStep::Write => disk.open("new", OpenMode::Write)?.write_at(&[2; 5000], 0),
        DiskStep::Sync(point) => disk.open("new", OpenMode::Write)?.sync(point),
        DiskStep::Rename => disk.rename("new", "a"),
        DiskStep::SyncFolder(point) => disk.sync_folder(point),
        DiskStep::Remove => disk.remove("a"),
    }
}
