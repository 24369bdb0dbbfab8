//! Writes the changes of groups to the engine as records: at most one record per group and commit, with as few additional commits
//! as possible.
//!
//! The changes of a group are collected in the group. They are written together with the next publish. If a caller waits for
//! them, they are written at once, or when the commit in progress ends. Acks that no caller waits for are written within
//! [`FLUSH_AFTER_MS`](super::ack_bound::FLUSH_AFTER_MS). That a filter has rejected events is written only together with other
//! changes.

use super::groups::cell::GroupCell;
use super::groups::pending_changes::RecordInFlight;
use super::lock_order::{LEAF, RankedGuard, RankedMutex, SENDING};
use crate::clock::Clock;
use crate::deferred_wakes::DeferredWakes;
use crate::engine::{AppendBatch, Appended, Engine, GroupProgress, NewEvent, Published, StateRecord};
use crate::error::StoreError;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Writes the changes of groups to the engine.
pub(super) struct RecordWriter {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    /// Groups with changes that have no record in `sending` yet.
    queue: RankedMutex<LEAF, Vec<Arc<GroupCell>>>,
    /// Whether the queue is not empty, or `sending` contains records.
    is_dirty: AtomicBool,
    /// Whether a caller waits for records that are not written yet.
    is_demanded: AtomicBool,
    sending: RankedMutex<SENDING, Sending>,
    /// Records that were appended and are not durable yet, with their commits.
    in_flight: RankedMutex<LEAF, VecDeque<(u64, Arc<GroupCell>, RecordInFlight)>>,
    /// The newest commit to which something was appended.
    newest_commit: AtomicU64,
    /// Whether records cannot be written, because the disk is full, including the space that is reserved for them.
    is_refused: AtomicBool,
}

/// Records that are not appended yet, and their groups. The holder of the lock appends them.
#[derive(Default)]
pub(super) struct Sending {
    records: Vec<StateRecord>,
    /// For each record: its group, and what to report when it is durable.
    owners: Vec<(Arc<GroupCell>, RecordInFlight)>,
}

impl Sending {
    fn push(&mut self, record: StateRecord, cell: &Arc<GroupCell>, flushed: RecordInFlight) {
        self.records.push(record);
        self.owners.push((Arc::clone(cell), flushed));
    }

    /// Moves the first half of the records from `from` to this value. If `from` has only one record, splits that record and moves
    /// its first half.
    fn take_half(&mut self, from: &mut Self) {
        if from.records.len() == 1
            && let Some(StateRecord::Progress { group, topics }) = from.records.first_mut()
            && let Some(first) = split(topics)
        {
            // Generation 0 means that no caller waits for this half: the callers wait for the second half, which is written
            // later.
            let record = StateRecord::Progress { group: *group, topics: first };
            let cell = Arc::clone(&from.owners[0].0);
            self.push(record, &cell, RecordInFlight { generation: 0, wakes_members: false });
            return;
        }
        let half = from.records.len().div_ceil(2);
        self.records.extend(from.records.drain(..half));
        self.owners.extend(from.owners.drain(..half));
    }

    fn prepend(&mut self, part: Self) {
        self.records.splice(0..0, part.records);
        self.owners.splice(0..0, part.owners);
    }
}

/// Removes and returns the first half of a group's progress; `None` if it cannot be split.
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

impl RecordWriter {
    pub(super) fn new(engine: Arc<dyn Engine>, clock: Arc<dyn Clock>) -> Self {
        Self {
            engine,
            clock,
            queue: RankedMutex::default(),
            is_dirty: AtomicBool::new(false),
            is_demanded: AtomicBool::new(false),
            sending: RankedMutex::default(),
            in_flight: RankedMutex::default(),
            newest_commit: AtomicU64::new(0),
            is_refused: AtomicBool::new(false),
        }
    }

