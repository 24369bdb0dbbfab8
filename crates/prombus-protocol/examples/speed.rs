//! Measures the hot paths on this machine: `cargo run --release -p prombus-protocol --example speed`.

#![allow(clippy::print_stdout, reason = "this program prints a table")]

use prombus_protocol::{
    BodyFields, EventContext, Uuid, parse_client_frame, push_json, put_body_end, put_body_head, put_event,
    put_event_head,
};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

fn main() {
    let heartbeat = br##"{"pid":12345,"name":"stt","host":"dev-eu-central-1","cpu_pct":12.3,"mem_mb":256,"uptime_s":86400,"tags":["#duck","#stt"],"note":"all queues are drained and the last checkpoint is twelve seconds old","labels":{"region":"eu-central-1","zone":"b","release":"2025-03-14"},"load":[0.31,0.27,0.22],"ok":true,"parent":null,"trace":"4bf92f3577b34da6a3ce929d0e0e4736"}"##;
    let one_string = format!("{{\"data\":\"{}\"}}", "x".repeat(340)).into_bytes();
    let numbers = format!("[{}]", vec!["1.25"; 70].join(",")).into_bytes();
    let pretty = String::from_utf8_lossy(heartbeat).replace(",\"", ",\r\n  \"").into_bytes();
    let greek = format!("{{\"text\":\"{}\"}}", "αβγδ ".repeat(38)).into_bytes();
    for (name, json) in [
        ("heartbeat", &heartbeat[..]),
        ("one string", &one_string),
        ("numbers", &numbers),
        ("pretty", &pretty),
        ("greek", &greek),
    ] {
        measure(&format!("push_json, {name}"), json.len(), |into| {
            push_json(into, black_box(json)).expect("valid JSON");
        });
        measure(&format!("serde_json RawValue, {name}"), json.len(), |into| {
            let value: &prombus_protocol::RawValue =
                serde_json::from_slice(black_box(json)).expect("valid JSON");
            into.extend_from_slice(value.get().as_bytes());
        });
    }

    let mut frame = br#"{"op":"PUBLISH","corr":"a1b2c3","topic":"heartbeat.received","payload":"#.to_vec();
    frame.extend_from_slice(heartbeat);
    frame.push(b'}');
    let (id, headers) = (Uuid::from_u128(7), BTreeMap::new());
    let fields = BodyFields {
        ts: 1_741_964_400_000,
        topic: "heartbeat.received",
        sid: None,
        key: Some("12345"),
        partition: None,
        headers: &headers,
        caused_by: &[],
        tags: &[],
        addressee: None,
    };
    measure("parse_client_frame, PUBLISH", frame.len(), |_| {
        black_box(parse_client_frame(black_box(&frame)).expect("a frame"));
    });
    let ack =
        format!(r#"{{"op":"ACK","topic":"heartbeat.received","group":"ops","id":"{id}"}}"#).into_bytes();
    measure("parse_client_frame, ACK", ack.len(), |_| {
        black_box(parse_client_frame(black_box(&ack)).expect("a frame"));
    });
    let mut body = Vec::new();
    let encode = |into: &mut Vec<u8>| {
        put_body_head(into, black_box(&fields));
        into.extend_from_slice(heartbeat);
        put_body_end(into);
    };
    encode(&mut body);
    measure("body around a payload", body.len(), encode);
    let mut head = Vec::new();
    put_event_head(&mut head, "heartbeat.received", "ops");
    let context =
        EventContext { attempt: 1, ack_deadline_ms: 30_000, max_attempts: 5, reason: None, last_error: None };
    measure("put_event", body.len(), |into| {
        put_event(into, &head, id, 1_234_567, black_box(&body), &context);
    });
}

fn measure(name: &str, bytes: usize, mut work: impl FnMut(&mut Vec<u8>)) {
    const ROUNDS: u32 = 5_000;
    let mut into = Vec::with_capacity(1 << 16);
    let best = (0..100)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                into.clear();
                work(&mut into);
                black_box(&into);
            }
            start.elapsed()
        })
        .min()
        .unwrap_or(Duration::MAX);
    let nanos = best.as_nanos() as f64 / f64::from(ROUNDS);
    println!("{name:36} {bytes:4} bytes {nanos:7.1} ns {:6.2} GB/s", bytes as f64 / nanos);
}
