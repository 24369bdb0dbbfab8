//! What open does: finds the log or makes one, replays what stands behind the newest checkpoint, cuts a torn tail, and makes
//! what it found durable before anyone sees it.
//!
//! Until the new manifest is written nothing that counts is changed, so a crash at any point only means to do it again.

use crate::append::{AppendState, Place, Spare, TopicAppend};
use crate::checkpoint::{Checkpoint, Mark};
use crate::commit::{Committer, Pending};
use crate::error::{Fault, FaultKind, OpenError};
use crate::holes::{Holes, UnreadableAt, read_around, read_around_exactly};
use crate::housekeeping::Housekeeper;
use crate::id::{EventId, IdMaker, KeyedHash};
use crate::index::Index;
use crate::index_file::{self, IndexError, IndexFile};
use crate::kept_ids::KeptIds;
use crate::layout::{
    FORMAT_VERSION, FileKind, MANIFEST, RESERVE, SEGMENT_DATA_START, checkpoint_name, cut_name, file_kind,
    index_name, segment_name,
};
use crate::log::Parts;
use crate::losses::Losses;
use crate::lost_seqs::{add_after, add_before, around, spans_of};
use crate::manifest::{Manifest, ManifestRead, SegmentRow};
use crate::named_faults::NamedFaults;
use crate::observer::Notice;
use crate::options::Options;
use crate::recent_ids::RecentIds;
use crate::replay::{self, Begun, BegunSegment, Proof, Replay, SegmentEnd, in_log_order, index_segment};
use crate::scan::{Found, PIECE_BYTES, Scan, end_of_nonzero};
use crate::segment::{self, Segment, SegmentId, SegmentIndex, SegmentKind};
use crate::state::State;
use crate::storage::{Lock, OpenMode, Storage, SyncPoint, is_full, is_unreadable};
use crate::tail::Tail;
use crate::view::{TopicView, View};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The numbers of the files that a new log starts with.
const FIRST_SEGMENT: u64 = 1;
const FIRST_CHECKPOINTS: [u64; 2] = [2, 3];

/// Maps what the system said to what the operator can do.
pub(crate) fn open_error(folder: &str, action: &str, source: io::Error) -> OpenError {
    let folder = folder.to_owned();
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::ReadOnly { folder, source }
        }
        _ => OpenError::Io { folder, action: action.to_owned(), source },
    }
}

/// Opens the log on a storage; see the module's text.
pub(crate) fn open(
    storage: Arc<dyn Storage>,
    options: Options,
    state: Box<dyn State>,
) -> Result<(Parts, Box<dyn Lock>), OpenError> {
    let folder = storage.location();
    let io = |action: &'static str| {
        let folder = folder.clone();
        move |error| open_error(&folder, action, error)
    };
    // Look before taking the lock: in a folder that is not ours not even the lock file may appear.
    if let ManifestRead::Missing = read_manifest(&*storage)? {
        check_empty(&*storage)?;
    }
    let lock = storage.lock().map_err(io("lock the folder"))?;
    let lock = lock.ok_or_else(|| OpenError::Locked { folder: folder.clone() })?;
    let found = match read_manifest(&*storage)? {
        ManifestRead::Missing => {
            check_empty(&*storage)?;
            create(&*storage, &options)?
        }
        found => found,
    };
    let ManifestRead::Found { manifest, fault } = found else {
        unreachable!("read_manifest answers missing or found")
    };
    let parts = Recovery::new(storage, options, manifest, fault)?.run(state)?;
    Ok((parts, lock))
}

/// A needed part of a file cannot be read.
fn read_error(storage: &dyn Storage, file: String, at: UnreadableAt) -> OpenError {
    let UnreadableAt { position, source } = at;
    if is_unreadable(&source) {
        return OpenError::Unreadable { folder: storage.location(), file, position, source };
    }
    open_error(&storage.location(), &format!("read {file}"), source)
}

