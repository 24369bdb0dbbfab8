//! Tests of `prombus export` and `replay` with patterns, with `--last`, and with relative times.

use crate::remote::{Server, lines};
use serde_json::Value;

fn numbers(text: &str) -> Vec<u64> {
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.map(|event| event["payload"]["number"].as_u64().unwrap()).collect()
}

#[test]
fn the_last_events_and_the_newest_first_are_exported() {
    let server = Server::start();
    server.import(&lines("orders", 0..20));
    let exported = |arguments: &[&str]| numbers(&server.ok(&[&["export", "orders"], arguments].concat()));
    assert_eq!(exported(&["--last", "3"]), [17, 18, 19]);
    assert_eq!(exported(&["--last", "3", "--order", "desc"]), [19, 18, 17]);
    assert_eq!(exported(&["--order", "desc"]), (0..20).rev().collect::<Vec<_>>());
    assert_eq!(exported(&["--order", "desc", "--from-ts", "1700000000018"]), [19, 18]);
    // The times of all events are in 2023.
    assert!(exported(&["--from-ts", "-1d"]).is_empty());
    assert_eq!(exported(&["--to-ts", "-1d"]).len(), 20);
    for arguments in [["--last", "0"], ["--order", "up"], ["--from-ts", "-1y"], ["--from-ts", "soon"]] {
        assert_eq!(server.run(&[&["export", "orders"], &arguments[..]].concat()).code, Some(2));
    }
    let pattern = server.run(&["export", "orders.*", "--last", "3"]);
    assert_eq!(pattern.code, Some(1));
    assert!(pattern.stderr.contains("needs one topic, not a pattern"), "{}", pattern.stderr);
}

#[test]
fn patterns_are_exported_resumed_and_replayed() {
    let server = Server::start();
    for topic in ["orders.b", "orders.a", "orders.c.d", "other"] {
        server.import(&lines(topic, 0..50));
    }
    let whole = server.ok(&["export", "orders.**"]);
    assert_eq!(numbers(&whole).len(), 150);
    let path = server.folder.path().join("all.ndjson");
    let file = path.to_str().unwrap();
    for cut in [0, whole.len() / 3, whole.len() - 1] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        server.ok(&["export", "orders.**", "-o", file, "--resume"]);
        assert!(std::fs::read_to_string(&path).unwrap() == whole, "cut at {cut}");
    }
    assert_eq!(numbers(&server.ok(&["export", "orders.*", "--filter", "key=none"])), Vec::<u64>::new());
    let said = server.ok(&["replay", "orders.*", "copies"]);
    assert!(said.contains("100 events of orders.* published to copies"), "{said}");
    let endless = server.run(&["replay", "orders.*", "orders.copies"]);
    assert!(endless.code == Some(2) && endless.stderr.contains("would have no end"), "{}", endless.stderr);
}
