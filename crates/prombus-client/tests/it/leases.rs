//! Leases on a fake server. The tests advance the clock instead of waiting.

use crate::clock::pass_seconds;
use crate::fake_server::{FakeServer, Peer, event_id};
use prombus_client::{Client, HandlerError, Subscribe, Subscription};
use serde_json::json;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

async fn subscribed(server: &FakeServer, options: fn(Subscribe) -> Subscribe) -> (Subscription, Peer) {
    let client = Client::new(&server.url, None).unwrap();
    let subscribe = async { options(client.subscribe("orders", "billing")).await };
    let (subscription, peer) = tokio::join!(subscribe, server.accept_member());
    (subscription.unwrap(), peer)
}

#[tokio::test]
async fn extensions_move_the_deadline_until_the_server_refuses_one() {
    let server = FakeServer::start().await;
    let (mut orders, mut peer) = subscribed(&server, |it| it).await;
    peer.deliver(1, 1).await;
    let delivery = orders.next().await.unwrap().unwrap();
    for _ in 0..4 {
        let before = delivery.lease_deadline();
        pass_seconds(15).await;
        let extension = peer.expect_and_ok("MODACK").await;
        assert_eq!((&extension["id"], &extension["extend_ms"]), (&json!(event_id(1)), &json!(30_000)));
        while delivery.lease_deadline() == before {
            tokio::task::yield_now().await;
        }
        assert!(!delivery.is_lease_lost());
    }
    pass_seconds(15).await;
    let extension = peer.expect("MODACK").await;
    peer.err(&extension, "unknown_id").await;
    delivery.lease_lost().await;
    assert!(Instant::now() < delivery.lease_deadline(), "the lease is lost before it expires");
}

#[tokio::test]
async fn a_handler_learns_that_the_server_does_not_know_its_lease() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let (called, mut calls) = mpsc::unbounded_channel();
    let worker = client.subscribe("orders", "billing").handler(move |event, context| {
        called.send(event.seq).unwrap();
        async move {
            context.lease_lost().await;
            Err::<(), _>(HandlerError::retry("stopped"))
        }
    });
    let (worker, mut peer) = tokio::join!(worker, server.accept_member());
    let _worker = worker.unwrap();
    peer.deliver(1, 1).await;
    assert_eq!(calls.recv().await, Some(1));
    pass_seconds(15).await;
    let extension = peer.expect("MODACK").await;
    peer.err(&extension, "unknown_id").await;
    assert_eq!(peer.expect_and_ok("NACK").await["reason"], "stopped");
}

#[tokio::test]
async fn a_lease_that_expires_without_a_response_is_lost() {
    let server = FakeServer::start().await;
    let (mut orders, mut peer) = subscribed(&server, |it| it).await;
    peer.deliver(1, 1).await;
    let delivery = orders.next().await.unwrap().unwrap();
    pass_seconds(29).await;
    assert!(!delivery.is_lease_lost());
    pass_seconds(2).await;
    assert!(delivery.is_lease_lost());
    // The server decides whether the result still applies.
    let settle = async {
        let frame = peer.expect("MODACK").await;
        peer.err(&frame, "unknown_id").await;
        let frame = peer.expect("ACK").await;
        peer.ok(&frame, json!({"stale": true})).await;
    };
    let (settled, ()) = tokio::join!(delivery.ack(), settle);
    assert!(settled.unwrap().stale);
}

#[tokio::test]
async fn without_automatic_extension_only_the_consumer_extends() {
    let server = FakeServer::start().await;
    let (mut orders, mut peer) = subscribed(&server, |it| it.auto_extend(false)).await;
    peer.deliver(1, 1).await;
    let delivery = orders.next().await.unwrap().unwrap();
    let before = delivery.lease_deadline();
    pass_seconds(20).await;
    let by = Duration::from_secs(300);
    let (extended, frame) = tokio::join!(delivery.extend(by), peer.expect_and_ok("MODACK"));
    assert!(extended.unwrap());
    assert_eq!(frame["extend_ms"], 300_000);
    assert!(delivery.lease_deadline() > before + Duration::from_secs(200));
    let over = async {
        let frame = peer.expect("MODACK").await;
        peer.err(&frame, "unknown_id").await;
    };
    let (extended, ()) = tokio::join!(delivery.extend(by), over);
    assert!(!extended.unwrap() && delivery.is_lease_lost());
    let settle = async {
        let frame = peer.expect("NACK").await;
        assert_eq!((&frame["delay_ms"], &frame["reason"]), (&json!(7000), &json!("later")));
        peer.ok(&frame, json!({"stale": true})).await;
    };
    let (settled, ()) = tokio::join!(delivery.nack_after(Duration::from_secs(7), "later"), settle);
    assert!(settled.unwrap().stale);
}

#[tokio::test]
async fn an_event_whose_lease_ended_in_the_queue_is_delivered_with_its_next_lease_only() {
    let server = FakeServer::start().await;
    let (mut orders, mut peer) = subscribed(&server, |it| it.auto_extend(false)).await;
    peer.deliver(1, 1).await;
    pass_seconds(33).await;
    peer.deliver(1, 2).await;
    let delivery = orders.next().await.unwrap().unwrap();
    assert_eq!(delivery.context.attempt, 2);
    peer.deliver(2, 1).await;
    assert_eq!(orders.next().await.unwrap().unwrap().event.seq, 2);
}

#[tokio::test]
async fn a_refused_extension_does_not_end_the_lease_of_a_redelivery_that_came_before_it() {
    let server = FakeServer::start().await;
    let (mut orders, mut peer) = subscribed(&server, |it| it).await;
    peer.deliver(1, 1).await;
    let delivery = orders.next().await.unwrap().unwrap();
    pass_seconds(15).await;
    let extension = peer.expect("MODACK").await;
    peer.deliver(1, 2).await;
    peer.err(&extension, "unknown_id").await;
    // Frames are processed in order, so all others were processed when the second event arrives.
    peer.deliver(2, 1).await;
    assert_eq!(orders.next().await.unwrap().unwrap().event.seq, 2);
    assert!(!delivery.is_lease_lost());
}

#[tokio::test]
async fn a_stopped_handler_extends_only_the_lease_of_the_event_that_it_handles() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let (called, mut calls) = mpsc::unbounded_channel();
    let worker = client.subscribe("orders", "billing").handler(move |event, _| {
        called.send(event.seq).unwrap();
        std::future::pending::<Result<(), HandlerError>>()
    });
    let (worker, mut peer) = tokio::join!(worker, server.accept_member());
    peer.deliver(1, 1).await;
    peer.deliver(2, 1).await;
    assert_eq!(calls.recv().await, Some(1));
    let _stopping = tokio::spawn(worker.unwrap().stop());
    peer.expect_and_ok("PAUSE").await;
    peer.deliver(3, 1).await;
    for _ in 0..3 {
        pass_seconds(15).await;
        assert_eq!(peer.expect_and_ok("MODACK").await["id"], event_id(1));
    }
}
