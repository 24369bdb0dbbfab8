//! A server that is stopped (SIGSTOP) for longer than leases run, and continued: acks that lie in its sockets by then count.

use crate::serving::Serving;
use crate::support::TempFolder;
use crate::ws_client::{Client, Seen, ack_text};
use futures_util::SinkExt;
use rustix::process::Signal;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

const EVENTS: u64 = 50;
const LEASE_MS: u64 = 1_500;

#[tokio::test]
async fn acks_that_arrive_while_the_server_is_stopped_count_and_nothing_is_delivered_again() {
    let folder = TempFolder::new();
    let server = Serving::in_folder(&folder, &[]);
    let mut member = Client::connect(server.address()).await;
    member.subscribe("orders", "billing", json!({"ackTimeoutMs": LEASE_MS})).await;
    let mut other = Client::connect(server.address()).await;
    for number in 0..EVENTS {
        other.publish("orders", json!(number)).await;
    }
    let mut ids = Vec::new();
    while ids.len() < EVENTS as usize {
        ids.extend(member.frame().await.event.map(|event| event.id));
    }
    // Somebody to whom the events would go if their leases were over.
    other.subscribe("orders", "billing", json!({"ackTimeoutMs": LEASE_MS})).await;

    server.signal(Signal::STOP);
    for (corr, id) in (1_000..).zip(&ids) {
        let text = ack_text("orders", "billing", id, Some(corr));
        member.socket.send(Message::text(text)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(2 * LEASE_MS)).await;
    server.signal(Signal::CONT);

    let mut answered = BTreeSet::new();
    while answered.len() < ids.len() {
        let frame = member.frame().await;
        assert!(frame.event.is_none(), "an event that was acked is delivered again: {frame:?}");
        assert!(frame.is_ok() && !frame.stale, "{frame:?}");
        answered.insert(frame.corr);
    }
    // Longer than a lease: nothing is delivered again later either.
    let quiet = tokio::time::timeout(Duration::from_millis(LEASE_MS + 500), other.see()).await;
    if let Ok(Seen::Frame(frame)) = quiet {
        panic!("an event that was acked goes to another: {frame:?}");
    }
    drop((member, other));
    server.stop();
}
