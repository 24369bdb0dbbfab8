//! Opening and closing the backend, and starting its threads.

use super::Local;
use super::dead_letters::{self, DeadLetterWriter};
use super::engine_events::{EngineEvents, is_engine_thread};
use super::groups::act::GroupRuntime;
use super::groups::dead_letter_queue::DeadLetterQueue;
use super::groups::{Groups, OldestUnsettledTimes};
use super::kept_values::KeptValues;
use super::latest_by_key::LatestByKey;
use super::letter_states::LetterStates;
use super::maintenance::schedule::MaintenanceSchedule;
use super::maintenance::{self, Maintenance};
use super::publish_queue::PublishQueue;
use super::reading::Reading;
use super::record_writer::RecordWriter;
use super::registry::Registry;
use super::stop_clock::StopClock;
use super::suspension::Suspension;
use super::timer::Timer;
use super::timer_thread;
use super::topic_info::TopicLists;
use super::topic_settings::TopicSettingsTable;
use super::waiting_readers::WaitingReaders;
use crate::clock::Clock;
use crate::commit_watch::CommitWatch;
use crate::config::Limits;
use crate::delivery::{ErrorBudget, Millis};
use crate::engine::{Engine, MayBlock, RestoredState};
use crate::error::{OpenError, Unavailable};
use crate::leasing_gate::LeasingGate;
use crate::publishing::PublishLine;
use parking_lot::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// The number of threads that write to the engine: the timer thread and the dead letter thread. They are started first, and end
/// before the engine is closed.
const WRITING_THREADS: usize = 2;

/// A backend that runs groups in this process and stores everything in an engine. This is a handle: clones share the same
/// backend. The backend is closed when the last handle is dropped; each member also keeps a handle.
#[derive(Clone)]
pub struct LocalBackend {
    pub(super) handle: Arc<Handle>,
}

/// Closes the backend when it is dropped.
pub(super) struct Handle {
    pub(super) local: Arc<Local>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The result of closing. A second caller waits until the first is done, and gets the same result.
    closed: Mutex<Option<Result<(), Unavailable>>>,
}

impl LocalBackend {
    /// Opens a backend over an engine.
    ///
    /// # Errors
    /// [`OpenError`] when the groups cannot be restored, or no thread can be started.
    pub fn open(engine: Arc<dyn Engine>, clock: Arc<dyn Clock>, limits: Limits) -> Result<Self, OpenError> {
        // This clock detects when the process was stopped, if a thread (here the timer thread) reads it regularly.
        let clock = Arc::new(StopClock::new(clock));
        let local = Local::open(engine, Arc::clone(&clock) as Arc<dyn Clock>, &limits)?;
        let backend = Self::over(local);
        let local = &backend.handle.local;
        let weak = Arc::downgrade(local);
        backend.handle.spawn("prombus-timer", move || timer_thread::run(&weak, &clock))?;
        let weak = Arc::downgrade(&local.dead_letters);
        backend.handle.spawn("prombus-dead-letters", move || dead_letters::run(&weak))?;
        let (weak, schedule) = (Arc::downgrade(&local.maintenance), Arc::clone(&local.maintenance.schedule));
        let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(OpenError::Thread)?;
        backend.handle.spawn("prombus-maintenance", move || maintenance::run(&weak, &schedule, &runtime))?;
        Ok(backend)
    }

    /// Opens a backend over an engine, without threads: the caller calls [`tick`](Self::tick) and
    /// [`run_maintenance`](Self::run_maintenance).
    ///
    /// # Errors
    /// [`OpenError`] when the groups cannot be restored.
    pub fn open_without_timer(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        limits: Limits,
    ) -> Result<Self, OpenError> {
        let local = Local::open(engine, clock, &limits)?;
        let weak = Arc::downgrade(&local.dead_letters);
        local.runtime.dead_letters.work_without_thread(move || {
            if let Some(writer) = weak.upgrade() {
                writer.work();
            }
        });
        Ok(Self::over(local))
    }

    fn over(local: Arc<Local>) -> Self {
        Self { handle: Arc::new(Handle { local, threads: Mutex::default(), closed: Mutex::default() }) }
    }

    /// Sets the leasing gate: from now on events are leased only while it is open. Must be called before any member joins a
    /// group.
    pub fn set_leasing_gate(&self, gate: &Arc<LeasingGate>) {
        let registry = Arc::downgrade(&self.handle.local.registry);
        gate.on_open(move || {
            let registry = registry.upgrade().into_iter();
            registry.flat_map(|it| it.all_groups()).for_each(|cell| cell.waiters.wake_windows(None));
        });
        let is_first = self.handle.local.groups.gate.set(Arc::clone(gate)).is_ok();
        debug_assert!(is_first, "a backend has one gate");
    }

    /// Runs the timers that are due, in a backend without threads. Returns when to call it again, by the steady clock.
    pub fn tick(&self) -> Option<Millis> {
        self.handle.local.tick()
    }

