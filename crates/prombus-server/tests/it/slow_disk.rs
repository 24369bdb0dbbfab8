//! A real server with a disk that is slow, full or failing.

use crate::raw_client::{Raw, metric};
use crate::rig::{Rig, options};
use prombus::Bus;
use prombus_server::ServerOptions;
use prombus_server::test_util::put_masked;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{sleep, timeout};

/// A bus over a simulated disk. Without `threads` it commits only when the test calls `step_commit`.
fn simulated(
    threads: bool,
) -> (Bus, prombus_log::storage::simulated::Disk, std::sync::Arc<prombus::engine::LogEngine>) {
    simulated_with(prombus_log::Options { threads, ..prombus_log::Options::default() })
}

fn simulated_with(
    log: prombus_log::Options,
) -> (Bus, prombus_log::storage::simulated::Disk, std::sync::Arc<prombus::engine::LogEngine>) {
    let disk = prombus_log::storage::simulated::Disk::new(1);
    let options = prombus::engine::LogEngineOptions { log };
    let clock: std::sync::Arc<dyn prombus::Clock> = std::sync::Arc::new(prombus::SystemClock::default());
    let store = prombus::engine::LogEngine::open_storage(std::sync::Arc::new(disk.clone()), options, clock)
        .expect("opens");
    let store = std::sync::Arc::new(store);
    let bus = Bus::builder()
        .over_engine(std::sync::Arc::clone(&store) as std::sync::Arc<dyn prombus::engine::Engine>);
    (bus.expect("a bus"), disk, store)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_without_corr_that_cannot_be_stored_is_answered() {
    let (bus, disk, _store) = simulated(true);
    let rig = Rig::over(bus, options()).await;
    let mut client = rig.client().await;
    client.subscribe("t", "g", json!({})).await;
    client.publish("t", json!(1)).await;
    client.publish("t", json!(2)).await;
    let ids = [client.event().await["event"]["id"].clone(), client.event().await["event"]["id"].clone()];
    disk.fail_next_sync(prombus_log::storage::SyncPoint::LogData);
    client.err(json!({"op": "PUBLISH", "topic": "t", "payload": 3}), "unavailable").await;
    client.err(json!({"op": "ACK", "topic": "t", "group": "g", "id": ids[0]}), "unavailable").await;
    client.err(json!({"op": "SUBSCRIBE", "topic": "t", "group": "new"}), "unavailable").await;
    client.send(json!({"op": "ACK", "topic": "t", "group": "g", "id": ids[1]})).await;
    let answer = timeout(Duration::from_secs(3), client.frame()).await;
    assert_eq!(answer.expect("answered on error")["code"], "unavailable");
}

#[tokio::test(flavor = "multi_thread")]
async fn acks_that_a_full_disk_cannot_store_are_answered_with_storage_full() {
    let (bus, disk, _store) = simulated_with(prombus_log::Options {
        segment_bytes: 16 * 1024,
        reserve_bytes: 8 * 1024,
        batch_bytes: 4 * 1024,
        checkpoint_bytes: 8 * 1024,
        ..prombus_log::Options::default()
    });
    let rig = Rig::over(bus, options()).await;
    let mut client = rig.client().await;
    client.subscribe("t", "g", json!({"maxInFlight": 400})).await;
    for number in 0..400 {
        client.publish("t", json!(number)).await;
    }
    let mut ids = Vec::new();
    for _ in 0..400 {
        ids.push(client.event().await["event"]["id"].clone());
    }
    disk.set_capacity(Some(disk.used_bytes()));
    let filler = "x".repeat(1_000);
    let mut is_full = false;
    for _ in 0..200 {
        let answer = client.ask(json!({"op": "PUBLISH", "topic": "filler", "payload": filler})).await;
        is_full = answer["code"] == "storage_full";
        if is_full {
            break;
        }
    }
    assert!(is_full, "the disk did not become full");
    // The reserve has room for some acks. After that, acks are still answered, with an ERR.
    let mut acked = 0;
    for id in &ids {
        let ack = json!({"op": "ACK", "topic": "t", "group": "g", "id": id});
        let answer = timeout(Duration::from_secs(3), client.ask(ack)).await.expect("an ack is answered");
        if answer["op"] == "ERR" {
            assert_eq!(answer["code"], "storage_full");
            break;
        }
        acked += 1;
    }
    assert!((10..300).contains(&acked), "{acked} acks before the reserve is used up");
    // An ack without a corr is answered only on error, as here.
    client.send(json!({"op": "ACK", "topic": "t", "group": "g", "id": ids[acked + 1]})).await;
    let answer = timeout(Duration::from_secs(3), client.frame()).await;
    assert_eq!(answer.expect("answered on error")["code"], "storage_full");
    disk.set_capacity(None);
}

#[tokio::test(flavor = "multi_thread")]
async fn publishes_that_wait_for_the_disk_stay_within_the_limit() {
    let (bus, _disk, store) = simulated(false);
    let mut small: ServerOptions = options();
    small.connections.max_buffered_bytes = 1 << 20;
    let rig = Rig::over(bus, small).await;
    let frame = json!({"op": "PUBLISH", "topic": "t", "payload": "x".repeat(1_000)}).to_string();
    let mut raws = Vec::new();
    for _ in 0..20 {
        let mut raw = Raw::connect(rig.address).await;
        let mut bytes = Vec::new();
        (0..3000).for_each(|_| put_masked(&mut bytes, 0x81, frame.as_bytes()));
        let _ = timeout(Duration::from_millis(300), raw.socket.write_all(&bytes)).await;
        raws.push(raw);
    }
    sleep(Duration::from_millis(300)).await;
    let used = metric(rig.address, "prombus_buffered_bytes").await;
    while store.log().step_commit() == prombus_log::Step::Worked {}
    // Each connection has a small minimum: here 256 KiB, the size of one read.
    assert!(used < 20.0 * 256.0 * 1024.0 + 1_048_576.0, "{used} bytes; max_buffered_bytes is 1 MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn publishes_of_a_connection_keep_their_order_when_the_queue_is_full() {
    let (bus, _disk, store) = simulated(false);
    let rig = Rig::over(bus.clone(), options()).await;
    let mut client = rig.client().await;
    // Fill the committer's queue, until publishes have to wait for a place in it.
    let large = "x".repeat(1_000_000);
    let topic = prombus::Topic::new("fill").expect("a topic");
    let mut filling = Vec::new();
    for _ in 0..400 {
        let mut batch = bus.backend().batch();
        batch.push(topic.clone(), &large, &prombus::PublishOptions::default()).expect("it fits");
        let publishing = bus.backend().publish(batch);
        let is_outside = format!("{publishing:?}").contains("None") && filling.len() > 250;
        filling.push(publishing);
        if is_outside {
            break;
        }
    }
    // First large events, for which the queue has no room, then small ones, for which it may have.
    for n in 0..3 {
        let text = "y".repeat(900_000);
        client.send(json!({"op": "PUBLISH", "topic": "t", "corr": n, "payload": text})).await;
        sleep(Duration::from_millis(50)).await;
    }
    for n in 3..6 {
        client.send(json!({"op": "PUBLISH", "topic": "t", "corr": n, "payload": n})).await;
        sleep(Duration::from_millis(50)).await;
    }
    let committing = std::thread::spawn(move || {
        let until = Instant::now() + Duration::from_secs(8);
        while Instant::now() < until {
            if store.log().step_commit() != prombus_log::Step::Worked
                && store.log().step_housekeeping() != prombus_log::Step::Worked
            {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let filled = tokio::spawn(async move {
        for publishing in filling {
            let _ = publishing.await;
        }
    });
    let mut answers = Vec::new();
    for _ in 0..6 {
        let answer = client.frame().await;
        answers.push((answer["corr"].as_u64().expect("a corr"), answer["seq"].as_u64().expect("a seq")));
    }
    let _ = filled.await;
    committing.join().expect("no panic");
    let seqs: Vec<u64> = answers.iter().map(|it| it.1).collect();
    assert!(seqs.is_sorted(), "(corr, seq) in the order of the OKs: {answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_in_time_with_a_frame_that_waits_for_the_disk() {
    let (bus, _disk, store) = simulated(false);
    let mut rig = Rig::over(bus, options()).await;
    let mut client = rig.client().await;
    client.send(json!({"op": "PUBLISH", "topic": "t", "payload": 1})).await;
    client.send(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g"})).await;
    client.send(json!({"op": "PUBLISH", "topic": "t", "payload": 2})).await;
    let begun = Instant::now();
    sleep(Duration::from_millis(100)).await;
    rig.begin_stop();
    let seen = client.see().await;
    assert_eq!(seen, crate::rig::Seen::Close(Some(1001)));
    rig.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(store);
}
