//! Prepares segments before they are needed: recycles a retired file, or fills a new one with zeros.

use crate::context::Context;
use crate::layout::{SEGMENT_DATA_START, segment_name};
use crate::maintain::recycle_segments::FREE_MARGIN_BYTES;
use crate::maintain::work::Work;
use crate::manifest::SegmentRow;
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
    /// Prepares a segment if one is missing: recycles a retired file, or fills a new one with zeros. Sends a notice if the disk
    /// has no room, or has room again.
    pub(crate) fn prepare_segment(&mut self) -> io::Result<Step> {
        let step = self.prepare_missing()?;
        if step == Step::Idle {
            self.shortage.report(self.context.observer());
        }
        Ok(step)
    }

    /// Prepares one segment if one is missing and the disk has room.
    ///
    /// Segments are tried in this order: for publishers, in the wanted size; for the reserve; for publishers, in smaller sizes.
    /// The reserve comes before smaller segments, because these would use up the space of the reserve, which acks need.
    fn prepare_missing(&mut self) -> io::Result<Step> {
        let passed_over = self.queue.take_passed_over();
        let is_stuck = passed_over.is_some();
        if let Some(segment) = passed_over
            && self.prepare_again(segment)?
        {
            return Ok(Step::Worked);
        }
        let spares = self.queue.spares();
        let reserve_bytes = self.context.options.reserve_bytes;
        let lacks_reserve = spares.reserves < RESERVE_SEGMENTS;
        let lacks_segment = spares.ready < self.context.options.prepared_segments;
        // A refused room is tried again, like everything else that is missing.
        let needed_room =
            if spares.needed_room > 0 { spares.needed_room } else { self.shortage.refused_room };
        let mut wanted_bytes = self.next_capacity(needed_room);

        // If the disk was full before, the file of a cleaned reserve segment must not be recycled for publishers.
        let is_reserve_first = lacks_reserve && self.shortage.is_full;
        if is_reserve_first && self.prepare_one(reserve_bytes, true)? {
            return Ok(Step::Worked);
        }
        if (needed_room > 0 || lacks_segment) && self.prepare_one(wanted_bytes, false)? {
            return Ok(Step::Worked);
        }
        // A reserve segment is prepared even if the disk had no room for other segments, because the file of a cleaned
        // reserve segment may be there to be recycled.
        if lacks_reserve && !is_reserve_first && self.prepare_one(reserve_bytes, true)? {
            return Ok(Step::Worked);
        }
        if needed_room > 0 {
            if self.prepare_smaller(wanted_bytes, needed_room, lacks_reserve)? {
                return Ok(Step::Worked);
            }
            // Smaller segments may still fit.
            self.queue.refuse_room(needed_room);
            self.shortage.refused_room = needed_room;
            // Every size down to this one was tried.
            wanted_bytes = self.context.options.next_segment_bytes(0, needed_room + SEGMENT_DATA_START);
        }
        if lacks_segment {
            if self.prepare_smaller(wanted_bytes, 0, lacks_reserve)? {
                return Ok(Step::Worked);
            }
            self.queue.set_full();
        }
        self.shortage.is_full = lacks_segment || lacks_reserve || is_stuck;
        Ok(Step::Idle)
    }

    /// Makes a segment that was passed over available again, as the last one of the manifest. Recovery expects that segments are
    /// begun in the order of the manifest. Returns false if the disk has no room for the manifest: the segment must not be
    /// used then, and the next round tries again.
    fn prepare_again(&mut self, segment: Arc<Segment>) -> io::Result<bool> {
        let rows = &mut self.catalog.manifest.segments;
        if let Some(at) = rows.iter().position(|row| row.id == segment.id) {
            let row = rows.remove(at);
            rows.push(row);
        }
        match self.write_manifest() {
            Ok(()) => {
                self.add_spare(segment, false);
                Ok(true)
            }
            Err(error) => {
                self.queue.pass_over(segment);
                self.no_room(error)
            }
        }
    }

    /// The size of the next segment for publishers, which must have room for `needed_room` bytes. A large append makes all later
    /// segments larger too. This does no harm, because smaller ones are tried if the disk has no room.
    fn next_capacity(&self, needed_room: u64) -> u64 {
        let segments = self.catalog.manifest.segments.iter();
        let of_publishers = segments.filter(|row| !row.reserve && row.id.kind == SegmentKind::Log);
        let newest = of_publishers.max_by_key(|row| row.id.number);
        let newest_bytes = newest.map_or(0, |row| row.id.capacity);
        self.context.options.next_segment_bytes(newest_bytes, needed_room + SEGMENT_DATA_START)
    }

    /// Prepares a segment for publishers after the disk had no room for one of `wanted_bytes`. Returns false if it has no room
    /// for any.
    fn prepare_smaller(
        &mut self,
        wanted_bytes: u64,
        needed_room: u64,
        lacks_reserve: bool,
    ) -> io::Result<bool> {
        let options = &self.context.options;
        let needed_bytes = needed_room + SEGMENT_DATA_START;
        // A retired file needs no further space, so it may be larger than the wanted size.
        let sizes = options.next_segment_bytes(0, needed_bytes)..=options.segment_bytes;
        let smaller = options.smaller_segment_bytes(wanted_bytes, needed_bytes);
        if let Some(bytes) = self.retired.largest(&self.context, sizes)
            && self.prepare_one(bytes, false)?
        {
            return Ok(true);
        }
        if lacks_reserve {
            return Ok(false);
        }
        for bytes in smaller {
            if self.prepare_one(bytes, false)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Prepares a segment. Returns false if the disk has no room for it.
    fn prepare_one(&mut self, capacity: u64, is_reserve: bool) -> io::Result<bool> {
        match self.make_segment(capacity, is_reserve) {
            Ok(segment) => {
                self.add_spare(segment, is_reserve);
                Ok(true)
            }
            Err(error) => self.no_room(error),
        }
    }

    /// Returns false if the error means that the disk has no room, otherwise the error.
    fn no_room(&mut self, error: io::Error) -> io::Result<bool> {
        if !is_full(&error) {
            return Err(error);
        }
        self.shortage.error = error.to_string();
        Ok(false)
    }

    fn add_spare(&mut self, segment: Arc<Segment>, is_reserve: bool) {
        if !is_reserve && segment.room() >= self.shortage.refused_room {
            self.shortage.refused_room = 0;
        }
        self.queue.add_spare(segment, is_reserve);
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