    /// Runs one round of maintenance: retention, cleaning, snapshots. Returns the number of milliseconds until the next round is
    /// due.
    pub async fn run_maintenance(&self, may_block: MayBlock) -> Millis {
        self.handle.local.maintenance.run_round(may_block).await
    }

    /// Closes the backend, without an async runtime. Blocks the thread: it waits for other threads and for the disk.
    ///
    /// # Errors
    /// [`Unavailable`] when the engine had already stopped writing.
    pub fn close_blocking(&self) -> Result<(), Unavailable> {
        self.handle.close(MayBlock::on_this_thread())
    }

    /// Writes pending group records now, for tests that control every step. Returns false if the engine refused them and they
    /// must be written later.
    pub fn flush(&self) -> bool {
        self.handle.local.runtime.records.flush()
    }
}

/// The parts that are created first, because the other parts use them.
struct Foundation {
    commits: Arc<CommitWatch>,
    waiting_readers: Arc<WaitingReaders>,
    schedule: Arc<MaintenanceSchedule>,
    settings: Arc<TopicSettingsTable>,
    runtime: Arc<GroupRuntime>,
    registry: Arc<Registry>,
    publishing: Arc<PublishQueue>,
}

impl Foundation {
    fn new(
        engine: &Arc<dyn Engine>,
        clock: &Arc<dyn Clock>,
        limits: &Limits,
        restored: &RestoredState,
    ) -> Result<Self, OpenError> {
        let commits: Arc<CommitWatch> = Arc::default();
        let waiting_readers: Arc<WaitingReaders> = Arc::default();
        let schedule: Arc<MaintenanceSchedule> = Arc::default();
        let settings = Arc::new(TopicSettingsTable::restore(restored)?);
        let runtime = Arc::new(GroupRuntime {
            records: RecordWriter::new(Arc::clone(engine), Arc::clone(clock)),
            clock: Arc::clone(clock),
            timer: Timer::default(),
            dead_letters: DeadLetterQueue::default(),
            has_addressees: AtomicBool::new(restored.has_addressees),
        });
        let registry = Arc::new(Registry::new(
            Arc::clone(engine),
            Arc::clone(&runtime),
            Arc::clone(&waiting_readers),
            Arc::clone(&settings),
            Arc::clone(&schedule),
            limits.max_topics,
        ));
        let publishing = Arc::new(PublishQueue::new(
            Arc::clone(engine),
            Arc::clone(&registry),
            Arc::clone(&runtime),
            Arc::clone(&commits),
            limits.max_payload_bytes,
        ));
        Ok(Self { commits, waiting_readers, schedule, settings, runtime, registry, publishing })
    }
}

impl Local {
    fn open(engine: Arc<dyn Engine>, clock: Arc<dyn Clock>, limits: &Limits) -> Result<Arc<Self>, OpenError> {
        let restored = engine.restored();
        let foundation = Foundation::new(&engine, &clock, limits, &restored)?;
        let Foundation { commits, waiting_readers, schedule, settings, runtime, registry, publishing } =
            foundation;
        let groups = Arc::new(Groups {
            engine: Arc::clone(&engine),
            runtime: Arc::clone(&runtime),
            registry: Arc::clone(&registry),
            commits: Arc::clone(&commits),
            publish_line: Arc::clone(&publishing) as Arc<dyn PublishLine>,
            error_budget: ErrorBudget::default(),
            oldest_unsettled: OldestUnsettledTimes::default(),
            max_groups: limits.max_groups,
            expire_ms: limits.group_expire_ms,
            gate: OnceLock::new(),
        });
        groups.restore(restored.groups)?;
        let reading = Arc::new(Reading {
            engine: Arc::clone(&engine),
            clock: Arc::clone(&clock),
            registry: Arc::clone(&registry),
            commits: Arc::clone(&commits),
            waiting_readers: Arc::clone(&waiting_readers),
        });
        let latest = Arc::new(LatestByKey::new(
            Arc::clone(&engine),
            Arc::clone(&clock),
            Arc::clone(&commits),
            limits.state_memory_bytes,
        ));
        let maintenance = Arc::new(Maintenance::new(
            Arc::clone(&reading),
            Arc::clone(&settings),
            Arc::clone(&groups),
            Arc::clone(&latest),
            Arc::clone(&publishing),
            schedule,
        ));
        let lists = TopicLists {
            engine: Arc::clone(&engine),
            registry: Arc::clone(&registry),
            settings: Arc::clone(&settings),
        };
        let letters = Arc::new(LetterStates::new(
            Arc::clone(&engine),
            Arc::clone(&registry),
            Arc::clone(&runtime),
            Arc::clone(&commits),
            restored.closed_letters,
        ));
        let dead_letters = DeadLetterWriter::new(
            Arc::clone(&engine),
            Arc::clone(&runtime),
            Arc::clone(&registry),
            Arc::clone(&letters),
        );
        commits.advance(engine.durable_commit());
        let local = Arc::new(Self {
            engine,
            clock,
            commits,
            runtime,
            registry,
            settings,
            waiting_readers,
            groups,
            publishing,
            reading,
            lists: Arc::new(lists),
            latest,
            maintenance,
            dead_letters: Arc::new(dead_letters),
            kept: KeptValues::new(restored.kept),
            letters,
            suspension: Suspension::default(),
            engine_wait_ms: limits.engine_wait_ms,
        });
        local.engine.observe(Arc::new(EngineEvents { local: Arc::downgrade(&local) }));
        Ok(local)
    }

