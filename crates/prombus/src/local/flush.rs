//! Getting group records to disk: one record per group per commit, and no commit that nobody asked for.
//!
//! Changes gather with their group. They leave with the next publish, or when somebody waits for them: at once if no commit
//! runs, else when it ends; acks that nobody waits for leave after some milliseconds; what a filter dropped waits for others.

use super::cell::{Flushed, GroupCell};
use super::quiet::Quiet;
use crate::clock::Clock;
use crate::error::StoreError;
use crate::store::{AppendBatch, GroupProgress, NewEvent, Outcome, StateRecord, Store};
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
    /// Records wait because the disk is full, with its reserve.
    is_refused: AtomicBool,
}

/// Records that could not be appended yet, and who they are from. Whoever has the lock appends.
#[derive(Default)]
pub(crate) struct Sending {
    records: Vec<StateRecord>,
    owners: Vec<(Arc<GroupCell>, Flushed)>,
}

impl Sending {
    fn push(&mut self, record: StateRecord, cell: &Arc<GroupCell>, flushed: Flushed) {
        self.records.push(record);
        self.owners.push((Arc::clone(cell), flushed));
    }

    /// Takes the first half of another; of a single record, the first half of that.
    fn take_half(&mut self, from: &mut Self) {
        if from.records.len() == 1
            && let Some(StateRecord::Progress { group, topics }) = from.records.first_mut()
            && let Some(first) = split(topics)
        {
            // Whoever waits for the record waits for its second half.
            let record = StateRecord::Progress { group: *group, topics: first };
            let cell = Arc::clone(&from.owners[0].0);
            self.push(record, &cell, Flushed { generation: 0, wakes_members: false });
            return;
        }
        let half = from.records.len().div_ceil(2);
        self.records.extend(from.records.drain(..half));
        self.owners.extend(from.owners.drain(..half));
    }

    fn put_in_front(&mut self, part: Self) {
        self.records.splice(0..0, part.records);
        self.owners.splice(0..0, part.owners);
    }
}

