//! Subscriptions whose connection is lost: they subscribe again, keep running handlers, and send results late.

use crate::fake_server::{FakeServer, Peer, event_id};
use crate::gateway::{Gateway, TempFolder};
use prombus_client::{Client, ClientError, ErrorCode, HandlerError, HandlerHandle};
use prombus_server::ServerOptions;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tokio_tungstenite::tungstenite::Message;

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_continues_after_the_server_was_stopped_and_started_again_on_its_folder() {
    let folder = TempFolder::new();
    let gateway = Gateway::in_folder(&folder).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    let mut orders = client.subscribe("orders", "billing").from_earliest().await.unwrap();
    for number in 0..10 {
        client.publish("orders", &number).await.unwrap();
    }
    for number in 0..5 {
        let delivery = orders.next().await.unwrap().unwrap();
        assert_eq!(delivery.json::<u32>().unwrap(), number);
        delivery.ack().await.unwrap();
    }
    let gateway = gateway.stop().await.restart_in(&folder).await;
    for number in 10..15 {
        client.publish("orders", &number).await.unwrap();
    }
    let mut rest = BTreeSet::new();
    while rest.len() < 10 {
        let delivery = orders.next().await.unwrap().unwrap();
        assert!(rest.insert(delivery.json::<u32>().unwrap()), "delivered twice: {delivery:?}");
        assert!(!delivery.ack().await.unwrap().stale);
    }
    assert_eq!(rest, (5..15).collect());
    gateway.stop().await;
}

/// A handler on a fake server that waits for a permit. The receiver gets a message per call.
async fn waiting_handler(
    server: &FakeServer,
) -> (HandlerHandle, Peer, mpsc::UnboundedReceiver<u32>, Arc<Semaphore>) {
    let client = Client::new(&server.url, None).unwrap();
    let permits = Arc::new(Semaphore::new(0));
    let (called, calls) = mpsc::unbounded_channel();
    let waits = Arc::clone(&permits);
    let worker = client.subscribe("orders", "billing").concurrency(10).handler(move |event, _| {
        called.send(event.json().unwrap()).unwrap();
        let waits = Arc::clone(&waits);
        async move {
            waits.acquire().await.unwrap().forget();
            Ok::<(), HandlerError>(())
        }
    });
    let (worker, peer) = tokio::join!(worker, server.accept_member());
    (worker.unwrap(), peer, calls, permits)
}

#[tokio::test]
async fn an_event_that_is_still_handled_adopts_its_new_lease_and_runs_once() {
    let server = FakeServer::start().await;
    let (worker, mut peer, mut calls, permits) = waiting_handler(&server).await;
    peer.deliver(1, 1).await;
    assert_eq!(calls.recv().await, Some(1));
    drop(peer);
    let mut peer = server.accept_member().await;
    peer.deliver(1, 2).await;
    // Frames are processed in order, so the first event was adopted when the second one runs.
    peer.deliver(2, 1).await;
    assert_eq!(calls.recv().await, Some(2));
    permits.add_permits(2);
    let acked: BTreeSet<String> = [peer.expect_and_ok("ACK").await, peer.expect_and_ok("ACK").await]
        .map(|ack| ack["id"].as_str().unwrap().to_owned())
        .into();
    assert_eq!(acked, [event_id(1), event_id(2)].into());
    assert!(calls.try_recv().is_err());
    let stopping = tokio::spawn(worker.stop());
    peer.expect_and_ok("PAUSE").await;
    peer.expect_and_ok("UNSUBSCRIBE").await;
    stopping.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_handler_that_ended_while_disconnected_sends_its_result_at_the_redelivery() {
    let server = FakeServer::start().await;
    let (worker, mut peer, mut calls, permits) = waiting_handler(&server).await;
    peer.deliver(1, 1).await;
    assert_eq!(calls.recv().await, Some(1));
    drop(peer);
    let mut peer = server.accept_member().await;
    permits.add_permits(1);
    // The result must not be sent before the redelivery: for the old lease it would be stale. A second event shows that it was not.
    permits.add_permits(1);
    peer.deliver(2, 1).await;
    let ack = peer.expect_and_ok("ACK").await;
    assert_eq!(ack["id"], event_id(2));
    peer.deliver(1, 2).await;
    let ack = peer.expect_and_ok("ACK").await;
    assert_eq!(ack["id"], event_id(1));
    assert_eq!(calls.recv().await, Some(2));
    assert!(calls.try_recv().is_err(), "the first event ran again");
    drop(worker);
}

#[tokio::test]
async fn an_ack_whose_ok_was_lost_is_resent_at_the_redelivery() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let (orders, mut peer) =
        tokio::join!(async { client.subscribe("orders", "billing").await }, server.accept_member());
    let mut orders = orders.unwrap();
    peer.deliver(1, 1).await;
    let delivery = orders.next().await.unwrap().unwrap();
    let acking = tokio::spawn(delivery.ack());
    peer.expect("ACK").await;
    drop(peer);
    let error = acking.await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Lost { .. }), "{error}");
    let mut peer = server.accept_member().await;
    peer.deliver(1, 2).await;
    assert_eq!(peer.expect_and_ok("ACK").await["id"], event_id(1));
    peer.deliver(2, 1).await;
    assert_eq!(orders.next().await.unwrap().unwrap().json::<u32>().unwrap(), 2);
}