    fn stop_threads(&self) {
        self.runtime.timer.stop();
        self.runtime.dead_letters.stop();
        self.maintenance.schedule.stop();
    }

    /// Writes pending publishes and records, closes the engine, and fails all waiting callers. Called when the writing threads
    /// have ended.
    fn close(&self, may_block: MayBlock) -> Result<(), Unavailable> {
        if self.commits.set_closed() {
            return Ok(());
        }
        self.publish_line(may_block);
        self.dead_letters.work();
        let cells = self.registry.all_groups();
        for cell in &cells {
            self.runtime.act(cell, |core, now| core.machine.close(now));
        }
        self.write_last_records(may_block);
        let closed = self.engine.close(may_block);
        let durable = self.engine.durable_commit();
        self.commits.advance(durable);
        self.runtime.records.committed(durable);
        self.fail(Unavailable::Closed);
        self.publishing.refuse_line(&Unavailable::Closed);
        closed
    }

    /// Appends the publishes that wait for room, even if no caller awaits them.
    fn publish_line(&self, may_block: MayBlock) {
        loop {
            self.publishing.advance();
            self.check_suspension(self.clock.steady_ms());
            let is_over = !self.publishing.has_line() || self.commits.unavailable().is_some();
            if is_over || self.commits.suspended().is_some() || !self.engine.wait_for_room(may_block) {
                return;
            }
            // The timer thread, which usually does this, has ended. Without this check, closing would wait for the end of an
            // outage.
            self.check_suspension(self.clock.steady_ms());
        }
    }

    fn write_last_records(&self, may_block: MayBlock) {
        let records = &self.runtime.records;
        loop {
            // Waits for a thread that is sending records: if that fails, its records are still unsent.
            drop(records.lock());
            if !records.is_dirty() {
                return;
            }
            if records.flush() {
                continue;
            }
            self.check_suspension(self.clock.steady_ms());
            // On a full disk there may never be room, and closing does not wait for it.
            let is_over = self.commits.unavailable().is_some()
                || self.commits.suspended().is_some()
                || records.is_refused();
            if is_over || !self.engine.wait_for_room(may_block) {
                tracing::error!("the last acks could not be written; their events will be redelivered");
                return;
            }
            self.check_suspension(self.clock.steady_ms());
        }
    }
}

impl Handle {
    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        self.threads.lock().push(thread.map_err(OpenError::Thread)?);
        Ok(())
    }

    pub(super) fn close(&self, may_block: MayBlock) -> Result<(), Unavailable> {
        let mut closed = self.closed.lock();
        if let Some(closed) = &*closed {
            return closed.clone();
        }
        self.local.stop_threads();
        let threads = std::mem::take(&mut *self.threads.lock());
        closed.insert(close_after_threads(&self.local, threads, may_block)).clone()
    }
}

/// Closes the backend after the writing threads have ended.
fn close_after_threads(
    local: &Local,
    threads: Vec<JoinHandle<()>>,
    may_block: MayBlock,
) -> Result<(), Unavailable> {
    let mut threads = threads.into_iter();
    // The timer thread ends at once, the dead letter thread after its current read or append. `Local::close` tries to write the
    // remaining dead letters; those that it cannot write are written after the next open.
    threads.by_ref().take(WRITING_THREADS).for_each(join);
    let closed = local.close(may_block);
    // The maintenance thread ends when the engine is closed.
    threads.for_each(join);
    closed
}

/// Waits for a thread to end, unless it is the current thread.
fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() {
        let _ = thread.join();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.local.commits.is_closed() {
            return;
        }
        if is_engine_thread() {
            // The handle was dropped inside a callback of the engine: some executors drop a task inside the call of its waker.
            // Closing the engine here would wait for this very thread, so another thread closes it.
            let local = Arc::clone(&self.local);
            local.stop_threads();
            let threads = std::mem::take(&mut *self.threads.lock());
            let close = move || close_after_threads(&local, threads, MayBlock::on_this_thread());
            let closer = std::thread::Builder::new().name("prombus-close".to_owned());
            if let Err(error) = closer.spawn(close) {
                tracing::error!("the bus could not be closed: {error}");
            }
            return;
        }
        // A caller that needs the result calls `close` itself.
        let _ = self.close(MayBlock::on_this_thread());
    }
}

impl std::fmt::Debug for LocalBackend {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let registry = &self.handle.local.registry;
        let (topics, groups) = (registry.topic_count(), registry.group_count());
        write!(formatter, "LocalBackend({topics} topics, {groups} groups)")
    }
}