    /// Adds a group with changes to the queue. Called with the group's pending changes locked.
    pub(super) fn enqueue(&self, cell: &Arc<GroupCell>) {
        self.queue.lock().push(Arc::clone(cell));
        self.is_dirty.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Relaxed)
    }

    /// Locks `sending` if it is free. For publishers, which must not wait for the lock, because its holder may be waiting for a
    /// commit.
    pub(super) fn try_lock(&self) -> Option<RankedGuard<'_, SENDING, Sending>> {
        self.sending.try_lock()
    }

    pub(super) fn lock(&self) -> RankedGuard<'_, SENDING, Sending> {
        self.sending.lock()
    }

    /// Makes records of the changes of all queued groups, and adds them to `sending`.
    fn gather(&self, sending: &mut Sending) {
        self.is_dirty.store(false, Ordering::SeqCst);
        let queue = std::mem::take(&mut *self.queue.lock());
        for cell in queue {
            let record = cell.changes.lock().take_record(cell.number, &*self.clock);
            if let Some((record, flushed)) = record {
                sending.push(record, &cell, flushed);
            }
        }
    }

    /// Appends events, if any, together with all pending records, as one batch. If that fails, the records stay pending.
    pub(super) fn append(
        &self,
        sending: &mut Sending,
        events: &[NewEvent<'_>],
        outcomes: &mut Vec<Published>,
        use_reserve: bool,
    ) -> Result<Appended, StoreError> {
        self.gather(sending);
        if events.is_empty() && sending.records.is_empty() {
            return Ok(self.engine.durable_commit().into());
        }
        self.send(sending, events, outcomes, use_reserve)
    }

    fn send(
        &self,
        sending: &mut Sending,
        events: &[NewEvent<'_>],
        outcomes: &mut Vec<Published>,
        use_reserve: bool,
    ) -> Result<Appended, StoreError> {
        let batch = AppendBatch { events, records: &sending.records, use_reserve };
        match self.engine.append(&batch, outcomes) {
            Ok(appended) => {
                // Late outcomes matter only to publishers. If they turn out to be an error, the commit is never reported, so
                // these records are never reported as durable.
                sending.records.clear();
                if self.is_refused() {
                    sending.owners.iter().for_each(|(cell, _)| cell.waiters.records_accepted());
                }
                let mut in_flight = self.in_flight.lock();
                let owners = sending.owners.drain(..);
                in_flight.extend(owners.map(|(cell, record)| (appended.commit, cell, record)));
                drop(in_flight);
                self.appended(appended.commit);
                Ok(appended)
            }
            Err(error) => {
                if !sending.records.is_empty() {
                    self.is_dirty.store(true, Ordering::SeqCst);
                }
                Err(error)
            }
        }
    }

    /// Appends events together with the caller's own records, which follow all other pending records. Returns the generation of
    /// the caller's records. If the append fails, the caller's records are dropped and the others stay pending. Called with the
    /// group locked.
    pub(super) fn append_last(
        &self,
        sending: &mut Sending,
        events: &[NewEvent<'_>],
        (records, cell): (Vec<StateRecord>, &Arc<GroupCell>),
        use_reserve: bool,
    ) -> Result<u64, StoreError> {
        self.gather(sending);
        let generation = cell.changes.lock().begin_generation();
        let mut others = sending.records.len();
        let push_own = |sending: &mut Sending| {
            for record in &records {
                sending.push(record.clone(), cell, RecordInFlight { generation, wakes_members: true });
            }
        };
        push_own(sending);
        let mut appended = self.send(sending, events, &mut Vec::new(), use_reserve);
        if let Err(StoreError::TooLarge(_)) = appended
            && others > 0
        {
            // Perhaps the batch is too large only because of the other pending records. Appends these first, in parts.
            sending.records.truncate(others);
            sending.owners.truncate(others);
            let sent = self.append_in_parts(sending);
            others = sending.records.len();
            push_own(sending);
            appended = sent.and_then(|()| self.send(sending, events, &mut Vec::new(), use_reserve));
        }
        if appended.is_err() {
            sending.records.truncate(others);
            sending.owners.truncate(others);
            // Otherwise callers would wait for a record that is never written. `sending` and the group are locked, so no later
            // generation was begun.
            cell.changes.lock().cancel_generation(generation);
        }
        appended.map(|_| generation)
    }

    /// Notes that something was appended to this commit.
    pub(super) fn appended(&self, commit: u64) {
        self.newest_commit.fetch_max(commit, Ordering::SeqCst);
    }

    /// Writes all pending records now. If another thread is sending, leaves that to it. Returns false if the engine refused the
    /// records, so that the caller must try again later.
    pub(super) fn flush(&self) -> bool {
        let _deferred = DeferredWakes::enter();
        loop {
            let mut taken = self.try_lock();
            if taken.is_none() {
                // The holder of the lock checks for requests after it has released the lock.
                self.ask();
                taken = self.try_lock();
            }
            let Some(mut sending) = taken else { return true };
            self.is_demanded.store(false, Ordering::SeqCst);
            let sent = self.append_in_parts(&mut sending);
            // Sets `is_refused` before the lock is released: the next sender takes back the refusals that are reported below only
            // if it sees this flag.
            self.note_room(&sent);
            if let Err(StoreError::Full) = sent {
                sending.owners.iter().for_each(|(cell, record)| cell.waiters.record_refused(record));
            }
            drop(sending);
            self.committed(self.engine.durable_commit());
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

    /// Notes whether group records are refused, and logs when that begins and when it ends. Does not log every refusal.
    fn note_room(&self, sent: &Result<(), StoreError>) {
        match sent {
            Err(StoreError::Full) if !self.is_refused.swap(true, Ordering::SeqCst) => tracing::error!(
                "the disk is full, including the space that is reserved for group records: acks apply but are not durable, \
                 and are answered with storage_full until there is space"
            ),
            Ok(()) if self.is_refused.swap(false, Ordering::SeqCst) => {
                tracing::info!("there is space for group records again: acks are durable");
            }
            _ => {}
        }
    }

    /// Whether records wait because the disk is full, including its reserve.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::SeqCst)
    }

    /// Appends all pending records, in several batches if they do not fit into one.
    fn append_in_parts(&self, sending: &mut Sending) -> Result<(), StoreError> {
        loop {
            match self.append(sending, &[], &mut Vec::new(), true) {
                Err(StoreError::TooLarge(_)) => {}
                other => return other.map(|_| ()),
            }
            let mut part = Sending::default();
            part.take_half(sending);
            while let Err(error) = self.send(&mut part, &[], &mut Vec::new(), true) {
                if !matches!(error, StoreError::TooLarge(_)) {
                    sending.prepend(part);
                    return Err(error);
                }
                let mut smaller = Sending::default();
                smaller.take_half(&mut part);
                sending.prepend(part);
                part = smaller;
            }
        }
    }

    /// Requests that the pending records are written: by the current holder of the lock, or after the next commit.
    pub(super) fn ask(&self) {
        self.is_demanded.store(true, Ordering::SeqCst);
    }

    /// Called when a caller waits for pending changes. Writes them now, or makes them be written when the commit in progress
    /// ends.
    pub(super) fn demand(&self) {
        self.ask();
        let is_committing = self.newest_commit.load(Ordering::SeqCst) > self.engine.durable_commit();
        if !is_committing {
            self.flush();
        }
    }

    /// Must be called by threads that have held the lock for another purpose, after they have released it. Reports records that
    /// are already durable, and writes those that were requested meanwhile.
    pub(super) fn after_sending(&self) {
        self.committed(self.engine.durable_commit());
        if self.is_demanded.load(Ordering::SeqCst) {
            self.demand();
        }
    }

    /// Reports to the groups that their records up to this commit are durable.
    pub(super) fn committed(&self, commit: u64) {
        loop {
            let mut in_flight = self.in_flight.lock();
            match in_flight.front() {
                Some((carrier, ..)) if *carrier <= commit => {}
                _ => return,
            }
            let done = in_flight.pop_front();
            drop(in_flight);
            if let Some((_, cell, record)) = done {
                cell.waiters.record_durable(&record);
            }
        }
    }

    pub(super) fn is_demanded(&self) -> bool {
        self.is_demanded.load(Ordering::SeqCst)
    }
}
