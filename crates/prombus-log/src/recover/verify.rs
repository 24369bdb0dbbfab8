//! Reads everything in a log's folder and reports each fault. Changes nothing.

use crate::accepted_losses::Losses;
use crate::caller_state::NoState;
use crate::checkpoint::{Checkpoint, Mark};
use crate::error::{Fault, FaultKind, OpenError, VerifyError};
use crate::event_id::EventId;
use crate::frame_scan::{Found, PIECE_BYTES, Scan};
use crate::index::Index;
use crate::index_file::{IndexError, IndexFile};
use crate::keyed_hash::KeyedHash;
use crate::layout::{LOSSES, MANIFEST, SEGMENT_DATA_START, checkpoint_name, index_name, segment_name};
use crate::manifest::{Manifest, ManifestRead, SegmentRow};
use crate::record::{self, Kind};
use crate::recover::begun_segments::begun;
use crate::recover::begun_segments::{Begun, BegunSegment, in_log_order};
use crate::recover::find_log::{check_empty, open_error, read_manifest};
use crate::recover::replay::Replay;
use crate::recover::replay_batches::Proof;
use crate::segment::{self, Segment, SegmentIndex, SegmentKind};
use crate::storage::{Folder, OpenMode, Storage, StorageFile, is_unreadable};
use crate::unreadable_ranges::{UnreadableRanges, read_around_exactly};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The progress of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of segments read so far.
    pub bytes_done: u64,
    /// Bytes of segments to read in total.
    pub bytes_total: u64,
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Every fault, in the order found. Empty if nothing is damaged.
    pub faults: Vec<Fault>,
    /// The number of segments read.
    pub segments: usize,
    /// The number of intact events.
    pub events: u64,
    /// The number of bytes read.
    pub bytes: u64,
    /// Bytes of an unfinished batch at the end. This is not a fault: the next open cuts them off.
    pub torn_tail_bytes: u64,
    /// Places that could not be read. They may be intact.
    pub unreadable: Vec<UnreadablePlace>,
    /// The events in those places, as far as they are known.
    pub unreadable_events: Vec<Fault>,
}

/// A part of a file that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadablePlace {
    /// The file's name inside the folder.
    pub file: String,
    /// The position of its first byte.
    pub position: u64,
    /// The position after its last byte.
    pub end: u64,
}

impl std::fmt::Display for UnreadablePlace {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: bytes {} to {} cannot be read", self.file, self.position, self.end)
    }
}

/// Verifies the log in a folder. The log must not be open.
///
/// # Errors
/// [`VerifyError`] if the folder cannot be read as a log at all. Faults are not errors: they are in the report.
pub fn verify(folder: &Path, progress: impl FnMut(Progress)) -> Result<VerifyReport, VerifyError> {
    let storage = Folder::open(folder).map_err(|error| {
        VerifyError::Open(open_error(&folder.display().to_string(), "open the folder", error))
    })?;
    verify_storage(Arc::new(storage), progress)
}

/// Verifies the log on any storage. The log must not be open.
///
/// # Errors
/// See [`verify`].
pub fn verify_storage(
    storage: Arc<dyn Storage>,
    progress: impl FnMut(Progress),
) -> Result<VerifyReport, VerifyError> {
    let location = storage.location();
    let ManifestRead::Found { manifest, fault } = read_manifest(&*storage)? else {
        check_empty(&*storage)?;
        return Err(OpenError::NotALog { folder: location, example: None }.into());
    };
    let lock = storage.lock().map_err(|error| open_error(&location, "lock the folder", error))?;
    let _lock = lock.ok_or(OpenError::Locked { folder: location })?;
    let mut faults: Vec<Fault> = fault.into_iter().collect();
    let losses = Losses::read_if_readable(&*storage, &mut faults).map_err(io_error(LOSSES))?;
    let mut verifier = Verifier {
        hash: KeyedHash::new(manifest.hash_seed),
        storage,
        manifest,
        losses,
        report: VerifyReport { faults, ..VerifyReport::default() },
        ends_at_checkpoint: false,
        progress,
    };
    verifier.run()?;
    Ok(verifier.report)
}

struct Verifier<P> {
    storage: Arc<dyn Storage>,
    manifest: Manifest,
    losses: Losses,
    hash: KeyedHash,
    report: VerifyReport,
    /// Whether the log was closed cleanly and its newest checkpoint is intact.
    ends_at_checkpoint: bool,
    progress: P,
}

fn io_error(file: &str) -> impl FnOnce(io::Error) -> VerifyError {
    let file = file.to_owned();
    move |source| VerifyError::Io { file, source }
}

