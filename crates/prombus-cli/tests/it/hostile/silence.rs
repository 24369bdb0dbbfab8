//! Tests of slow and silent clients: heads that never end, sockets without data, no AUTH, no pong, half a body, half a frame.

use super::raw::{Raw, masked};
use super::{check_is_responsive, start};
use crate::long_form::{alone, wait_until};
use crate::support::TempFolder;
use crate::ws_client::{Client, PATIENCE};
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const SLOW_CLIENTS: usize = 200;
/// Generous, because a busy machine is slow; a server without the time limit would never close the connection.
const LATE: Duration = Duration::from_secs(8);

#[test]
fn slow_heads_and_silent_sockets_are_closed_without_affecting_others() {
    alone(async {
        let folder = TempFolder::new();
        let serving = start(&folder, &[("PROMBUS_LIMITS_HEAD_TIMEOUT_MS", "1500")]);
        let address = serving.address();
        let before = serving.socket_count();
        let mut clients = JoinSet::new();
        for number in 0..SLOW_CLIENTS {
            clients.spawn(async move {
                let mut raw = Raw::connect(address).await;
                let started = Instant::now();
                // Every fourth client sends nothing at all.
                let head: &[u8] = if number % 4 == 0 { b"" } else { b"GET / HTTP/1.1\r\nx-slow: 1" };
                raw.send(head).await;
                let mut bytes = [0; 1024];
                let wait = Duration::from_secs(1);
                loop {
                    match tokio::time::timeout(
                        wait,
                        tokio::io::AsyncReadExt::read(&mut raw.stream, &mut bytes),
                    )
                    .await
                    {
                        Ok(Ok(0) | Err(_)) => return started.elapsed(),
                        Ok(Ok(_)) => {}
                        Err(_) if number % 4 == 0 => {}
                        Err(_) => raw.send(b"1").await,
                    }
                    assert!(started.elapsed() < LATE, "client {number} is still connected");
                }
            });
        }
        for _ in 0..5 {
            check_is_responsive(&serving).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let mut longest = Duration::ZERO;
        while let Some(ended) = clients.join_next().await {
            longest = longest.max(ended.unwrap());
        }
        println!(
            "hostile: {SLOW_CLIENTS} slow heads with a limit of 1.5 s: the last was closed after {longest:?}"
        );
        wait_until("the server has closed their sockets", PATIENCE, async || {
            serving.socket_count() <= before
        })
        .await;
        check_is_responsive(&serving).await;
    });
}

#[test]
fn a_body_that_stops_gets_408() {
    alone(async {
        let folder = TempFolder::new();
        let serving = start(&folder, &[("PROMBUS_LIMITS_HEAD_TIMEOUT_MS", "1000")]);
        let mut raw = Raw::connect(serving.address()).await;
        raw.send(b"POST /publish/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n1").await;
        let started = Instant::now();
        let answer = String::from_utf8(raw.until_closed().await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(started.elapsed() < LATE);
    });
}

#[test]
fn a_client_that_does_not_authenticate_is_closed() {
    alone(async {
        let folder = TempFolder::new();
        let settings = [("WS_TOKEN", "an honest client knows it"), ("PROMBUS_LIMITS_AUTH_TIMEOUT_MS", "500")];
        let serving = start(&folder, &settings);
        let mut honest = Client::connect(serving.address()).await;
        honest.ok(json!({"op": "AUTH", "token": "an honest client knows it"})).await;
        let mut silent = Raw::upgraded(serving.address()).await;
        let mut busy = Raw::upgraded(serving.address()).await;
        let started = Instant::now();
        busy.send(&masked(0x81, br#"{"op":"PUBLISH","topic":"a","payload":1}"#)).await;
        assert!(busy.text().await.contains("unauthorized"));
        for raw in [&mut silent, &mut busy] {
            assert_eq!(raw.close_code().await, 1008);
            raw.until_closed().await;
        }
        assert!(started.elapsed() < LATE);
        honest.publish("a", json!(1)).await;
    });
}

#[test]
fn a_client_that_vanished_is_detected_by_pings() {
    alone(async {
        let folder = TempFolder::new();
        let serving = start(&folder, &[("PROMBUS_LIMITS_PING_INTERVAL_MS", "500")]);
        let before = serving.socket_count();
        // It never answers a ping, like a machine that lost its power.
        let mut gone = Raw::upgraded(serving.address()).await;
        let started = Instant::now();
        assert_eq!(gone.close_code().await, 1008);
        gone.until_closed().await;
        assert!(started.elapsed() < LATE);
        wait_until("the server has closed its socket", PATIENCE, async || serving.socket_count() <= before)
            .await;
        check_is_responsive(&serving).await;
    });
}

#[test]
fn a_client_that_does_not_complete_a_frame_is_closed() {
    alone(async {
        let folder = TempFolder::new();
        let serving = start(&folder, &[("PROMBUS_LIMITS_STALL_TIMEOUT_MS", "1000")]);
        let frame = masked(0x81, br#"{"op":"PUBLISH","topic":"a","payload":1}"#);
        let large = masked(0x81, &[b' '; 100_000]);
        let first_piece = masked(0x01, br#"{"op":"#);
        for half in [&frame[..1], &frame[..9], &large[..50_000], &first_piece[..]] {
            let mut raw = Raw::upgraded(serving.address()).await;
            let started = Instant::now();
            raw.send(half).await;
            assert_eq!(raw.close_code().await, 1008, "{} bytes of a frame", half.len());
            raw.until_closed().await;
            assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
        }
        check_is_responsive(&serving).await;
    });
}
