//! Faults that were there once, each with the least that shows it.

use crate::folder::Folder;
use crate::rig::{Rig, poll};
use prombus::store::{
    AppendBatch, CleanOptions, CleanReport, EventHead, EventId, GroupState, Liveness, LogStore,
    LogStoreOptions, MemoryStore, Outcome, Scanner, Store, StoreObserver, StoredTopic, TopicId, TopicUsage,
};
use prombus::{
    Backend, BackupError, Bus, Clock, DeliveryBatch, GroupName, GroupSpec, Limits, LocalBackend, ManualClock,
    MemberOptions, Pattern, PublishError, PullLimit, ReadError, Start, StoreError, Topic, TopicOptions,
    TopicRule, Unavailable,
};
use prombus_log::Step;
use prombus_log::storage::simulated::Disk;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Takes what room the disk has, until publishers are refused.
fn fill(rig: &Rig) {
    rig.disk.set_capacity(Some(rig.disk.used_bytes()));
    let filler = "f".repeat(1_000);
    for _ in 0..1_000 {
        if rig.done(rig.bus.publish("filler", filler.as_str()).send()).is_err() {
            return;
        }
    }
    panic!("the disk is never full");
}

#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Arc<Counting>) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(waker))))
}

/// The letter of a last nack finds no room. What the group writes about other events must not pass for its answer; of a first
/// attempt not even its number would be known.
#[test]
fn a_first_and_last_nack_whose_letter_is_put_off_is_durable_when_answered() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 2);
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_attempts(1));
    let first = rig.all(&mut orders);
    fill(&rig);
    let mut nacking = first[0].nack("boom");
    let early = poll(&mut nacking).is_ready();
    rig.commit();
    rig.ack(&first[1]);
    let answered = early || poll(&mut nacking).is_ready();
    rig.disk.set_capacity(None);
    if answered {
        for after in rig.after_power_cuts() {
            let mut orders = after.join(after.bus.subscribe("orders", "billing").max_attempts(1));
            let came = after.all(&mut orders);
            assert!(came.is_empty(), "the last nack was answered, and it is delivered again: {came:?}");
            after.stop();
        }
    }
    rig.stop();
}

/// Whoever has nothing to write has nothing to wait for.
#[test]
fn a_member_leaves_while_a_dead_letter_is_put_off() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 2);
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_attempts(1));
    let other = rig.subscribe("orders", "billing");
    let first = rig.all(&mut orders);
    fill(&rig);
    drop(first[0].nack("boom"));
    for _ in 0..5 {
        rig.pass(100);
        rig.commit();
    }
    let mut stale = first[0].ack();
    let mut leaving = Box::pin(other.unsubscribe());
    for _ in 0..10 {
        let _ = (poll(&mut stale), ());
        rig.pass(10);
        rig.commit();
    }
    assert!(poll(&mut leaving).is_ready(), "a member that has nothing cannot leave");
    rig.stop();
}

#[test]
fn a_seek_that_was_refused_holds_up_nobody() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 1);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    rig.ack(&all[0]);
    // The queue is full: the seek waits for room, and its caller does not wait for it.
    let large = "x".repeat(3_900);
    let mut publishing = rig.bus.publish("orders", large.as_str()).send();
    assert!(poll(&mut publishing).is_pending());
    let floors = "y".repeat(150);
    let mut more = Vec::new();
    for _ in 0..40 {
        let mut next = rig.bus.publish("z", floors.as_str()).send();
        let _ = poll(&mut next).is_pending();
        more.push(next);
    }
    let mut seeking = Box::pin(rig.bus.seek("orders", "billing", Start::Earliest));
    let _ = poll(&mut seeking);
    drop(seeking);
    rig.done(publishing).expect("publishes");
    for next in more {
        rig.done(next).expect("publishes");
    }
    let mut stale = all[0].ack();
    assert!(stale.is_stale());
    let mut leaving = Box::pin(orders.unsubscribe());
    for _ in 0..10 {
        let _ = (poll(&mut stale), poll(&mut leaving));
        rig.pass(10);
        rig.commit();
        if poll(&mut stale).is_ready() {
            rig.stop();
            return;
        }
    }
    panic!("a stale ack is never answered");
}

