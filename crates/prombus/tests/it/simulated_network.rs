//! A bus on an engine that is reached over a simulated network: lost responses, outages, a second leader, restarts, pending
//! reads. `PROMBUS_SEED` decides latencies, faults and choices.

use crate::support::{Random, setting};
use prombus::engine::simulated::{Database, NetworkOptions, SimulatedEngine};
use prombus::engine::{Engine, MayBlock};
use prombus::{
    Bus, Clock, Delivery, Limits, LocalBackend, PublishError, Published, PullLimit, RedeliveryReason, Start,
    Subscription, SystemClock, Topic, TopicOptions, Unavailable, Uuid,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The timeout for something that must happen, generous enough for a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(30);

struct Node {
    engine: Arc<SimulatedEngine>,
    bus: Bus,
}

#[expect(clippy::print_stdout, reason = "a failed test shows its seed")]
pub fn seed() -> u64 {
    let seed = setting("PROMBUS_SEED", 1);
    println!("PROMBUS_SEED={seed}");
    seed
}

fn open(database: &Database, network: NetworkOptions, limits: Limits) -> Node {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let engine = SimulatedEngine::open(database, network, Arc::clone(&clock)).expect("opens");
    let engine = Arc::new(engine);
    let shared = Arc::clone(&engine) as Arc<dyn Engine>;
    let backend = LocalBackend::open(shared, clock, limits).expect("opens");
    Node { engine, bus: Bus::with_backend(Arc::new(backend)) }
}

async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(SOON, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} did not happen within {SOON:?}"),
    }
}

async fn next(subscription: &mut Subscription) -> Delivery {
    soon("the next delivery", subscription.next())
        .await
        .expect("the stream continues")
        .expect("it is readable")
}

fn topic(name: &str) -> Topic {
    Topic::new(name).expect("a good name")
}

/// Ids and payloads of a topic by seq.
async fn read_all(bus: &Bus, name: &str) -> BTreeMap<u64, (Uuid, String)> {
    let mut all = BTreeMap::new();
    let mut from = 1;
    loop {
        let page =
            soon("a page", bus.read_from(&topic(name), from, PullLimit::default())).await.expect("reads");
        for event in &page.events {
            all.insert(event.seq(), (event.id(), event.payload().to_owned()));
        }
        if page.next_seq == from {
            return all;
        }
        from = page.next_seq;
    }
}

async fn floor(bus: &Bus, name: &str, group: &str) -> u64 {
    let groups = soon("the list of groups", bus.groups()).await.expect("lists groups");
    let found = groups.iter().find(|info| info.topic == name && info.group == group);
    found.expect("the group exists").topics.iter().map(|topic| topic.floor).sum()
}

