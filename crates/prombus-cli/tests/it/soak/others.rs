//! Clients that do not keep up: a group that consumes at a tenth of the rate, and a client that never reads.

use super::{TOPIC, World};
use crate::http_client::get_json;
use crate::ws_client::{Client, Frame, ack_text};
use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;
use tokio_tungstenite::tungstenite::Message;

/// The slow group acks this many events at once, then pauses.
const SLOW_BATCH: u64 = 100;

/// Consumes slowly, and checks that events arrive in order and without a gap. Returns their number.
pub(super) async fn slow(world: Arc<World>) -> u64 {
    let mut client = Client::connect(world.address).await;
    client.subscribe(TOPIC, "slow", json!({"from": "earliest", "maxInFlight": SLOW_BATCH})).await;
    let socket = &mut client.socket;
    let (mut count, began) = (0, Instant::now());
    let mut acks = Vec::new();
    while !world.is_over() {
        let patience = Duration::from_millis(200);
        let Ok(next) = tokio::time::timeout(patience, socket.next()).await else { continue };
        let Message::Text(text) = next.expect("a slow client is not closed").unwrap() else { continue };
        let event = Frame::parse(&text).event.unwrap_or_else(|| panic!("an EVENT was expected: {text}"));
        count += 1;
        assert_eq!(event.seq, count, "in order, without a gap");
        acks.push(ack_text(TOPIC, "slow", &event.id, None));
        if count % SLOW_BATCH == 0 {
            let due = began + Duration::from_micros(count * 10_000_000 / world.rate);
            tokio::time::sleep_until(due.into()).await;
            for ack in acks.drain(..) {
                socket.feed(Message::text(ack)).await.unwrap();
            }
            socket.flush().await.unwrap();
        }
    }
    count
}

/// Subscribes, never reads, and connects again when the server has closed it.
pub(super) async fn deaf(world: Arc<World>) {
    let opts = json!({"from": "earliest", "maxInFlight": 100_000});
    // Keeps the closed connection open on this side: a client that does not read does not notice that it was closed.
    let mut old_client: Option<Client> = None;
    while !world.is_over() {
        let mut client = Client::connect(world.address).await;
        client.subscribe(TOPIC, "deaf", opts.clone()).await;
        drop(old_client.take());
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if world.is_over() {
                return;
            }
            let address = world.address.to_string();
            let groups = spawn_blocking(move || get_json(&address, "/groups")).await.unwrap();
            let groups = groups["groups"].as_array().unwrap();
            if groups.iter().any(|it| it["group"] == "deaf" && it["members"] == 0) {
                world.deaf_closed.fetch_add(1, Ordering::SeqCst);
                break;
            }
        }
        old_client = Some(client);
    }
}
