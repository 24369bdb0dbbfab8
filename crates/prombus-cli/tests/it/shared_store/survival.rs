//! Test of the loss of the leading gateway, then of MongoDB's primary, under load.

use super::gateways::{Store, get, wait_for_role};
use super::load::{GROUP, TOPIC, World, member, publisher};
use super::servers::ReplicaSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const EVENTS: u64 = 50_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_the_leader_and_of_the_primary_loses_nothing() {
    let mut set = ReplicaSet::start().await;
    let store = Store::new(&set.url);
    let first = store.gateway();
    wait_for_role(first.address(), "leader");
    let second = store.gateway();
    assert_eq!(super::gateways::role(second.address()).as_deref(), Some("follower"));
    let world = World::new(vec![first.address(), second.address()]);
    let members: Vec<_> = (0..4).map(|index| tokio::spawn(member(Arc::clone(&world), index))).collect();
    let half = EVENTS / 2;
    let publishers: Vec<_> = [(0, 0..half), (1, half..EVENTS)]
        .map(|(index, numbers)| tokio::spawn(publisher(Arc::clone(&world), index, numbers)))
        .into();

    world.wait_for_answers(EVENTS / 2).await;
    world.reset_pause();
    *world.gateways.lock().unwrap() = vec![second.address()];
    first.kill();
    let killed = Instant::now();
    wait_for_role(second.address(), "leader");
    let took_over = killed.elapsed();
    let before = world.answered_count.load(Ordering::SeqCst);
    world.wait_for_answers(before + 1_000).await;
    let takeover_ms = world.longest_pause_ms.load(Ordering::SeqCst);

    let third = store.gateway();
    world.gateways.lock().unwrap().push(third.address());
    world.wait_for_answers(EVENTS * 3 / 4).await;
    world.reset_pause();
    let primary = set.primary().await;
    set.members[primary].kill();
    world.wait_for_answers(EVENTS).await;
    let failover_ms = world.longest_pause_ms.load(Ordering::SeqCst);
    for publisher in publishers {
        publisher.await.unwrap();
    }
    // Everything is settled.
    let started = Instant::now();
    while (world.settled.lock().unwrap().len() as u64) < EVENTS {
        let settled = world.settled.lock().unwrap().len();
        assert!(started.elapsed() < Duration::from_secs(60), "{settled} of {EVENTS} events were delivered");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.is_over.store(true, Ordering::SeqCst);
    for member in members {
        member.await.unwrap();
    }
    assert_eq!(*world.violations.lock().unwrap(), Vec::<String>::new());
    let answered = world.answered.lock().unwrap().clone();
    let mut seqs: Vec<u64> = answered.values().copied().collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=EVENTS).collect::<Vec<_>>(), "every publish is one event");
    let stored = exported(second.address());
    for (number, seq) in &answered {
        assert_eq!(stored.get(*seq as usize - 1), Some(number), "seq {seq} is another event");
    }
    let redeliveries = world.check_one_member_at_a_time();
    println!(
        "takeover: the other gateway led after {:.1} s, publishes paused for {:.1} s; failover: publishes paused for {:.1} s; \
         {redeliveries} redeliveries",
        took_over.as_secs_f64(),
        takeover_ms as f64 / 1e3,
        failover_ms as f64 / 1e3
    );
    assert!(takeover_ms < 20_000, "the takeover took {takeover_ms} ms");
    assert!(failover_ms < 30_000, "the failover took {failover_ms} ms");
    third.stop();
    second.stop();
}

/// The payloads of the topic, in order.
fn exported(address: std::net::SocketAddr) -> Vec<u64> {
    let (status, body) = get(address, &format!("/export?topic={TOPIC}")).expect("an export");
    assert_eq!(status, 200, "{GROUP}: {body}");
    let text = dechunked(&body);
    let payload =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["payload"].as_u64().unwrap();
    text.lines().map(payload).collect()
}

/// Decodes a chunked body.
fn dechunked(body: &str) -> String {
    let (mut text, mut rest) = (String::new(), body);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { return body.to_owned() };
        if size == 0 {
            break;
        }
        text.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
    text
}
