//! The engine's observer: wakes members and publishers after a commit, and handles suspension, resumption and the end of
//! writing.

use super::Local;
use crate::deferred_wakes::wake;
use crate::engine::{EngineObserver, TopicId};
use crate::error::Unavailable;
use std::cell::Cell;
use std::sync::Weak;

thread_local! {
    static IS_ENGINE_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a callback of the engine. Such a thread must not close the engine, because closing may
/// wait for the callback to return.
pub(super) fn is_engine_thread() -> bool {
    IS_ENGINE_THREAD.get()
}

/// Forwards the reports of the engine to the parts that need them.
pub(super) struct EngineEvents {
    pub(super) local: Weak<Local>,
}

impl EngineEvents {
    fn with_local(&self, work: impl FnOnce(&Local)) {
        let Some(local) = self.local.upgrade() else { return };
        let was = IS_ENGINE_THREAD.replace(true);
        work(&local);
        drop(local);
        IS_ENGINE_THREAD.set(was);
    }
}

impl EngineObserver for EngineEvents {
    fn committed(&self, commit: u64, newest: &mut dyn Iterator<Item = (TopicId, u64)>) {
        self.with_local(|local| {
            // Collects the wakers, to call them when no lock is held: a waker may run any code.
            let mut woken = Vec::new();
            local.registry.each_reader(newest, |topic, newest_seq, readers| {
                local.waiting_readers.committed(topic, &mut woken);
                for (cell, source) in readers {
                    let (waker, others_wait) = cell.waiters.notice(*source, newest_seq);
                    woken.extend(waker);
                    if others_wait {
                        local.runtime.wake_others_later(cell);
                    }
                }
            });
            woken.into_iter().for_each(wake);
            local.commits.advance(commit);
            let records = &local.runtime.records;
            records.committed(commit);
            if records.is_demanded() {
                records.flush();
            }
        });
    }

    fn room(&self) {
        self.with_local(|local| {
            local.commits.room();
            if local.runtime.records.is_demanded() {
                local.runtime.records.flush();
            }
        });
    }

    fn suspended(&self, reason: String) {
        self.with_local(|local| {
            tracing::warn!("the engine cannot commit: {reason}; retrying");
            local.suspension.begin(reason, local.clock.steady_ms());
            local.runtime.timer.wake();
        });
    }

    fn resumed(&self) {
        self.with_local(|local| {
            tracing::info!("the engine commits again");
            local.suspension.end();
            local.commits.resume();
            let timer = &local.runtime.timer;
            timer.disarm_suspension_check();
            // Writes the acks that arrived during the suspension, so that they are durable within 10 ms from now.
            timer.arm_flush(local.clock.steady_ms());
        });
    }

    fn deposed(&self, leader: String) {
        self.stopped(Unavailable::Deposed(leader));
    }

    fn stopped(&self, reason: Unavailable) {
        self.with_local(|local| local.fail(reason));
    }
}
