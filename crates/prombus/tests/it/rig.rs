//! A bus on a simulated disk where nothing happens by itself: the test controls commits, time and power.

use prombus::engine::{LogEngine, LogEngineOptions, MayBlock};
use prombus::{
    Bus, Clock, DeadLetter, Delivery, GroupInfo, Limits, LocalBackend, ManualClock, Page, PullLimit, Start,
    Subscription, Topic,
};
use prombus_log::storage::simulated::Disk;
use prombus_log::{Options, Step};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Polls a future once.
pub fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// One round of maintenance.
pub fn run_maintenance(backend: &LocalBackend) -> u64 {
    match pin!(backend.run_maintenance(MayBlock::on_this_thread()))
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(wait_ms) => wait_ms,
        Poll::Pending => panic!("maintenance does not finish at once"),
    }
}

/// Small sizes, so that the log rolls segments, writes checkpoints and reads from files all the time.
pub fn small_options() -> Options {
    Options {
        segment_bytes: 16 * 1024,
        reserve_bytes: 8 * 1024,
        batch_bytes: 4 * 1024,
        tail_bytes: 2 * 1024,
        checkpoint_bytes: 8 * 1024,
        threads: false,
        ..Options::default()
    }
}

pub struct Rig {
    pub disk: Disk,
    pub clock: ManualClock,
    pub store: Arc<LogEngine>,
    pub backend: LocalBackend,
    pub bus: Bus,
}

impl Rig {
    pub fn new(seed: u64) -> Self {
        Self::open(&Disk::new(seed))
    }

    pub fn open(disk: &Disk) -> Self {
        Self::try_open(disk).unwrap_or_else(|error| panic!("the bus does not open: {error}"))
    }

    pub fn try_open(disk: &Disk) -> Result<Self, prombus::OpenError> {
        let clock = ManualClock::new(1_700_000_000_000);
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let options = LogEngineOptions { log: small_options() };
        let store = Arc::new(LogEngine::open_storage(Arc::new(disk.clone()), options, Arc::clone(&shared))?);
        let as_store = Arc::clone(&store) as Arc<dyn prombus::engine::Engine>;
        let backend = LocalBackend::open_without_timer(as_store, shared, Limits::default())?;
        let bus = Bus::with_backend(Arc::new(backend.clone()));
        Ok(Self { disk: disk.clone(), clock, store, backend, bus })
    }

    /// Commits everything that was appended. Pending changes of groups that no caller waits for are not flushed.
    pub fn commit(&self) {
        while self.store.log().step_commit() == Step::Worked
            || self.store.log().step_housekeeping() == Step::Worked
        {}
    }

    /// Advances the clock and runs due timers.
    pub fn pass(&self, millis: u64) {
        self.clock.advance_ms(millis);
        self.backend.tick();
    }

    /// The output of a future that needs commits.
    pub fn done<F: Future + Unpin>(&self, mut future: F) -> F::Output {
        for _ in 0..100 {
            if let Poll::Ready(output) = poll(&mut future) {
                return output;
            }
            self.commit();
        }
        panic!("not resolved after a hundred commits");
    }

    /// Checks that a future does not resolve before a commit.
    pub fn assert_waits_for_a_commit<F: Future + Unpin>(&self, what: &str, future: &mut F) {
        for _ in 0..3 {
            assert!(poll(future).is_pending(), "{what} resolves before it is durable");
            self.backend.tick();
            self.backend.flush();
        }
    }

    pub fn publish(&self, topic: &str, payload: &str) -> prombus::Published {
        self.done(self.bus.publish(topic, payload).send()).expect("publishes")
    }

    pub fn publish_numbers(&self, topic: &str, count: u32) {
        for number in 1..=count {
            self.publish(topic, &number.to_string());
        }
    }

    pub fn subscribe(&self, topic: &str, group: &str) -> Subscription {
        self.join(self.bus.subscribe(topic, group).from_earliest())
    }

    pub fn join(&self, subscribe: prombus::Subscribe) -> Subscription {
        self.done(subscribe.into_future()).expect("subscribes")
    }

    /// A delivery that is available now.
    pub fn next(&self, subscription: &mut Subscription) -> Option<Delivery> {
        match poll(&mut Box::pin(subscription.next())) {
            Poll::Ready(next) => Some(next.expect("the stream continues").expect("the delivery can be read")),
            Poll::Pending => None,
        }
    }

    /// A due redelivery: it is delivered when its attempt is durable.
    pub fn redelivered(&self, subscription: &mut Subscription) -> Option<Delivery> {
        self.next(subscription).or_else(|| {
            self.commit();
            self.next(subscription)
        })
    }

    /// All deliveries and due redeliveries.
    pub fn all_redelivered(&self, subscription: &mut Subscription) -> Vec<Delivery> {
        std::iter::from_fn(|| self.redelivered(subscription)).collect()
    }

    /// All deliveries that are available now.
    pub fn all(&self, subscription: &mut Subscription) -> Vec<Delivery> {
        std::iter::from_fn(|| self.next(subscription)).collect()
    }

    pub fn ack(&self, delivery: &Delivery) {
        assert!(!self.done(delivery.ack()).expect("acks").stale, "an ack of {delivery:?} is stale");
    }

    pub fn info(&self, topic: &str, group: &str) -> GroupInfo {
        let groups = self.done(Box::pin(self.bus.groups())).expect("lists groups");
        let found = groups.into_iter().find(|info| info.topic == topic && info.group == group);
        found.unwrap_or_else(|| panic!("group {group} on {topic} does not exist"))
    }

    pub fn floor(&self, topic: &str, group: &str) -> u64 {
        self.info(topic, group).topics[0].floor
    }

    pub fn read(&self, topic: &str) -> Page {
        let topic = Topic::new(topic).expect("a good name");
        let limit = PullLimit { bytes: usize::MAX, ..PullLimit::default() };
        let read = self.done(Box::pin(self.bus.read(&topic, Start::Earliest, limit)));
        read.unwrap_or(Page { events: Vec::new(), next_seq: 1 })
    }

    /// The payloads of a topic, as strings.
    pub fn payloads(&self, topic: &str) -> Vec<String> {
        self.read(topic).events.iter().map(|event| event.json().expect("a string")).collect()
    }

    pub fn letters(&self, topic: &str) -> Vec<DeadLetter> {
        let page = self.read(&format!("dlq.{topic}"));
        page.events.iter().map(|event| event.json().expect("a dead letter")).collect()
    }

    /// The same bus after a power cut at this point, with several possible outcomes for unsynced writes.
    pub fn after_power_cuts(&self) -> impl Iterator<Item = Rig> + '_ {
        (0..8).map(|seed| {
            let disk = self.disk.fork();
            disk.reseed(seed);
            disk.power_cut();
            Rig::open(&disk)
        })
    }

    /// Cuts the power: everything in memory is lost. The old disk stays off, so that values that are dropped later do not
    /// write to the new bus's disk.
    pub fn power_cut(self) -> Rig {
        let disk = self.disk.fork();
        self.stop();
        disk.power_cut();
        Rig::open(&disk)
    }

    /// Closes the bus cleanly, so that members leave, and opens it again.
    pub fn restart(self) -> Rig {
        let disk = self.disk.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(self.bus.close()).expect("closes");
        Rig::open(&disk)
    }

    /// Switches the power off, so that values that are dropped later write nothing.
    pub fn stop(&self) {
        self.disk.cut_after(0);
    }
}

pub fn seqs(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(|delivery| delivery.seq()).collect()
}