/// Reads the manifest: missing or found, everything else is an error.
pub(crate) fn read_manifest(storage: &dyn Storage) -> Result<ManifestRead, OpenError> {
    let read = Manifest::read(storage);
    match read.map_err(|error| read_error(storage, MANIFEST.to_owned(), error.into()))? {
        ManifestRead::Newer(found) => {
            Err(OpenError::Newer { file: MANIFEST.to_owned(), found, supported: FORMAT_VERSION })
        }
        ManifestRead::Damaged(fault) => Err(OpenError::ManifestDamaged(Box::new(fault))),
        found => Ok(found),
    }
}

/// A folder without a manifest must be empty, or hold no more than an interrupted first open left behind: that one makes
/// [`FIRST_SEGMENT`] and [`FIRST_CHECKPOINTS`], and writes no frame before there is a manifest.
pub(crate) fn check_empty(storage: &dyn Storage) -> Result<(), OpenError> {
    let folder = storage.location();
    let names = storage.list().map_err(|error| open_error(&folder, "list the folder", error))?;
    for name in names {
        let is_leftover = match file_kind(&name) {
            None => return Err(OpenError::NotALog { folder, example: name }),
            Some(FileKind::Segment(FIRST_SEGMENT)) => {
                let has_frames = has_frames(storage, &name);
                !has_frames.map_err(|error| read_error(storage, name.clone(), error.into()))?
            }
            Some(FileKind::Checkpoint(number)) => FIRST_CHECKPOINTS.contains(&number),
            Some(FileKind::Lock | FileKind::ManifestNew | FileKind::Reserve | FileKind::LossesNew) => true,
            Some(_) => false,
        };
        if !is_leftover {
            return Err(OpenError::ManifestMissing { folder, file: name });
        }
    }
    Ok(())
}