#[tokio::test]
async fn events_that_were_not_taken_before_the_loss_are_delivered_once() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let (orders, mut peer) =
        tokio::join!(async { client.subscribe("orders", "billing").await }, server.accept_member());
    let mut orders = orders.unwrap();
    peer.deliver(1, 1).await;
    drop(peer);
    let mut peer = server.accept_member().await;
    peer.deliver(1, 2).await;
    let delivery = orders.next().await.unwrap().unwrap();
    assert_eq!(delivery.context.attempt, 2, "the lease of the first connection is gone");
    drop(delivery);
    peer.deliver(2, 1).await;
    assert_eq!(orders.next().await.unwrap().unwrap().json::<u32>().unwrap(), 2);
}

#[tokio::test]
async fn a_refusal_after_a_reconnect_is_yielded_once_and_ends_the_stream() {
    for code in ["forbidden", "bad_token", "group_conflict", "not_subscribed"] {
        let server = FakeServer::start().await;
        let client = Client::new(&server.url, None).unwrap();
        let (orders, peer) =
            tokio::join!(async { client.subscribe("orders", "billing").await }, server.accept_member());
        let mut orders = orders.unwrap();
        drop(peer);
        // The first refusal is temporary, the second is permanent.
        let mut peer = server.accept().await;
        let frame = peer.expect("SUBSCRIBE").await;
        peer.err(&frame, "unavailable").await;
        let mut peer = server.accept().await;
        let frame = peer.expect("SUBSCRIBE").await;
        peer.err(&frame, code).await;
        let error = orders.next().await.unwrap().unwrap_err();
        assert_eq!(error.code().unwrap().as_str(), code);
        assert!(orders.next().await.is_none());
    }
}

#[tokio::test]
async fn a_temporary_error_resubscribes_and_a_permanent_error_ends_the_stream() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let (orders, mut peer) =
        tokio::join!(async { client.subscribe("orders", "billing").await }, server.accept_member());
    let mut orders = orders.unwrap();
    // The server ended the subscription and left the connection open.
    peer.send(json!({"op": "ERR", "code": "unavailable", "msg": "events cannot be read"})).await;
    let mut second = server.accept_member().await;
    second.deliver(1, 1).await;
    assert_eq!(orders.next().await.unwrap().unwrap().json::<u32>().unwrap(), 1);
    assert!(matches!(peer.message().await, Some(Message::Close(_))), "the first connection is closed");
    second.send(json!({"op": "ERR", "code": "forbidden", "msg": "the token changed"})).await;
    let error = orders.next().await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Forbidden));
    assert!(orders.next().await.is_none());
}

#[tokio::test]
async fn a_dropped_subscription_returns_its_leases_without_an_attempt() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    for number in 0..200 {
        client.publish("orders", &number).await.unwrap();
    }
    let mut first = client.subscribe("orders", "billing").from_earliest().await.unwrap();
    let held = first.next().await.unwrap().unwrap();
    assert_eq!(held.context.attempt, 1);
    drop((held, first));
    let mut second = client.subscribe("orders", "billing").await.unwrap();
    let delivery = second.next().await.unwrap().unwrap();
    assert_eq!((delivery.json::<u32>().unwrap(), delivery.context.attempt), (0, 1));
    gateway.stop().await;
}

