//! Test of subscribers that never read while large events are published: the server needs the tail cache and a small buffer for
//! each of them, and a subscriber that reads receives every event.

use super::start;
use crate::long_form::{alone, asked};
use crate::serving::mebibytes;
use crate::support::TempFolder;
use crate::ws_client::{Client, Frame, ack_text, publish_text};
use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use std::time::Instant;
use tokio_tungstenite::tungstenite::Message;

const DEAF_CLIENTS: usize = 10;
const PAYLOAD_BYTES: usize = (1 << 20) - 16;
const WINDOW: u64 = 8;
/// The tail cache is 64 MiB.
const MEMORY_MAX_BYTES: u64 = 300 << 20;

#[test]
fn subscribers_that_never_read_do_not_fill_the_memory() {
    alone(deaf_subscribers());
}

async fn deaf_subscribers() {
    let count = asked("PROMBUS_DEAF_EVENTS").unwrap_or(250);
    let folder = TempFolder::new();
    let serving = start(&folder, &[]);
    let address = serving.address();
    let mut deaf = Vec::new();
    for number in 0..DEAF_CLIENTS {
        let mut client = Client::connect(address).await;
        let group = format!("deaf-{number}");
        client.subscribe("large", &group, json!({"from": "earliest", "maxInFlight": 1_000})).await;
        deaf.push(client);
    }
    let mut reader = Client::connect(address).await;
    reader.subscribe("large", "reader", json!({"from": "earliest"})).await;
    let reading = tokio::spawn(async move {
        for seq in 1..=count {
            let event = reader.frame().await.event.expect("an EVENT");
            assert_eq!(event.seq, seq);
            assert_eq!(event.payload.get().len(), PAYLOAD_BYTES);
            let ack = ack_text("large", "reader", &event.id, None);
            reader.socket.send(Message::text(ack)).await.unwrap();
        }
    });
    let payload = format!("\"{}\"", "x".repeat(PAYLOAD_BYTES - 2));
    let (mut sender, mut receiver) = Client::connect(address).await.socket.split();
    let (started, mut peak_seen) = (Instant::now(), 0);
    let (mut sent, mut answered) = (0, 0);
    while answered < count {
        while sent < count && sent - answered < WINDOW {
            sender.send(Message::text(publish_text("large", sent, None, &payload))).await.unwrap();
            sent += 1;
        }
        if let Message::Text(text) = receiver.next().await.unwrap().unwrap() {
            assert!(Frame::parse(&text).is_ok(), "{text}");
            answered += 1;
            peak_seen = peak_seen.max(serving.memory().resident_bytes);
        }
    }
    reading.await.unwrap();
    let (took, peak) = (started.elapsed(), serving.memory().peak_bytes);
    println!(
        "hostile: {count} events of 1 MiB past {DEAF_CLIENTS} deaf subscribers in {took:?}: peak {:.1} MiB",
        mebibytes(peak.max(peak_seen))
    );
    assert!(peak.max(peak_seen) < MEMORY_MAX_BYTES, "{peak} bytes");
}
