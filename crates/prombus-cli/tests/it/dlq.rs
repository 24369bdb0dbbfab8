//! Tests of `prombus dlq` with a real server.

use crate::remote::{Server, letter, line};
use crate::ws_client::{Client, Seen};
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[test]
fn dead_letters_are_listed_and_shown() {
    let server = Server::start();
    assert_eq!(server.ok(&["dlq", "list"]), "no dead letters\n");
    let mut letters: Vec<String> =
        (0..7).map(|number| letter("orders", number, "billing", "no customer")).collect();
    letters.extend((7..10).map(|number| letter("orders", number, "audit", "timeout")));
    server.import(&letters);
    server.import(&[letter("bills", 1, "audit", "timeout")]);
    let table = server.ok(&["dlq", "list"]);
    assert!(table.lines().nth(1).unwrap().starts_with("dlq.bills"), "{table}");
    let row = table.lines().nth(2).unwrap();
    assert!(
        row.starts_with("dlq.orders       10  2023-11-14T22:13:20.000Z  2023-11-14T22:13:20.009Z"),
        "{table}"
    );
    assert!(row.ends_with("audit 3, billing 7"), "{table}");
    let json: Value = serde_json::from_str(&server.ok(&["dlq", "list", "--json"])).unwrap();
    assert_eq!(json[1]["groups"], json!({"billing": 7, "audit": 3}));

    let shown = server.ok(&["dlq", "show", "orders", "--group", "billing", "--limit", "2"]);
    assert!(shown.contains("{\"number\": 6}") && !shown.contains("{\"number\": 4}"), "{shown}");
    assert!(shown.contains("billing gave up after 5 attempts: no customer"), "{shown}");
    assert!(shown.contains("2 of 7 dead letters"), "{shown}");
    let whole = server.ok(&["dlq", "show", "dlq.orders", "--json"]);
    assert_eq!(whole, server.lines("dlq.orders"));
}

#[test]
fn a_redrive_needs_yes_and_publishes_only_selected_events() {
    let server = Server::start();
    let mut letters: Vec<String> =
        (0..30).map(|number| letter("orders", number, "billing", "timeout 3")).collect();
    letters.extend((30..40).map(|number| letter("orders", number, "audit", "timeout 3")));
    letters.push(letter("orders", 40, "billing", "no customer"));
    letters.push(line("dlq.orders", 99));
    server.import(&letters);
    let redrive = [
        "dlq",
        "redrive",
        "orders",
        "--group",
        "billing",
        "--error-contains",
        "timeout",
        "--filter",
        "key=k1",
    ];
    let dry = server.ok(&redrive);
    assert!(dry.contains("3 events would be published again"), "{dry}");
    assert!(
        dry.contains("nothing was published") && dry.contains("1 skipped, because they are not dead letters"),
        "{dry}"
    );
    assert_eq!(server.count("orders"), 0);
    let said = server.ok(&[&redrive[..], &["--yes", "--limit", "2"]].concat());
    assert!(
        said.starts_with("2 events published again; 0 had been redriven before and were skipped"),
        "{said}"
    );
    // The limit counts only new events.
    let said = server.ok(&[&redrive[..], &["--yes", "--limit", "2"]].concat());
    assert!(
        said.starts_with("1 events published again; 2 had been redriven before and were skipped"),
        "{said}"
    );
    let events = server.events("orders");
    assert_eq!(events.len(), 3);
    for (event, number) in events.iter().zip([1, 11, 21]) {
        let original: Value = serde_json::from_str(&line("orders", number)).unwrap();
        assert_eq!(event["caused_by"], json!([original["id"]]));
        assert_eq!(event["headers"]["x-redrives"], "1");
        assert_eq!(event["headers"]["parity"], original["headers"]["parity"]);
        for field in ["key", "tags", "payload"] {
            assert_eq!(event[field], original[field], "{field}");
        }
    }
    assert_eq!(server.count("dlq.orders"), 42);
}

#[test]
fn a_redrive_that_is_killed_and_repeated_publishes_each_dead_letter_once() {
    const LETTERS: u64 = 400;
    let server = Server::start();
    let letters: Vec<String> =
        (0..LETTERS).map(|number| letter("orders", number, "billing", "timeout")).collect();
    server.import(&letters);
    for at in [30, 90] {
        let mut child =
            server.command(&["dlq", "redrive", "orders", "--yes", "--rate", "200"]).spawn().unwrap();
        assert!(server.kill_at(&mut child, "orders", at), "the redrive ended before it was killed");
    }
    let before = server.count("orders");
    let said = server.ok(&["dlq", "redrive", "orders", "--yes", "--rate", "100000"]);
    let expected = format!(
        "{} events published again; {before} had been redriven before and were skipped\n",
        LETTERS - before
    );
    assert_eq!(said, expected);
    let events = server.events("orders");
    let originals: BTreeSet<&str> = events.iter().map(|it| it["caused_by"][0].as_str().unwrap()).collect();
    assert_eq!((events.len() as u64, originals.len() as u64), (LETTERS, LETTERS));
}

/// The consumer fails every event, and the operator redrives it each time.
#[test]
fn an_event_that_fails_repeatedly_is_skipped_after_max_redrives() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut consumer = Client::connect(server.serving.address()).await;
        consumer.subscribe("orders", "billing", json!({"from": "earliest", "maxAttempts": 1})).await;
        server.import(&[line("orders", 1)]);
        for round in 0..=3 {
            let event = loop {
                match consumer.see().await {
                    Seen::Frame(frame) if frame.op == "EVENT" => break frame.event.unwrap(),
                    Seen::Frame(_) => {}
                    other => panic!("{other:?}"),
                }
            };
            let nack =
                json!({"op": "NACK", "topic": "orders", "group": "billing", "id": event.id, "reason": "no"});
            consumer.ok(nack).await;
            let said = server.ok(&["dlq", "redrive", "orders", "--yes", "--rate", "100000"]);
            if round < 3 {
                assert_eq!(
                    said,
                    format!("1 events published again; {round} had been redriven before and were skipped\n")
                );
            } else {
                assert!(
                    said.starts_with(
                        "0 events published again; 3 had been redriven before and were skipped; 1 skipped"
                    ),
                    "{said}"
                );
            }
        }
    });
    let redrives: Vec<Value> =
        server.events("orders").iter().map(|event| event["headers"]["x-redrives"].clone()).collect();
    assert_eq!(redrives, [Value::Null, json!("1"), json!("2"), json!("3")]);
    let said = server.ok(&["dlq", "redrive", "orders", "--yes", "--max-redrives", "4", "--rate", "100000"]);
    assert!(said.starts_with("1 events published again"), "{said}");
}
