//! The runner, on tokio's paused clock: time passes when every task waits. Threads of the engine run in real time, so a
//! response of the engine may take seconds of the paused clock; the tests use generous timeouts.

use super::process::{check_fences, fast_network, stored};
use prombus::engine::simulated::{Database, LeaseFault, NetworkOptions, SimulatedStore};
use prombus::engine::{LeaseRecord, SharedStore, Takeover};
use prombus::leadership::{Leadership, LeadershipOptions, Role, StopError};
use prombus::{
    Bus, BusBuilder, Clock as _, ManualClock, OpenError, PublishError, TopicOptions, TopicRule, Unavailable,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The timeout for something that must happen, on the paused clock.
const SOON: Duration = Duration::from_secs(600);

/// A clock that follows the paused one, also for threads outside the runtime.
fn paused_clock() -> ManualClock {
    let clock = ManualClock::new(1_000);
    let pump = clock.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            pump.advance_ms(10);
        }
    });
    clock
}

struct Node {
    leadership: Leadership,
    store: Arc<SimulatedStore>,
    /// All roles that it has had.
    roles: Arc<Mutex<Vec<String>>>,
}

fn options(name: &str) -> LeadershipOptions {
    LeadershipOptions { cert_hash: Some([3; 32]), ..LeadershipOptions::new(format!("{name}:7070")) }
}

impl Node {
    fn start(name: &str, database: &Database, clock: &ManualClock) -> Self {
        Self::start_on(name, SimulatedStore::new(database, fast_network()), clock)
    }

    fn start_on(name: &str, store: SimulatedStore, clock: &ManualClock) -> Self {
        Self::start_with(name, store, Bus::builder(), clock)
    }

