//! When maintenance runs, and which requests wake it.

use crate::delivery::Millis;
use crate::engine::{MayBlock, TopicId};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The minimum interval between two rounds, so that frequent wake-ups cost little.
const INTERVAL_MIN_MS: Millis = 50;

/// Requests for rounds of maintenance.
#[derive(Default)]
pub(in crate::local) struct MaintenanceSchedule {
    requests: Mutex<Requests>,
    changed: Condvar,
    is_cleaning_requested: AtomicBool,
    /// Topics with snapshots that were created since the last round, with their creation times.
    created: Mutex<Vec<(TopicId, Millis)>>,
}

#[derive(Default)]
struct Requests {
    is_woken: bool,
    is_stopped: bool,
}

impl MaintenanceSchedule {
    /// Makes a round begin soon.
    pub(in crate::local) fn wake(&self) {
        self.requests.lock().is_woken = true;
        self.changed.notify_all();
    }

    /// Reports that a topic with snapshots was created at `now`. Its first snapshot is due one snapshot interval after that time,
    /// not after the round that finds the topic.
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

    /// Makes a round begin soon, and requests a cleaning in it.
    pub(in crate::local) fn clean_soon(&self) {
        self.clean_next();
        self.wake();
    }

    /// Requests a cleaning in the next round.
    pub(in crate::local) fn clean_next(&self) {
        self.is_cleaning_requested.store(true, Ordering::Release);
    }

    pub(super) fn take_cleaning_request(&self) -> bool {
        self.is_cleaning_requested.swap(false, Ordering::AcqRel)
    }

    pub(in crate::local) fn stop(&self) {
        self.requests.lock().is_stopped = true;
        self.changed.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.requests.lock().is_stopped
    }

    /// Sleeps until the next round. Returns false when maintenance was stopped.
    pub(super) fn sleep(&self, wait_ms: Millis, _may_block: MayBlock) -> bool {
        let mut requests = self.requests.lock();
        if requests.is_stopped {
            return false;
        }
        self.changed.wait_for(&mut requests, Duration::from_millis(INTERVAL_MIN_MS));
        while !requests.is_stopped && !requests.is_woken {
            let waited =
                self.changed.wait_for(&mut requests, Duration::from_millis(wait_ms.max(INTERVAL_MIN_MS)));
            if waited.timed_out() {
                break;
            }
        }
        requests.is_woken = false;
        !requests.is_stopped
    }
}
