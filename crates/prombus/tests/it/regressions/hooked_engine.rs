//! Publishes, acks and seeks that run while the engine appends, searches or cleans.

use crate::rig::{Rig, poll};
use prombus::engine::{
    AppendBatch, Appended, Cleaned, CommitTimes, Engine, EngineCapabilities, EngineObserver, EventHead,
    EventId, EventScanner, Liveness, LogEngine, LogEngineOptions, Lookup, MayBlock, RestoredState, Scanned,
    StoredEvent, StoredTopic, TopicId, TopicUsage, Visit,
};
use prombus::{
    Backend, Bus, Clock, Limits, LocalBackend, ManualClock, Published, ReadError, Start, StoreError, Topic,
    TopicOptions, TopicRule, Unavailable,
};
use prombus_log::Step;
use prombus_log::storage::simulated::Disk;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};

/// Called in an append, and may refuse it.
pub(super) type Hook = Box<dyn FnOnce() -> Option<StoreError> + Send>;

/// An engine that calls hooks at chosen moments.
pub(super) struct Hooked {
    inner: Arc<LogEngine>,
    in_find: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    pub(super) in_append: Mutex<Option<Hook>>,
    before_clean: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    observer: Mutex<Option<Arc<dyn EngineObserver>>>,
    /// Appends are refused while this is set.
    is_busy: AtomicBool,
    pub(super) reads: Arc<Reads>,
    /// Notified of each append of group records.
    pub(super) records: Mutex<Option<mpsc::Sender<()>>>,
}

/// Controls reads.
#[derive(Default)]
pub(super) struct Reads {
    /// Reads are pending while this is set. No waker is called when it is reset.
    pub(super) is_pending: AtomicBool,
    /// Called in the next read.
    pub(super) in_next: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

struct HookedScanner {
    inner: Box<dyn EventScanner>,
    reads: Arc<Reads>,
}

impl EventScanner for HookedScanner {
    fn poll_scan(
        &mut self,
        topic: TopicId,
        from: u64,
        to: u64,
        context: &mut Context<'_>,
        visit: &mut dyn FnMut(&StoredEvent<'_>) -> Visit,
    ) -> Poll<Result<Scanned, ReadError>> {
        let hook = self.reads.in_next.lock().expect("no panic").take();
        if let Some(hook) = hook {
            hook();
        }
        if self.reads.is_pending.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        self.inner.poll_scan(topic, from, to, context, visit)
    }
    fn is_in_memory(&self, topic: TopicId, from: u64) -> bool {
        self.inner.is_in_memory(topic, from)
    }
    fn read_ahead(&mut self, bytes: usize) {
        self.inner.read_ahead(bytes);
    }
    fn rest(&mut self) {
        self.inner.rest();
    }
}

impl Hooked {
    pub(super) fn over(inner: Arc<LogEngine>) -> Self {
        Self {
            inner,
            in_find: Mutex::default(),
            in_append: Mutex::default(),
            before_clean: Mutex::default(),
            observer: Mutex::default(),
            is_busy: AtomicBool::new(false),
            reads: Arc::default(),
            records: Mutex::default(),
        }
    }

    pub(super) fn observer(&self) -> Arc<dyn EngineObserver> {
        self.observer.lock().expect("no panic").clone().expect("the bus observes its engine")
    }

    /// The engine cannot commit until [`resume`](Self::resume).
    pub(super) fn suspend(&self) {
        self.is_busy.store(true, Ordering::SeqCst);
        self.observer().suspended("unplugged".to_owned());
    }