/// A member that stopped waiting is woken in vain; the others must be too.
#[test]
fn a_redelivery_comes_to_whoever_waits_also_if_another_stopped_waiting() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut lost = rig.subscribe("orders", "billing");
    let mut idle = rig.subscribe("orders", "billing");
    let mut waiting = rig.subscribe("orders", "billing");
    let held = rig.next(&mut lost).expect("there is an event");
    rig.commit();
    drop((held, lost));
    let (idle_waker, waker) = (Arc::<Counting>::default(), Arc::<Counting>::default());
    // What says that it failed is not durable yet.
    assert!(poll_with(&mut Box::pin(idle.next()), &idle_waker).is_pending());
    let mut next = Box::pin(waiting.next());
    assert!(poll_with(&mut next, &waker).is_pending());
    rig.commit();
    for _ in 0..20 {
        rig.pass(5);
        rig.commit();
    }
    assert!(
        waker.0.load(Ordering::SeqCst) > 0,
        "there is an event, and nobody tells the one that waits for it"
    );
    assert!(poll_with(&mut next, &waker).is_ready());
    drop(next);
    rig.stop();
}

/// Happens in an append, and may refuse it.
type Hook = Box<dyn FnOnce() -> Option<StoreError> + Send>;

/// A store that calls back at chosen moments.
struct Hooked {
    inner: Arc<LogStore>,
    in_find: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    in_append: Mutex<Option<Hook>>,
    before_clean: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Store for Hooked {
    fn observe(&self, observer: Arc<dyn StoreObserver>) {
        self.inner.observe(observer);
    }
    fn append(&self, batch: &AppendBatch<'_>, outcomes: &mut Vec<Outcome>) -> Result<u64, StoreError> {
        if !batch.events.is_empty() {
            let hook = self.in_append.lock().expect("no panic").take();
            if let Some(error) = hook.and_then(|hook| hook()) {
                return Err(error);
            }
        }
        self.inner.append(batch, outcomes)
    }
    fn durable_batch(&self) -> u64 {
        self.inner.durable_batch()
    }
    fn commit_times(&self, closing: i64) -> prombus::store::CommitTimes {
        self.inner.commit_times(closing)
    }
    fn ensure_topic(&self, name: &Topic) -> Result<TopicId, StoreError> {
        self.inner.ensure_topic(name)
    }
    fn topics(&self) -> Vec<StoredTopic> {
        self.inner.topics()
    }
    fn last_seq(&self, topic: TopicId) -> u64 {
        self.inner.last_seq(topic)
    }
    fn appended_seq(&self, topic: TopicId) -> u64 {
        self.inner.appended_seq(topic)
    }
    fn first_seq(&self, topic: TopicId) -> Result<Option<u64>, ReadError> {
        self.inner.first_seq(topic)
    }
    fn scanner(&self) -> Box<dyn Scanner> {
        self.inner.scanner()
    }
    fn find(&self, topic: TopicId, id: EventId) -> Result<Option<u64>, ReadError> {
        let hook = self.in_find.lock().expect("no panic").take();
        if let Some(hook) = hook {
            hook();
        }
        self.inner.find(topic, id)
    }
    fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Result<Option<u64>, ReadError> {
        self.inner.first_at_or_after(topic, ts)
    }
    fn head_at_or_after(&self, topic: TopicId, seq: u64) -> Result<Option<EventHead>, ReadError> {
        self.inner.head_at_or_after(topic, seq)
    }
    fn is_own_id(&self, id: EventId) -> bool {
        self.inner.is_own_id(id)
    }
    fn has_key_before(&self, topic: TopicId, key: &[u8], seq: u64) -> Result<bool, ReadError> {
        self.inner.has_key_before(topic, key, seq)
    }
    fn cut(&self, firsts: &[(TopicId, u64)]) -> Result<(), StoreError> {
        self.inner.cut(firsts)
    }
    fn cut_at(&self, topic: TopicId) -> u64 {
        self.inner.cut_at(topic)
    }
    fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Result<u64, ReadError> {
        self.inner.first_within_bytes(topic, bytes)
    }
    fn usage(&self) -> Result<Vec<TopicUsage>, ReadError> {
        self.inner.usage()
    }
    fn usage_of(&self, topics: &[TopicId]) -> Result<Vec<Option<TopicUsage>>, ReadError> {
        self.inner.usage_of(topics)
    }
    fn delete_topic(&self, topic: TopicId, name: &Topic) -> Result<u64, StoreError> {
        self.inner.delete_topic(topic, name)
    }
    fn clean(&self, liveness: &dyn Liveness, options: &CleanOptions) -> Result<CleanReport, Unavailable> {
        let hook = self.before_clean.lock().expect("no panic").take();
        if let Some(hook) = hook {
            hook();
        }
        self.inner.clean(liveness, options)
    }
    fn worth_cleaning_bytes(&self) -> u64 {
        self.inner.worth_cleaning_bytes()
    }
    fn topic_settings(&self) -> Vec<(String, String)> {
        self.inner.topic_settings()
    }
    fn backup(&self, folder: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(), BackupError> {
        self.inner.backup(folder, progress)
    }
    fn is_durable(&self) -> bool {
        true
    }
    fn groups(&self) -> Vec<GroupState> {
        self.inner.groups()
    }
    fn wait_for_room(&self) -> bool {
        self.inner.wait_for_room()
    }
    fn figures(&self) -> prombus::StoreFigures {
        self.inner.figures()
    }

    fn close(&self) -> Result<(), Unavailable> {
        self.inner.close()
    }
}

fn hooked() -> (Rig, Arc<Hooked>) {
    let disk = Disk::new(1);
    let clock = ManualClock::new(1_700_000_000_000);
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let options = LogStoreOptions { log: crate::rig::small_options() };
    let store = LogStore::open_storage(Arc::new(disk.clone()), options, Arc::clone(&shared)).expect("opens");
    let store = Arc::new(store);
    let hooked = Arc::new(Hooked {
        inner: Arc::clone(&store),
        in_find: Mutex::default(),
        in_append: Mutex::default(),
        before_clean: Mutex::default(),
    });
    let as_store = Arc::clone(&hooked) as Arc<dyn Store>;
    let backend = LocalBackend::open_without_timer(as_store, shared, Limits::default()).expect("opens");
    let bus = Bus::with_backend(Arc::new(backend.clone()));
    (Rig { disk, clock, store, backend, bus }, hooked)
}

/// While a seek looks for its event it has the flusher; whoever wanted to flush meanwhile relies on it, also when it fails.
#[test]
fn acks_are_written_also_if_a_seek_that_fails_was_in_the_way() {
    let (rig, store) = hooked();
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    rig.commit();
    let mut acking = all[0].ack();
    let backend = rig.backend.clone();
    let clock = rig.clock.clone();
    *store.in_find.lock().expect("no panic") = Some(Box::new(move || {
        // The timer's thread, meanwhile.
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

/// Cleaning asks the map of a topic which events live. Those published since the map was read are not in it, and live.
#[test]
fn compaction_keeps_events_that_were_published_after_its_map_was_read() {
    let (rig, store) = hooked();
    let options =
        TopicOptions { compaction: Some(true), snapshot_interval_ms: Some(0), ..TopicOptions::default() };
    rig.backend.set_topic_rules(vec![TopicRule::new("kv", options).expect("a good rule")]);
    let set = |bus: &Bus, log: &LogStore, topic: &str, key: &str, value: &str| {
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
        // Segments that hold nothing else.
        for number in 0..200 {
            set(&bus, &log, "kv", &format!("late-{number}"), &value);
        }
        // Segments that are rewritten, because most of what they hold is dead.
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
    rig.backend.keep_house();
    rig.commit();
    assert!(store.before_clean.lock().expect("no panic").is_none(), "nothing was cleaned");
    assert!(rig.store.usage().expect("reads").iter().any(|it| it.events < 300), "nothing was removed");
    for after in rig.after_power_cuts() {
        let state = after.done(Box::pin(after.bus.load_state("kv"))).expect("loads");
        assert_eq!(state.iter().count(), 211, "a key was lost that came while cleaning began");
        after.stop();
    }
    rig.stop();
}

/// The same with a publish that takes the acks along and is refused.
#[test]
fn acks_are_written_also_if_a_publish_that_is_refused_was_in_the_way() {
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

/// The group's records are larger than a segment: they go in several.
#[test]
fn records_that_do_not_fit_into_one_append_go_in_several() {
    let rig = Rig::new(1);
    let mut batch = rig.bus.batch();
    for _ in 0..3_000 {
        let topic = Topic::new("orders").expect("a good name");
        batch.push_json(topic, b"1", &prombus::PublishOptions::default()).expect("fits");
        if batch.len() == 50 {
            rig.done(rig.bus.publish_batch(std::mem::replace(&mut batch, rig.bus.batch())))
                .expect("publishes");
        }
    }
    let subscribe =
        rig.bus.subscribe("orders", "billing").from_earliest().max_in_flight(3_000).batch_size(1_000);
    let mut orders = rig.join(subscribe);
    let all = rig.all(&mut orders);
    assert_eq!(all.len(), 3_000);
    // All of them fail at once.
    drop((all, orders));
    let mut again = rig.subscribe("orders", "billing");
    for _ in 0..20 {
        rig.pass(10);
        rig.commit();
    }
    rig.done(rig.bus.publish("other", "x").send()).expect("publishers have nothing to do with it");
    assert!(rig.redelivered(&mut again).is_some(), "nothing is delivered again");
    rig.stop();
}

/// An event that fits must not be refused because others' acks ride along.
#[test]
fn a_publish_that_fits_is_not_too_large_because_of_acks_that_ride_along() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 50);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    let mut length = 16_000;
    // The largest that fits.
    loop {
        match rig.done(rig.bus.publish("large", "x".repeat(length).as_str()).send()) {
            Ok(_) => break,
            Err(PublishError::TooLarge { .. }) => length -= 8,
            Err(other) if other.to_string().contains("large") || other.to_string().contains("bytes") => {
                length -= 8;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    for delivery in all.iter().step_by(2) {
        drop(delivery.ack());
    }
    rig.done(rig.bus.publish("large", "x".repeat(length).as_str()).send()).expect("it did fit before");
    rig.stop();
}

fn member(backend: &LocalBackend, topic: &str, options: MemberOptions) -> Arc<dyn prombus::Membership> {
    let spec = GroupSpec {
        subscription: Pattern::new(topic).expect("a good pattern"),
        group: GroupName::new("billing").expect("a good name"),
        topics: Vec::new(),
        filter: None,
        from: Start::Earliest,
        expire_ms: None,
    };
    let mut joining = backend.join(spec, options);
    match pin!(&mut joining).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(joined) => joined.expect("joins").membership,
        Poll::Pending => panic!("memory does not wait"),
    }
}

fn in_memory(clock: &ManualClock, limits: Limits) -> LocalBackend {
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let store = Arc::new(MemoryStore::new(1 << 20, Arc::clone(&shared)));
    LocalBackend::open_without_timer(store, shared, limits).expect("opens")
}

#[test]
fn a_lease_of_any_length_can_be_asked_for() {
    let clock = ManualClock::new(1_700_000_000_000);
    clock.advance_ms(1_000);
    let backend = in_memory(&clock, Limits::default());
    let bus = Bus::with_backend(Arc::new(backend.clone()));
    assert!(poll(&mut bus.publish("orders", "one").send()).is_ready());
    let mut options = MemberOptions::default();
    options.settings.ack_timeout_ms = u64::MAX;
    let member = member(&backend, "orders", options);
    let mut batch = DeliveryBatch::default();
    let pulled = member.poll_pull(PullLimit::default(), &mut batch, &mut Context::from_waker(Waker::noop()));
    assert!(pulled.is_ready());
    member.hold(true);
    clock.advance_ms(1_000);
    member.hold(false);
    assert_eq!(batch.items().len(), 1);
}

#[test]
fn groups_may_expire_after_any_time() {
    let clock = ManualClock::new(1_700_000_000_000);
    clock.advance_ms(1_000);
    let backend = in_memory(&clock, Limits { group_expire_ms: Some(u64::MAX), ..Limits::default() });
    let member = member(&backend, "orders", MemberOptions::default());
    drop(member.leave());
    backend.tick();
}

/// Something that happens right where a waker is called.
struct Doing(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Wake for Doing {
    fn wake(self: Arc<Self>) {
        let what = self.0.lock().expect("no panic").take();
        if let Some(what) = what {
            what();
        }
    }
}

/// Runs on a thread of its own; false when it hangs.
fn ends(what: impl FnOnce() + Send + 'static) -> bool {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        what();
        let _ = done.send(());
    });
    is_done.recv_timeout(Duration::from_secs(5)).is_ok()
}

/// An executor may poll or drop a task right where its waker is called.
#[test]
fn a_waker_that_gives_up_a_subscription_with_a_last_attempt_is_called_without_locks() {
    assert!(
        ends(|| {
            let clock = ManualClock::new(1_700_000_000_000);
            let backend = in_memory(&clock, Limits::default());
            let bus = Bus::with_backend(Arc::new(backend));
            let publish = |topic: &str| assert!(poll(&mut bus.publish(topic, "x").send()).is_ready());
            let join = |topic: &str| match poll(
                &mut bus.subscribe(topic, "billing").from_earliest().max_attempts(1).into_future(),
            ) {
                Poll::Ready(joined) => joined.expect("joins"),
                Poll::Pending => panic!("memory does not wait"),
            };
            publish("orders");
            publish("other");
            let mut held = join("orders");
            assert!(poll(&mut Box::pin(held.next())).is_ready());
            let mut other = join("other");
            let Poll::Ready(Some(Ok(delivery))) = poll(&mut Box::pin(other.next())) else {
                panic!("an event")
            };
            let mut waiting = join("waiting");
            let waker = Arc::new(Doing(Mutex::new(Some(Box::new(move || drop(held))))));
            let waker = Waker::from(waker);
            assert!(pin!(waiting.next()).poll(&mut Context::from_waker(&waker)).is_pending());
            drop(waker);
            // An ack waits to be written and rides along with the publish that wakes the task.
            drop(delivery.ack());
            publish("waiting");
        }),
        "the waker was called with a lock held"
    );
}

/// A publish takes the last acks along, finds no room, and leaves them behind while the bus is closed.
#[test]
fn close_writes_the_acks_that_a_refused_publish_left_behind() {
    let (rig, store) = hooked();
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    rig.commit();
    drop(all[0].ack());
    let (backend, closing) = (rig.backend.clone(), Arc::new(Mutex::new(None)));
    let closer = Arc::clone(&closing);
    *store.in_append.lock().expect("no panic") = Some(Box::new(move || {
        *closer.lock().expect("no panic") = Some(std::thread::spawn(move || backend.close_blocking()));
        std::thread::sleep(Duration::from_millis(200));
        Some(StoreError::Busy)
    }));
    drop(rig.bus.publish("orders", "two").send());
    let closing = closing.lock().expect("no panic").take().expect("it was started");
    closing.join().expect("no panic").expect("closes");
    let after = Rig::open(&rig.disk);
    assert_eq!(after.floor("orders", "billing"), 1, "close said that everything is durable");
    after.stop();
}

/// An event that waits in a stream's own buffer is not tried: a reader that is in time for each event gets each once.
#[tokio::test]
async fn a_slow_reader_gets_every_event_once() {
    let bus = Bus::memory();
    for number in 0..12 {
        bus.publish("orders", &number).await.expect("publishes");
    }
    let lease = Duration::from_millis(200);
    let mut orders =
        bus.subscribe("orders", "billing").from_earliest().ack_timeout(lease).await.expect("joins");
    for seq in 1..=12 {
        let delivery = orders.next().await.expect("an event").expect("reads");
        assert_eq!((delivery.seq(), delivery.attempt()), (seq, 1));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!delivery.ack().await.expect("acks").stale);
    }
    let info = &bus.groups().await.expect("lists groups")[0];
    assert_eq!((info.lag, info.counters.expired, info.counters.delivered), (0, 0, 12));
}

/// A handler that blocks its thread is acked event by event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_is_acked_event_by_event() {
    let bus = Bus::memory();
    for number in 0..12 {
        bus.publish("orders", &number).await.expect("publishes");
    }
    let calls = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&calls);
    let subscribe = bus.subscribe("orders", "billing").from_earliest();
    let handler = subscribe.ack_timeout(Duration::from_millis(200)).handler(move |_, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        async { Ok::<(), String>(()) }
    });
    let handler = handler.await.expect("joins");
    for _ in 0..500 {
        if bus.groups().await.expect("lists groups")[0].lag == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let info = &bus.groups().await.expect("lists groups")[0];
    assert_eq!((info.lag, info.counters.expired, calls.load(Ordering::SeqCst)), (0, 0, 12));
    handler.unsubscribe().await.expect("leaves");
}

/// A group without members is deleted after the time that was set, and not before; time with members does not count.
#[test]
fn a_deserted_group_is_deleted_after_its_time() {
    let clock = ManualClock::new(1_700_000_000_000);
    let limits = Limits { group_expire_ms: Some(10_000), ..Limits::default() };
    let backend = in_memory(&clock, limits);
    let bus = Bus::with_backend(Arc::new(backend.clone()));
    let groups = || {
        backend.tick();
        let Poll::Ready(Ok(groups)) = poll(&mut Box::pin(bus.groups())) else { panic!("lists groups") };
        groups.len()
    };
    let join = || {
        let Poll::Ready(Ok(member)) = poll(&mut bus.subscribe("orders", "billing").into_future()) else {
            panic!("joins")
        };
        member
    };
    let member = join();
    clock.advance_ms(60_000);
    assert_eq!(groups(), 1, "it has a member");
    drop(member);
    clock.advance_ms(9_000);
    assert_eq!(groups(), 1);
    let member = join();
    assert!(!member.created());
    clock.advance_ms(5_000);
    assert_eq!(groups(), 1, "somebody came in time");
    drop(member);
    clock.advance_ms(9_999);
    assert_eq!(groups(), 1);
    clock.advance_ms(2);
    assert_eq!(groups(), 0);
    assert!(join().created());
}

/// A group that was made to expire does so whatever holds for the others, also after a restart; only its creator's word counts.
#[test]
fn a_group_expires_as_its_creator_said() {
    let clock = ManualClock::new(1_700_000_000_000);
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let store = Arc::new(MemoryStore::new(1 << 20, Arc::clone(&shared)));
    let backend = LocalBackend::open_without_timer(store, shared, Limits::default()).expect("opens");
    let bus = Bus::with_backend(Arc::new(backend.clone()));
    let names = || {
        backend.tick();
        let Poll::Ready(Ok(groups)) = poll(&mut Box::pin(bus.groups())) else { panic!("lists groups") };
        let mut names: Vec<_> = groups.into_iter().map(|it| (it.group, it.expire_ms)).collect();
        names.sort();
        names
    };
    let join = |group: &str, expire_ms: Option<u64>| {
        let mut subscribe = bus.subscribe("orders", group);
        if let Some(ms) = expire_ms {
            subscribe = subscribe.expire(Duration::from_millis(ms));
        }
        let Poll::Ready(Ok(member)) = poll(&mut subscribe.into_future()) else { panic!("joins") };
        member
    };
    let (short, long) = (join("short", Some(5_000)), join("long", None));
    let expected = vec![("long".to_owned(), None), ("short".to_owned(), Some(5_000))];
    clock.advance_ms(60_000);
    assert_eq!(names(), expected, "it has a member");
    drop((short, long));
    clock.advance_ms(4_000);
    // Who joins a group that is there changes nothing about it.
    drop((join("short", Some(1)), join("long", Some(1))));
    clock.advance_ms(4_999);
    assert_eq!(names(), expected);
    clock.advance_ms(2);
    assert_eq!(names(), expected[..1]);
}

#[tokio::test]
async fn a_group_that_was_made_to_expire_does_so_after_a_restart() {
    let folder = Folder::new();
    let bus = Bus::open(folder.path()).await.expect("opens");
    let member = bus.subscribe("orders", "short").expire(Duration::from_millis(300)).await.expect("joins");
    drop(member);
    bus.close().await.expect("closes");
    let bus = Bus::open(folder.path()).await.expect("opens again");
    assert_eq!(bus.groups().await.expect("lists groups")[0].expire_ms, Some(300));
    for _ in 0..1_000 {
        if bus.groups().await.expect("lists groups").is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the group is still there");
}

#[tokio::test]
async fn everything_says_that_the_bus_is_closed() {
    let bus = Bus::memory();
    bus.publish("orders", &1).await.expect("publishes");
    let topic = Topic::new("orders").expect("a topic");
    bus.close().await.expect("closes");
    let closed = ReadError::Unavailable(Unavailable::Closed);
    assert_eq!(bus.topics().await, Err(closed.clone()));
    assert_eq!(bus.groups().await, Err(closed.clone()));
    assert!(bus.get_cursor("orders", "billing").await.is_err());
    let read = bus.read(&topic, Start::Earliest, PullLimit::default()).await;
    assert_eq!(read.expect_err("it is closed"), closed);
}
