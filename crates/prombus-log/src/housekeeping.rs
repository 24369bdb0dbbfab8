//! What is done off the hot path, by one thread: preparing segments ahead of need, writing the index of sealed ones,
//! checkpoints, and the manifest that names them all. It alone writes the manifest.

use crate::append::Spare;
use crate::checkpoint::{Checkpoint, Mark};
use crate::commit::Step;
use crate::index_file;
use crate::kept_ids::KeptIds;
use crate::layout::{RESERVE, checkpoint_name, segment_name};
use crate::log::Shared;
use crate::manifest::{Manifest, SegmentRow};
use crate::observer::Notice;
use crate::record::{HEADER_BYTES, trusted_frame_length};
use crate::retire::{RetiredFile, forget_ids};
use crate::segment::{self, Segment, SegmentId, SegmentIndex, SegmentKind};
use crate::storage::{OpenMode, is_full};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Room that stays free for the manifest, checkpoints and indexes when a segment is made.
pub(crate) const FREE_MARGIN_BYTES: u64 = 8 << 20;

/// More sealed segments than this do not wait for their index file before the next segment is made.
const UNINDEXED_SEGMENTS_MAX: usize = 2;
/// Sealed segments that stay open.
const OPEN_FILES_MAX: usize = 64;
/// How far the zeros of a new segment may be ahead of what is committed meanwhile.
const FILL_AHEAD_BYTES: u64 = 1 << 20;
const FILL_AHEAD_TIMES: u64 = 4;
/// The rest after each piece of zeros, when they are.
const FILL_PAUSE: Duration = Duration::from_millis(4);
/// Without a commit for so long nobody waits for the disk.
const FILL_IDLE: Duration = Duration::from_millis(100);
/// Size of the file that is given up for the manifest and checkpoints when the disk is full; larger where checkpoints are.
const RESERVE_FILE_BYTES: u64 = 256 << 10;
/// Segments that are held back for a full disk. The state records of one are dead when the next one is in use and checkpoints cover
/// them, so two can take turns for as long as the disk is full.
const RESERVE_SEGMENTS: usize = 2;

/// The background worker's memory.
pub(crate) struct Housekeeper {
    pub(crate) manifest: Manifest,
    /// Files that the manifest no longer names; recycled when the last reader is gone.
    pub(crate) retired: Vec<RetiredFile>,
    /// When one of them was last used again, and when one was last given back.
    pub(crate) retired_used_ms: i64,
    pub(crate) retired_freed_ms: i64,
    /// Kept ids that the manifest no longer names; their files go when nobody uses them.
    pub(crate) retired_kept: Vec<Arc<KeptIds>>,
    /// Segments in which cleaning found damage: it leaves them as they are.
    pub(crate) damaged: HashSet<u64>,
    /// The mark of the newest checkpoint that the manifest names.
    checkpointed: Mark,
    /// The mark of the older one, once somebody asked.
    checkpointed_before: Option<Mark>,
    /// The last try to make a segment found no room.
    is_full: bool,
    /// Length of the file whose room can be given up; zero while it is not there.
    reserve_file_bytes: u64,
    /// Length of the newest checkpoint file.
    checkpoint_file_bytes: u64,
    /// The last checkpoint found no room, and that was said.
    has_checkpoint_failed: bool,
    /// The log is closed: the folder may belong to someone else now.
    pub(crate) is_finished: bool,
}

impl Housekeeper {
    pub(crate) fn new(manifest: Manifest, checkpointed: Mark) -> Self {
        Self {
            manifest,
            retired: Vec::new(),
            retired_used_ms: i64::MIN / 2,
            retired_freed_ms: i64::MIN / 2,
            retired_kept: Vec::new(),
            damaged: HashSet::new(),
            checkpointed,
            checkpointed_before: None,
            is_full: false,
            reserve_file_bytes: 0,
            checkpoint_file_bytes: 0,
            has_checkpoint_failed: false,
            is_finished: false,
        }
    }