    pub(super) fn resume(&self) {
        self.observer().resumed();
        self.is_busy.store(false, Ordering::SeqCst);
        self.observer().room();
    }
}

impl Engine for Hooked {
    fn capabilities(&self) -> EngineCapabilities {
        self.inner.capabilities()
    }
    fn observe(&self, observer: Arc<dyn EngineObserver>) {
        *self.observer.lock().expect("no panic") = Some(Arc::clone(&observer));
        self.inner.observe(observer);
    }
    fn restored(&self) -> RestoredState {
        self.inner.restored()
    }
    fn append(&self, batch: &AppendBatch<'_>, outcomes: &mut Vec<Published>) -> Result<Appended, StoreError> {
        if !batch.events.is_empty() {
            let hook = self.in_append.lock().expect("no panic").take();
            if let Some(error) = hook.and_then(|hook| hook()) {
                return Err(error);
            }
        }
        if self.is_busy.load(Ordering::SeqCst) {
            return Err(StoreError::Busy);
        }
        if let Some(told) = &*self.records.lock().expect("no panic")
            && !batch.records.is_empty()
        {
            let _ = told.send(());
        }
        self.inner.append(batch, outcomes)
    }
    fn durable_commit(&self) -> u64 {
        self.inner.durable_commit()
    }
    fn commit_times(&self, closing: i64) -> CommitTimes {
        self.inner.commit_times(closing)
    }
    fn wait_for_room(&self, may_block: MayBlock) -> bool {
        self.inner.wait_for_room(may_block)
    }
    fn ensure_topic(&self, name: &Topic) -> Result<TopicId, StoreError> {
        self.inner.ensure_topic(name)
    }
    fn delete_topic(&self, topic: TopicId, name: &Topic) -> Result<u64, StoreError> {
        self.inner.delete_topic(topic, name)
    }
    fn retain_from(&self, firsts: &[(TopicId, u64)]) -> Result<(), StoreError> {
        self.inner.retain_from(firsts)
    }
    fn retained_from(&self, topic: TopicId) -> u64 {
        self.inner.retained_from(topic)
    }
    fn topics(&self) -> Vec<StoredTopic> {
        self.inner.topics()
    }
    fn last_seq(&self, topic: TopicId) -> u64 {
        self.inner.last_seq(topic)
    }
    fn appended_seq(&self, topic: TopicId) -> Lookup<u64> {
        self.inner.appended_seq(topic)
    }
    fn is_own_id(&self, id: EventId) -> bool {
        self.inner.is_own_id(id)
    }
    fn scanner(&self) -> Box<dyn EventScanner> {
        Box::new(HookedScanner { inner: self.inner.scanner(), reads: Arc::clone(&self.reads) })
    }
    fn first_seq(&self, topic: TopicId) -> Lookup<Option<u64>> {
        self.inner.first_seq(topic)
    }
    fn head_at_or_after(&self, topic: TopicId, seq: u64) -> Lookup<Option<EventHead>> {
        self.inner.head_at_or_after(topic, seq)
    }
    fn find(&self, topic: TopicId, id: EventId) -> Lookup<Option<u64>> {
        let hook = self.in_find.lock().expect("no panic").take();
        if let Some(hook) = hook {
            hook();
        }
        self.inner.find(topic, id)
    }
    fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Lookup<Option<u64>> {
        self.inner.first_at_or_after(topic, ts)
    }
    fn have_keys_before(
        &self,
        topic: TopicId,
        keys: Vec<(u64, Vec<u8>)>,
    ) -> Lookup<Vec<Result<bool, ReadError>>> {
        self.inner.have_keys_before(topic, keys)
    }
    fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Lookup<u64> {
        self.inner.first_within_bytes(topic, bytes)
    }
    fn usage(&self, topics: Vec<TopicId>) -> Lookup<Vec<Option<TopicUsage>>> {
        self.inner.usage(topics)
    }
    fn clean(
        &self,
        liveness: &dyn Liveness,
        compact: bool,
        may_block: MayBlock,
    ) -> Result<Cleaned, Unavailable> {
        let hook = self.before_clean.lock().expect("no panic").take();
        if let Some(hook) = hook {
            hook();
        }
        self.inner.clean(liveness, compact, may_block)
    }
    fn figures(&self) -> prombus::StoreFigures {
        self.inner.figures()
    }
    fn close(&self, may_block: MayBlock) -> Result<(), Unavailable> {
        self.inner.close(may_block)
    }
}

pub(super) fn hooked() -> (Rig, Arc<Hooked>) {
    let disk = Disk::new(1);
    let clock = ManualClock::new(1_700_000_000_000);
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let options = LogEngineOptions { log: crate::rig::small_options() };
    let store = LogEngine::open_storage(Arc::new(disk.clone()), options, Arc::clone(&shared)).expect("opens");
    let store = Arc::new(store);
    let hooked = Arc::new(Hooked::over(Arc::clone(&store)));
    let as_store = Arc::clone(&hooked) as Arc<dyn Engine>;
    let backend = LocalBackend::open_without_timer(as_store, shared, Limits::default()).expect("opens");
    let bus = Bus::with_backend(Arc::new(backend.clone()));
    (Rig { disk, clock, store, backend, bus }, hooked)
}

/// A seek holds the flusher while it searches its event. Flushes that were requested meanwhile rely on the seek to run them,
/// also if it fails.
#[test]
fn acks_are_written_even_if_a_failing_seek_blocked_the_flush() {
    let (rig, store) = hooked();
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    rig.commit();
    let mut acking = all[0].ack();
    let backend = rig.backend.clone();
    let clock = rig.clock.clone();
    *store.in_find.lock().expect("no panic") = Some(Box::new(move || {
        // The timer thread runs meanwhile.
        std::thread::spawn(move || {
            clock.advance_ms(10);
            backend.tick();
        })
        .join()
        .expect("ticks");
    }));
    let unknown = prombus::Uuid::from_u128(77);
    let sought = rig.done(Box::pin(rig.bus.seek("orders", "billing", Start::AfterId(unknown))));
    assert!(sought.is_err());
    for _ in 0..10 {
        rig.pass(10);
        rig.commit();
    }
    for after in rig.after_power_cuts() {
        assert_eq!(after.floor("orders", "billing"), 1, "an ack is not written after 100 ms");
        after.stop();
    }
    assert!(poll(&mut acking).is_ready());
    rig.stop();
}

/// Cleaning asks the map of a topic which events are live. Events that were published after the map was built are not in it,
/// but are live.
#[test]
fn compaction_keeps_events_that_were_published_after_its_map_was_read() {
    let (rig, store) = hooked();
    let options =
        TopicOptions { compaction: Some(true), snapshot_interval_ms: Some(0), ..TopicOptions::default() };
    rig.backend.set_topic_rules(vec![TopicRule::new("kv", options).expect("a good rule")]);
    let set = |bus: &Bus, log: &LogEngine, topic: &str, key: &str, value: &str| {
        let mut publishing = bus.publish(topic, value).key(key).send();
        while poll(&mut publishing).is_pending() {
            while log.log().step_commit() == Step::Worked || log.log().step_housekeeping() == Step::Worked {}
        }
    };
    let filler = "v".repeat(200);
    for _ in 0..200 {
        set(&rig.bus, &rig.store, "kv", "often", &filler);
    }
    rig.pass(60_000);
    let (bus, log, value) = (rig.bus.clone(), Arc::clone(&rig.store), filler.clone());
    *store.before_clean.lock().expect("no panic") = Some(Box::new(move || {
        // Segments with nothing else.
        for number in 0..200 {
            set(&bus, &log, "kv", &format!("late-{number}"), &value);
        }
        // Segments that are rewritten, because most of their events are dead.
        for number in 0..200 {
            set(&bus, &log, "deleted", "any", &value);
            if number % 20 == 0 {
                set(&bus, &log, "kv", &format!("mixed-{number}"), &value);
            }
        }
        let deleted = Topic::new("deleted").expect("a good name");
        let mut deleting = Box::pin(bus.delete_topic(&deleted));
        while poll(&mut deleting).is_pending() {
            while log.log().step_commit() == Step::Worked {}
        }
    }));
    crate::rig::run_maintenance(&rig.backend);
    rig.commit();
    assert!(store.before_clean.lock().expect("no panic").is_none(), "nothing was cleaned");
    assert!(rig.store.log().usage().expect("reads").iter().any(|it| it.events < 300), "nothing was removed");
    for after in rig.after_power_cuts() {
        let state = after.done(Box::pin(after.bus.load_state("kv"))).expect("loads");
        assert_eq!(state.iter().count(), 211, "a key that was set when cleaning began is lost");
        after.stop();
    }
    rig.stop();
}

/// The same with a publish that includes the acks in its append and is refused.
#[test]
fn acks_are_written_even_if_a_refused_publish_had_taken_them() {
    let (rig, store) = hooked();
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    rig.commit();
    drop(all[0].ack());
    let backend = rig.backend.clone();
    let clock = rig.clock.clone();
    *store.in_append.lock().expect("no panic") = Some(Box::new(move || {
        std::thread::spawn(move || {
            clock.advance_ms(10);
            backend.tick();
        })
        .join()
        .expect("ticks");
        Some(StoreError::Full)
    }));
    assert!(rig.done(rig.bus.publish("orders", "two").send()).is_err());
    for _ in 0..10 {
        rig.pass(10);
        rig.commit();
    }
    for after in rig.after_power_cuts() {
        assert_eq!(after.floor("orders", "billing"), 1, "an ack is not written after 100 ms");
        after.stop();
    }
    rig.stop();
}
