//! Streams of deliveries over the real gateway.

use crate::gateway::Gateway;
use prombus_client::{Client, DeadLetter, ErrorCode};
use prombus_server::ServerOptions;
use serde_json::Value;
use std::time::Duration;

#[tokio::test]
async fn unsettled_deliveries_are_redelivered() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    let mut member = client.subscribe("orders", "billing").from_earliest().await.unwrap();
    assert!(member.created());
    for number in 0..3 {
        client.publish("orders", &number).await.unwrap();
    }
    let first = member.next().await.unwrap().unwrap();
    assert_eq!((first.event.payload.get(), first.context.attempt), ("0", 1));
    assert!(!first.ack().await.unwrap().stale);
    let held = member.next().await.unwrap().unwrap();
    assert_eq!(held.event.payload.get(), "1");
    // The event goes to the next member when the first one leaves.
    member.unsubscribe().await.unwrap();
    let mut member = client.subscribe("orders", "billing").await.unwrap();
    assert!(!member.created());
    let again = member.next().await.unwrap().unwrap();
    assert_eq!((again.event.payload.get(), again.context.attempt), ("1", 1));
    assert!(held.ack().await.is_err(), "its subscription has ended");
    assert!(!again.ack().await.unwrap().stale);
    gateway.stop().await;
}

#[tokio::test]
async fn nacked_events_are_redelivered_with_the_reason_and_given_up_events_are_dead_letters() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    let mut orders = client.subscribe("orders", "billing").from_earliest().await.unwrap();
    let mut letters = client.subscribe("dlq.orders", "repair").from_earliest().await.unwrap();
    client.publish("orders", &1).await.unwrap();
    orders.next().await.unwrap().unwrap().nack("not yet").await.unwrap();
    let second = orders.next().await.unwrap().unwrap();
    assert_eq!((second.context.attempt, second.context.last_error.as_deref()), (2, Some("not yet")));
    second.give_up("never").await.unwrap();
    let letter: DeadLetter = letters.next().await.unwrap().unwrap().json().unwrap();
    assert_eq!((letter.err.as_str(), letter.attempts), ("never", 2));
    gateway.stop().await;
}

#[tokio::test]
async fn a_paused_stream_gets_nothing_until_it_is_resumed() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    let mut orders = client.subscribe("orders", "billing").await.unwrap();
    orders.pause();
    loop {
        let group: Value = client.get_json("/groups/orders/billing").await.unwrap();
        if group["member_list"][0]["paused"] == true {
            break;
        }
    }
    client.publish("orders", &1).await.unwrap();
    let nothing = tokio::time::timeout(Duration::from_millis(100), orders.next()).await;
    assert!(nothing.is_err());
    orders.resume();
    orders.next().await.unwrap().unwrap().ack().await.unwrap();
    gateway.stop().await;
}

#[tokio::test]
async fn a_subscription_that_the_server_refuses_is_an_error_at_once() {
    let gateway = Gateway::start(ServerOptions::default()).await;
    let client = Client::connect(&gateway.url(), None).await.unwrap();
    let refused = client.subscribe("a b", "billing").await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::BadTopic));
    let _first = client.subscribe("orders", "billing").key("k").await.unwrap();
    let refused = client.subscribe("orders", "billing").await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::GroupConflict));
    gateway.stop().await;
}
