//! Tests of `prombus topic` with a real server.

use crate::remote::{Server, lines};
use serde_json::{Value, json};

#[test]
fn topics_are_listed_in_a_table() {
    let server = Server::start();
    assert_eq!(server.ok(&["topic", "list"]), "no topics\n");
    server.import(&lines("orders", 0..12));
    server.import(&lines("a.much.longer.name", 0..3));
    server.ok(&["topic", "set", "orders", "retention_days=7", "compaction=true"]);
    let table = server.ok(&["topic", "list"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["TOPIC", "EVENTS", "BYTES", "FIRST", "LAST", "GROUPS", "KEEPS"]);
    assert_eq!((rows[1][0], rows[1][1]), ("a.much.longer.name", "3"));
    assert!(table.lines().nth(2).unwrap().ends_with("newest of each key, 7 d"), "{table}");
    let json: Value = serde_json::from_str(&server.ok(&["topic", "list", "--json"])).unwrap();
    assert_eq!(json["topics"][1]["count"], 12);
    assert!(json["bytes"].as_u64().unwrap() > 0);
    let table = server.ok(&["topic", "list", "--prefix", "ord"]);
    assert_eq!(table.lines().count(), 2, "{table}");
    assert_eq!(server.ok(&["topic", "list", "--prefix", "none"]), "no topics\n");
}

#[test]
fn settings_are_merged_shown_and_removed() {
    let server = Server::start();
    server.import(&lines("orders", 0..1));
    let set = |changes: &[&str]| server.ok(&[&["topic", "set", "orders"], changes].concat());
    let own = || {
        let json: Value = serde_json::from_str(&server.ok(&["topic", "show", "orders", "--json"])).unwrap();
        json["set"].clone()
    };
    set(&["retention_days=30", "max_attempts=7"]);
    let shown = set(&["retention_bytes=1000000"]);
    assert!(shown.contains("set here  max_attempts=7 retention_bytes=1000000 retention_days=30"), "{shown}");
    assert_eq!(own(), json!({"retention_days": 30.0, "max_attempts": 7, "retention_bytes": 1_000_000}));
    set(&["max_attempts=", "retention_ms=5000"]);
    assert_eq!(own(), json!({"retention_ms": 5_000, "retention_bytes": 1_000_000}));
    assert!(server.ok(&["topic", "show", "orders"]).contains("keeps     5 s, "));
    for (change, why) in [
        ("retention=5", "unknown setting"),
        ("max_attempts=many", "max_attempts=many: expected a whole number"),
        ("retention_days=soon", "retention_days=soon: expected a number"),
        ("publish_burst=3", "publish_rate"),
    ] {
        let refused = server.run(&["topic", "set", "orders", change]);
        assert!(refused.code == Some(2) && refused.stderr.contains(why), "{change}: {}", refused.stderr);
    }
    assert_eq!(own(), json!({"retention_ms": 5_000, "retention_bytes": 1_000_000}));
}

#[test]
fn a_topic_is_deleted_only_after_confirmation() {
    let server = Server::start();
    server.import(&lines("orders", 0..5));
    let asked = server.run(&["topic", "delete", "orders"]);
    assert!(asked.code == Some(1) && asked.stderr.contains("--yes"), "{}", asked.stderr);
    assert_eq!(server.count("orders"), 5);
    assert_eq!(server.ok(&["topic", "delete", "orders", "--yes"]), "deleted orders with its 5 events\n");
    for command in ["show", "delete"] {
        let gone = server.run(&["topic", command, "orders"]);
        assert!(gone.code == Some(1) && gone.stderr.contains("no topic"), "{}", gone.stderr);
    }
}
