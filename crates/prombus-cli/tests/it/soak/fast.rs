//! The group that keeps up: it must receive every event in order, and measures the latency.

use super::publisher::Latency;
use super::{TOPIC, World};
use crate::ws_client::{Client, Frame, ack_text};
use futures_util::{FutureExt, SinkExt, StreamExt};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

const GROUP: &str = "fast";

pub(super) struct Received {
    pub(super) count: u64,
    pub(super) latency: Latency,
}

pub(super) async fn subscribe(world: &World) -> Client {
    let mut client = Client::connect(world.address).await;
    client.subscribe(TOPIC, GROUP, json!({"from": "earliest", "maxInFlight": 10_000})).await;
    client
}

pub(super) async fn consume(world: Arc<World>, mut client: Client) -> Received {
    let mut received = Received { count: 0, latency: Latency::new() };
    let socket = &mut client.socket;
    while !world.is_over() {
        let patience = Duration::from_millis(200);
        let Ok(next) = tokio::time::timeout(patience, socket.next()).await else { continue };
        let mut next = Some(next);
        while let Some(message) = next {
            if let Message::Text(text) = message.expect("the fast group is not closed").unwrap() {
                let frame = Frame::parse(&text);
                let event = frame.event.unwrap_or_else(|| panic!("an EVENT was expected: {text}"));
                received.count += 1;
                assert_eq!(event.seq, received.count, "in order, without a gap");
                let (due_us, number, _): (u64, u64, &str) =
                    serde_json::from_str(event.payload.get()).unwrap();
                assert_eq!(number + 1, event.seq);
                received.latency.count(&world, due_us);
                socket.feed(Message::text(ack_text(TOPIC, GROUP, &event.id, None))).await.unwrap();
            }
            next = socket.next().now_or_never();
        }
        world.fast_received.store(received.count, Ordering::SeqCst);
        socket.flush().await.unwrap();
    }
    received
}
