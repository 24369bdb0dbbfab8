//! The subscriptions of a session that have something to pull. A connection may have a thousand subscriptions, so only those that
//! were woken are polled.

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// The slots that were woken, in order.
#[derive(Debug, Default)]
pub(super) struct ReadyList {
    slots: Mutex<VecDeque<usize>>,
    /// The task of the connection, which a woken slot wakes.
    task: AtomicWaker,
}

/// Wakes one slot.
#[derive(Debug)]
pub(super) struct SlotWaker {
    slot: usize,
    /// Whether the slot is in the list.
    is_queued: AtomicBool,
    list: Arc<ReadyList>,
}

impl ReadyList {
    pub(super) fn register(&self, waker: &Waker) {
        self.task.register(waker);
    }

    pub(super) fn pop(&self) -> Option<usize> {
        self.slots.lock().pop_front()
    }

    /// Removes a slot whose subscription has ended.
    pub(super) fn forget(&self, slot: usize) {
        self.slots.lock().retain(|&other| other != slot);
    }

    /// How many slots are ready now.
    pub(super) fn len(&self) -> usize {
        self.slots.lock().len()
    }
}

impl SlotWaker {
    pub(super) fn new(slot: usize, list: &Arc<ReadyList>) -> Arc<Self> {
        Arc::new(Self { slot, is_queued: AtomicBool::new(false), list: Arc::clone(list) })
    }

    /// Adds the slot to the list without waking the task.
    pub(super) fn queue(&self) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.list.slots.lock().push_back(self.slot);
        }
    }

    /// Records that the slot was taken from the list and is being polled. A later wake-up adds it to the list again.
    pub(super) fn taken(&self) {
        self.is_queued.store(false, Ordering::Release);
    }
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.queue();
        self.list.task.wake();
    }
}