    fn start_with(name: &str, store: SimulatedStore, builder: BusBuilder, clock: &ManualClock) -> Self {
        let store = Arc::new(store);
        let shared = Arc::clone(&store) as Arc<dyn SharedStore>;
        let leadership = Leadership::start(shared, builder, options(name), Arc::new(clock.clone()));
        let roles: Arc<Mutex<Vec<String>>> = Arc::default();
        let (mut changes, heard) = (leadership.roles(), Arc::clone(&roles));
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let role = format!("{:?}", *changes.borrow_and_update());
                heard.lock().expect("no panic").push(role);
            }
        });
        Self { leadership, store, roles }
    }

    fn had(&self, role: &str) -> bool {
        self.roles.lock().expect("no panic").iter().any(|it| it.starts_with(role))
    }

    async fn until_leading(&self) -> (u64, Bus) {
        let mut roles = self.leadership.roles();
        let role = roles.wait_for(|role| matches!(role, Role::Leading { .. }));
        match &*tokio::time::timeout(SOON, role).await.expect("it leads soon").expect("it runs") {
            Role::Leading { term, bus, .. } => (*term, bus.clone()),
            other => panic!("{other:?}"),
        }
    }

    async fn until_following(&self) -> LeaseRecord {
        let mut roles = self.leadership.roles();
        let role = roles.wait_for(|role| matches!(role, Role::Following { leader: Some(_) }));
        match &*tokio::time::timeout(SOON, role).await.expect("it follows soon").expect("it runs") {
            Role::Following { leader: Some(leader) } => leader.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn is_leading(&self) -> bool {
        matches!(*self.leadership.roles().borrow(), Role::Leading { .. })
    }

    /// Disconnects this process from the store.
    fn cut_off(&self) {
        self.store.fault_of_all(Some(LeaseFault::Hangs));
        self.store.engine().into_iter().for_each(|engine| engine.suspend("cut off"));
    }

    fn reconnect(&self) {
        self.store.fault_of_all(None);
        self.store.engine().into_iter().for_each(|engine| engine.resume());
    }
}

/// A bus of a later term must not begin with rules that were replaced while another process led: its first round of maintenance could
/// delete what the new rules keep.
#[tokio::test(start_paused = true)]
async fn a_bus_begins_with_the_rules_of_the_time_when_it_is_opened() {
    let (database, clock) = (Database::new(), paused_clock());
    let a = Node::start("a", &database, &clock);
    let (_, bus) = a.until_leading().await;
    bus.publish("orders", &1).await.expect("publishes");
    let rule = |days| {
        let options = TopicOptions { retention_days: Some(days), ..TopicOptions::default() };
        TopicRule::new("orders", options).expect("a rule")
    };
    let rules = Arc::new(Mutex::new(vec![rule(1.0)]));
    let current = Arc::clone(&rules);
    let builder = Bus::builder().current_topics(move || current.lock().expect("no panic").clone());
    let b = Node::start_with("b", SimulatedStore::new(&database, fast_network()), builder, &clock);
    b.until_following().await;
    *rules.lock().expect("no panic") = vec![rule(30.0)];
    a.leadership.stop().await.expect("stops");
    let (_, bus) = b.until_leading().await;
    assert_eq!(bus.topic_settings("orders").retention_ms, Some(30 * 86_400_000));
}

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_process_leads_and_the_second_follows_it() {
    let (database, clock) = (Database::new(), paused_clock());
    let a = Node::start("a", &database, &clock);
    let (term, bus) = a.until_leading().await;
    let b = Node::start("b", &database, &clock);
    let leader = b.until_following().await;
    assert_eq!((term, leader.term), (1, 1));
    assert_eq!((leader.address.as_str(), leader.cert_hash), ("a:7070", Some([3; 32])));
    let Role::Leading { secret, .. } = a.leadership.roles().borrow().clone() else { panic!("it leads") };
    assert!(leader.secret == secret && secret != [0; 32], "followers know the secret of the term");
    bus.publish("orders", &1).await.expect("publishes");
    seconds(60).await;
    assert!(a.is_leading() && !b.had("TakingOver"), "{:?}", b.roles);
    assert_eq!((a.leadership.figures().takeovers(), b.leadership.figures().takeovers()), (1, 0));
    assert_eq!((a.leadership.figures().term(), b.leadership.figures().term()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_closes_the_bus_and_the_next_process_leads_without_waiting_six_seconds() {
    let (database, clock) = (Database::new(), paused_clock());
    let (a, b) = (Node::start("a", &database, &clock), Node::start("b", &database, &clock));
    let (_, bus) = a.until_leading().await;
    b.until_following().await;
    for payload in 1..=20 {
        drop(bus.publish("orders", &payload).into_future());
    }
    bus.publish("orders", &21).await.expect("publishes");
    a.leadership.stop().await.expect("stops");
    assert_eq!(bus.stopped().await, Unavailable::Closed);
    let stopped_ms = clock.steady_ms();
    let (term, bus) = b.until_leading().await;
    assert!(clock.steady_ms() - stopped_ms < 3_000, "it did not wait for the lease to expire");
    assert_eq!(term, 2);
    assert_eq!(stored(&bus).await.last(), Some(&21));
    b.leadership.stop().await.expect("stops");
    check_fences(&database);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_cut_off_follows_when_it_is_back_and_its_bus_stops() {
    let (database, clock) = (Database::new(), paused_clock());
    let (a, b) = (Node::start("a", &database, &clock), Node::start("b", &database, &clock));
    let (_, old) = a.until_leading().await;
    b.until_following().await;
    old.publish("orders", &1).await.expect("publishes");
    a.cut_off();
    let cut_ms = clock.steady_ms();
    let (term, bus) = b.until_leading().await;
    assert_eq!(term, 2);
    assert!(clock.steady_ms() - cut_ms >= 4_000, "not before the lease had expired");
    bus.publish("orders", &2).await.expect("publishes");
    assert!(!a.had("Following(Some"), "it cannot know the new leader");
    a.reconnect();
    assert_eq!(a.until_following().await.address, "b:7070");
    tokio::time::timeout(SOON, old.stopped()).await.expect("the old bus stops");
    assert!(old.publish("orders", &3).await.is_err());
    assert_eq!(stored(&bus).await, [1, 2]);
    let figures = (a.leadership.figures(), b.leadership.figures());
    assert_eq!((figures.0.takeovers(), figures.1.takeovers()), (1, 1));
    // The same in the other direction.
    b.cut_off();
    assert_eq!(a.until_leading().await.0, 3);
    assert_eq!(a.leadership.figures().takeovers(), 2);
    check_fences(&database);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_is_unhealthy_steps_aside_and_leads_again_with_the_same_bus() {
    let (database, clock) = (Database::new(), paused_clock());
    let a = Node::start("a", &database, &clock);
    let (term, bus) = a.until_leading().await;
    assert_eq!(bus.backend().health(), Ok(()));
    // Only the lease record is unreachable: an idle bus notices nothing.
    a.store.fault_of_all(Some(LeaseFault::Hangs));
    let cut_ms = clock.steady_ms();
    let mut roles = a.leadership.roles();
    let aside = roles.wait_for(|role| matches!(role, Role::Following { leader: None }));
    tokio::time::timeout(SOON, aside).await.expect("soon").expect("it runs");
    let took_ms = clock.steady_ms() - cut_ms;
    assert!((13_900..=17_000).contains(&took_ms), "16 s after the last renewal, but {took_ms} ms");
    let health = bus.backend().health();
    assert_eq!(health, Err(Unavailable::Suspended("the lease could not be renewed".to_owned())));
    seconds(60).await;
    a.store.fault_of_all(None);
    assert_eq!(a.until_leading().await.0, term);
    assert_eq!(bus.backend().health(), Ok(()));
    bus.publish("orders", &1).await.expect("the same bus still works");
    assert_eq!(a.leadership.figures().takeovers(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deposed_engine_changes_the_role_before_its_bus_is_closed() {
    let (database, clock) = (Database::new(), paused_clock());
    let a = Node::start("a", &database, &clock);
    let (_, bus) = a.until_leading().await;
    let mut roles = a.leadership.roles();
    roles.borrow_and_update();
    // Another process has a newer term that this one has not seen.
    let other = SimulatedStore::new(&database, fast_network());
    let takeover = Takeover { term: 5, was_released: false };
    let engine = other.lead(takeover, Arc::new(clock.clone())).await.expect("opens");
    let refused = bus.publish("orders", &1).await.expect_err("its term is over");
    assert!(matches!(refused, PublishError::Unavailable(Unavailable::Deposed(_))), "{refused}");
    tokio::time::timeout(SOON, roles.changed()).await.expect("soon").expect("it runs");
    assert!(matches!(*roles.borrow(), Role::Following { leader: None }), "{:?}", *roles.borrow());
    assert!(!matches!(bus.stopped().await, Unavailable::Closed), "it was deposed before it was closed");
    // It challenges by the normal rules; terms that the store has passed cannot be led.
    let (term, bus) = a.until_leading().await;
    assert_eq!(term, 6);
    bus.publish("orders", &2).await.expect("publishes");
    drop(engine);
    check_fences(&database);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_finds_a_newer_term_in_the_store_continues_above_it() {
    let (database, clock) = (Database::new(), paused_clock());
    let other = SimulatedStore::new(&database, fast_network());
    let takeover = Takeover { term: 40, was_released: false };
    drop(other.lead(takeover, Arc::new(clock.clone())).await.expect("opens"));
    // The lease record is missing, as if it had been deleted.
    let a = Node::start("a", &database, &clock);
    assert_eq!(a.until_leading().await.0, 41);
    assert!(a.had("TakingOver(term 1)") && !a.had("TakingOver(term 2)"), "{:?}", a.roles);
    check_fences(&database);
}

#[tokio::test(start_paused = true)]
async fn renewals_continue_while_the_engine_is_being_opened() {
    let (database, clock) = (Database::new(), paused_clock());
    let store = SimulatedStore::new(&database, fast_network());
    store.delay_leads(Duration::from_secs(30));
    let a = Node::start_on("a", store, &clock);
    seconds(1).await;
    let b = Node::start("b", &database, &clock);
    let (term, _) = a.until_leading().await;
    assert_eq!(term, 1);
    assert!(clock.steady_ms() >= 30_000);
    assert!(a.had("TakingOver(term 1)") && !b.had("TakingOver"), "{:?}", b.roles);
}

#[tokio::test(start_paused = true)]
async fn an_engine_whose_lease_was_lost_while_it_was_opened_is_never_published() {
    let (database, clock) = (Database::new(), paused_clock());
    let slow = |takes| {
        let store = SimulatedStore::new(&database, fast_network());
        store.delay_leads(Duration::from_secs(takes));
        store
    };
    let a = Node::start_on("a", slow(30), &clock);
    seconds(1).await;
    a.store.fault_of_all(Some(LeaseFault::RequestLost));
    let b = Node::start_on("b", slow(60), &clock);
    seconds(15).await;
    assert!(b.had("TakingOver(term 2)"), "{:?}", b.roles);
    a.store.fault_of_all(None);
    let (term, bus) = b.until_leading().await;
    assert_eq!(term, 2);
    assert!(!a.had("Leading"), "{:?}", a.roles);
    assert_eq!(database.fences()[0].1, 1, "the engine of the first term was opened");
    assert!(a.store.engine().is_none(), "and was closed");
    assert_eq!(a.leadership.figures().takeovers(), 0);
    bus.publish("orders", &1).await.expect("publishes");
    check_fences(&database);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_cannot_be_opened_is_tried_again_and_others_may_lead_meanwhile() {
    let (database, clock) = (Database::new(), paused_clock());
    let store = SimulatedStore::new(&database, fast_network());
    store.fail_leads(2);
    let a = Node::start_on("a", store, &clock);
    let (term, _) = a.until_leading().await;
    assert_eq!((term, a.leadership.figures().takeovers()), (3, 1));
    a.leadership.stop().await.expect("stops");

    let store = SimulatedStore::new(&database, fast_network());
    store.fail_leads(1_000);
    let a = Node::start_on("a", store, &clock);
    seconds(2).await;
    let b = Node::start("b", &database, &clock);
    b.until_leading().await;
    assert!(!a.is_leading());
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_could_not_be_opened_does_not_release_the_lease() {
    let (database, clock) = (Database::new(), paused_clock());
    let store = SimulatedStore::new(&database, fast_network());
    store.fail_leads(1);
    store.delay_leads(Duration::from_secs(1));
    let a = Node::start_on("a", store, &clock);
    let mut roles = a.leadership.roles();
    let taking = roles.wait_for(|role| matches!(role, Role::TakingOver { .. }));
    tokio::time::timeout(SOON, taking).await.expect("soon").expect("it runs");
    let resigned = roles.wait_for(|role| matches!(role, Role::Following { .. }));
    tokio::time::timeout(SOON, resigned).await.expect("soon").expect("it runs");
    let failed_ms = clock.steady_ms();
    seconds(3).await;
    let record = a.store.lease().read().await.expect("reads").expect("is there");
    assert!(!record.is_released(), "a write of the previous leader may be in progress");
    assert_eq!((record.term, record.address.as_str()), (1, "a:7070"));
    assert_eq!(a.until_leading().await.0, 2);
    assert!(clock.steady_ms() - failed_ms >= 6_000, "not before the lease had expired");
}

#[tokio::test(start_paused = true)]
async fn a_bus_that_closed_with_an_error_does_not_release_the_lease() {
    let (database, clock) = (Database::new(), paused_clock());
    let slow = NetworkOptions { commit_latency_us: 200_000..=200_000, ..fast_network() };
    let a = Node::start_on("a", SimulatedStore::new(&database, slow), &clock);
    let (_, bus) = a.until_leading().await;
    let engine = a.store.engine().expect("it leads");
    drop(bus.publish("orders", &1).into_future());
    engine.suspend("cut off");
    // The program closes the bus itself, while the commit is in progress.
    let closed = tokio::time::timeout(SOON, bus.close()).await.expect("closes soon");
    assert!(closed.is_err(), "{closed:?}");
    seconds(3).await;
    let record = a.store.lease().read().await.expect("reads").expect("is there");
    assert!(!record.is_released(), "a write may be in progress");
    engine.resume();
    assert_eq!(a.until_leading().await.0, 2);
    check_fences(&database);
}

#[tokio::test(start_paused = true)]
async fn a_bus_that_stops_early_lengthens_the_retry_pause_and_one_that_works_does_not() {
    let (database, clock) = (Database::new(), paused_clock());
    let a = Node::start("a", &database, &clock);
    let mut roles = a.leadership.roles();
    let mut next_bus = async |after: u64| {
        let role = roles.wait_for(|role| matches!(role, Role::Leading { term, .. } if *term > after));
        match &*tokio::time::timeout(SOON, role).await.expect("it leads soon").expect("it runs") {
            Role::Leading { term, bus, .. } => (*term, bus.clone()),
            other => panic!("{other:?}"),
        }
    };
    let (mut term, mut bus) = next_bus(0).await;
    let mut pause_ms = 0;
    for least_ms in [1_000, 2_000, 4_000, 8_000, 16_000] {
        bus.close().await.expect("closes");
        let closed_ms = clock.steady_ms();
        (term, bus) = next_bus(term).await;
        pause_ms = clock.steady_ms() - closed_ms;
        assert!(pause_ms >= least_ms, "{pause_ms} ms of {least_ms}");
    }
    seconds(31).await;
    bus.close().await.expect("closes");
    let closed_ms = clock.steady_ms();
    next_bus(term).await;
    assert!(clock.steady_ms() - closed_ms < pause_ms, "it has worked for 30 s");
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_cannot_reach_the_store_returns_an_error() {
    let (database, clock) = (Database::new(), paused_clock());
    let a = Node::start("a", &database, &clock);
    let (_, bus) = a.until_leading().await;
    a.store.fault_of_all(Some(LeaseFault::Hangs));
    let began_ms = clock.steady_ms();
    let stopped = a.leadership.stop().await;
    assert!(matches!(stopped, Err(StopError::Release(_))), "{stopped:?}");
    assert!(clock.steady_ms() - began_ms < 60_000);
    assert_eq!(bus.stopped().await, Unavailable::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_an_engine_that_is_being_opened() {
    let (database, clock) = (Database::new(), paused_clock());
    let store = SimulatedStore::new(&database, fast_network());
    store.delay_leads(Duration::from_secs(300));
    let Node { leadership, store, .. } = Node::start_on("a", store, &clock);
    seconds(1).await;
    assert!(matches!(*leadership.roles().borrow(), Role::TakingOver { term: 1 }));
    leadership.stop().await.expect("stops");
    assert!(clock.steady_ms() < 10_000);
    seconds(400).await;
    assert_eq!(database.term(), 1, "it was opened later");
    assert!(store.engine().is_none(), "and closed");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_leadership_releases_the_lease() {
    let (database, clock) = (Database::new(), paused_clock());
    let a = Node::start("a", &database, &clock);
    a.until_leading().await;
    drop(a.leadership);
    let dropped_ms = clock.steady_ms();
    let b = Node::start("b", &database, &clock);
    b.until_leading().await;
    assert!(clock.steady_ms() - dropped_ms < 4_000);
}

#[tokio::test(start_paused = true)]
async fn a_process_does_not_follow_its_own_address() {
    let (database, clock) = (Database::new(), paused_clock());
    let a = Node::start("a", &database, &clock);
    a.until_leading().await;
    a.cut_off();
    // The server was restarted, at the same address.
    let again = Node::start("a", &database, &clock);
    again.until_leading().await;
    assert!(!again.had("Following(Some"), "{:?}", again.roles);
}

#[tokio::test(start_paused = true)]
async fn a_bus_in_a_second_process_is_refused_with_the_leaders_address_or_waits() {
    let (database, clock) = (Database::new(), paused_clock());
    let store = || Arc::new(SimulatedStore::new(&database, fast_network())) as Arc<dyn SharedStore>;
    let open = |name: &str, wait| {
        Bus::builder().clock(Arc::new(clock.clone())).open_shared(store(), options(name), wait)
    };
    let first = open("first", None).await.expect("opens");
    first.publish("orders", &1).await.expect("publishes");
    let refused = open("second", None).await.expect_err("another process leads");
    assert!(matches!(&refused, OpenError::Led { address, term: 1 } if address == "first:7070"), "{refused}");
    let refused = open("second", Some(Duration::from_secs(20))).await.expect_err("it leads for longer");
    assert!(matches!(&refused, OpenError::Led { .. }), "{refused}");

    let waiting = tokio::spawn(open("second", Some(Duration::MAX)));
    seconds(20).await;
    assert!(!waiting.is_finished());
    let closed_ms = clock.steady_ms();
    first.close().await.expect("closes");
    let second = waiting.await.expect("no panic").expect("opens");
    assert!(clock.steady_ms() - closed_ms < 3_000, "the lease was released");
    assert_eq!(stored(&second).await, [1]);
    second.close().await.expect("closes");
}

#[tokio::test(start_paused = true)]
async fn a_shared_bus_ends_when_another_process_takes_over() {
    let (database, clock) = (Database::new(), paused_clock());
    let store = Arc::new(SimulatedStore::new(&database, fast_network()));
    let shared = Arc::clone(&store) as Arc<dyn SharedStore>;
    let opening = Bus::builder().clock(Arc::new(clock.clone())).open_shared(shared, options("a"), None);
    let first = opening.await.expect("opens");
    store.fault_of_all(Some(LeaseFault::RequestLost));
    let b = Node::start("b", &database, &clock);
    b.until_leading().await;
    store.fault_of_all(None);
    tokio::time::timeout(SOON, first.stopped()).await.expect("its bus stops");
    seconds(30).await;
    assert!(b.is_leading(), "and it does not challenge again");
    first.close().await.expect("closes");
}

#[tokio::test(start_paused = true)]
async fn a_bus_whose_engine_cannot_be_opened_is_refused_with_the_reason() {
    let (database, clock) = (Database::new(), paused_clock());
    let store = SimulatedStore::new(&database, fast_network());
    store.fail_leads(1);
    let opening = Bus::builder().clock(Arc::new(clock)).open_shared(Arc::new(store), options("a"), None);
    let refused = opening.await.expect_err("it cannot be opened");
    assert!(matches!(&refused, OpenError::Store(why) if why.contains("cannot be opened")), "{refused}");
}