async fn until_floor(bus: &Bus, name: &str, group: &str, wanted: u64) {
    soon("the floor", async {
        while floor(bus, name, group).await != wanted {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Publishes events one after the other. Every third has an id chosen by the publisher, which another task uses too.
async fn publish_many(bus: Bus, task: u128, count: u128) -> Vec<Published> {
    let mut published = Vec::new();
    for number in 0..count {
        let mut publish = bus.publish("orders", &format!("{task}-{number}"));
        if number % 3 == 0 {
            publish = publish.id(Uuid::from_u128((task / 2 + 1) << 64 | number));
        }
        published.push(publish.await.expect("publishes"));
    }
    published
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_responses_neither_lose_nor_duplicate_events() {
    let network = NetworkOptions {
        seed: seed(),
        commit_latency_us: 0..=300,
        answer_timeout_us: 400,
        lost_answers: 0.2,
        lost_requests: 0.1,
        late_requests: 0.05,
        outages: 0.01,
        outage_us: 100..=3_000,
        ..NetworkOptions::default()
    };
    let node = open(&Database::new(), network, Limits::default());
    let tasks: Vec<_> = (0..16).map(|task| tokio::spawn(publish_many(node.bus.clone(), task, 200))).collect();
    let mut published = Vec::new();
    for task in tasks {
        published.extend(soon("the publishers' end", task).await.expect("no panic"));
    }
    let stored = read_all(&node.bus, "orders").await;
    let fresh: BTreeSet<u64> = published.iter().filter(|it| !it.duplicate).map(|it| it.seq).collect();
    let duplicates = published.iter().filter(|it| it.duplicate).count();
    assert_eq!(published.len(), 16 * 200);
    assert_eq!(duplicates, 8 * 67, "each chosen id was published twice");
    assert_eq!(fresh.len() + duplicates, published.len(), "every confirmed event has its own seq");
    assert!(stored.keys().copied().eq(1..=fresh.len() as u64), "no gap, no duplicate, no extra event");
    for it in published {
        assert_eq!(stored[&it.seq].0, it.id);
    }
    node.bus.close().await.expect("closes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_engine_deposes_the_first_and_no_confirmed_event_is_lost() {
    let database = Database::new();
    let network = NetworkOptions { seed: seed(), ..NetworkOptions::default() };
    let first = open(&database, network.clone(), Limits::default());
    let mut orders = first.bus.subscribe("orders", "billing").from_earliest().await.expect("subscribes");
    for number in 1..=10 {
        first.bus.publish("orders", &number).await.expect("publishes");
    }
    for _ in 0..4 {
        soon("an ack", next(&mut orders).await.ack()).await.expect("acks");
    }
    let held = next(&mut orders).await;

    let publishers = (0..4u64).map(|publisher| {
        let bus = first.bus.clone();
        tokio::spawn(async move {
            let (mut answered, mut refused) = (Vec::new(), Vec::new());
            for number in 1.. {
                let number = 1_000 * (publisher + 1) + number;
                match bus.publish("orders", &number).await {
                    Ok(published) => answered.push((published.seq, number)),
                    Err(error) => {
                        refused.push((number, error));
                        if refused.len() == 3 {
                            return (answered, refused);
                        }
                    }
                }
            }
            unreachable!("numbers do not end")
        })
    });
    let publishers: Vec<_> = publishers.collect();
    tokio::time::sleep(Duration::from_millis(30)).await;
    let second = open(&database, network, Limits::default());
    let (mut answered, mut refused) = (Vec::new(), Vec::new());
    for publisher in publishers {
        let (ok, not_ok) = soon("a publisher's end", publisher).await.expect("no panic");
        answered.extend(ok);
        refused.extend(not_ok);
    }
    assert!(!answered.is_empty(), "the first engine led for a while");
    let stored = read_all(&second.bus, "orders").await;
    assert!(stored.keys().copied().eq(1..=stored.len() as u64), "no gaps");
    for (seq, number) in &answered {
        assert_eq!(stored[seq].1, number.to_string());
    }
    for (number, error) in &refused {
        assert!(matches!(error, PublishError::Unavailable(Unavailable::Deposed(_))), "{error}");
        assert!(stored.values().all(|(_, payload)| *payload != number.to_string()), "{number} is stored");
    }
    // The group resumes where it was; calls over the deposed engine have no effect.
    assert!(held.ack().await.is_err(), "an ack over the deposed engine");
    assert_eq!(floor(&second.bus, "orders", "billing").await, 4);
    let mut resumed = second.bus.subscribe("orders", "billing").await.expect("subscribes");
    assert!(!resumed.created());
    let delivery = next(&mut resumed).await;
    assert_eq!(delivery.seq(), 5);
    assert_eq!(delivery.reason(), Some(RedeliveryReason::ServerRestarted));
    let published = second.bus.publish("orders", &0).await.expect("publishes");
    assert_eq!(published.seq, stored.len() as u64 + 1);
    assert!(first.bus.close().await.is_err(), "closing a deposed engine returns an error");
    second.bus.close().await.expect("closes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_outage_delays_publishes_and_acks() {
    let network = NetworkOptions { seed: seed(), ..NetworkOptions::default() };
    let node = open(&Database::new(), network, Limits::default());
    let mut orders = node.bus.subscribe("orders", "billing").from_earliest().await.expect("subscribes");
    node.bus.publish("orders", &1).await.expect("publishes");
    let delivery = next(&mut orders).await;
    node.engine.suspend("unplugged");
    let bus = node.bus.clone();
    let publish = tokio::spawn(async move { bus.publish("orders", &2).await });
    let ack = tokio::spawn(delivery.ack());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!publish.is_finished() && !ack.is_finished(), "they wait");
    node.engine.resume();
    assert_eq!(soon("the publish", publish).await.expect("no panic").expect("publishes").seq, 2);
    assert!(!soon("the ack", ack).await.expect("no panic").expect("acks").stale);
    assert_eq!(next(&mut orders).await.seq(), 2);
    node.bus.close().await.expect("closes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_during_a_long_outage_are_unavailable_until_it_ends() {
    let network = NetworkOptions { seed: seed(), ..NetworkOptions::default() };
    let limits = Limits { engine_wait_ms: 60, ..Limits::default() };
    let node = open(&Database::new(), network, limits);
    node.bus.publish("orders", &1).await.expect("publishes");
    node.engine.suspend("unplugged");
    for number in 2..=4 {
        let refused = soon("a refusal", node.bus.publish("orders", &number).into_future()).await;
        let refused = refused.expect_err("the engine cannot commit");
        assert!(matches!(refused, PublishError::Unavailable(Unavailable::Suspended(_))), "{refused}");
    }
    assert!(node.bus.backend().health().is_err());
    node.engine.resume();
    let published = soon("a publish", async {
        loop {
            match node.bus.publish("orders", &5).await {
                Ok(published) => return published,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    });
    assert_eq!(published.await.seq, 2, "refused publishes are not stored");
    assert!(node.bus.backend().health().is_ok());
    node.bus.close().await.expect("closes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_during_an_outage_does_not_hang() {
    let limits = Limits { engine_wait_ms: 60, ..Limits::default() };
    let node = open(&Database::new(), NetworkOptions { seed: seed(), ..NetworkOptions::default() }, limits);
    let mut orders = node.bus.subscribe("orders", "billing").from_earliest().await.expect("subscribes");
    node.bus.publish("orders", &1).await.expect("publishes");
    let delivery = next(&mut orders).await;
    node.engine.suspend("unplugged");
    let ack = tokio::spawn(delivery.ack());
    let bus = node.bus.clone();
    let publish = tokio::spawn(async move { bus.publish("orders", &2).await });
    tokio::time::sleep(Duration::from_millis(10)).await;
    let _ = soon("the end of the bus", node.bus.close()).await;
    assert!(soon("the publish", publish).await.expect("no panic").is_err());
    assert!(soon("the ack", ack).await.expect("no panic").is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_groups_acks_attempts_and_settings() {
    let database = Database::new();
    let network = NetworkOptions { seed: seed(), lost_answers: 0.2, ..NetworkOptions::default() };
    let node = open(&database, network.clone(), Limits::default());
    let options = TopicOptions { retention_ms: Some(3_600_000), ..TopicOptions::default() };
    node.bus.set_topic(&topic("orders"), options.clone()).await.expect("sets");
    for number in 1..=8 {
        node.bus.publish("orders", &number).await.expect("publishes");
    }
    let mut orders = node.bus.subscribe("orders", "billing").from_earliest().await.expect("subscribes");
    for number in 1..=6 {
        let delivery = next(&mut orders).await;
        let settled = match number {
            4 => delivery.nack_after(Duration::from_millis(1), "no").await,
            // Acks above the unsettled event that the nack left.
            _ => delivery.ack().await,
        };
        assert!(!settled.expect("settles").stale);
    }
    orders.unsubscribe().await.expect("leaves");
    node.bus.close().await.expect("closes");

    let node = open(&database, network, Limits::default());
    assert_eq!(node.bus.topic_settings("orders").retention_ms, Some(3_600_000));
    assert_eq!(floor(&node.bus, "orders", "billing").await, 3);
    let mut orders = node.bus.subscribe("orders", "billing").await.expect("subscribes");
    assert!(!orders.created());
    let mut attempts = BTreeMap::new();
    for _ in 0..3 {
        let delivery = next(&mut orders).await;
        attempts.insert(delivery.seq(), delivery.attempt());
        delivery.ack().await.expect("acks");
    }
    assert_eq!(attempts, BTreeMap::from([(4, 2), (7, 1), (8, 1)]));
    until_floor(&node.bus, "orders", "billing", 8).await;
    let published = node.bus.publish("orders", &9).await.expect("publishes");
    assert_eq!(published.seq, 9);
    node.bus.close().await.expect("closes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_reads_lose_nothing_when_members_leave_or_the_group_seeks() {
    let seed = seed();
    let mut random = Random::new(seed);
    let network = NetworkOptions {
        seed,
        commit_latency_us: 0..=500,
        read_latency_us: 0..=4_000,
        fetch_bytes_max: 2_000,
        ..NetworkOptions::default()
    };
    let node = open(&Database::new(), network, Limits::default());
    let mut batch = node.bus.batch();
    for number in 1..=400 {
        batch.push("orders", &number, &Default::default()).expect("is added");
    }
    node.bus.publish_batch(batch).await.expect("publishes");
    let mut members: Vec<Subscription> = Vec::new();
    for step in 0..300 {
        if members.len() < 3 {
            let member = node.bus.subscribe("orders", "billing").from_earliest().batch_size(7);
            members.push(member.await.expect("subscribes"));
        }
        let at = random.below(members.len() as u64) as usize;
        // Often shorter than the read takes.
        let patience = Duration::from_micros(random.below(6_000));
        if let Ok(delivery) = tokio::time::timeout(patience, members[at].next()).await {
            let delivery = delivery.expect("the stream continues").expect("it is readable");
            if random.one_in(3) {
                drop(delivery.ack());
            }
        }
        match random.below(12) {
            0 => drop(members.remove(at)),
            1 => members.remove(at).unsubscribe().await.expect("leaves"),
            2 if step < 250 => {
                let to = if random.one_in(2) { Start::Earliest } else { Start::Latest };
                node.bus.seek("orders", "billing", to).await.expect("seeks");
            }
            _ => {}
        }
    }
    node.bus.seek("orders", "billing", Start::Earliest).await.expect("seeks");
    let mut seen = BTreeSet::new();
    drop(members.split_off(1));
    let last = &mut members[0];
    while seen.len() < 400 {
        let delivery = next(last).await;
        seen.insert(delivery.seq());
        drop(delivery.ack());
    }
    until_floor(&node.bus, "orders", "billing", 400).await;
    node.bus.close().await.expect("closes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_applies_to_pending_reads_and_survives_a_restart() {
    let database = Database::new();
    let network =
        NetworkOptions { seed: seed(), read_latency_us: 20_000..=30_000, ..NetworkOptions::default() };
    let node = open(&database, network.clone(), Limits::default());
    let mut orders = node.bus.subscribe("orders", "billing").from_earliest().await.expect("subscribes");
    node.bus.publish("orders", &1).await.expect("publishes");
    let mut waiting = Box::pin(orders.next());
    let patience = Duration::from_millis(5);
    assert!(tokio::time::timeout(patience, &mut waiting).await.is_err(), "the read is pending");
    node.bus.pause_group("orders", "billing").await.expect("pauses");
    let patience = Duration::from_millis(100);
    assert!(tokio::time::timeout(patience, &mut waiting).await.is_err(), "the group is paused");
    drop(waiting);
    orders.unsubscribe().await.expect("leaves");
    node.bus.close().await.expect("closes");

    let node = open(&database, network, Limits::default());
    let mut orders = node.bus.subscribe("orders", "billing").await.expect("subscribes");
    assert!(node.bus.groups().await.expect("lists groups")[0].is_paused);
    let mut waiting = Box::pin(next(&mut orders));
    assert!(tokio::time::timeout(patience, &mut waiting).await.is_err(), "the group is still paused");
    node.bus.resume_group("orders", "billing").await.expect("resumes");
    assert_eq!(waiting.await.seq(), 1);
    node.bus.close().await.expect("closes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_stopped_waiting_during_a_read_does_not_delay_others() {
    let network =
        NetworkOptions { seed: seed(), read_latency_us: 20_000..=30_000, ..NetworkOptions::default() };
    let node = open(&Database::new(), network, Limits::default());
    let mut stopped = node.bus.subscribe("orders", "billing").from_earliest().await.expect("subscribes");
    let mut other = node.bus.subscribe("orders", "billing").await.expect("subscribes");
    node.bus.publish("orders", &1).await.expect("publishes");
    let patience = Duration::from_millis(5);
    assert!(tokio::time::timeout(patience, stopped.next()).await.is_err(), "the read is pending");
    assert_eq!(next(&mut other).await.seq(), 1);
    node.bus.close().await.expect("closes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_topics_whose_first_events_a_filter_drops_are_read_to_their_end() {
    let network = NetworkOptions { seed: seed(), fetch_bytes_max: 1_000, ..NetworkOptions::default() };
    let node = open(&Database::new(), network, Limits::default());
    for name in ["orders.a", "orders.b", "orders.c"] {
        let mut batch = node.bus.batch();
        for number in 1..=60 {
            batch.push(name, &number, &Default::default()).expect("is added");
        }
        node.bus.publish_batch(batch).await.expect("publishes");
    }
    let orders = node.bus.subscribe("orders.*", "billing").from_earliest();
    let mut orders = orders.filter(|event| event.seq() % 10 == 7).await.expect("subscribes");
    for _ in 0..3 * 6 {
        let delivery = next(&mut orders).await;
        assert_eq!(delivery.seq() % 10, 7);
        drop(delivery.ack());
    }
    until_floor(&node.bus, "orders.*", "billing", 3 * 60).await;
    node.bus.close().await.expect("closes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_in_the_tail_are_read_without_a_request() {
    let network = NetworkOptions {
        seed: seed(),
        tail_bytes: 20_000,
        read_latency_us: 10_000_000..=10_000_000,
        ..NetworkOptions::default()
    };
    let node = open(&Database::new(), network, Limits::default());
    let mut orders = node.bus.subscribe("orders", "billing").from_earliest().await.expect("subscribes");
    for number in 1..=20 {
        node.bus.publish("orders", &number).await.expect("publishes");
        assert_eq!(next(&mut orders).await.seq(), number);
    }
    node.engine.close(MayBlock::on_this_thread()).expect("closes");
}
