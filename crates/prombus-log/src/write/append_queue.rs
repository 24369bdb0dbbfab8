//! The queue between appenders and the committer: the append lock, and the threads that wait. Appenders wait for room, the
//! committer for work.
//!
//! Maintenance calls this module with its own lock held, to add spare segments and to forget ids. So this module never
//! calls maintenance. A thread that holds the append lock changes nothing in the committed log except its topic names.

use crate::context::Context;
use crate::record::HEADER_BYTES;
use crate::segment::Segment;
use crate::topics::TopicId;
use crate::wakeup::Wakeup;
use crate::write::append_state::{AppendPlace, AppendState, SpareSegment};
use crate::write::pending_batch::PendingBatch;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The queue between appenders and the committer.
pub(crate) struct AppendQueue {
    context: Arc<Context>,
    pub(super) state: Mutex<AppendState>,
    /// Appenders wait here for room. Used with the append lock.
    pub(super) room: Condvar,
    /// The number of segments whose ids were removed from memory. A copy of `RecentIds::forgotten`.
    pub(super) forgotten_ids: AtomicU64,
    /// Set if an append was refused because it needs the ids of batches that are not durable yet. The observer is notified
    /// when they are durable.
    pub(super) wants_durable: AtomicBool,
    /// Notified when there is something to commit.
    pub(crate) commit_due: Wakeup,
}

/// The prepared segments.
pub(crate) struct Spares {
    /// The number of segments for publishers.
    pub(crate) ready: usize,
    /// The number of reserve segments.
    pub(crate) reserves: usize,
    /// The room that appends need in a segment, if none of those for publishers is large enough; otherwise zero.
    pub(crate) needed_room: u64,
}

/// The room in the current segment.
pub(crate) struct RoomLeft {
    pub(crate) bytes: u64,
    /// Whether the next segment is needed soon, or the log is closed.
    pub(crate) is_urgent: bool,
}

impl AppendQueue {
    pub(crate) fn new(context: Arc<Context>, state: AppendState) -> Self {
        Self {
            context,
            state: Mutex::new(state),
            room: Condvar::new(),
            forgotten_ids: AtomicU64::new(0),
            wants_durable: AtomicBool::new(false),
            commit_due: Wakeup::default(),
        }
    }

    /// Makes appenders that wait for room try again.
    #[inline]
    pub(crate) fn notify_room(&self) {
        self.room.notify_all();
        self.context.observer().room();
    }

    /// Wakes all waiting threads after writing has failed.
    pub(crate) fn wake_all(&self) {
        // An appender that has just found no room holds the lock until it waits. Taking the lock ensures that it is woken.
        drop(self.state.lock());
        self.notify_room();
        self.commit_due.notify();
    }

    /// Refuses appends from now on. Returns whether the queue was closed before.
    pub(crate) fn close(&self) -> bool {
        std::mem::replace(&mut self.state.lock().is_closed, true)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Swaps the pending batch for the empty `spare`. Returns false if there is nothing to commit.
    #[inline]
    pub(super) fn take_batch(&self, spare: &mut PendingBatch) -> bool {
        let mut state = self.state.lock();
        if state.pending.is_empty() {
            return false;
        }
        spare.reset(state.pending.batch() + 1);
        std::mem::swap(spare, &mut state.pending);
        state.place.remaining -= (spare.bytes() + HEADER_BYTES) as u64;
        drop(state);
        self.notify_room();
        true
    }

    /// Called when a batch became durable: notifies appenders that were refused because of `wants_durable`.
    #[inline]
    pub(super) fn note_durable(&self) {
        if self.wants_durable.load(Ordering::SeqCst) && self.wants_durable.swap(false, Ordering::SeqCst) {
            self.notify_room();
        }
    }

    pub(crate) fn spares(&self) -> Spares {
        let state = self.state.lock();
        let reserves = state.spares.iter().filter(|spare| spare.is_reserve).count();
        let fits = |spare: &SpareSegment| !spare.is_reserve && spare.segment.room() >= state.needed_room;
        Spares {
            ready: state.spares.len() - reserves,
            reserves,
            needed_room: if state.spares.iter().any(fits) { 0 } else { state.needed_room },
        }
    }

    /// Adds a prepared segment.
    pub(crate) fn add_spare(&self, segment: Arc<Segment>, is_reserve: bool) {
        let mut state = self.state.lock();
        if !is_reserve {
            state.is_full = false;
            if segment.room() >= state.refused_room {
                state.refused_room = 0;
            }
        }
        state.spares.push_back(SpareSegment { segment, is_reserve });
        drop(state);
        self.notify_room();
    }

    /// Records that the disk has no room for another segment. Appends that need one are refused until
    /// [`add_spare`](Self::add_spare).
    pub(crate) fn set_full(&self) {
        self.state.lock().is_full = true;
        self.notify_room();
    }

    /// Records that the disk has no room for a segment with this much room. Appends that need as much are refused until such a
    /// segment is prepared; smaller ones are not.
    pub(crate) fn refuse_room(&self, room: u64) {
        let mut state = self.state.lock();
        state.refused_room = room;
        if state.needed_room <= room {
            state.needed_room = 0;
        }
        drop(state);
        self.notify_room();
    }

    /// Takes a prepared segment that was too small for an append.
    pub(crate) fn take_passed_over(&self) -> Option<Arc<Segment>> {
        self.state.lock().passed_over.pop()
    }

    /// Keeps a segment for the next [`take_passed_over`](Self::take_passed_over).
    pub(crate) fn pass_over(&self, segment: Arc<Segment>) {
        self.state.lock().passed_over.push(segment);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().is_full
    }

    pub(crate) fn room_left(&self) -> RoomLeft {
        let state = self.state.lock();
        let AppendPlace { remaining, capacity, .. } = state.place;
        let is_urgent = remaining < capacity / 2 || state.needed_room > 0 || state.is_closed;
        RoomLeft { bytes: remaining, is_urgent }
    }

    /// Makes the pending batch the last one that is written to this segment.
    pub(crate) fn leave_segment(&self, segment: u64) {
        self.state.lock().leave(segment);
    }

    /// The newest seq that was assigned in a topic, durable or not.
    pub(crate) fn appended_seq(&self, topic: TopicId) -> u64 {
        let state = self.state.lock();
        state.topics.get(topic.0 as usize).map_or(0, |topic| topic.next_seq - 1)
    }

    /// Removes a segment's ids from memory, because they are in an index file or the segment is gone.
    pub(crate) fn forget_ids(&self, segment: u64) {
        let forgotten = {
            let mut state = self.state.lock();
            let forgotten = state.recent_ids.forget(segment);
            self.forgotten_ids.store(state.recent_ids.forgotten(), Ordering::Release);
            forgotten
        };
        if let Some(mut table) = forgotten {
            table.clear();
            self.state.lock().recent_ids.reuse(table);
        }
    }
}
