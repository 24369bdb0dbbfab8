//! The way of a publish into the engine, and the line in which it waits when there is no room.

use super::groups::act::GroupRuntime;
use super::lock_order::{LEAF, RankedMutex};
use super::registry::{Registry, TopicRefused};
use crate::commit_watch::CommitWatch;
use crate::deferred_wakes::DeferredWakes;
use crate::engine::{AppendBatch, Appended, Engine, NewEvent, Published};
use crate::error::{PublishError, StoreError, Unavailable};
use crate::publish::PublishBatch;
use crate::publishing::{AppendedEvents, PlaceInLine, PublishLine, Publishing};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most bytes of publishes that wait in line; more wait outside.
const LINE_BYTES_MAX: usize = 64 << 20;
/// The most batches that are kept for another use.
const SPARES_MAX: usize = 64;
/// How often a publish is tried whose topics are deleted meanwhile.
const RETRIES_MAX: usize = 100;

/// Appends publishes in the order of calls.
pub(super) struct PublishQueue {
    engine: Arc<dyn Engine>,
    registry: Arc<Registry>,
    runtime: Arc<GroupRuntime>,
    commits: Arc<CommitWatch>,
    max_payload_bytes: usize,
    /// Memory of batches, used again.
    spare_batches: RankedMutex<LEAF, Vec<PublishBatch>>,
    line: Mutex<Line>,
    line_length: AtomicUsize,
    /// Held by the thread that moves the line.
    turn: Mutex<()>,
}

/// Publishes that found no room, in order.
#[derive(Default)]
struct Line {
    places: VecDeque<Arc<PlaceInLine>>,
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

    /// Keeps the memory of a batch that was appended.
    fn recycle(&self, batch: PublishBatch) {
        if batch.is_worth_keeping() {
            let mut spare = self.spare_batches.lock();
            if spare.len() < SPARES_MAX {
                spare.push(batch);
            }
        }
    }

    /// Whether publishes wait in line.
    pub(super) fn has_line(&self) -> bool {
        self.line_length.load(Ordering::SeqCst) > 0
    }

    /// Refuses everything that waits in line.
    pub(super) fn refuse_line(&self, reason: &Unavailable) {
        let mut line = self.line.lock();
        let left = std::mem::take(&mut *line);
        self.line_length.store(0, Ordering::SeqCst);
        drop(line);
        left.places.iter().for_each(|place| place.finish(Err(reason.clone().into())));
    }

    fn append(&self, batch: &PublishBatch) -> Result<AppendedEvents, Refused> {
        let mut events: Vec<NewEvent<'_>> = Vec::with_capacity(batch.len());
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut tries = 0;
        loop {
            while !self.registry.resolve(batch, &mut events) {
                self.registry.ensure_topics(batch)?;
            }
            match self.append_with_records(&events, &mut outcomes) {
                // Deleted between the look and the append: it is created again.
                Err(StoreError::UnknownTopic(_)) if tries < RETRIES_MAX => tries += 1,
                appended => return Ok(AppendedEvents::new(appended?, outcomes)),
            }
        }
    }

    /// Appends events together with records of groups that wait.
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
            // The records stay, and do not wait for the next publish.
            records.ask();
        }
        if let Err(StoreError::TooLarge(_)) = appended {
            // Perhaps only because of the records.
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
        // Under the lock: who refuses the line has said why before, so a place that comes after that is not left behind.
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
        // For publishes that nobody awaits.
        self.runtime.timer.arm_flush(self.runtime.clock.steady_ms());
        Publishing::queued(place, self)
    }

    fn advance(&self) {
        if !self.has_line() {
            return;
        }
        let _deferred = DeferredWakes::enter();
        // One thread at a time, in order; a second one leaves it to the first.
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
            // The line may have been refused meanwhile.
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
