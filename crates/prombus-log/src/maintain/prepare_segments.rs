//! Prepares segments before they are needed: recycles a retired file, or fills a new one with zeros.

use crate::context::Context;
use crate::layout::{SEGMENT_DATA_START, segment_name};
use crate::maintain::recycle_segments::FREE_MARGIN_BYTES;
use crate::maintain::work::Work;
use crate::manifest::SegmentRow;
use crate::observer::Notice;
use crate::read::durable_batch::DurableBatch;
use crate::segment::{self, Segment, SegmentId, SegmentIndex, SegmentKind};
use crate::step::Step;
use crate::storage::is_full;
use crate::write::append_queue::AppendQueue;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Filling a new segment slows down when more than `FILL_AHEAD_BYTES + FILL_AHEAD_TIMES * committed` bytes are filled,
/// where `committed` is the number of bytes committed meanwhile.
const FILL_AHEAD_BYTES: u64 = 1 << 20;
const FILL_AHEAD_TIMES: u64 = 4;
/// The pause after each piece of zeros if the filling is too far ahead.
const FILL_PAUSE: Duration = Duration::from_millis(4);
/// The disk counts as idle after this long without a commit.
const FILL_IDLE: Duration = Duration::from_millis(100);
/// Number of reserve segments: small segments that are kept for a full disk. When one is full, the other one is used.
/// By then checkpoints cover the state records in the first one, so cleaning can free it for reuse. So two are enough,
/// however long the disk stays full.
const RESERVE_SEGMENTS: usize = 2;

impl Work {
    /// Prepares a segment if one is missing: recycles a retired file, or fills a new one with zeros.
    pub(crate) fn prepare_segment(&mut self) -> io::Result<Step> {
        if let Some(segment) = self.queue.take_passed_over() {
            return self.prepare_again(segment);
        }
        let spares = self.queue.spares();
        if spares.needed_room > 0 {
            let capacity = self.next_capacity(spares.needed_room);
            match self.make_segment(capacity, false) {
                Ok(segment) => {
                    self.add_spare(segment, false, false);
                    return Ok(Step::Worked);
                }
                // Smaller segments may still fit.
                Err(error) if is_full(&error) => self.queue.refuse_room(spares.needed_room),
                Err(error) => return Err(error),
            }
        }
        let are_ready = spares.ready >= self.context.options.prepared_segments;
        if !are_ready && self.prepare_one(self.next_capacity(0), false, false)? == Step::Worked {
            return Ok(Step::Worked);
        }
        // A reserve segment is prepared even if the disk had no room for other segments, because the file of a cleaned
        // reserve segment may be there to be recycled.
        if spares.reserves < RESERVE_SEGMENTS {
            self.prepare_one(self.context.options.reserve_bytes, true, are_ready)
        } else {
            Ok(Step::Idle)
        }
    }

    /// Makes a segment that was passed over available again, as the last one of the manifest. Recovery expects that segments are
    /// begun in the order of the manifest.
    fn prepare_again(&mut self, segment: Arc<Segment>) -> io::Result<Step> {
        let rows = &mut self.catalog.manifest.segments;
        if let Some(at) = rows.iter().position(|row| row.id == segment.id) {
            let row = rows.remove(at);
            rows.push(row);
        }
        match self.write_manifest() {
            Ok(()) => {
                self.queue.add_spare(segment, false);
                Ok(Step::Worked)
            }
            Err(error) => {
                self.queue.pass_over(segment);
                if is_full(&error) { Ok(Step::Idle) } else { Err(error) }
            }
        }
    }

    /// The size of the next segment for publishers, which must have room for `needed_room` bytes.
    fn next_capacity(&self, needed_room: u64) -> u64 {
        let segments = self.catalog.manifest.segments.iter();
        let of_publishers = segments.filter(|row| !row.reserve && row.id.kind == SegmentKind::Log);
        let newest = of_publishers.max_by_key(|row| row.id.number);
        let newest_bytes = newest.map_or(0, |row| row.id.capacity);
        self.context.options.next_segment_bytes(newest_bytes, needed_room + SEGMENT_DATA_START)
    }