impl<P: FnMut(Progress)> Verifier<P> {
    fn run(&mut self) -> Result<(), VerifyError> {
        self.probe(MANIFEST)?;
        self.probe(LOSSES)?;
        let checkpoint = self.checkpoints()?;
        let mark = checkpoint.mark;
        let mut replay = Replay::new(&checkpoint, Box::new(NoState), self.hash);
        let rows = self.manifest.segments.clone();
        let bytes_total = rows.iter().map(|row| row.sealed.unwrap_or(row.id.capacity)).sum();
        let mut bytes_done = 0;
        (self.progress)(Progress { bytes_done, bytes_total });
        let mut last_begun = self.last_begun(&rows, mark)?;
        for row in &rows {
            self.segment(row, &checkpoint, &mut replay, &mut last_begun)?;
            bytes_done += row.sealed.unwrap_or(row.id.capacity);
            (self.progress)(Progress { bytes_done, bytes_total });
        }
        for kept in self.manifest.kept_indexes.clone() {
            self.index(kept.number, kept.salt, kept.covered, true)?;
        }
        self.report.faults.append(&mut replay.faults);
        self.report.unreadable_events.append(&mut replay.unreadable);
        self.report.events = replay.events;
        self.report.bytes = bytes_done;
        self.report.segments = rows.len();
        Ok(())
    }

    /// Checks both checkpoints. Returns the newest intact one, or an empty one if both are bad.
    fn checkpoints(&mut self) -> Result<Checkpoint, VerifyError> {
        let mut best = None;
        let [older, newer] = self.manifest.checkpoints;
        for number in if older == newer { vec![newer] } else { vec![older, newer] } {
            match Checkpoint::read(&*self.storage, number) {
                Ok(Ok(checkpoint)) => {
                    self.ends_at_checkpoint = self.manifest.clean && number == newer;
                    best = Some(checkpoint);
                }
                Ok(Err(fault)) => self.report.faults.push(fault),
                Err(error) if is_unreadable(&error) => self.probe(&checkpoint_name(number))?,
                Err(error) => return Err(io_error(&checkpoint_name(number))(error)),
            }
        }
        Ok(best.unwrap_or(Checkpoint {
            mark: Mark::default(),
            last_server_id: EventId::default(),
            last_commit_ms: 0,
            next_topic: 1,
            topics: Vec::new(),
            state: Vec::new(),
        }))
    }

    /// The number of the unsealed segment that was written last; `None` if no unsealed segment was begun. An unfinished
    /// batch in it is not a fault; in any other segment it is.
    fn last_begun(&self, rows: &[SegmentRow], mark: Mark) -> Result<Option<u64>, VerifyError> {
        let mut segments = Vec::new();
        for (at, row) in rows.iter().enumerate().filter(|(_, row)| row.sealed.is_none()) {
            let segment = self.segment_of(row);
            if segment.file().is_err() {
                continue;
            }
            let first_batch = match begun(&segment).map_err(io_error(&segment.name()))? {
                Begun::Batches { first } => Some(first),
                Begun::Unknown { has_frames: true, batch, .. } => batch,
                Begun::Frames => None,
                _ if row.id.number == mark.segment => Some(mark.batch),
                Begun::No | Begun::Bytes { .. } | Begun::Unusable | Begun::Unknown { .. } => continue,
            };
            segments.push(BegunSegment {
                row: at,
                is_reserve: row.reserve,
                first_batch,
                segment: row.id.number,
            });
        }
        Ok(in_log_order(segments).last().copied())
    }

    fn segment_of(&self, row: &SegmentRow) -> Segment {
        let storage = Arc::clone(&self.storage);
        let segment = Segment::new_read_only(storage, row.id, row.sealed, SegmentIndex::Growing);
        segment.accept_losses(self.losses.of_segment(row.id.number, row.id.salt));
        segment
    }

    /// Finds all places of a file that cannot be read. A missing file has none.
    fn probe(&mut self, name: &str) -> Result<(), VerifyError> {
        let file = match self.storage.open(name, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(io_error(name))?,
        };
        self.probe_file(name, &*file)
    }

    fn probe_file(&mut self, name: &str, file: &dyn StorageFile) -> Result<(), VerifyError> {
        let mut holes = UnreadableRanges::default();
        let mut buffer = vec![0; PIECE_BYTES];
        let mut position = 0;
        loop {
            let read =
                read_around_exactly(file, &mut buffer, position, &mut holes).map_err(io_error(name))?;
            if read == 0 {
                break;
            }
            position += read as u64;
        }
        self.report.unreadable.extend(holes.ranges().iter().map(|hole| UnreadablePlace {
            file: name.to_owned(),
            position: hole.start,
            end: hole.end,
        }));
        Ok(())
    }