    /// Does the most urgent piece of work.
    pub(crate) fn step(&mut self, shared: &Shared) -> Step {
        if shared.poison.get().is_some() || self.is_finished {
            return Step::Stopped;
        }
        let jobs = [
            Self::catch_up,
            Self::prepare_segment,
            Self::write_index,
            Self::checkpoint_if_due,
            Self::hold_reserve_file,
            Self::expire_kept,
            Self::free_retired,
        ];
        for job in jobs {
            match job(self, shared) {
                Ok(Step::Idle) => {}
                Ok(step) => return step,
                Err(error) => {
                    shared.poison(format!("housekeeping: {error}"));
                    return Step::Stopped;
                }
            }
        }
        self.trim_index_cache(shared);
        close_old_files(shared);
        Step::Idle
    }

    /// At close: what a later open would otherwise have to do. Nothing is done any more after it.
    pub(crate) fn finish(&mut self, shared: &Shared) {
        self.is_finished = true;
        let finished = (|| {
            while self.write_index(shared)? == Step::Worked {}
            let mark = shared.view.read().mark;
            // Only a checkpoint of the very last batch may be called the end of the log.
            if mark == self.checkpointed || self.checkpoint(shared)? {
                self.manifest.clean = true;
                self.write_manifest(shared)?;
            }
            Ok::<(), io::Error>(())
        })();
        match finished {
            Ok(()) => {}
            // The next open replays instead.
            Err(error) if is_full(&error) => {
                shared.observer().notice(&Notice::CheckpointFailed { error: error.to_string() });
            }
            Err(error) => shared.poison(format!("closing: {error}")),
        }
    }

    /// Brings the manifest's segments up to date and writes it.
    pub(crate) fn write_manifest(&mut self, shared: &Shared) -> io::Result<()> {
        let segments = Arc::clone(&shared.view.read().segments);
        self.write_manifest_of(shared, &segments, &[])
    }

    /// Writes the manifest of a log with these segments and without those that are gone.
    pub(crate) fn write_manifest_of(
        &mut self,
        shared: &Shared,
        segments: &[Arc<Segment>],
        gone: &[Arc<Segment>],
    ) -> io::Result<()> {
        let mut rows: Vec<SegmentRow> = Vec::with_capacity(self.manifest.segments.len() + 1);
        for segment in segments {
            let reserve = self.row(segment.id.number).is_some_and(|row| row.reserve);
            rows.push(SegmentRow { id: segment.id, sealed: segment.sealed(), reserve });
        }
        // Prepared ones, and one that is on its way from there into the view.
        let is_in = |list: &[Arc<Segment>], number| list.iter().any(|segment| segment.id.number == number);
        let is_other = |row: &&SegmentRow| !is_in(segments, row.id.number) && !is_in(gone, row.id.number);
        rows.extend(self.manifest.segments.iter().filter(is_other));
        let before = std::mem::replace(&mut self.manifest.segments, rows);
        self.manifest.generation += 1;
        let mut written = self.manifest.write(&*shared.storage);
        if written.as_ref().is_err_and(is_full) && self.give_up_reserve_file(shared) {
            written = self.manifest.write(&*shared.storage);
        }
        if written.is_err() {
            self.manifest.segments = before;
        }
        written
    }

    fn row(&self, number: u64) -> Option<&SegmentRow> {
        self.manifest.segments.iter().find(|row| row.id.number == number)
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.manifest.next_number += 1;
        self.manifest.next_number - 1
    }

    /// What is too far behind goes before the next segment: publishers then wait for it, and neither memory nor the time to
    /// open after a crash grows with the backlog.
    fn catch_up(&mut self, shared: &Shared) -> io::Result<Step> {
        let (segments, since_checkpoint) = {
            let view = shared.view.read();
            (Arc::clone(&view.segments), view.since_checkpoint)
        };
        let in_memory = |segment: &&Arc<Segment>| matches!(&*segment.index.read(), SegmentIndex::Memory(_));
        if segments.iter().rev().take(UNINDEXED_SEGMENTS_MAX + 1).filter(in_memory).count()
            > UNINDEXED_SEGMENTS_MAX
        {
            return self.write_index(shared);
        }
        if since_checkpoint >= shared.options.checkpoint_bytes * 2 {
            return self.checkpoint_if_due(shared);
        }
        Ok(Step::Idle)
    }