/// Takes the first half of what a group did out of a list; `None` when it is too little for that.
fn split(topics: &mut Vec<GroupProgress>) -> Option<Vec<GroupProgress>> {
    if topics.len() > 1 {
        let half = topics.len() / 2;
        return Some(topics.drain(..half).collect());
    }
    let only = topics.first_mut().filter(|only| only.settled.len() + only.attempts.len() > 1)?;
    let (settled, attempts) = (only.settled.len().div_ceil(2), only.attempts.len() / 2);
    Some(vec![GroupProgress {
        topic: only.topic,
        settled: only.settled.drain(..settled).collect(),
        attempts: only.attempts.drain(..attempts).collect(),
        leased_to: only.leased_to.take(),
    }])
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
                if self.is_refused() {
                    sending.owners.iter().for_each(|(cell, _)| cell.accepted());
                }
                let mut under_way = self.under_way.lock();
                under_way.extend(sending.owners.drain(..).map(|(cell, flushed)| (batch, cell, flushed)));
                drop(under_way);
                self.appended(batch);
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

    /// Appends events together with records of the caller's own, behind whatever else waits. Answers the records' generation.
    /// When it fails those records are gone and the others stay. Called with the group's core locked.
    pub(crate) fn append_last(
        &self,
        sending: &mut Sending,
        local: &super::Local,
        events: &[NewEvent<'_>],
        (records, cell): (Vec<StateRecord>, &Arc<GroupCell>),
        use_reserve: bool,
    ) -> Result<u64, StoreError> {
        self.gather(sending, &*local.clock);
        let generation = cell.delta.lock().begin_generation();
        let mut others = sending.records.len();
        let push_own = |sending: &mut Sending| {
            for record in &records {
                sending.push(record.clone(), cell, Flushed { generation, wakes_members: true });
            }
        };
        push_own(sending);
        let mut appended = self.send(sending, &*local.store, events, &mut Vec::new(), use_reserve);
        if let Err(StoreError::TooLarge(_)) = appended
            && others > 0
        {
            // Perhaps only because of the records that wait: those go first, in parts.
            sending.records.truncate(others);
            sending.owners.truncate(others);
            let sent = self.append_in_parts(sending, &*local.store, &*local.clock);
            others = sending.records.len();
            push_own(sending);
            appended =
                sent.and_then(|()| self.send(sending, &*local.store, events, &mut Vec::new(), use_reserve));
        }
        if appended.is_err() {
            sending.records.truncate(others);
            sending.owners.truncate(others);
            // Nobody may wait for a record that never comes. Both locks are held, so none was begun behind it.
            cell.delta.lock().end_generation(generation);
        }
        appended.map(|_| generation)
    }

    /// Something was appended to this batch.
    pub(crate) fn appended(&self, batch: u64) {
        self.newest_batch.fetch_max(batch, Ordering::SeqCst);
    }

    /// Sends what waits now. Answers false when it has to be tried again.
    pub(crate) fn flush(&self, store: &dyn Store, clock: &dyn Clock) -> bool {
        let _quiet = Quiet::enter();
        loop {
            let mut taken = self.try_lock();
            if taken.is_none() {
                // Who has the lock looks whether something was asked for when it is done with it.
                self.ask();
                taken = self.try_lock();
            }
            let Some(mut sending) = taken else { return true };
            self.is_demanded.store(false, Ordering::SeqCst);
            let sent = self.append_in_parts(&mut sending, store, clock);
            // Before the lock is given back: the next sender takes back what is refused here only if it knows of it.
            self.note_room(&sent);
            if let Err(StoreError::Full) = sent {
                sending.owners.iter().for_each(|(cell, flushed)| cell.refused(flushed));
            }
            drop(sending);
            self.committed(store.durable_batch());
            match sent {
                Ok(()) if !self.is_demanded.load(Ordering::SeqCst) => return true,
                Ok(()) => {}
                Err(_) => {
                    self.ask();
                    return false;
                }
            }
        }
    }

    /// Logs once that group records are refused, and once that they are written again.
    fn note_room(&self, sent: &Result<(), StoreError>) {
        match sent {
            Err(StoreError::Full) if !self.is_refused.swap(true, Ordering::SeqCst) => tracing::error!(
                "the disk is full, and so is the room that is reserved for groups: acks are not durable and are answered \
                 storage_full until there is room"
            ),
            Ok(()) if self.is_refused.swap(false, Ordering::SeqCst) => {
                tracing::info!("there is room for group records again: acks are durable");
            }
            _ => {}
        }
    }

    /// Whether records wait because the disk is full, with its reserve.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::SeqCst)
    }

    /// Appends all records that wait, in several batches if they do not fit into one.
    fn append_in_parts(
        &self,
        sending: &mut Sending,
        store: &dyn Store,
        clock: &dyn Clock,
    ) -> Result<(), StoreError> {
        loop {
            match self.append(sending, store, clock, &[], &mut Vec::new(), true) {
                Err(StoreError::TooLarge(_)) => {}
                other => return other.map(|_| ()),
            }
            let mut part = Sending::default();
            part.take_half(sending);
            while let Err(error) = self.send(&mut part, store, &[], &mut Vec::new(), true) {
                if !matches!(error, StoreError::TooLarge(_)) {
                    sending.put_in_front(part);
                    return Err(error);
                }
                let mut smaller = Sending::default();
                smaller.take_half(&mut part);
                sending.put_in_front(part);
                part = smaller;
            }
        }
    }

    /// Has what waits sent by whoever has the lock, or with the next commit.
    pub(crate) fn ask(&self) {
        self.is_demanded.store(true, Ordering::SeqCst);
    }

    /// Somebody waits for changes: they leave now, or with the end of the commit that runs.
    pub(crate) fn demand(&self, store: &dyn Store, clock: &dyn Clock) {
        self.ask();
        let is_committing = self.newest_batch.load(Ordering::SeqCst) > store.durable_batch();
        if !is_committing {
            self.flush(store, clock);
        }
    }

    /// After the lock was held for something else: tells what is durable already, and sends what was asked for meanwhile.
    pub(crate) fn after(&self, store: &dyn Store, clock: &dyn Clock) {
        self.committed(store.durable_batch());
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