    fn segment(
        &mut self,
        row: &SegmentRow,
        checkpoint: &Checkpoint,
        replay: &mut Replay,
        last_begun: &mut Option<u64>,
    ) -> Result<(), VerifyError> {
        let mark = checkpoint.mark;
        let name = segment_name(row.id.number);
        let file = match self.storage.open(&name, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.report.faults.push(Fault::new(&name, 0, FaultKind::SegmentShort));
                return Ok(());
            }
            opened => opened.map_err(io_error(&name))?,
        };
        let mut has_holes = false;
        match segment::check_header(&*file, &row.id, self.manifest.log_id) {
            Ok(fault) => self.report.faults.extend(fault),
            Err(error) if is_unreadable(&error) => has_holes = true,
            Err(error) => return Err(io_error(&name)(error)),
        }
        let length = file.len().map_err(io_error(&name))?;
        if length < row.sealed.unwrap_or(row.id.capacity) {
            self.report.faults.push(Fault::new(&name, length, FaultKind::SegmentShort));
        }
        let segment = self.segment_of(row);
        let file = segment.file().map_err(io_error(&name))?;
        let is_last = *last_begun == Some(row.id.number);
        // Where the part that is known to be durable ends, and whether more batches may follow.
        let (durable_to, may_continue) = match row.sealed {
            Some(sealed) => (sealed, false),
            None if mark.segment == row.id.number => (mark.position, !self.ends_at_checkpoint),
            None => (SEGMENT_DATA_START, !self.ends_at_checkpoint),
        };
        let to = if may_continue { row.id.capacity } else { durable_to };
        self.begin_chain(&*file, row, to, replay).map_err(io_error(&name))?;
        let mut index = Index::default();
        let durable = replay.segment(&segment, SEGMENT_DATA_START, durable_to, Proof::Exact, &mut index);
        has_holes |= !durable.map_err(io_error(&name))?.holes.is_empty();
        if mark.segment == row.id.number {
            replay.reach_mark(checkpoint);
            replay.resume_at(mark);
        }
        if may_continue {
            let proof = if is_last && !self.manifest.clean { Proof::None } else { Proof::Later };
            let end = replay.segment(&segment, durable_to, to, proof, &mut index).map_err(io_error(&name))?;
            has_holes |= !end.holes.is_empty();
            if let Some(torn_to) = end.torn_to {
                self.report.torn_tail_bytes += torn_to - end.end;
            }
        }
        if has_holes {
            self.probe_file(&name, &*file)?;
        }
        if let Some(sealed) = row.sealed {
            self.index(row.id.number, row.id.salt, sealed, false)?;
        }
        Ok(())
    }

    /// Makes the replay expect the segment's first intact COMMIT next, by setting the batch number and the chain value
    /// before it. Does nothing if the segment continues the previous segment.
    fn begin_chain(
        &self,
        file: &dyn StorageFile,
        row: &SegmentRow,
        to: u64,
        replay: &mut Replay,
    ) -> io::Result<()> {
        let Some(commit) = first_commit(file, row, SEGMENT_DATA_START, to)? else { return Ok(()) };
        let continues = row.id.kind == SegmentKind::Log && commit.batch == replay.mark.batch + 1;
        if !continues || replay.mark.segment == 0 {
            replay.mark.batch = commit.batch - 1;
            replay.mark.chain = commit.previous;
        }
        Ok(())
    }

    fn index(&mut self, number: u64, salt: u32, covered: u64, is_kept: bool) -> Result<(), VerifyError> {
        let name = index_name(number);
        let check = || IndexFile::open(&self.storage, number, salt, covered).and_then(|index| index.check());
        let mut checked = check();
        if matches!(&checked, Err(IndexError::Io(error)) if is_unreadable(error)) {
            // The error may be transient, so the index is read once more: an index that cannot be read is not checked.
            checked = check();
        }
        match checked {
            Ok(()) => {}
            Err(IndexError::Damaged { position }) => {
                self.report.faults.push(Fault::new(name, position, FaultKind::Index));
            }
            // A kept index cannot be rebuilt: its segment is gone.
            Err(IndexError::Stale) if is_kept => {
                self.report.faults.push(Fault::new(name, 0, FaultKind::Index));
            }
            // The next open rebuilds a missing or outdated index.
            Err(IndexError::Stale) => {}
            Err(IndexError::Io(error)) if is_unreadable(&error) => self.probe(&name)?,
            Err(IndexError::Io(error)) => return Err(io_error(&name)(error)),
        }
        Ok(())
    }
}

fn first_commit(
    file: &dyn StorageFile,
    row: &SegmentRow,
    from: u64,
    to: u64,
) -> io::Result<Option<record::Commit>> {
    let mut scan = Scan::new(file, row.id.salt, from, to, false).around_holes();
    while let Some(found) = scan.next()? {
        if let Found::Frame { header, is_body_valid: true, .. } = found
            && header.kind == Kind::Commit
            && let Some(commit) = record::read_commit(&header, scan.frame())
        {
            return Ok(Some(commit));
        }
    }
    Ok(None)
}