/// Whether a segment has frames; without a whole header it is the remains of making it.
fn has_frames(storage: &dyn Storage, name: &str) -> io::Result<bool> {
    let file = storage.open(name, OpenMode::Read)?;
    let mut header = [0; SEGMENT_DATA_START as usize];
    let read = file.read_at(&mut header, 0)?;
    let Some(salt) = segment::header_salt(&header[..read]) else { return Ok(false) };
    let mut scan = Scan::new(&*file, salt, SEGMENT_DATA_START, file.len()?, false);
    while let Some(found) = scan.next()? {
        if matches!(found, Found::Frame { .. }) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes the first files of a new log. After a failure the folder is empty again.
fn create(storage: &dyn Storage, options: &Options) -> Result<ManifestRead, OpenError> {
    let folder = storage.location();
    let created = create_files(storage, options);
    created.map_err(|error| {
        for name in storage.list().unwrap_or_default() {
            if file_kind(&name).is_some() {
                let _ = storage.remove(&name);
            }
        }
        if is_full(&error) {
            let needed_bytes = options.segment_bytes + options.reserve_bytes;
            return OpenError::Full { folder: folder.clone(), needed_bytes, source: error };
        }
        open_error(&folder, "make a new log", error)
    })
}

fn create_files(storage: &dyn Storage, options: &Options) -> io::Result<ManifestRead> {
    for name in storage.list()? {
        if !matches!(file_kind(&name), Some(FileKind::Lock)) {
            storage.remove(&name)?;
        }
    }
    let log_id = storage.random();
    let id = SegmentId {
        number: FIRST_SEGMENT,
        salt: storage.random() as u32,
        kind: SegmentKind::Log,
        capacity: options.segment_bytes,
        life: 0,
    };
    segment::create(storage, &id, log_id, &mut |_| {})?;
    let checkpoint = Checkpoint {
        mark: Mark::default(),
        last_own_id: EventId::default(),
        last_commit_ms: i64::MIN,
        next_topic: 1,
        topics: Vec::new(),
        state: Vec::new(),
    };
    for number in FIRST_CHECKPOINTS {
        checkpoint.write(storage, number)?;
    }
    let manifest = Manifest {
        log_id,
        hash_seed: [storage.random(), storage.random()],
        generation: 1,
        clean: true,
        next_number: FIRST_CHECKPOINTS[1] + 1,
        segments: vec![SegmentRow { id, sealed: None, reserve: false }],
        kept_indexes: Vec::new(),
        checkpoints: FIRST_CHECKPOINTS,
    };
    manifest.write(storage)?;
    Ok(ManifestRead::Found { manifest, fault: None })
}

struct Recovery {
    storage: Arc<dyn Storage>,
    options: Options,
    manifest: Manifest,
    hash: KeyedHash,
    /// Unreadable places that count as damaged.
    losses: Losses,
    faults: Vec<Fault>,
    /// The log was closed cleanly and the newest checkpoint is whole: nothing stands behind it.
    ends_at_checkpoint: bool,
}

/// A segment that is prepared and not begun.
type Unused = (SegmentRow, Arc<Segment>);

/// A segment that has records, with what is known of it.
struct Used {
    segment: Arc<Segment>,
    /// The index, where it is not in a file.
    index: Option<Index>,
    /// Where the part behind the checkpoint starts.
    from: u64,
    end: u64,
    torn_to: Option<u64>,
    /// Its last batch is damaged.
    is_damaged: bool,
    /// Some of its unused bytes cannot be read: nothing is appended to it.
    has_holes: bool,
}

/// The segments of a log, as open found them.
struct FoundSegments {
    /// Those with records, in log order.
    used: Vec<Used>,
    spares: Vec<Unused>,
    /// Prepared ones with bytes that cannot be read: they stay as they are and are not used.
    unusable: Vec<SegmentRow>,
}

impl Recovery {
    fn new(
        storage: Arc<dyn Storage>,
        options: Options,
        manifest: Manifest,
        fault: Option<Fault>,
    ) -> Result<Self, OpenError> {
        let hash = KeyedHash::new(manifest.hash_seed);
        let ends_at_checkpoint = manifest.clean;
        let mut faults: Vec<Fault> = fault.into_iter().collect();
        let losses = Losses::read_if_readable(&*storage, &mut faults)
            .map_err(|error| open_error(&storage.location(), "read LOSSES", error))?;
        Ok(Self { storage, options, manifest, hash, losses, faults, ends_at_checkpoint })
    }

    /// A needed part of a file cannot be read.
    fn unreadable(&self, file: String, at: UnreadableAt) -> OpenError {
        read_error(&*self.storage, file, at)
    }

    fn error(&self, action: &str, error: io::Error) -> OpenError {
        open_error(&self.storage.location(), action, error)
    }

    fn notice(&self, notice: &Notice) {
        self.options.observer.notice(notice);
    }

    fn run(mut self, mut state: Box<dyn State>) -> Result<Parts, OpenError> {
        let (checkpoint, number) = self.read_checkpoint()?;
        // A new log has no snapshot to restore.
        if checkpoint.mark.batch > 0 {
            let restored = state.restore(&checkpoint.state);
            restored.map_err(|reason| OpenError::State { file: checkpoint_name(number), reason })?;
        }
        self.check_segments()?;
        let checkpointed = checkpoint.mark;
        let mut replay = Replay::new(&checkpoint, state, self.hash);
        let FoundSegments { mut used, spares, unusable } = self.replay_segments(&mut replay)?;
        self.faults.append(&mut replay.faults);

        let last = used.len();
        for (at, one) in used.iter_mut().enumerate() {
            self.cut(one).map_err(|error| self.error("keep the bytes of a cut", error))?;
            self.make_durable(one)?;
            let is_whole = one.torn_to.is_none() && !one.is_damaged && !one.has_holes;
            let is_growing = at + 1 == last && one.segment.sealed().is_none() && is_whole;
            if !is_growing {
                one.segment.seal(one.end);
            }
        }
        let mut recent_ids = RecentIds::default();
        let active_index = self.settle_indexes(&mut used, &replay.topics, &mut recent_ids)?;
        let kept = self.open_kept()?;
        self.finish(replay, checkpointed, &used, spares, &unusable, recent_ids, active_index, kept)
    }

    /// The newest checkpoint that is whole.
    fn read_checkpoint(&mut self) -> Result<(Checkpoint, u64), OpenError> {
        let [older, newer] = self.manifest.checkpoints;
        // An unreadable checkpoint is not a fault, but the other one replaces it too.
        let newer_fault = match Checkpoint::read(&*self.storage, newer) {
            Ok(Ok(checkpoint)) => return Ok((checkpoint, newer)),
            Ok(Err(fault)) => Ok(fault),
            Err(error) if is_unreadable(&error) && older != newer => Err(error),
            Err(error) => return Err(self.unreadable(checkpoint_name(newer), error.into())),
        };
        let older_read = match Checkpoint::read(&*self.storage, older) {
            Err(error) => return Err(self.unreadable(checkpoint_name(older), error.into())),
            Ok(read) => read,
        };
        match older_read {
            Ok(checkpoint) => {
                self.faults.extend(newer_fault.ok());
                // So that the next one takes the place of the bad one.
                self.manifest.checkpoints = [older, older];
                self.ends_at_checkpoint = false;
                Ok((checkpoint, older))
            }
            Err(older_fault) => match newer_fault {
                Ok(newer_fault) => Err(OpenError::CheckpointsDamaged {
                    newer: Box::new(newer_fault),
                    older: Box::new(older_fault),
                }),
                Err(error) => Err(self.unreadable(checkpoint_name(newer), error.into())),
            },
        }
    }

    /// Every segment that the manifest names must be there; a header that does not check is named and not needed.
    fn check_segments(&mut self) -> Result<(), OpenError> {
        for row in &self.manifest.segments {
            let name = segment_name(row.id.number);
            let file = match self.storage.open(&name, OpenMode::Read) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(OpenError::SegmentMissing { folder: self.storage.location(), segment: name });
                }
                opened => opened.map_err(|error| self.error("open a segment", error))?,
            };
            let length = file.len().map_err(|error| self.error("read a segment", error))?;
            match segment::check_header(&*file, &row.id, self.manifest.log_id) {
                Ok(fault) => self.faults.extend(fault),
                // The manifest repeats all that it says.
                Err(error) if is_unreadable(&error) => {}
                Err(error) => return Err(self.error("read a segment", error)),
            }
            if length < row.sealed.unwrap_or(row.id.capacity) {
                self.faults.push(Fault::new(name, length, FaultKind::SegmentShort));
            }
        }
        Ok(())
    }

    fn segment_of(&self, row: &SegmentRow) -> Arc<Segment> {
        let storage = Arc::clone(&self.storage);
        let segment = Segment::new(storage, row.id, row.sealed, SegmentIndex::Growing);
        segment.accept_losses(self.losses.of_segment(row.id.number, row.id.salt));
        Arc::new(segment)
    }

    /// Replays everything after the checkpoint.
    fn replay_segments(&mut self, replay: &mut Replay) -> Result<FoundSegments, OpenError> {
        let mark = replay.mark;
        let is_clean = self.manifest.clean;
        let rows = self.manifest.segments.clone();
        let mark_at = rows.iter().position(|row| row.id.number == mark.segment);
        if mark.segment != 0 && mark_at.is_none() {
            let segment = segment_name(mark.segment);
            return Err(OpenError::SegmentMissing { folder: self.storage.location(), segment });
        }
        if let Some(row) = mark_at.map(|at| rows[at]) {
            let end = row.sealed.unwrap_or(row.id.capacity);
            if !(SEGMENT_DATA_START..=end).contains(&mark.position) {
                let name = checkpoint_name(self.manifest.checkpoints[1]);
                return Err(OpenError::ManifestDamaged(Box::new(Fault::new(name, 0, FaultKind::Checkpoint))));
            }
        }
        let mut used = Vec::new();
        let mut unusable = Vec::new();
        let mut begun: Vec<BegunSegment<Used>> = Vec::new();
        let mut spares = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let segment = self.segment_of(row);
            let from = if Some(at) == mark_at { mark.position } else { SEGMENT_DATA_START };
            let one = |from, end, torn_to| Used {
                segment: Arc::clone(&segment),
                index: None,
                from,
                end,
                torn_to,
                is_damaged: false,
                has_holes: false,
            };
            let mut push_begun = |first_batch| {
                let (is_reserve, segment) = (row.reserve, one(from, row.id.capacity, None));
                begun.push(BegunSegment { row: at, is_reserve, first_batch, segment });
            };
            let is_before_mark = mark_at.is_some_and(|mark_at| at < mark_at);
            match row.sealed {
                Some(sealed) if is_before_mark || row.id.kind == SegmentKind::Rewritten => {
                    used.push(one(sealed, sealed, None));
                }
                Some(sealed) => used.push(one(from, sealed, None)),
                None if Some(at) == mark_at => push_begun(Some(mark.batch)),
                // Data written to an unreadable place might be lost.
                None if self.ends_at_checkpoint && segment.has_accepted_losses() => unusable.push(*row),
                None if self.ends_at_checkpoint => spares.push((*row, segment)),
                None => match replay::begun(&segment)
                    .map_err(|error| self.unreadable(segment.name(), error.into()))?
                {
                    Begun::No if segment.has_accepted_losses() => unusable.push(*row),
                    Begun::Batches { first } => push_begun(Some(first)),
                    Begun::Frames => push_begun(None),
                    Begun::No => spares.push((*row, segment)),
                    Begun::Unusable => unusable.push(*row),
                    Begun::Unknown { at, .. } => return Err(self.unreadable(segment.name(), at)),
                    // Not even a frame of an unfinished batch: the bytes are kept, the segment is not.
                    Begun::Bytes { end } => {
                        let remains = one(SEGMENT_DATA_START, SEGMENT_DATA_START, Some(end));
                        self.cut(&remains).map_err(|error| self.error("keep the bytes of a cut", error))?;
                    }
                },
            }
        }
        used.extend(in_log_order(begun));

        let last = used.len();
        replay.begin_at_mark();
        for (at, one) in used.iter_mut().enumerate() {
            let sealed = one.segment.sealed();
            if sealed.is_some() && one.from == one.end {
                // Nothing of it stands behind the checkpoint, and it has an index file.
                continue;
            }
            let proof = match sealed {
                Some(_) => Proof::Exact,
                None if self.ends_at_checkpoint => Proof::Exact,
                None if at + 1 < last || is_clean => Proof::Later,
                None => Proof::None,
            };
            let error = |error: io::Error| self.unreadable(one.segment.name(), error.into());
            let mut index = if one.from > SEGMENT_DATA_START {
                index_segment(&one.segment, one.from, self.hash)
                    .map_err(|at| self.unreadable(one.segment.name(), at))?
            } else {
                Index::default()
            };
            let to = if self.ends_at_checkpoint && sealed.is_none() { one.from } else { one.end };
            let mut found = replay.segment(&one.segment, one.from, to, proof, &mut index).map_err(error)?;
            if let Some(position) = found.needed_hole {
                let source = found.holes.error();
                return Err(self.unreadable(one.segment.name(), UnreadableAt { position, source }));
            }
            if proof == Proof::None && found.torn_to.is_none() && one.segment.id.life == 0 {
                // Bytes of an unfinished batch without one whole header. (A recycled file has old bytes there.)
                let file = one.segment.file().map_err(error)?;
                let capacity = one.segment.id.capacity;
                found.torn_to =
                    end_of_nonzero(&*file, found.end, capacity, &mut found.holes).map_err(error)?;
            }
            if sealed.is_none() {
                let SegmentEnd { end, torn_to, is_damaged, holes, .. } = found;
                (one.end, one.torn_to, one.is_damaged) = (end, torn_to, is_damaged);
                one.has_holes = !holes.is_empty() || one.segment.has_accepted_losses();
            }
            one.index = Some(index);
        }
        Ok(FoundSegments { used, spares, unusable })
    }

    /// Keeps the bytes of an unfinished batch aside. The segment is sealed before them and never appended to again.
    fn cut(&self, one: &Used) -> io::Result<()> {
        let Some(torn_to) = one.torn_to else { return Ok(()) };
        let mut bytes = vec![0; (torn_to - one.end) as usize];
        // These bytes are kept for inspection only: unreadable ones are zeros in the copy.
        let read = read_around(&*one.segment.file()?, &mut bytes, one.end, &mut Holes::default())?;
        bytes.truncate(read);
        let name = cut_name(one.segment.id.number, one.end);
        let kept = (|| {
            match self.storage.remove(&name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let file = self.storage.open(&name, OpenMode::Create)?;
            file.write_at(&bytes, 0)?;
            file.sync(SyncPoint::Cut)?;
            self.storage.sync_folder(SyncPoint::Cut)
        })();
        let kept_in = match kept {
            Ok(()) => name,
            Err(error) if is_full(&error) => {
                let _ = self.storage.remove(&name);
                one.segment.name()
            }
            Err(error) => return Err(error),
        };
        self.notice(&Notice::TornTail {
            file: one.segment.name(),
            position: one.end,
            kept_in,
            bytes: bytes.len() as u64,
        });
        Ok(())
    }

    /// After kill -9 the page cache may hold what the disk does not, and after a failed fsync it says otherwise: what was found
    /// is written again and synced before it is served. Accepted losses are left as they are: they may be readable again one day.
    fn make_durable(&self, one: &Used) -> Result<(), OpenError> {
        if self.manifest.clean || one.from >= one.end {
            return Ok(());
        }
        let unreadable = |at: UnreadableAt| self.unreadable(one.segment.name(), at);
        let write_error = |error| self.error("rewrite the recovered tail", error);
        let file = one.segment.unmasked_file().map_err(|error| unreadable(error.into()))?;
        let mut buffer = vec![0; PIECE_BYTES.min((one.end - one.from) as usize)];
        let mut position = one.from;
        while position < one.end {
            let length = buffer.len().min((one.end - position) as usize);
            let mut holes = Holes::default();
            let read = read_around_exactly(&*file, &mut buffer[..length], position, &mut holes);
            let read = read.map_err(|error| unreadable(error.into()))?;
            if read == 0 {
                break;
            }
            if let Some(hole) = holes.ranges().iter().find(|hole| !one.segment.accepts_loss_of(hole)) {
                return Err(unreadable(UnreadableAt { position: hole.start, source: holes.error() }));
            }
            let end = position + read as u64;
            let mut start = position;
            for hole in holes.ranges().iter().cloned().chain(std::iter::once(end..end)) {
                let part = (start - position) as usize..(hole.start - position) as usize;
                file.write_at(&buffer[part], start).map_err(write_error)?;
                start = hole.end;
            }
            position = end;
        }
        file.sync(SyncPoint::RecoveredTail).map_err(write_error)
    }

    /// Gives every sealed segment its index file. Answers the index of the growing one.
    fn settle_indexes(
        &mut self,
        used: &mut [Used],
        topics: &[Option<TopicView>],
        recent_ids: &mut RecentIds,
    ) -> Result<Index, OpenError> {
        let mut active = Index::default();
        for at in 0..used.len() {
            if let Some(mut index) = used[at].index.take() {
                self.cover_lost_seqs(used, at, &mut index, topics)?;
                used[at].index = Some(index);
            }
            let segment = Arc::clone(&used[at].segment);
            let id = segment.id;
            let Some(sealed) = segment.sealed() else {
                active = used[at].index.take().unwrap_or_default();
                for entry in &active.ids {
                    let hash = self.hash.of_id(entry.topic, entry.id);
                    recent_ids.insert(entry.topic, entry.id, hash, entry.seq);
                }
                continue;
            };
            let file = match IndexFile::open(&self.storage, id.number, id.salt, sealed) {
                Ok(file) => file,
                Err(IndexError::Io(error)) if !is_unreadable(&error) => {
                    return Err(self.error("read an index", error));
                }
                // The segment is the second copy of what an index says.
                Err(error) => {
                    if let IndexError::Damaged { position } = error {
                        self.faults.push(Fault::new(index_name(id.number), position, FaultKind::Index));
                    }
                    let index = match used[at].index.take() {
                        Some(index) => index,
                        None => {
                            let made = index_segment(&segment, sealed, self.hash);
                            let mut index = made.map_err(|at| self.unreadable(segment.name(), at))?;
                            self.cover_lost_seqs(used, at, &mut index, topics)?;
                            index
                        }
                    };
                    let written =
                        index_file::write(&self.storage, &index, id.number, id.salt, sealed, self.hash);
                    match written {
                        Ok(file) => {
                            self.notice(&Notice::IndexRebuilt { file: index_name(id.number) });
                            file
                        }
                        Err(error) if is_full(&error) => {
                            // It stays in memory until there is room.
                            for entry in &index.ids {
                                let hash = self.hash.of_id(entry.topic, entry.id);
                                recent_ids.insert(entry.topic, entry.id, hash, entry.seq);
                            }
                            recent_ids.roll(id.number);
                            *segment.index.write() = SegmentIndex::Memory(Arc::new(index));
                            continue;
                        }
                        Err(error) => return Err(self.error("write an index", error)),
                    }
                }
            };
            *segment.index.write() = SegmentIndex::File(Arc::new(file));
        }
        Ok(active)
    }

    /// Lets the index of a damaged segment know which seqs are lost in it, by what the other segments have.
    fn cover_lost_seqs(
        &self,
        used: &[Used],
        at: usize,
        index: &mut Index,
        topics: &[Option<TopicView>],
    ) -> Result<(), OpenError> {
        if index.damage.is_empty() {
            return Ok(());
        }
        let mut around = around(topics);
        for (other_at, other) in used.iter().enumerate().filter(|(other_at, _)| *other_at != at) {
            let spans = match &other.index {
                Some(index) => index.spans(),
                None => spans_of(&other.segment, self.hash)
                    .map_err(|at| self.unreadable(other.segment.name(), at))?,
            };
            let add = if other_at < at { add_before } else { add_after };
            spans.iter().for_each(|span| add(&mut around, span));
        }
        around.into_values().for_each(|around| index.cover_lost_seqs(around));
        Ok(())
    }

    /// Opens what is kept of the ids of events that are gone. A bad one is named and left out: there is nothing to make it
    /// again from.
    fn open_kept(&mut self) -> Result<Vec<Arc<KeptIds>>, OpenError> {
        let mut kept = Vec::new();
        for row in std::mem::take(&mut self.manifest.kept_indexes) {
            let is_given_up = self.losses.has_kept_index(row.number, row.salt);
            let opened = IndexFile::open_for_ids(&self.storage, row.number, row.salt, row.covered);
            // Only the head and the filters are read so far; an accepted loss may be in the ids.
            let opened =
                opened.and_then(|file| if is_given_up { file.check().map(|()| file) } else { Ok(file) });
            match opened {
                Ok(file) => {
                    self.manifest.kept_indexes.push(row);
                    kept.push(Arc::new(KeptIds { row, file }));
                }
                Err(IndexError::Io(error)) if !(is_given_up && is_unreadable(&error)) => {
                    return Err(self.unreadable(index_name(row.number), error.into()));
                }
                Err(error) => {
                    let position = if let IndexError::Damaged { position } = error { position } else { 0 };
                    self.faults.push(Fault::new(index_name(row.number), position, FaultKind::Index));
                }
            }
        }
        Ok(kept)
    }

    #[allow(clippy::too_many_arguments, reason = "the parts that were found, put together in the one call")]
    fn finish(
        mut self,
        replay: Replay,
        checkpointed: Mark,
        used: &[Used],
        spares: Vec<Unused>,
        unusable: &[SegmentRow],
        recent_ids: RecentIds,
        active_index: Index,
        kept: Vec<Arc<KeptIds>>,
    ) -> Result<Parts, OpenError> {
        let row_of = |one: &Used| {
            let reserve = self.manifest.segments.iter().any(|row| row.id == one.segment.id && row.reserve);
            SegmentRow { id: one.segment.id, sealed: one.segment.sealed(), reserve }
        };
        let mut rows: Vec<SegmentRow> = used.iter().map(row_of).collect();
        let active = used.last().filter(|one| one.segment.sealed().is_none());
        let place = Place {
            segment: active.map_or(0, |one| one.segment.id.number),
            salt: active.map_or(0, |one| one.segment.id.salt),
            remaining: active.map_or(0, |one| one.segment.id.capacity - one.end),
            is_reserve: rows.last().is_some_and(|row| row.reserve && row.sealed.is_none()),
        };
        let scanned = used.iter().map(|one| one.end.saturating_sub(one.from)).sum();
        let mut mark = replay.mark;
        if let Some(one) = active {
            (mark.segment, mark.position) = (one.segment.id.number, one.end);
        }
        // A spare of another size than is wanted now may be too small for what is allowed: it goes with the leftovers.
        let wanted = |row: &SegmentRow| {
            let bytes = if row.reserve { self.options.reserve_bytes } else { self.options.segment_bytes };
            row.id.capacity == bytes
        };
        let spares: Vec<_> = spares.into_iter().filter(|(row, _)| wanted(row)).collect();
        rows.extend(spares.iter().map(|(row, _)| *row));
        // Sealed as empty: a later open that can read all of it must not take the remains of a torn batch for durable ones.
        rows.extend(unusable.iter().map(|row| SegmentRow { sealed: Some(SEGMENT_DATA_START), ..*row }));
        let spares: VecDeque<Spare> =
            spares.into_iter().map(|(row, segment)| Spare { segment, is_reserve: row.reserve }).collect();

        self.manifest.segments = rows;
        self.manifest.clean = false;
        self.manifest.generation += 1;
        let mut written = self.manifest.write(&*self.storage);
        if written.as_ref().is_err_and(is_full) && self.storage.remove(RESERVE).is_ok() {
            written = self.manifest.write(&*self.storage);
        }
        written.map_err(|source| {
            let folder = self.storage.location();
            if is_full(&source) {
                return OpenError::Full { folder, needed_bytes: 1 << 20, source };
            }
            open_error(&folder, "write the MANIFEST", source)
        })?;
        self.remove_leftovers();

        let topics = replay.topics.iter().map(|topic| match topic {
            Some(topic) => TopicAppend::new(topic.last_seq, topic.is_deleted),
            None => TopicAppend::new(0, true),
        });
        let ids = IdMaker::new(replay.last_own_id, self.storage.random(), self.hash);
        let pending = Pending::new(mark.batch + 1);
        let append = AppendState::new(
            pending,
            topics.collect(),
            ids,
            // Past every time that is durable: what a reader took for complete before the restart stays so.
            replay.last_commit_ms.saturating_add(1),
            recent_ids,
            place,
            spares,
        );
        let segments: Vec<Arc<Segment>> = used.iter().map(|one| Arc::clone(&one.segment)).collect();
        let committer = Committer::new(active.map(|one| Arc::clone(&one.segment)), mark);
        let view = View {
            tail: Tail::new(self.options.tail_bytes),
            segments: Arc::new(segments),
            active_index,
            mark,
            topics: replay.topics,
            last_own_id: replay.last_own_id,
            last_commit_ms: replay.last_commit_ms,
            state_records: Vec::new(),
            since_checkpoint: scanned,
        };
        let mut named_faults = NamedFaults::default();
        for fault in &self.faults {
            if named_faults.add(fault) {
                self.notice(&Notice::Damaged(fault.clone()));
            }
        }
        let log_id = self.manifest.log_id;
        Ok(Parts {
            storage: self.storage,
            options: self.options,
            hash: self.hash,
            losses: self.losses,
            log_id,
            append,
            view,
            kept,
            state: replay.state,
            committer,
            housekeeper: Housekeeper::new(self.manifest, checkpointed),
            named_faults,
        })
    }

    /// Files that an interrupted step left behind and the manifest does not name.
    fn remove_leftovers(&self) {
        let named = |number: u64| self.manifest.segments.iter().any(|row| row.id.number == number);
        let kept = |number: u64| self.manifest.kept_indexes.iter().any(|kept| kept.number == number);
        for name in self.storage.list().unwrap_or_default() {
            let is_leftover = match file_kind(&name) {
                Some(FileKind::Segment(number)) => !named(number),
                Some(FileKind::Index(number)) => !named(number) && !kept(number),
                Some(FileKind::Checkpoint(number)) => !self.manifest.checkpoints.contains(&number),
                Some(FileKind::ManifestNew | FileKind::IndexNew | FileKind::LossesNew) => true,
                Some(FileKind::Manifest | FileKind::Lock | FileKind::Reserve | FileKind::Losses) => false,
                Some(FileKind::Cut) | None => false,
            };
            if is_leftover {
                // It is in nobody's way; the next open tries again.
                let _ = self.storage.remove(&name);
            }
        }
    }
}
