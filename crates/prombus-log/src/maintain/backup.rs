//! Backs up a running log: makes a copy as of one durable batch that opens and verifies like any other log.
//!
//! A checkpoint is written first, and the copy contains the log up to the mark of this checkpoint. The segments up to the
//! mark are copied with their indexes, then the kept indexes, the checkpoint, and last the manifest. The copy does not open
//! before its manifest is written. It has the same log id, because segment headers contain it.
//!
//! Publishing and cleaning continue meanwhile: while the backup holds a segment, its file is not recycled.

use crate::checkpoint::{Checkpoint, Mark};
use crate::error::BackupError;
use crate::index::Index;
use crate::index_file_write::write_index_file;
use crate::keyed_hash::KeyedHash;
use crate::layout::{MANIFEST, MANIFEST_NEW, checkpoint_name, index_name, index_new_name};
use crate::lost_seqs::{OtherSegments, spans_of};
use crate::maintain::long_jobs::{JOB_PIECE_BYTES, JobKind, Pace};
use crate::maintain::maintenance::Maintenance;
use crate::manifest::{Manifest, SegmentRow};
use crate::read::kept_ids::KeptIds;
use crate::rebuild_index::index_segment;
use crate::segment::{Segment, SegmentIndex};
use crate::storage::{Folder, OpenMode, Storage, StorageFile, SyncPoint, is_full, is_unreadable, read_whole};
use crate::unreadable_ranges::UnreadableAt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How many bytes of a file are written between two syncs. A larger sync would delay commits if the backup is on the
/// same disk.
const SYNC_BYTES: u64 = 16 << 20;
/// The percentage of the time that the backup may spend reading and writing.
const DUTY_PERCENT: u8 = 50;
/// To estimate the size of a backup: indexes take at most about 1/8 of the size of the segments, and the other files at
/// most `MARGIN_BYTES`.
const OVERHEAD_PART: u64 = 8;
const MARGIN_BYTES: u64 = 8 << 20;
/// Number of retries of a failed read. The delay is 100 ms and doubles each time, about 6 s in total.
const READ_RETRIES: u32 = 6;

/// The progress of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupProgress {
    /// Bytes of segments copied so far.
    pub bytes_done: u64,
    /// Bytes of segments to copy in total.
    pub bytes_total: u64,
}

/// The content of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// The newest batch in the backup.
    pub batch: u64,
    /// The number of segments in the backup.
    pub segments: usize,
    /// The size of these segments.
    pub bytes: u64,
}

/// The state of the log that is copied.
struct Snapshot {
    /// The manifest of the copy.
    manifest: Manifest,
    mark: Mark,
    /// The content of the checkpoint file.
    checkpoint: Vec<u8>,
    /// The segments, each with the length of the part that is copied.
    segments: Vec<(Arc<Segment>, u64)>,
    /// The kept indexes.
    kept: Vec<Arc<KeptIds>>,
}

impl Maintenance {
    /// Backs the log up into a folder that is new or empty. An unsuitable folder is reported before the first call of
    /// `progress`.
    pub(crate) fn backup(
        &self,
        destination: &Path,
        progress: &mut dyn FnMut(BackupProgress),
    ) -> Result<BackupReport, BackupError> {
        let folder = destination.display().to_string();
        let folder_error = |source| BackupError::Folder { folder: folder.clone(), source };
        if is_inside(destination, Path::new(&self.context.storage.location())) {
            return Err(BackupError::Inside { folder });
        }
        let is_new = !destination.try_exists().map_err(folder_error)?;
        let storage = Arc::new(Folder::open_or_create(destination).map_err(folder_error)?);
        check_writable(destination).map_err(folder_error)?;
        let report = self.backup_to(storage, progress);
        if report.is_err() && is_new {
            // This fails unless the folder is empty.
            let _ = std::fs::remove_dir(destination);
        }
        report
    }