#[tokio::test]
async fn a_group_that_was_deleted_while_disconnected_ends_the_stream() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let (orders, peer) =
        tokio::join!(async { client.subscribe("orders", "billing").await }, server.accept_member());
    let mut orders = orders.unwrap();
    drop(peer);
    let mut peer = server.accept().await;
    let frame = peer.expect("SUBSCRIBE").await;
    peer.ok(&frame, json!({"created": true})).await;
    let error = orders.next().await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotSubscribed));
    assert!(error.to_string().contains("the group was deleted"), "{error}");
    assert!(orders.next().await.is_none());
}

#[tokio::test]
async fn after_a_reconnect_a_paused_subscription_is_paused_before_the_server_can_deliver() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let (orders, mut peer) =
        tokio::join!(async { client.subscribe("orders", "billing").await }, server.accept_member());
    let mut orders = orders.unwrap();
    orders.pause();
    peer.expect_and_ok("PAUSE").await;
    drop(peer);
    let mut peer = server.accept().await;
    let subscribe = peer.expect("SUBSCRIBE").await;
    let pause = peer.expect("PAUSE").await;
    peer.ok(&subscribe, json!({"created": false})).await;
    peer.ok(&pause, json!({})).await;
    orders.resume();
    peer.expect_and_ok("RESUME").await;
    peer.deliver(1, 1).await;
    assert_eq!(orders.next().await.unwrap().unwrap().event.seq, 1);
}

#[tokio::test]
async fn stop_reports_a_result_that_waits_for_a_redelivery() {
    let server = FakeServer::start().await;
    let (worker, mut peer, mut calls, permits) = waiting_handler(&server).await;
    peer.deliver(1, 1).await;
    assert_eq!(calls.recv().await, Some(1));
    drop(peer);
    let mut peer = server.accept_member().await;
    let stopping = tokio::spawn(worker.stop());
    peer.expect_and_ok("PAUSE").await;
    permits.add_permits(1);
    peer.expect_and_ok("UNSUBSCRIBE").await;
    let error = stopping.await.unwrap().unwrap_err();
    assert!(matches!(&error, ClientError::Lost { why, .. } if why.contains("1 events")), "{error}");
}

#[tokio::test]
async fn an_event_that_is_larger_than_16_mib_is_delivered() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let (orders, mut peer) =
        tokio::join!(async { client.subscribe("orders", "billing").await }, server.accept_member());
    let mut orders = orders.unwrap();
    let payload = "x".repeat(20 << 20);
    let sending = peer.send(json!({
        "op": "EVENT", "topic": "orders", "group": "billing",
        "event": {"id": event_id(1), "seq": 1, "ts": 5, "topic": "orders", "payload": payload},
        "ctx": {"attempt": 1, "ack_deadline_ms": 30_000, "max_attempts": 5},
    }));
    let (delivery, ()) = tokio::join!(orders.next(), sending);
    let delivery = delivery.unwrap().unwrap();
    assert_eq!(delivery.json::<String>().unwrap().len(), 20 << 20);
}

#[tokio::test]
async fn a_reason_that_only_a_newer_server_knows_does_not_end_the_connection() {
    let server = FakeServer::start().await;
    let client = Client::new(&server.url, None).unwrap();
    let (orders, mut peer) =
        tokio::join!(async { client.subscribe("orders", "billing").await }, server.accept_member());
    let mut orders = orders.unwrap();
    peer.send(json!({
        "op": "EVENT", "topic": "orders", "group": "billing",
        "event": {"id": event_id(1), "seq": 1, "ts": 5, "topic": "orders", "payload": 1},
        "ctx": {"attempt": 2, "ack_deadline_ms": 30_000, "max_attempts": 5, "reason": "of_a_newer_server"},
    }))
    .await;
    let delivery = orders.next().await.unwrap().unwrap();
    assert_eq!((delivery.context.attempt, delivery.context.reason), (2, None));
}
