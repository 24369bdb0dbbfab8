//! Getting group records to disk: one record per group per commit, and no commit that nobody asked for.
//!
//! Changes gather with their group. They leave with the next publish, or when somebody waits for them: at once if no commit
//! runs, else when it ends; acks that nobody waits for leave after some milliseconds; what a filter dropped waits for others.

use super::cell::{Flushed, GroupCell};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::store::{AppendBatch, GroupRecord, NewEvent, Outcome, Store};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Default)]
pub(crate) struct Flusher {
    queue: Mutex<Vec<Arc<GroupCell>>>,
    /// There is something in the queue, or unsent.
    is_dirty: AtomicBool,
    /// Somebody waits for it.
    is_demanded: AtomicBool,
    sending: Mutex<Sending>,
    /// Records on their way, by the batch that carries them.
    under_way: Mutex<VecDeque<(u64, Arc<GroupCell>, Flushed)>>,
    /// The newest batch that anything was appended to.
    newest_batch: AtomicU64,
}

/// Records that could not be appended yet, and who they are from. Whoever has the lock appends.
#[derive(Default)]
pub(crate) struct Sending {
    records: Vec<GroupRecord>,
    owners: Vec<(Arc<GroupCell>, Flushed)>,
}

impl Sending {
    /// Adds a record of the caller's own making.
    pub(crate) fn push(&mut self, record: GroupRecord, cell: &Arc<GroupCell>, flushed: Flushed) {
        self.records.push(record);
        self.owners.push((Arc::clone(cell), flushed));
    }
}

impl Flusher {
    /// The group has changes; it is in the queue from now on. Called with the group's delta locked.
    pub(crate) fn enqueue(&self, cell: &Arc<GroupCell>) {
        self.queue.lock().push(Arc::clone(cell));
        self.is_dirty.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Relaxed)
    }

    /// Who appends must not wait for the lock in a commit, since the holder may wait for one.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Sending>> {
        self.sending.try_lock()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Sending> {
        self.sending.lock()
    }

    /// Moves everything from the queue to what is sent next.
    fn gather(&self, sending: &mut Sending, clock: &dyn Clock) {
        self.is_dirty.store(false, Ordering::SeqCst);
        let queue = std::mem::take(&mut *self.queue.lock());
        for cell in queue {
            let record = cell.delta.lock().take_record(cell.number, clock);
            if let Some((record, flushed)) = record {
                sending.push(record, &cell, flushed);
            }
        }
    }

    /// Appends events, if any, with all records that wait, as one batch. When it fails the records stay.
    pub(crate) fn append(
        &self,
        sending: &mut Sending,
        store: &dyn Store,
        clock: &dyn Clock,
        events: &[NewEvent<'_>],
        outcomes: &mut Vec<Outcome>,
        use_reserve: bool,
    ) -> Result<u64, StoreError> {
        self.gather(sending, clock);
        if events.is_empty() && sending.records.is_empty() {
            return Ok(store.durable_batch());
        }
        self.send(sending, store, events, outcomes, use_reserve)
    }

    fn send(
        &self,
        sending: &mut Sending,
        store: &dyn Store,
        events: &[NewEvent<'_>],
        outcomes: &mut Vec<Outcome>,
        use_reserve: bool,
    ) -> Result<u64, StoreError> {
        let batch = AppendBatch { events, records: &sending.records, use_reserve };
        match store.append(&batch, outcomes) {
            Ok(batch) => {
                sending.records.clear();
                let mut under_way = self.under_way.lock();
                under_way.extend(sending.owners.drain(..).map(|(cell, flushed)| (batch, cell, flushed)));
                drop(under_way);
                self.appended(batch);
                if store.durable_batch() >= batch {
                    // Its commit was over before it was known to be under way.
                    self.committed(store.durable_batch());
                }
                Ok(batch)
            }
            Err(error) => {
                if !sending.records.is_empty() {
                    self.is_dirty.store(true, Ordering::SeqCst);
                }
                Err(error)
            }
        }
    }

    /// Appends events together with the record that was pushed last, behind whatever else waits. When it fails that record is
    /// gone and the others stay.
    pub(crate) fn append_last(
        &self,
        sending: &mut Sending,
        local: &super::Local,
        events: &[NewEvent<'_>],
        use_reserve: bool,
    ) -> Result<u64, StoreError> {
        let own = sending.records.pop().zip(sending.owners.pop());
        self.gather(sending, &*local.clock);
        if let Some((record, (cell, flushed))) = own {
            sending.push(record, &cell, flushed);
        }
        let appended = self.send(sending, &*local.store, events, &mut Vec::new(), use_reserve);
        if appended.is_err() {
            sending.records.pop();
            sending.owners.pop();
        }
        appended
    }

    /// Something was appended to this batch.
    pub(crate) fn appended(&self, batch: u64) {
        self.newest_batch.fetch_max(batch, Ordering::SeqCst);
    }

    /// Sends what waits now. Answers false when it has to be tried again.
    pub(crate) fn flush(&self, store: &dyn Store, clock: &dyn Clock) -> bool {
        loop {
            // Who has the lock looks at the demand again when it is done.
            let Some(mut sending) = self.try_lock() else { return true };
            self.is_demanded.store(false, Ordering::SeqCst);
            let sent = self.append(&mut sending, store, clock, &[], &mut Vec::new(), true);
            drop(sending);
            match sent {
                Ok(_) if !self.is_demanded.load(Ordering::SeqCst) => return true,
                Ok(_) => {}
                Err(_) => {
                    self.is_demanded.store(true, Ordering::SeqCst);
                    return false;
                }
            }
        }
    }

    /// Somebody waits for changes: they leave now, or with the end of the commit that runs.
    pub(crate) fn demand(&self, store: &dyn Store, clock: &dyn Clock) {
        self.is_demanded.store(true, Ordering::SeqCst);
        let is_committing = self.newest_batch.load(Ordering::SeqCst) > store.durable_batch();
        if !is_committing {
            self.flush(store, clock);
        }
    }

    /// After the lock was held for something else: sends what was asked for meanwhile.
    pub(crate) fn after(&self, store: &dyn Store, clock: &dyn Clock) {
        if self.is_demanded.load(Ordering::SeqCst) {
            self.demand(store, clock);
        }
    }

    /// Everything up to this batch is durable.
    pub(crate) fn committed(&self, batch: u64) {
        loop {
            let mut under_way = self.under_way.lock();
            match under_way.front() {
                Some((carrier, ..)) if *carrier <= batch => {}
                _ => return,
            }
            let done = under_way.pop_front();
            drop(under_way);
            if let Some((_, cell, flushed)) = done {
                cell.flushed(&flushed);
            }
        }
    }

    pub(crate) fn is_demanded(&self) -> bool {
        self.is_demanded.load(Ordering::SeqCst)
    }
}