    /// Backs the log up to an empty storage. After an error the storage is empty again.
    pub(crate) fn backup_to(
        &self,
        storage: Arc<dyn Storage>,
        progress: &mut dyn FnMut(BackupProgress),
    ) -> Result<BackupReport, BackupError> {
        let folder = storage.location();
        let names = storage.list();
        let names = names.map_err(|source| BackupError::Write { file: folder.clone(), source })?;
        if let Some(example) = names.into_iter().next() {
            return Err(BackupError::NotEmpty { folder, example });
        }
        self.context.failure.check()?;
        let _job = self.jobs.begin(JobKind::Backup).map_err(|_| self.context.why_stopped())?;
        let mut copy = BackupCopy {
            maintenance: self,
            storage,
            made: Vec::new(),
            pace: self.pace(DUTY_PERCENT),
            progress,
        };
        let report = self.snapshot().and_then(|snapshot| copy.run(&snapshot));
        if report.is_err() {
            copy.remove_all();
        }
        report.map_err(|error| match error {
            BackupError::Write { source, .. } if is_full(&source) => {
                BackupError::Full { folder, needed_bytes: needed_bytes(self.committed.log_bytes()) }
            }
            error => error,
        })
    }

    /// Writes a checkpoint and collects the state that belongs to it.
    fn snapshot(&self) -> Result<Snapshot, BackupError> {
        let mut work = self.work().ok_or_else(|| self.context.why_stopped())?;
        let written = work.checkpoint();
        let is_written = written.map_err(|error| {
            self.context.fail(format!("maintenance: {error}"));
            self.context.why_stopped()
        })?;
        if !is_written {
            let folder = self.context.storage.location();
            return Err(BackupError::Full { folder, needed_bytes: MARGIN_BYTES });
        }
        let mark = work.checkpoints.newest;
        let number = work.catalog.manifest.checkpoints[1];
        let file = checkpoint_name(number);
        let read = || self.context.storage.open(&file, OpenMode::Read).and_then(|file| read_whole(&*file));
        let mut checkpoint = read();
        // Retried without a delay, because the maintenance lock is held.
        for _ in 0..READ_RETRIES {
            if checkpoint.as_ref().is_err_and(is_unreadable) {
                checkpoint = read();
            }
        }
        let checkpoint = checkpoint.map_err(|source| BackupError::Read { file, source })?;
        let view_segments = self.committed.segments();
        let count = view_segments.iter().position(|segment| segment.id.number == mark.segment);
        let mut segments: Vec<(Arc<Segment>, u64)> = Vec::new();
        for segment in &view_segments[..count.map_or(0, |at| at + 1)] {
            let is_last = segment.id.number == mark.segment;
            let length = if is_last { mark.position } else { segment.sealed().unwrap_or(mark.position) };
            segments.push((Arc::clone(segment), length));
        }
        let row = |(segment, length): &(Arc<Segment>, u64)| SegmentRow {
            id: segment.id,
            sealed: Some(*length),
            reserve: false,
        };
        let manifest = Manifest {
            clean: true,
            segments: segments.iter().map(row).collect(),
            checkpoints: [number, number],
            ..work.catalog.manifest.clone()
        };
        let kept = self.committed.ids.kept().to_vec();
        Ok(Snapshot { manifest, mark, checkpoint, segments, kept })
    }
}

/// Whether `folder`, which need not exist, is `other` or inside it.
fn is_inside(folder: &Path, other: &Path) -> bool {
    let Ok(other) = other.canonicalize() else { return false };
    let existing = folder.ancestors().find_map(|ancestor| ancestor.canonicalize().ok());
    existing.is_some_and(|existing| existing.starts_with(other))
}

fn check_writable(folder: &Path) -> io::Result<()> {
    let file = folder.join("PROBE");
    let made = std::fs::File::create_new(&file);
    if made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
        // The folder is not empty. The caller checks that next.
        return Ok(());
    }
    made?;
    std::fs::remove_file(file)
}