    /// Makes a segment ready if one is missing: recycles a retired file, or fills a new one with zeros.
    pub(crate) fn prepare_segment(&mut self, shared: &Shared) -> io::Result<Step> {
        let (ready, reserves) = {
            let state = shared.append.lock();
            let reserves = state.spares.iter().filter(|spare| spare.is_reserve).count();
            (state.spares.len() - reserves, reserves)
        };
        let are_ready = ready >= shared.options.prepared_segments;
        if !are_ready && self.prepare_one(shared, false, false)? == Step::Worked {
            return Ok(Step::Worked);
        }
        // Even when other segments cannot be made: a cleaned reserve is reused.
        if reserves < RESERVE_SEGMENTS { self.prepare_one(shared, true, are_ready) } else { Ok(Step::Idle) }
    }

    /// Makes one segment ready; `is_last` when then none is missing that publishers need.
    fn prepare_one(&mut self, shared: &Shared, is_reserve: bool, is_last: bool) -> io::Result<Step> {
        let capacity = if is_reserve { shared.options.reserve_bytes } else { shared.options.segment_bytes };
        match self.make_segment(shared, capacity, is_reserve) {
            Ok(segment) => {
                let mut state = shared.append.lock();
                state.spares.push_back(Spare { segment, is_reserve });
                let was_full = !is_reserve && std::mem::replace(&mut state.is_full, false);
                drop(state);
                shared.notify_room();
                let is_over = (!is_reserve || is_last) && std::mem::replace(&mut self.is_full, false);
                if was_full || is_over {
                    shared.observer().notice(&Notice::StorageFreed);
                }
                Ok(Step::Worked)
            }
            Err(error) if is_full(&error) => {
                if !is_reserve {
                    shared.append.lock().is_full = true;
                    shared.notify_room();
                }
                if !std::mem::replace(&mut self.is_full, true) {
                    shared.observer().notice(&Notice::StorageFull { error: error.to_string() });
                }
                Ok(Step::Idle)
            }
            Err(error) => Err(error),
        }
    }

    /// A segment that is durable and named by the manifest.
    fn make_segment(&mut self, shared: &Shared, capacity: u64, reserve: bool) -> io::Result<Arc<Segment>> {
        let id = self.make_file(shared, capacity, SegmentKind::Log)?;
        self.manifest.segments.push(SegmentRow { id, sealed: None, reserve });
        if let Err(error) = self.write_manifest(shared) {
            self.manifest.segments.retain(|row| row.id != id);
            if is_full(&error) {
                let _ = shared.storage.remove(&segment_name(id.number));
            }
            return Err(error);
        }
        let storage = Arc::clone(&shared.storage);
        let segment = Segment::new(storage, id, None, SegmentIndex::Growing);
        // Opened here and not when the first batch waits for it.
        segment.file()?;
        Ok(Arc::new(segment))
    }

    /// A segment file that is durable; the manifest does not name it yet.
    pub(crate) fn make_file(
        &mut self,
        shared: &Shared,
        capacity: u64,
        kind: SegmentKind,
    ) -> io::Result<SegmentId> {
        let number = self.next_number();
        let old = self.take_retired(shared, capacity)?;
        let old_salt = old.as_ref().map(|old| old.salt);
        let salt =
            std::iter::repeat_with(|| shared.storage.random() as u32).find(|&salt| Some(salt) != old_salt);
        let salt = salt.expect("the iterator does not end");
        let life = old.as_ref().map_or(0, |old| old.life + 1);
        let id = SegmentId { number, salt, kind, capacity, life };
        match old {
            Some(old) => segment::recycle(&*shared.storage, old.number, &id, shared.log_id)?,
            None => {
                let is_tight = |free| free < capacity + FREE_MARGIN_BYTES;
                if shared.storage.free_bytes().is_some_and(is_tight) {
                    return Err(io::Error::new(
                        io::ErrorKind::StorageFull,
                        "not enough free space for a segment",
                    ));
                }
                segment::create(&*shared.storage, &id, shared.log_id, &mut fill_pace(shared))?;
            }
        }
        Ok(id)
    }

