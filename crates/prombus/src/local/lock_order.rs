//! Mutexes with a rank. A thread must take them in ascending order of rank, which prevents deadlocks. Debug builds,
//! and so all tests, check this.
//!
//! | rank | guards |
//! |---|---|
//! | [`CREATION`] | the creation and deletion of topics and groups |
//! | [`SENDING`] | group records while they are written to the engine |
//! | [`GROUP`] | a group machine |
//! | [`WAITERS`], [`CHANGES`] | the waiters of a group; its changes that are not written yet |
//! | [`LEAF`] | queues and timers: no other lock is taken under them |

use parking_lot::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

pub(super) const CREATION: u8 = 1;
pub(super) const SENDING: u8 = 2;
pub(super) const GROUP: u8 = 3;
pub(super) const WAITERS: u8 = 4;
pub(super) const CHANGES: u8 = 5;
pub(super) const LEAF: u8 = 6;

#[cfg(debug_assertions)]
thread_local! {
    /// Bit n is set while the thread holds a lock of rank n.
    static HELD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// A mutex with a rank.
#[derive(Debug, Default)]
pub(super) struct RankedMutex<const RANK: u8, T>(Mutex<T>);

impl<const RANK: u8, T> RankedMutex<RANK, T> {
    pub(super) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(super) fn lock(&self) -> RankedGuard<'_, RANK, T> {
        let rank = HeldRank::<RANK>::enter();
        RankedGuard { guard: self.0.lock(), _rank: rank }
    }

    /// Locks the mutex if it is free. This never blocks, so it may be called no matter which locks the thread holds.
    pub(super) fn try_lock(&self) -> Option<RankedGuard<'_, RANK, T>> {
        self.0.try_lock().map(|guard| RankedGuard { guard, _rank: HeldRank::enter_unchecked() })
    }
}

/// The guard of a [`RankedMutex`].
pub(super) struct RankedGuard<'a, const RANK: u8, T> {
    guard: MutexGuard<'a, T>,
    _rank: HeldRank<RANK>,
}

impl<const RANK: u8, T> Deref for RankedGuard<'_, RANK, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<const RANK: u8, T> DerefMut for RankedGuard<'_, RANK, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Records in debug builds that the thread holds a lock of this rank.
struct HeldRank<const RANK: u8> {
    #[cfg(debug_assertions)]
    was_held: bool,
}

impl<const RANK: u8> HeldRank<RANK> {
    #[inline]
    fn enter() -> Self {
        #[cfg(debug_assertions)]
        {
            let held = HELD.get();
            assert!(held >> RANK == 0, "a lock of rank {RANK} is taken while ranks {held:#b} are held");
        }
        Self::enter_unchecked()
    }

    #[inline]
    fn enter_unchecked() -> Self {
        Self {
            #[cfg(debug_assertions)]
            was_held: HELD.replace(HELD.get() | 1 << RANK) >> RANK & 1 == 1,
        }
    }
}

#[cfg(debug_assertions)]
impl<const RANK: u8> Drop for HeldRank<RANK> {
    fn drop(&mut self) {
        if !self.was_held {
            HELD.set(HELD.get() & !(1 << RANK));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_in_ascending_order_are_allowed() {
        let (group, leaf) = (RankedMutex::<GROUP, _>::new(1), RankedMutex::<LEAF, _>::new(2));
        {
            let group = group.lock();
            assert_eq!(*group + *leaf.lock(), 3);
        }
        drop(leaf.lock());
        drop(group.lock());
    }

    #[test]
    #[should_panic(expected = "a lock of rank 3 is taken")]
    fn locks_in_descending_order_are_detected_in_debug_builds() {
        let (group, leaf) = (RankedMutex::<GROUP, _>::new(1), RankedMutex::<LEAF, _>::new(2));
        let _leaf = leaf.lock();
        drop(group.lock());
    }
}
