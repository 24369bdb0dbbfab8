//! When maintenance runs, and which requests wake it.

use crate::delivery::Millis;
use crate::engine::{MayBlock, TopicId};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The minimum interval between two rounds, so that frequent wake-ups cost little.
const REST_MS: Millis = 50;

/// Requests for rounds of maintenance.
#[derive(Default)]
pub(in crate::local) struct MaintenanceSchedule {
    wishes: Mutex<Wishes>,
    changed: Condvar,
    wants_clean: AtomicBool,
    /// Topics with snapshots that were created since the last round, with their creation times.
    created: Mutex<Vec<(TopicId, Millis)>>,
}

#[derive(Default)]
struct Wishes {
    is_woken: bool,
    is_stopped: bool,
}

impl MaintenanceSchedule {
    /// Makes a round begin soon.
    pub(in crate::local) fn wake(&self) {
        self.wishes.lock().is_woken = true;
        self.changed.notify_all();
    }

    /// Reports that a topic with snapshots was created. Its first snapshot is due one interval from now, not from the next round.
    pub(in crate::local) fn topic_created(&self, topic: TopicId, now: Millis) {
        self.created.lock().push((topic, now));
        self.wake();
    }

    pub(super) fn take_created(&self) -> Vec<(TopicId, Millis)> {
        std::mem::take(&mut *self.created.lock())
    }

    pub(super) fn put_back_created(&self, created: impl IntoIterator<Item = (TopicId, Millis)>) {
        self.created.lock().extend(created);
    }

    /// Makes a round begin soon, and makes it clean.
    pub(in crate::local) fn clean_soon(&self) {
        self.clean_next();
        self.wake();
    }

    /// Makes the next round clean.
    pub(in crate::local) fn clean_next(&self) {
        self.wants_clean.store(true, Ordering::Release);
    }

    pub(super) fn take_clean(&self) -> bool {
        self.wants_clean.swap(false, Ordering::AcqRel)
    }

    pub(in crate::local) fn stop(&self) {
        self.wishes.lock().is_stopped = true;
        self.changed.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.wishes.lock().is_stopped
    }

    /// Sleeps until the next round. Returns false when maintenance was stopped.
    pub(super) fn sleep(&self, wait_ms: Millis, _may_block: MayBlock) -> bool {
        let mut wishes = self.wishes.lock();
        if wishes.is_stopped {
            return false;
        }
        self.changed.wait_for(&mut wishes, Duration::from_millis(REST_MS));
        while !wishes.is_stopped && !wishes.is_woken {
            let waited = self.changed.wait_for(&mut wishes, Duration::from_millis(wait_ms.max(REST_MS)));
            if waited.timed_out() {
                break;
            }
        }
        wishes.is_woken = false;
        !wishes.is_stopped
    }
}