    /// Writes the index file of the oldest sealed segment without one, and forgets its ids from memory.
    pub(crate) fn write_index(&mut self, shared: &Shared) -> io::Result<Step> {
        let segments = Arc::clone(&shared.view.read().segments);
        let in_memory = |segment: &&Arc<Segment>| matches!(&*segment.index.read(), SegmentIndex::Memory(_));
        let Some(segment) = segments.iter().find(in_memory) else { return Ok(Step::Idle) };
        let index = match &*segment.index.read() {
            SegmentIndex::Memory(index) => Arc::clone(index),
            _ => return Ok(Step::Idle),
        };
        let id = segment.id;
        let sealed = segment.sealed().unwrap_or(crate::layout::SEGMENT_DATA_START);
        let file = match index_file::write(&shared.storage, &index, id.number, id.salt, sealed, shared.hash) {
            Ok(file) => file,
            // It stays in memory; the next round tries again.
            Err(error) if is_full(&error) => return Ok(Step::Idle),
            Err(error) => return Err(error),
        };
        // First the file answers for the ids, then memory forgets them: at no time nobody does.
        *segment.index.write() = SegmentIndex::File(Arc::new(file));
        shared.refresh_id_files();
        forget_ids(shared, id.number);
        Ok(Step::Worked)
    }

    fn checkpoint_if_due(&mut self, shared: &Shared) -> io::Result<Step> {
        if shared.view.read().since_checkpoint < shared.options.checkpoint_bytes {
            return Ok(Step::Idle);
        }
        self.checkpoint(shared)?;
        Ok(Step::Worked)
    }

