//! The behaviour while the buffers of a connection, or of all connections together, are full.

use crate::raw_client::{Raw, metric};
use crate::rig::{Rig, options};
use prombus_server::ServerOptions;
use prombus_server::test_util::put_masked;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{sleep, timeout};

#[tokio::test(flavor = "multi_thread")]
async fn redeliveries_to_a_client_that_does_not_read_are_bounded() {
    let rig = Rig::memory().await;
    let large = "x".repeat(1_000_000);
    let mut first = rig.client().await;
    first.subscribe("t", "g", json!({"from": "earliest"})).await;
    for _ in 0..50 {
        rig.bus.publish("t", &large).await.expect("published");
        first.event().await;
    }
    drop(first);
    let mut deaf = Raw::connect(rig.address).await;
    deaf.text(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "corr": "s"})).await;
    let mut most = 0.0f64;
    for _ in 0..20 {
        sleep(Duration::from_millis(50)).await;
        most = most.max(metric(rig.address, "prombus_buffered_bytes").await);
    }
    assert!(most < 8e6, "{most} bytes are queued for one connection; max_queued_bytes is 1 MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_resume_when_the_buffers_have_room_again() {
    let mut small: ServerOptions = options();
    small.connections.max_buffered_bytes = 100_000;
    let rig = Rig::with(small).await;
    let mut reader = rig.client().await;
    reader.subscribe("t", "g", json!({})).await;
    // The events that are queued for a client that does not read use up the budget.
    let large = "x".repeat(200_000);
    for _ in 0..100 {
        rig.bus.publish("large", &large).await.expect("published");
    }
    let mut hog = Raw::connect(rig.address).await;
    hog.text(json!({"op": "SUBSCRIBE", "topic": "large", "group": "g", "opts": {"from": "earliest"}})).await;
    sleep(Duration::from_millis(1000)).await;
    let used = metric(rig.address, "prombus_buffered_bytes").await;
    assert!(used >= 100_000.0, "{used}");
    rig.bus.publish("t", &1).await.expect("published");
    sleep(Duration::from_millis(200)).await;
    drop(hog);
    let begun = Instant::now();
    let event = timeout(Duration::from_secs(5), reader.event()).await;
    assert!(event.is_ok(), "no event {:?} after there was room again", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_messages_of_many_connections_stay_within_the_limit() {
    let mut small: ServerOptions = options();
    small.connections.max_buffered_bytes = 1 << 20;
    let rig = Rig::with(small).await;
    let mut bytes = Vec::new();
    put_masked(&mut bytes, 0x81, &vec![b' '; 1_000_000]);
    let mut raws = Vec::new();
    for _ in 0..40 {
        let mut raw = Raw::connect(rig.address).await;
        let _ = timeout(Duration::from_millis(50), raw.socket.write_all(&bytes[..250_000])).await;
        raws.push(raw);
    }
    sleep(Duration::from_millis(300)).await;
    let used = metric(rig.address, "prombus_buffered_bytes").await;
    assert!(used < 2.0 * 1_048_576.0, "{used} bytes; max_buffered_bytes is 1 MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_not_read_because_of_full_buffers_does_not_count_as_dead() {
    let mut small: ServerOptions = options();
    small.connections.max_buffered_bytes = 600_000;
    small.connections.ping_interval = Duration::from_millis(500);
    small.connections.stall_timeout = Duration::from_secs(10);
    let rig = Rig::with(small).await;
    let mut bytes = Vec::new();
    put_masked(&mut bytes, 0x81, &vec![b' '; 1_400_000]);
    let mut victim = Raw::connect(rig.address).await;
    sleep(Duration::from_millis(200)).await;
    let mut hog = Raw::connect(rig.address).await;
    // The victim sends a fragment of a message (in a whole frame, so that pongs may follow). Meanwhile the hog uses up the
    // budget.
    let mut piece = Vec::new();
    put_masked(&mut piece, 0x01, &vec![b' '; 20_000]);
    victim.socket.write_all(&piece[..5_000]).await.expect("sent");
    sleep(Duration::from_millis(50)).await;
    let _ = timeout(Duration::from_millis(300), hog.socket.write_all(&bytes[..700_000])).await;
    victim.socket.write_all(&piece[5_000..]).await.expect("sent");
    let until = Instant::now() + Duration::from_millis(1300);
    let mut closed = None;
    while Instant::now() < until {
        if let Ok(frame) = timeout(Duration::from_millis(100), victim.frame()).await {
            match frame {
                Some((9, payload)) => victim.send(0x8a, &payload).await,
                other => {
                    closed = Some(other);
                    break;
                }
            }
        }
    }
    assert!(closed.is_none(), "{closed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_do_not_expire_while_there_is_no_room_to_read() {
    let mut small: ServerOptions = options();
    small.connections.max_buffered_bytes = 600_000;
    let rig = Rig::with(small).await;
    let mut raw = Raw::connect(rig.address).await;
    raw.text(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "opts": {"ackTimeoutMs": 1000}})).await;
    assert_eq!(raw.json().await["op"], "OK");
    rig.bus.publish("t", &1).await.expect("published");
    let id = raw.json().await["event"]["id"].clone();
    let mut bytes = Vec::new();
    put_masked(
        &mut bytes,
        0x81,
        json!({"op": "PUBLISH", "topic": "u", "payload": "x".repeat(20_000)}).to_string().as_bytes(),
    );
    raw.socket.write_all(&bytes[..5_000]).await.expect("sent");
    sleep(Duration::from_millis(50)).await;
    let mut hog = Raw::connect(rig.address).await;
    let mut large = Vec::new();
    put_masked(&mut large, 0x81, &vec![b' '; 1_400_000]);
    let _ = timeout(Duration::from_millis(300), hog.socket.write_all(&large[..700_000])).await;
    println!("buffered: {}", metric(rig.address, "prombus_buffered_bytes").await);
    // The ack is sent in time.
    raw.socket.write_all(&bytes[5_000..]).await.expect("sent");
    raw.text(json!({"op": "ACK", "topic": "t", "group": "g", "id": id})).await;
    sleep(Duration::from_millis(1500)).await;
    let group = rig.bus.groups().await.expect("groups").remove(0);
    println!("{group:?}");
    assert_eq!(group.counters.expired, 0, "{group:?}");
    drop(hog);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_gets_all_events_when_the_buffers_were_full_for_a_moment() {
    let mut small: ServerOptions = options();
    small.connections.max_buffered_bytes = 100_000;
    let rig = Rig::with(small).await;
    let large = "x".repeat(200_000);
    for _ in 0..50 {
        rig.bus.publish("t", &large).await.expect("published");
    }
    let mut reader = rig.client().await;
    reader.subscribe("t", "g", json!({"from": "earliest"})).await;
    for n in 0..50 {
        let event = timeout(Duration::from_secs(5), reader.event()).await;
        let used = metric(rig.address, "prombus_buffered_bytes").await;
        assert!(event.is_ok(), "{n} of 50 events, and then none for 5 s with {used} bytes in buffers");
    }
}
