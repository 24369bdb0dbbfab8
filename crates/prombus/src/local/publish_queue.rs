//! Appends publishes to the engine. Publishes that find no room in the engine wait in a queue, called the line.

use super::groups::act::GroupRuntime;
use super::lock_order::{LEAF, RankedMutex};
use super::registry::{Registry, TopicRefused};
use crate::commit_watch::CommitWatch;
use crate::deferred_wakes::DeferredWakes;
use crate::engine::{ADDRESSEE_FEATURE, AppendBatch, Appended, Engine, NewEvent, Published, StateRecord};
use crate::error::{PublishError, StoreError, Unavailable};
use crate::publish::PublishBatch;
use crate::publishing::{AppendedEvents, PlaceInLine, PublishLine, Publishing};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The maximum size of the publishes in the line. Further publishes wait outside the line.
const LINE_BYTES_MAX: usize = 64 << 20;
/// The maximum number of batches whose memory is kept for reuse.
const SPARES_MAX: usize = 64;
/// How often a publish is retried because one of its topics was deleted meanwhile.
const RETRIES_MAX: usize = 100;

/// Appends publishes in the order of calls.
pub(super) struct PublishQueue {
    engine: Arc<dyn Engine>,
    registry: Arc<Registry>,
    runtime: Arc<GroupRuntime>,
    commits: Arc<CommitWatch>,
    max_payload_bytes: usize,
    /// Batches whose memory is reused.
    spare_batches: RankedMutex<LEAF, Vec<PublishBatch>>,
    line: Mutex<Line>,
    /// The number of publishes in the line. While it is zero, callers need not lock the line.
    line_length: AtomicUsize,
    /// Held by the thread that appends the line.
    turn: Mutex<()>,
}

/// Publishes that found no room, in the order of calls.
#[derive(Default)]
struct Line {
    places: VecDeque<Arc<PlaceInLine>>,
    /// The size of all publishes in the line.
    bytes: usize,
}

/// Why a batch was not appended.
enum Refused {
    Busy,
    Failed(PublishError),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Busy => Self::Busy,
            other => Self::Failed(other.into()),
        }
    }
}

impl From<TopicRefused> for Refused {
    fn from(refused: TopicRefused) -> Self {
        match refused {
            TopicRefused::TooMany(limit) => Self::Failed(PublishError::TooManyTopics(limit)),
            TopicRefused::Engine(error) => error.into(),
        }
    }
}

impl PublishQueue {
    pub(super) fn new(
        engine: Arc<dyn Engine>,
        registry: Arc<Registry>,
        runtime: Arc<GroupRuntime>,
        commits: Arc<CommitWatch>,
        max_payload_bytes: usize,
    ) -> Self {
        Self {
            engine,
            registry,
            runtime,
            commits,
            max_payload_bytes,
            spare_batches: RankedMutex::default(),
            line: Mutex::default(),
            line_length: AtomicUsize::new(0),
            turn: Mutex::default(),
        }
    }

    /// An empty batch.
    pub(super) fn batch(&self) -> PublishBatch {
        let now_ms = self.runtime.clock.wall_ms();
        let Some(mut batch) = self.spare_batches.lock().pop() else {
            return PublishBatch::new(now_ms, self.max_payload_bytes);
        };
        batch.reset(now_ms);
        batch
    }

    /// Keeps the memory of an appended batch for reuse.
    fn recycle(&self, batch: PublishBatch) {
        if batch.is_worth_keeping() {
            let mut spare = self.spare_batches.lock();
            if spare.len() < SPARES_MAX {
                spare.push(batch);
            }
        }
    }

    /// Whether publishes wait in the line.
    pub(super) fn has_line(&self) -> bool {
        self.line_length.load(Ordering::SeqCst) > 0
    }

    /// Refuses all publishes in the line.
    pub(super) fn refuse_line(&self, reason: &Unavailable) {
        let mut line = self.line.lock();
        let left = std::mem::take(&mut *line);
        self.line_length.store(0, Ordering::SeqCst);
        drop(line);
        left.places.iter().for_each(|place| place.finish(Err(reason.clone().into())));
    }

    fn append(&self, batch: &PublishBatch) -> Result<AppendedEvents, Refused> {
        let is_addressed = batch.has_addressees();
        if is_addressed {
            self.check_addressees(batch)?;
        }
        let mut events: Vec<NewEvent<'_>> = Vec::with_capacity(batch.len());
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut tries = 0;
        loop {
            while !self.registry.resolve(batch, &mut events) {
                self.registry.ensure_topics(batch)?;
            }
            let appended = if is_addressed {
                self.append_addressed(&events, &mut outcomes)
            } else {
                self.append_with_records(&events, &mut outcomes)
            };
            match appended {
                // The topic was deleted between the lookup and the append, so it is created again.
                Err(StoreError::UnknownTopic(_)) if tries < RETRIES_MAX => tries += 1,
                appended => return Ok(AppendedEvents::new(appended?, outcomes)),
            }
        }
    }

    /// Refuses a batch with an event that is addressed to a group that does not exist or does not read the event's topic: no group
    /// would receive the event.
    fn check_addressees(&self, batch: &PublishBatch) -> Result<(), Refused> {
        let mut last = None;
        for (topic, addressee) in batch.addressed_events() {
            // A redrive publishes many events to one group.
            if last == Some((topic, addressee)) {
                continue;
            }
            last = Some((topic, addressee));
            let found = self.registry.find_group(&addressee.subscription, &addressee.group);
            if found.as_ref().is_ok_and(|cell| cell.reads(topic)) {
                continue;
            }
            let (subscription, group) = (addressee.subscription.clone(), addressee.group.clone());
            return Err(Refused::Failed(match found {
                Ok(_) => PublishError::NotRead { subscription, group, topic: topic.to_string() },
                Err(_) => PublishError::UnknownGroup { subscription, group },
            }));
        }
        Ok(())
    }

