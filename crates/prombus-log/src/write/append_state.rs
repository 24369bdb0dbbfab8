//! The state under the append lock. Here an event is found to be new or a duplicate, gets its seq, its id, its commit
//! time and its place in a segment, and is encoded into the pending batch. All of this can happen while the previous
//! batch is being synced, because the committer does not hold the append lock then.
//!
//! Room is checked here and not at the write. So an append that does not fit is refused before it uses a seq.

use crate::keyed_hash::KeyedHash;
use crate::record::{FLAG_CLIENT_ID, FLAG_KEY, FLAG_TOMBSTONE, HEADER_BYTES, Header, Kind};
use crate::segment::Segment;
use crate::server_ids::IdMaker;
use crate::topics::TopicId;
use crate::write::append_request::{NewEvent, Outcome, Prepared, Ticket};
use crate::write::pending_batch::PendingBatch;
use crate::write::recent_ids::RecentIds;
use std::collections::VecDeque;
use std::sync::Arc;

/// The state that the append lock guards.
pub(crate) struct AppendState {
    /// The batch that collects appends at present.
    pub(crate) pending: PendingBatch,
    /// The topics by internal id. Index 0 is not used.
    pub(crate) topics: Vec<TopicAppend>,
    /// Generates server ids.
    pub(crate) ids: IdMaker,
    /// Later appends get this commit time or a later one.
    pub(crate) last_commit_ms: i64,
    /// The publishers' ids of segments that have no index file yet.
    pub(crate) recent_ids: RecentIds,
    /// Where the pending batch will be written.
    pub(crate) place: AppendPlace,
    /// Prepared segments, in the order of their use.
    pub(crate) spares: VecDeque<SpareSegment>,
    /// Prepared segments that were too small for an append, which took a later one. Segments are begun in the order of the
    /// manifest, so maintenance first moves them to its end.
    pub(crate) passed_over: Vec<Arc<Segment>>,
    /// The room that appends need in the next segment, if the prepared ones are too small. Zero if they are large enough.
    pub(crate) needed_room: u64,
    /// The disk had no room for a segment with this much room, and maintenance retries. Zero if nothing was refused.
    pub(crate) refused_room: u64,
    /// Whether the disk had no room for another segment.
    pub(crate) is_full: bool,
    /// Whether the log is closed. Then appends are refused.
    pub(crate) is_closed: bool,
}

/// A topic as appenders see it.
pub(crate) struct TopicAppend {
    /// The seq of the next event.
    pub(crate) next_seq: u64,
    pub(crate) is_deleted: bool,
    /// The index of the topic's run in the batch `run_batch`.
    run: usize,
    /// The newest batch that has events of the topic.
    run_batch: u64,
}

impl TopicAppend {
    pub(crate) fn new(last_seq: u64, is_deleted: bool) -> Self {
        Self { next_seq: last_seq + 1, is_deleted, run: 0, run_batch: 0 }
    }
}

/// The segment of the pending batch.
pub(crate) struct AppendPlace {
    /// The number of the segment.
    pub(crate) segment: u64,
    pub(crate) salt: u32,
    /// The length of the segment's file.
    pub(crate) capacity: u64,
    /// The bytes from the start of the pending batch to the end of the segment.
    pub(crate) remaining: u64,
    /// Whether this is a reserve segment (kept for a full disk), whose remaining room publishers must not use.
    pub(crate) is_reserve: bool,
}

/// A prepared segment that is not used yet.
pub(crate) struct SpareSegment {
    pub(crate) segment: Arc<Segment>,
    pub(crate) is_reserve: bool,
}

/// Whether an append fits.
pub(super) enum Room {
    /// The append fits into the pending batch.
    Ready,
    /// The append fits after the next commit, or when the next segment is prepared.
    Wait,
    /// The disk is full.
    Full,
}

impl AppendState {
    /// Finds room for `bytes` (including run table entries, without the COMMIT) in the pending batch.
    #[inline]
    pub(super) fn make_room(&mut self, bytes: u64, use_reserve: bool, batch_limit: u64) -> Room {
        let may_stay = use_reserve || !self.place.is_reserve;
        let with_commit = self.pending.bytes() as u64 + bytes + HEADER_BYTES as u64;
        if !self.pending.is_empty() {
            let fits = may_stay && with_commit <= self.place.remaining && with_commit <= batch_limit;
            return if fits {
                Room::Ready
            } else if !may_stay && self.is_full && !self.spares.iter().any(|spare| !spare.is_reserve) {
                Room::Full
            } else {
                Room::Wait
            };
        }
        if may_stay && with_commit <= self.place.remaining {
            return Room::Ready;
        }
        let usable = |spare: &SpareSegment| !spare.is_reserve && spare.segment.room() >= with_commit;
        let reserve = |spare: &SpareSegment| use_reserve && spare.segment.room() >= with_commit;
        let at = self.spares.iter().position(usable).or_else(|| {
            // A reserve segment is used only if the disk has no room for another segment.
            self.is_full.then(|| self.spares.iter().position(reserve)).flatten()
        });
        match at.and_then(|at| self.spares.remove(at).map(|spare| (at, spare))) {
            Some((at, spare)) => {
                if !spare.is_reserve {
                    self.pass_over(at);
                }
                self.roll(&spare);
                Room::Ready
            }
            None => {
                let is_refused = self.refused_room > 0 && with_commit >= self.refused_room;
                if !is_refused {
                    // If the disk has room for a larger segment, maintenance prepares one. A refused append does not count,
                    // because a smaller one that waits may still get a segment.
                    self.needed_room = self.needed_room.max(with_commit);
                }
                if self.is_full || is_refused { Room::Full } else { Room::Wait }
            }
        }
    }