    /// Prepares one segment. `is_last` is true if publishers need no further segment.
    fn prepare_one(&mut self, capacity: u64, is_reserve: bool, is_last: bool) -> io::Result<Step> {
        match self.make_segment(capacity, is_reserve) {
            Ok(segment) => {
                self.add_spare(segment, is_reserve, is_last);
                Ok(Step::Worked)
            }
            Err(error) if is_full(&error) => {
                if !is_reserve {
                    self.queue.set_full();
                }
                if !std::mem::replace(&mut self.is_full, true) {
                    self.context.observer().notice(&Notice::StorageFull { error: error.to_string() });
                }
                Ok(Step::Idle)
            }
            Err(error) => Err(error),
        }
    }

    fn add_spare(&mut self, segment: Arc<Segment>, is_reserve: bool, is_last: bool) {
        let was_full = self.queue.add_spare(segment, is_reserve);
        let is_over = (!is_reserve || is_last) && std::mem::replace(&mut self.is_full, false);
        if was_full || is_over {
            self.context.observer().notice(&Notice::StorageFreed);
        }
    }

    /// Makes a segment. If the storage does not recycle files, removes retired ones to make room.
    fn make_segment(&mut self, capacity: u64, is_reserve: bool) -> io::Result<Arc<Segment>> {
        loop {
            let made = self.create_segment(capacity, is_reserve);
            let has_freed = made.as_ref().is_err_and(is_full)
                && !self.context.storage.recycles_segments()
                && self.retired.free_one(&self.context, &self.catalog)?;
            if !has_freed {
                return made;
            }
        }
    }

    /// Creates a durable segment and adds it to the manifest.
    fn create_segment(&mut self, capacity: u64, reserve: bool) -> io::Result<Arc<Segment>> {
        let id = self.make_file(capacity, SegmentKind::Log)?;
        self.catalog.manifest.segments.push(SegmentRow { id, sealed: None, reserve });
        if let Err(error) = self.write_manifest() {
            self.catalog.manifest.segments.retain(|row| row.id != id);
            if is_full(&error) {
                let _ = self.context.storage.remove(&segment_name(id.number));
            }
            return Err(error);
        }
        let storage = Arc::clone(&self.context.storage);
        let segment = Segment::new(storage, id, None, SegmentIndex::Growing);
        // Opened here, so that the first batch does not have to wait for it.
        segment.file()?;
        Ok(Arc::new(segment))
    }

    /// Creates a durable segment file. The manifest does not list it yet.
    pub(crate) fn make_file(&mut self, capacity: u64, kind: SegmentKind) -> io::Result<SegmentId> {
        let number = self.catalog.next_number();
        let old = self.retired.take(&self.context, &self.catalog, capacity)?;
        let old_salt = old.as_ref().map(|old| old.salt);
        let salt = std::iter::repeat_with(|| self.context.storage.random() as u32)
            .find(|&salt| Some(salt) != old_salt);
        let salt = salt.expect("the iterator does not end");
        let life = old.as_ref().map_or(0, |old| old.life + 1);
        let id = SegmentId { number, salt, kind, capacity, life };
        match old {
            Some(old) => segment::recycle(&*self.context.storage, old.number, &id, self.context.log_id)?,
            None => {
                let is_tight = |free| free < capacity + FREE_MARGIN_BYTES;
                if self.context.storage.free_bytes().is_some_and(is_tight) {
                    return Err(io::Error::new(
                        io::ErrorKind::StorageFull,
                        "not enough free space for a segment",
                    ));
                }
                segment::create(
                    &*self.context.storage,
                    &id,
                    self.context.log_id,
                    &mut fill_pace(&self.context, &self.queue, &self.committed.durable),
                )?;
            }
        }
        Ok(id)
    }
}

/// Returns a function that slows down the filling of a segment that is not needed yet, because commits use the same
/// disk. Even so, filling is a few times faster than the commits, and should not take much more than a second, because
/// other maintenance waits for it.
fn fill_pace(context: &Context, queue: &AppendQueue, durable: &DurableBatch) -> impl FnMut(u64) {
    let at_start = queue.room_left().bytes;
    let mut last_batch = (durable.get(), None::<Instant>);
    move |filled| {
        let batch = durable.get();
        if batch != last_batch.0 {
            last_batch = (batch, Some(Instant::now()));
        }
        let is_committing = last_batch.1.is_some_and(|at| at.elapsed() < FILL_IDLE);
        let left = queue.room_left();
        let is_ahead = filled > FILL_AHEAD_BYTES + at_start.saturating_sub(left.bytes) * FILL_AHEAD_TIMES;
        if context.options.threads && is_committing && is_ahead && !left.is_urgent {
            std::thread::sleep(FILL_PAUSE);
        }
    }
}