    /// Appends events with addressees, together with the record that the store has such events. A version of the program that
    /// would deliver them to all groups then refuses to open the store. The record is written every time, because an earlier one
    /// may not have become durable.
    fn append_addressed(
        &self,
        events: &[NewEvent<'_>],
        outcomes: &mut Vec<Published>,
    ) -> Result<Appended, StoreError> {
        let records = [StateRecord::Requires { feature: ADDRESSEE_FEATURE.to_owned() }];
        let batch = AppendBatch { events, records: &records, use_reserve: false };
        let appended = self.engine.append(&batch, outcomes)?;
        self.runtime.has_addressees.store(true, Ordering::Relaxed);
        self.runtime.records.appended(appended.commit);
        Ok(appended)
    }

    /// Appends events together with pending group records.
    fn append_with_records(
        &self,
        events: &[NewEvent<'_>],
        outcomes: &mut Vec<Published>,
    ) -> Result<Appended, StoreError> {
        let _deferred = DeferredWakes::enter();
        let records = &self.runtime.records;
        let sending = if records.is_dirty() { records.try_lock() } else { None };
        let Some(mut sending) = sending else { return self.append_alone(events, outcomes) };
        let mut appended = records.append(&mut sending, events, outcomes, false);
        if appended.is_err() {
            // The records stay pending. Requests that they are written, so that they do not wait for the next publish.
            records.ask();
        }
        if let Err(StoreError::TooLarge(_)) = appended {
            // Perhaps the batch is too large only because of the records.
            appended = self.append_alone(events, outcomes);
        }
        drop(sending);
        records.after_sending();
        appended
    }

    fn append_alone(
        &self,
        events: &[NewEvent<'_>],
        outcomes: &mut Vec<Published>,
    ) -> Result<Appended, StoreError> {
        let appended = self.engine.append(&AppendBatch { events, ..AppendBatch::default() }, outcomes)?;
        self.runtime.records.appended(appended.commit);
        Ok(appended)
    }
}

impl PublishLine for PublishQueue {
    fn enter(self: Arc<Self>, batch: PublishBatch) -> Publishing {
        if self.commits.is_closed() {
            return Publishing::done(Err(Unavailable::Closed.into()));
        }
        if batch.is_empty() {
            return Publishing::done(Ok(Vec::new()));
        }
        if !self.has_line() {
            match self.append(&batch) {
                Ok(appended) => {
                    self.recycle(batch);
                    return Publishing::committing(appended, Arc::clone(&self.commits));
                }
                Err(Refused::Busy) => {}
                Err(Refused::Failed(error)) => return Publishing::done(Err(error)),
            }
        }
        let mut line = self.line.lock();
        // Checked under the lock. The reason is set before `refuse_line` empties the line, so no publish can enter the
        // line after that and be left there.
        if let Some(reason) = self.commits.unavailable().cloned().or_else(|| self.commits.suspended()) {
            drop(line);
            return Publishing::done(Err(reason.into()));
        }
        if !line.places.is_empty() && line.bytes + batch.byte_count() > LINE_BYTES_MAX {
            drop(line);
            return Publishing::outside(batch, self);
        }
        line.bytes += batch.byte_count();
        let place = Arc::new(PlaceInLine::new(batch));
        line.places.push_back(Arc::clone(&place));
        self.line_length.store(line.places.len(), Ordering::SeqCst);
        drop(line);
        // Makes the timer append the line, because it may be that no caller polls its publish.
        self.runtime.timer.arm_flush(self.runtime.clock.steady_ms());
        Publishing::queued(place, self)
    }

    fn advance(&self) {
        if !self.has_line() {
            return;
        }
        let _deferred = DeferredWakes::enter();
        // One thread at a time appends the publishes of the line, in order. A second thread leaves that to the first.
        let Some(turn) = self.turn.try_lock() else { return };
        self.move_line(&turn);
    }

    fn append_line(&self) -> bool {
        if self.has_line() {
            let _deferred = DeferredWakes::enter();
            self.move_line(&self.turn.lock());
        }
        !self.has_line()
    }

    fn commits(&self) -> &Arc<CommitWatch> {
        &self.commits
    }
}

impl PublishQueue {
    fn move_line(&self, _turn: &MutexGuard<'_, ()>) {
        loop {
            let Some(place) = self.line.lock().places.front().cloned() else { return };
            let Some(batch) = place.take_batch() else { return };
            let result = match self.append(&batch) {
                Err(Refused::Busy) => {
                    place.put_back(batch);
                    return;
                }
                Ok(appended) => Ok(appended),
                Err(Refused::Failed(error)) => Err(error),
            };
            let mut line = self.line.lock();
            // `refuse_line` may have emptied the line meanwhile.
            if line.places.front().is_some_and(|first| Arc::ptr_eq(first, &place)) {
                line.places.pop_front();
                line.bytes -= batch.byte_count();
            }
            self.line_length.store(line.places.len(), Ordering::SeqCst);
            drop(line);
            self.recycle(batch);
            place.finish(result);
        }
    }
}