    /// Writes a checkpoint as of now. False when there was no room: the older ones still stand.
    pub(crate) fn checkpoint(&mut self, shared: &Shared) -> io::Result<bool> {
        let (mut checkpoint, records) = {
            let mut view = shared.view.write();
            view.since_checkpoint = 0;
            (view.checkpoint(), std::mem::take(&mut view.state_records))
        };
        {
            let mut state = shared.state.lock();
            for frames in records {
                let mut rest = &frames[..];
                while !rest.is_empty() {
                    let (frame, behind) = rest.split_at(trusted_frame_length(rest));
                    state.apply(crate::fields::u32_at(frame, 20), &frame[HEADER_BYTES..]);
                    rest = behind;
                }
            }
            state.snapshot(&mut checkpoint.state);
        }
        let number = self.next_number();
        let mark = checkpoint.mark;
        let mut written = checkpoint.write(&*shared.storage, number);
        self.checkpoint_file_bytes = checkpoint.file_bytes();
        if written.as_ref().is_err_and(is_full) && self.give_up_reserve_file(shared) {
            written = checkpoint.write(&*shared.storage, number);
        }
        if written.as_ref().is_err_and(is_full) && self.give_up_older_checkpoint(shared)? {
            written = checkpoint.write(&*shared.storage, number);
        }
        let [older, newer] = self.manifest.checkpoints;
        let written = written.and_then(|()| {
            self.manifest.checkpoints = [newer, number];
            self.write_manifest(shared)
        });
        match written {
            Ok(()) => {
                self.has_checkpoint_failed = false;
                self.checkpointed_before = Some(std::mem::replace(&mut self.checkpointed, mark));
                if older != newer {
                    // Left behind after a crash here, it is removed at the next open.
                    let _ = shared.storage.remove(&checkpoint_name(older));
                }
                Ok(true)
            }
            Err(error) if is_full(&error) => {
                self.manifest.checkpoints = [older, newer];
                let _ = shared.storage.remove(&checkpoint_name(number));
                if !std::mem::replace(&mut self.has_checkpoint_failed, true) {
                    shared.observer().notice(&Notice::CheckpointFailed { error: error.to_string() });
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes room for a checkpoint on a full disk: until it is written, the newest one is the only one. False when it is already.
    fn give_up_older_checkpoint(&mut self, shared: &Shared) -> io::Result<bool> {
        let [older, newer] = self.manifest.checkpoints;
        if older == newer {
            return Ok(false);
        }
        // First out of the manifest, then removed: a crash in between leaves a file that the next open removes.
        self.manifest.checkpoints = [newer, newer];
        match self.write_manifest(shared) {
            Ok(()) => {}
            Err(error) => {
                self.manifest.checkpoints = [older, newer];
                return if is_full(&error) { Ok(false) } else { Err(error) };
            }
        }
        self.checkpointed_before = Some(self.checkpointed);
        let _ = shared.storage.remove(&checkpoint_name(older));
        Ok(true)
    }

    /// The mark of the newest checkpoint.
    pub(crate) fn checkpointed(&self) -> Mark {
        self.checkpointed
    }

    /// How many segments, from the oldest on, lie before both checkpoints.
    pub(crate) fn covered(&mut self, shared: &Shared) -> io::Result<usize> {
        let [older, newer] = self.manifest.checkpoints;
        if self.checkpointed_before.is_none() {
            self.checkpointed_before = if older == newer {
                Some(self.checkpointed)
            } else {
                // One that is damaged or cannot be read covers nothing; two new ones put it away.
                let read = Checkpoint::read(&*shared.storage, older);
                read.ok().and_then(Result::ok).map(|checkpoint| checkpoint.mark)
            };
        }
        let Some(mark) = self.checkpointed_before else { return Ok(0) };
        let segments = Arc::clone(&shared.view.read().segments);
        Ok(segments.iter().position(|segment| segment.id.number == mark.segment).unwrap_or(0))
    }

    /// Makes the file whose room can be given up, if it is not there, or is too small for a checkpoint, and there is room.
    fn hold_reserve_file(&mut self, shared: &Shared) -> io::Result<Step> {
        let least = shared.options.reserve_bytes.min(RESERVE_FILE_BYTES);
        // A checkpoint is written before the oldest one goes, and the next one may be larger.
        let length = least.max(2 * self.checkpoint_file_bytes);
        if self.is_full || self.reserve_file_bytes >= least.max(self.checkpoint_file_bytes * 3 / 2) {
            return Ok(Step::Idle);
        }
        self.reserve_file_bytes = 0;
        let made = (|| {
            match shared.storage.remove(RESERVE) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let file = shared.storage.open(RESERVE, OpenMode::Create)?;
            file.write_zeros(length, &mut |_| {})
        })();
        match made {
            Ok(()) => {
                self.reserve_file_bytes = length;
                Ok(Step::Worked)
            }
            Err(error) if is_full(&error) => {
                let _ = shared.storage.remove(RESERVE);
                Ok(Step::Idle)
            }
            Err(error) => Err(error),
        }
    }

    /// Frees the room that was held back; false when it was given up before.
    fn give_up_reserve_file(&mut self, shared: &Shared) -> bool {
        // Also one of an earlier run, which this one has not measured.
        self.reserve_file_bytes = 0;
        shared.storage.remove(RESERVE).is_ok()
    }

    /// Lets go of index tables that were read, oldest segments first, when they take too much memory.
    fn trim_index_cache(&self, shared: &Shared) {
        let segments = Arc::clone(&shared.view.read().segments);
        let mut files = Vec::new();
        for segment in segments.iter() {
            if let SegmentIndex::File(file) = &*segment.index.read() {
                files.push(Arc::clone(file));
            }
        }
        let mut bytes: usize = files.iter().map(|file| file.directory_bytes()).sum();
        for file in files {
            if bytes <= shared.options.index_cache_bytes {
                break;
            }
            bytes -= file.forget_directory();
        }
    }
}

/// Lets commits go before the zeros of a segment that is not needed yet: they wait for the same disk. The zeros stay a few
/// times ahead of what is committed, and never take much more than a second, because the housekeeper waits too.
fn fill_pace(shared: &Shared) -> impl FnMut(u64) + '_ {
    let room_left = move || {
        let state = shared.append.lock();
        (state.place.remaining, state.is_closed)
    };
    let (at_start, _) = room_left();
    let mut last_batch = (shared.durable.get(), None::<Instant>);
    move |filled| {
        let batch = shared.durable.get();
        if batch != last_batch.0 {
            last_batch = (batch, Some(Instant::now()));
        }
        let is_committing = last_batch.1.is_some_and(|at| at.elapsed() < FILL_IDLE);
        let (left, is_closed) = room_left();
        let is_ahead = filled > FILL_AHEAD_BYTES + at_start.saturating_sub(left) * FILL_AHEAD_TIMES;
        let is_needed = left < shared.options.segment_bytes / 2 || is_closed;
        if shared.options.threads && is_committing && is_ahead && !is_needed {
            std::thread::sleep(FILL_PAUSE);
        }
    }
}

/// Closes the files of the oldest sealed segments when too many are open. Who reads one opens it again.
fn close_old_files(shared: &Shared) {
    let segments = Arc::clone(&shared.view.read().segments);
    let is_closable = |segment: &&Arc<Segment>| segment.sealed().is_some() && segment.is_open();
    let open = segments.iter().filter(is_closable).count();
    let surplus = open.saturating_sub(OPEN_FILES_MAX);
    segments.iter().filter(is_closable).take(surplus).for_each(|segment| segment.close_file());
}
