//! Tests of `prombus state`, `prombus health` and `prombus settings` with a real server.

use crate::http_client::post;
use crate::remote::Server;
use crate::support::{Ran, TempFolder, prombus};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout};
use std::time::Duration;

fn set(server: &Server, key: &str, payload: &str, ts: u64) {
    let answer = post(&server.address(), &format!("/publish/prices?key={key}&ts={ts}"), payload);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A running `state --follow`, which is killed when it is dropped.
struct Follower {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Follower {
    fn start(server: &Server, more: &[&str]) -> Self {
        let arguments = [&["state", "prices", "--follow", "--json"], more].concat();
        let mut child = server.command(&arguments).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The key, seq and payload of the next line.
    fn next(&mut self) -> (String, u64, Value) {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        (event["key"].as_str().unwrap().to_owned(), event["seq"].as_u64().unwrap(), event["payload"].clone())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_state_of_a_topic_and_of_a_key_is_shown_now_and_at_a_time() {
    let server = Server::start();
    let unknown = server.run(&["state", "prices"]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("no topic \"prices\""), "{}", unknown.stderr);
    for (key, payload, ts) in [("EUR", "1", 1_000), ("USD", "{\"rate\": 2}", 2_000), ("EUR", "3", 3_000)] {
        set(&server, key, payload, ts);
    }
    let table = server.ok(&["state", "prices"]);
    let expected = "KEY  SEQ  TIME                      VALUE\n\
                    USD    2  1970-01-01T00:00:02.000Z  {\"rate\": 2}\n\
                    EUR    3  1970-01-01T00:00:03.000Z  3\n";
    assert_eq!(table, expected);
    let lines = server.ok(&["state", "prices", "--json"]);
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((events.len(), &events[1]["key"], &events[1]["payload"]), (2, &json!("EUR"), &json!(3)));
    assert_eq!(server.ok(&["state", "prices", "EUR"]), "3\n");
    assert_eq!(server.ok(&["state", "prices", "EUR", "--at", "1970-01-01T00:00:02Z"]), "1\n");
    let earlier = server.ok(&["state", "prices", "--at", "1500"]);
    assert_eq!(earlier.lines().count(), 2, "{earlier}");
    let one: Value = serde_json::from_str(&server.ok(&["state", "prices", "USD", "--json"])).unwrap();
    assert_eq!((&one["seq"], &one["payload"]["rate"]), (&json!(2), &json!(2)));
    set(&server, "USD", "null", 4_000);
    let deleted = server.run(&["state", "prices", "USD"]);
    assert_eq!((deleted.code, deleted.stdout.as_str()), (Some(1), ""));
    assert_eq!(deleted.stderr, "prombus: prices has no key \"USD\"\n");
    assert_eq!(server.run(&["state", "prices", "--follow", "--at", "-1h"]).code, Some(2));
}

#[test]
fn following_prints_each_change_once_also_over_a_restart_of_the_server() {
    let server = Server::start();
    set(&server, "a", "1", 1);
    set(&server, "b", "2", 2);
    let mut all = Follower::start(&server, &[]);
    let mut one = Follower::start(&server, &["b"]);
    assert_eq!(all.next(), ("a".to_owned(), 1, json!(1)));
    assert_eq!(all.next(), ("b".to_owned(), 2, json!(2)));
    assert_eq!(one.next(), ("b".to_owned(), 2, json!(2)));
    set(&server, "a", "3", 3);
    assert_eq!(all.next(), ("a".to_owned(), 3, json!(3)));
    let server = server.kill_and_start_again(Duration::from_millis(300));
    set(&server, "b", "null", 4);
    set(&server, "c", "5", 5);
    assert_eq!(all.next(), ("b".to_owned(), 4, Value::Null));
    assert_eq!(all.next(), ("c".to_owned(), 5, json!(5)));
    assert_eq!(one.next(), ("b".to_owned(), 4, Value::Null));
    // The state ignores events that are redriven to one group.
    server.ok(&["group", "create", "prices", "g"]);
    let addressee = r#""addressee":{"subscription":"prices","group":"g"}"#;
    server.import(&[format!(r#"{{"topic":"prices","key":"b","payload":6,{addressee}}}"#)]);
    set(&server, "b", "7", 7);
    assert_eq!(all.next(), ("b".to_owned(), 7, json!(7)));
    assert_eq!(one.next(), ("b".to_owned(), 7, json!(7)));
}

#[test]
fn following_a_key_that_does_not_exist_yet_prints_it_when_it_is_set() {
    let server = Server::start();
    let mut one = Follower::start(&server, &["b"]);
    set(&server, "a", "1", 1);
    set(&server, "b", "2", 2);
    assert_eq!(one.next(), ("b".to_owned(), 2, json!(2)));
}

#[test]
fn health_is_the_exit_code() {
    let server = Server::start();
    let text = server.ok(&["health"]);
    for line in [concat!("version  ", env!("CARGO_PKG_VERSION")), "health   ok", "ready    ok"] {
        assert!(text.lines().any(|it| it == line), "{line}: {text}");
    }
    let json: Value = serde_json::from_str(&server.ok(&["health", "--json"])).unwrap();
    assert_eq!(json["healthy"], true);
    assert_eq!(
        (&json["version"], &json["ready"]["status"]),
        (&json!(env!("CARGO_PKG_VERSION")), &json!("ok"))
    );
    let url = server.url();
    server.serving.stop();
    let dead: Ran = prombus(&["health", "--json", "--url", &url]).output().unwrap().into();
    assert_eq!(dead.code, Some(1));
    let json: Value = serde_json::from_str(&dead.stdout).unwrap();
    assert_eq!(json["healthy"], false);
    assert!(json["error"].as_str().unwrap().contains("cannot connect"), "{json}");
}

#[test]
fn health_of_a_server_that_does_not_answer_is_a_failure_within_seconds() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let began = std::time::Instant::now();
    let ran: Ran = prombus(&["health", "--url", &url]).output().unwrap().into();
    assert!(ran.code == Some(1) && ran.stderr.contains("no answer in 10 s"), "{ran:?}");
    assert!(began.elapsed() < std::time::Duration::from_secs(30));
}

#[test]
fn settings_show_values_and_sources_without_secrets() {
    let folder = TempFolder::new();
    let config = folder.file("p.toml", "[limits]\nmax_topics = 77\n");
    let mut command = crate::serving::serve(&folder, &["--config", &config]);
    command.env("WS_TOKEN", "hunter2").env("PROMBUS_LIMITS_MAX_GROUPS", "99");
    let serving = crate::serving::Serving::start(command);
    let run = |arguments: &[&str]| -> String {
        let mut command = prombus(arguments);
        command.env("PROMBUS_URL", format!("http://{}", serving.address())).env("PROMBUS_TOKEN", "hunter2");
        let ran: Ran = command.output().unwrap().into();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stdout
    };
    let table = run(&["settings", "--changed"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["SETTING", "VALUE", "SOURCE"]);
    let place = format!("{config}:2");
    assert!(rows.contains(&vec!["limits.max_topics", "77", place.as_str()]), "{table}");
    assert!(rows.contains(&vec!["limits.max_groups", "99", "PROMBUS_LIMITS_MAX_GROUPS"]), "{table}");
    assert!(rows.contains(&vec!["auth.token[0].name", "ws_token", "WS_TOKEN"]), "{table}");
    assert!(table.contains("--listen") && !table.contains("default"), "{table}");
    let all = run(&["settings", "--json"]);
    assert!(!all.contains("hunter2"), "{all}");
    let all: Value = serde_json::from_str(&all).unwrap();
    let names: Vec<&str> =
        all["settings"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"storage.segment_bytes") || names.len() > 40, "{names:?}");
    assert_eq!(run(&["settings", "none."]), "no settings\n");
    serving.stop();
}
