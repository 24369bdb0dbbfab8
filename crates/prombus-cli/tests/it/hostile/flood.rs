//! Test of many clients that connect and disconnect at once.

use super::raw::Raw;
use super::{check_is_responsive, start};
use crate::long_form::{alone, wait_until};
use crate::serving::mebibytes;
use crate::support::TempFolder;
use crate::ws_client::{Client, PATIENCE};
use serde_json::json;
use std::time::Instant;
use tokio::task::JoinSet;

const CONNECTS: usize = 2_000;
const AT_ONCE: usize = 50;

#[test]
fn a_flood_of_connections_leaves_nothing_behind() {
    alone(async {
        let folder = TempFolder::new();
        let serving = start(&folder, &[]);
        check_is_responsive(&serving).await;
        let (before, memory_before) = (serving.socket_count(), serving.memory());
        let address = serving.address();
        let started = Instant::now();
        let mut clients = JoinSet::new();
        for number in 0..CONNECTS {
            clients.spawn(async move {
                match number % 4 {
                    0 => drop(Raw::connect(address).await),
                    1 => drop(Raw::upgraded(address).await),
                    2 => {
                        let mut raw = Raw::connect(address).await;
                        raw.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                            .await;
                        assert!(raw.until_closed().await.starts_with(b"HTTP/1.1 200"));
                    }
                    _ => {
                        // Disconnects while a publish and a subscription are in flight.
                        let mut client = Client::connect(address).await;
                        client.send(&json!({"op": "SUBSCRIBE", "topic": "honest", "group": "work"})).await;
                        client.send(&json!({"op": "PUBLISH", "topic": "flood", "payload": number})).await;
                    }
                }
            });
            if clients.len() >= AT_ONCE {
                clients.join_next().await.unwrap().unwrap();
            }
            if number % 500 == 0 {
                check_is_responsive_beside_others(address).await;
            }
        }
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
        println!(
            "hostile: {CONNECTS} connections opened and closed in {:?}; memory from {:.1} to {:.1} MiB",
            started.elapsed(),
            mebibytes(memory_before.resident_bytes),
            mebibytes(serving.memory().resident_bytes)
        );
        wait_until("the server has closed their sockets", PATIENCE, async || {
            serving.socket_count() <= before
        })
        .await;
        check_is_responsive(&serving).await;
    });
}

/// Checks only a publish: other clients are members of the group and may receive the event.
async fn check_is_responsive_beside_others(address: std::net::SocketAddr) {
    let started = Instant::now();
    let mut client = Client::connect(address).await;
    client.publish("honest", json!(1)).await;
    assert!(started.elapsed() < super::HONEST_PATIENCE, "{:?}", started.elapsed());
}