    /// Removes the segments for publishers among the first `count` spares.
    fn pass_over(&mut self, count: usize) {
        let first: Vec<SpareSegment> = self.spares.drain(..count).collect();
        let (reserves, small): (Vec<_>, Vec<_>) = first.into_iter().partition(|spare| spare.is_reserve);
        reserves.into_iter().rev().for_each(|spare| self.spares.push_front(spare));
        self.passed_over.extend(small.into_iter().map(|spare| spare.segment));
    }

    /// Makes the pending batch start a new segment.
    fn roll(&mut self, spare: &SpareSegment) {
        match self.pending.roll_to(Arc::clone(&spare.segment)) {
            None => self.recent_ids.roll(self.place.segment),
            // A previous append rolled to this segment and then added nothing, so the segment is still unused.
            Some(segment) if self.place.is_reserve || spare.is_reserve => {
                self.spares.push_front(SpareSegment { segment, is_reserve: self.place.is_reserve });
            }
            Some(segment) => self.passed_over.push(segment),
        }
        self.needed_room = 0;
        self.place = AppendPlace {
            segment: spare.segment.id.number,
            salt: spare.segment.id.salt,
            capacity: spare.segment.id.capacity,
            remaining: spare.segment.room(),
            is_reserve: spare.is_reserve,
        };
    }

    /// If this is the current segment, makes the pending batch the last one that is written to it. Called when some of
    /// the segment's bytes were given up as unreadable, because a later batch might share a bad sector with them.
    pub(crate) fn leave(&mut self, segment: u64) {
        if self.place.segment == segment {
            let is_empty = self.pending.is_empty();
            let pending = if is_empty { 0 } else { self.pending.bytes() + HEADER_BYTES };
            self.place.remaining = pending as u64;
        }
    }

    /// The ticket of the newest append. When its batch is durable, everything appended so far is durable.
    #[inline]
    pub(crate) fn newest_ticket(&self) -> Ticket {
        let batch = self.pending.batch();
        Ticket { batch: if self.pending.is_empty() { batch - 1 } else { batch } }
    }

    /// Adds an event to the pending batch, unless it is a duplicate.
    #[inline]
    pub(super) fn event(
        &mut self,
        event: &NewEvent<'_>,
        prepared: Prepared,
        now_ms: i64,
        hash: KeyedHash,
    ) -> Outcome {
        let topic = event.topic.0;
        if let Some(id) = event.id {
            let duplicate_of = match prepared.duplicate_of {
                0 => {
                    let seq = self.topics[topic as usize].next_seq;
                    self.recent_ids.insert(topic, id, prepared.id_hash, seq)
                }
                seq => Some(seq),
            };
            if let Some(seq) = duplicate_of {
                return Outcome { id, seq, duplicate: true };
            }
        }
        let id = event.id.unwrap_or_else(|| self.ids.next(now_ms));
        let state = &mut self.topics[topic as usize];
        let seq = state.next_seq;
        state.next_seq += 1;
        if state.run_batch != self.pending.batch() {
            state.run_batch = self.pending.batch();
            state.run = self.pending.begin_run(topic, seq);
        }
        let key = event.key.unwrap_or(&[]);
        let flags = if event.id.is_some() { FLAG_CLIENT_ID } else { 0 }
            | if event.key.is_some() { FLAG_KEY } else { 0 }
            | if event.tombstone { FLAG_TOMBSTONE } else { 0 };
        let header = Header {
            kind: Kind::Event,
            flags,
            key_length: key.len() as u16,
            body_length: event.body.len() as u32,
            body_crc: prepared.body_crc,
            topic,
            seq,
            commit_ms: now_ms,
            ts: event.ts,
            id,
        };
        self.pending.add_event(state.run, &header, key, event.body, self.place.salt, hash);
        if event.id.is_none() {
            self.pending.last_server_id = id;
        }
        Outcome { id, seq, duplicate: false }
    }

    /// The commit time: the clock's time, but never lower than the previous commit time.
    #[inline]
    pub(super) fn commit_ms(&mut self, now_ms: i64) -> i64 {
        self.last_commit_ms = self.last_commit_ms.max(now_ms);
        self.pending.commit_ms = self.last_commit_ms;
        self.last_commit_ms
    }
}

#[inline]
pub(super) fn is_alive(topics: &[TopicAppend], topic: TopicId) -> bool {
    topic.0 != 0 && topics.get(topic.0 as usize).is_some_and(|state| !state.is_deleted)
}