struct BackupCopy<'a> {
    maintenance: &'a Maintenance,
    storage: Arc<dyn Storage>,
    /// The files created so far.
    made: Vec<String>,
    pace: Pace<'a>,
    progress: &'a mut dyn FnMut(BackupProgress),
}

impl BackupCopy<'_> {
    fn run(&mut self, snapshot: &Snapshot) -> Result<BackupReport, BackupError> {
        let bytes_total = snapshot.segments.iter().map(|(_, length)| length).sum();
        let needed_bytes = needed_bytes(bytes_total);
        if self.storage.free_bytes().is_some_and(|free| free < needed_bytes) {
            return Err(BackupError::Full { folder: self.storage.location(), needed_bytes });
        }
        let mut bytes_done = 0;
        (self.progress)(BackupProgress { bytes_done, bytes_total });
        for (at, (_, length)) in snapshot.segments.iter().enumerate() {
            self.segment(snapshot, at, bytes_done, bytes_total)?;
            bytes_done += length;
        }
        for kept in &snapshot.kept {
            let name = index_name(kept.row.number);
            let source = self.maintenance.context.storage.open(&name, OpenMode::Read);
            let source = source.map_err(|source| BackupError::Read { file: name.clone(), source })?;
            self.copy(&*source, &name, None, None)?;
        }
        let name = checkpoint_name(snapshot.manifest.checkpoints[1]);
        let file = self.create(&name)?;
        let written = file.write_at(&snapshot.checkpoint, 0).and_then(|()| file.sync(SyncPoint::Backup));
        written.map_err(|source| BackupError::Write { file: name, source })?;
        // Synced before the manifest is written. Otherwise a power cut can remove files that the manifest lists.
        let synced = self.storage.sync_folder(SyncPoint::BackupFolder);
        synced.map_err(|source| BackupError::Write { file: self.storage.location(), source })?;
        let written = snapshot.manifest.write(&*self.storage);
        written.map_err(|source| BackupError::Write { file: MANIFEST.to_owned(), source })?;
        Ok(BackupReport { batch: snapshot.mark.batch, segments: snapshot.segments.len(), bytes: bytes_total })
    }

    /// Copies a segment of the snapshot up to its length, with its index.
    fn segment(
        &mut self,
        snapshot: &Snapshot,
        at: usize,
        done_before: u64,
        bytes_total: u64,
    ) -> Result<(), BackupError> {
        let (segment, length) = (&snapshot.segments[at].0, snapshot.segments[at].1);
        let name = segment.name();
        let source = segment.file().map_err(|source| BackupError::Read { file: name.clone(), source })?;
        self.copy(&*source, &name, Some(length), Some((done_before, bytes_total)))?;
        let index = index_name(segment.id.number);
        if segment.sealed() == Some(length)
            && let Ok(source) = self.maintenance.context.storage.open(&index, OpenMode::Read)
        {
            match self.copy(&*source, &index, None, None) {
                // The index can be rebuilt from the copied segment.
                Err(BackupError::Read { .. }) => {}
                copied => return copied,
            }
        }
        // The growing segment has no index file. Its copy is sealed, so it gets one.
        let storage = Arc::clone(&self.storage);
        let copied = Segment::new_read_only(storage, segment.id, Some(length), SegmentIndex::Growing);
        let id = segment.id;
        self.made.extend([index_new_name(id.number), index.clone()]);
        let written = index_segment(&copied, length, self.maintenance.context.hash)
            .map_err(|at| at.source)
            .and_then(|mut made| {
                cover_lost_seqs(snapshot, at, &mut made, self.maintenance.context.hash)
                    .map_err(|at| at.source)?;
                write_index_file(
                    &self.storage,
                    &made,
                    id.number,
                    id.salt,
                    length,
                    self.maintenance.context.hash,
                )
            });
        written.map_err(|source| BackupError::Write { file: index, source })?;
        Ok(())
    }

    fn create(&mut self, name: &str) -> Result<Arc<dyn StorageFile>, BackupError> {
        self.made.push(name.to_owned());
        let created = self.storage.open(name, OpenMode::Create);
        created.map_err(|source| BackupError::Write { file: name.to_owned(), source })
    }

    /// Copies a file in pieces, up to `length` or to its end. `progress` contains the bytes done before this file, and
    /// the total; `None` if the file does not count towards the progress.
    fn copy(
        &mut self,
        source: &dyn StorageFile,
        name: &str,
        length: Option<u64>,
        progress: Option<(u64, u64)>,
    ) -> Result<(), BackupError> {
        let read_error = |source| BackupError::Read { file: name.to_owned(), source };
        let write_error = |source| BackupError::Write { file: name.to_owned(), source };
        let length = match length {
            Some(length) => length,
            None => source.len().map_err(read_error)?,
        };
        let file = self.create(name)?;
        let mut buffer = vec![0; JOB_PIECE_BYTES.min(length) as usize];
        let (mut position, mut unsynced) = (0, 0);
        while position < length {
            let part = buffer.len().min((length - position) as usize);
            let read = self.read_patiently(source, &mut buffer[..part], position).map_err(read_error)?;
            // If the file is too short, zeros replace the missing bytes, and are found as damage in the copy too.
            buffer[read..part].fill(0);
            file.write_at(&buffer[..part], position).map_err(write_error)?;
            position += part as u64;
            unsynced += part as u64;
            if unsynced >= SYNC_BYTES {
                unsynced = 0;
                file.sync(SyncPoint::Backup).map_err(write_error)?;
            }
            if let Some((done_before, bytes_total)) = progress {
                (self.progress)(BackupProgress { bytes_done: done_before + position, bytes_total });
            }
            if !self.pace.rest() {
                return Err(self.maintenance.context.why_stopped().into());
            }
        }
        file.sync(SyncPoint::Backup).map_err(write_error)
    }

    /// Reads like [`StorageFile::read_at`], and retries for a while: a transient error must not end a backup that takes
    /// hours.
    fn read_patiently(
        &mut self,
        source: &dyn StorageFile,
        buffer: &mut [u8],
        position: u64,
    ) -> io::Result<usize> {
        let mut retry = 0;
        loop {
            match source.read_at(buffer, position) {
                Err(error) if is_unreadable(&error) && retry < READ_RETRIES && self.pace.rest() => {
                    if self.maintenance.context.options.threads {
                        std::thread::sleep(Duration::from_millis(100 << retry));
                    }
                    retry += 1;
                }
                read => return read,
            }
        }
    }

    /// Removes all files of the copy. The manifest is removed first, so that an incomplete copy does not open.
    fn remove_all(&self) {
        for name in [MANIFEST, MANIFEST_NEW] {
            let _ = self.storage.remove(name);
        }
        for name in &self.made {
            let _ = self.storage.remove(name);
        }
    }
}

/// Adds entries for lost seqs to the index of a damaged segment. Considers only events of the snapshot, because later
/// events are not in the copy.
fn cover_lost_seqs(
    snapshot: &Snapshot,
    at: usize,
    index: &mut Index,
    hash: KeyedHash,
) -> Result<(), UnreadableAt> {
    let Some(checkpoint) = Checkpoint::parse(&snapshot.checkpoint).filter(|_| !index.damage.is_empty())
    else {
        return Ok(());
    };
    let mut others = OtherSegments::new(at, &checkpoint.topic_views());
    for (other_at, (other, _)) in snapshot.segments.iter().enumerate().filter(|(other_at, _)| *other_at != at)
    {
        others.add(other_at, &spans_of(other, hash)?);
    }
    others.cover_lost_seqs(index);
    Ok(())
}

/// The estimated size of a backup with its indexes and checkpoint.
fn needed_bytes(segment_bytes: u64) -> u64 {
    segment_bytes + segment_bytes / OVERHEAD_PART + MARGIN_BYTES
}
