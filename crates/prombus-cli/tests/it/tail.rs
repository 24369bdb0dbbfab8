//! Tests of `prombus tail` with a real server: piped, on a terminal, and over a restart.

use crate::http_client::get_json;
use crate::remote::{Server, lines};
use crate::running::{Running, until};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::Duration;

fn number(line: &str) -> u64 {
    let event: Value = serde_json::from_str(line).unwrap();
    event["payload"]["number"].as_u64().unwrap_or_else(|| event["payload"].as_u64().unwrap())
}

fn numbers(text: &str) -> Vec<u64> {
    text.lines().map(number).collect()
}

#[test]
fn the_newest_events_are_complete_json_lines_when_piped() {
    let server = Server::start();
    server.import(&lines("orders", 0..200));
    let tail = |arguments: &[&str]| server.ok(&[&["tail", "orders"], arguments].concat());
    let exported = server.ok(&["export", "orders", "--last", "50"]);
    assert_eq!(tail(&[]), exported);
    assert_eq!(numbers(&tail(&["-n", "3"])), [197, 198, 199]);
    assert_eq!(tail(&["-n", "0"]), "");
    assert_eq!(numbers(&tail(&["-n", "2", "--filter", "key=k7"])), [187, 197]);
    // Two tags are more than a server's filter can have.
    assert_eq!(tail(&["-n", "2", "--filter", "tag=t1", "--filter", "tag=t2"]), "");
    assert_eq!(numbers(&tail(&["-n", "1", "--filter", "tag=t1", "--filter", "tag=t1"])), [199]);
    // All times are in 2023. With --since, all events are printed.
    assert_eq!(tail(&["--since", "1d"]), "");
    assert_eq!(numbers(&tail(&["--since", "1700000000100"])), (100..200).collect::<Vec<_>>());
    assert_eq!(numbers(&tail(&["--since", "1700000000100", "-n", "2"])), [198, 199]);
    assert_eq!(server.run(&["tail", "a b"]).code, Some(2));
    let missing = server.run(&["tail", "nothing"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.contains("no topic \"nothing\""), "{}", missing.stderr);
}

#[test]
fn old_times_of_newer_events_do_not_hide_events_since_a_time() {
    let server = Server::start();
    server.feed(&["pub", "orders"], "1\n2\n3\n4\n");
    // All times are in 2023.
    server.import(&lines("orders", 900..903));
    let tail = |arguments: &[&str]| numbers(&server.ok(&[&["tail"], arguments].concat()));
    assert_eq!(tail(&["orders", "--since", "1h", "-n", "3"]), [2, 3, 4]);
    assert_eq!(tail(&["*", "--since", "1h", "-n", "2"]), [3, 4]);
    assert_eq!(tail(&["orders", "-n", "4"]), [4, 900, 901, 902]);
    let follow = Running::start(&mut server.command(&["tail", "orders", "--since", "1h", "-n", "1", "-f"]));
    assert_eq!(number(&follow.line()), 4);
    server.ok(&["pub", "orders", "5"]);
    assert_eq!(number(&follow.line()), 5);
}

#[test]
fn the_newest_events_of_a_pattern_are_those_of_all_its_topics() {
    let server = Server::start();
    for topic in ["orders.a", "orders.b", "orders.c.d", "other"] {
        server.import(&lines(topic, 0..100));
    }
    let events: Vec<Value> = server
        .ok(&["tail", "orders.**", "-n", "7"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let found: Vec<(&str, u64)> = events
        .iter()
        .map(|event| (event["topic"].as_str().unwrap(), event["payload"]["number"].as_u64().unwrap()))
        .collect();
    let expected = [
        ("orders.c.d", 97),
        ("orders.a", 98),
        ("orders.b", 98),
        ("orders.c.d", 98),
        ("orders.a", 99),
        ("orders.b", 99),
        ("orders.c.d", 99),
    ];
    assert_eq!(found, expected);
    assert_eq!(server.ok(&["tail", "orders.*", "--since", "1700000000090"]).lines().count(), 20);
    assert_eq!(server.ok(&["tail", "nothing.*"]), "");
}

/// The output of a command on a terminal of 120 columns; `None` if `script` is not installed.
fn on_terminal(server: &Server, arguments: &str, environment: &[(&str, &str)]) -> Option<String> {
    let command = format!("stty cols 120; {} {arguments}", env!("CARGO_BIN_EXE_prombus"));
    let output = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("PROMBUS_URL", server.url())
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "script is not installed");
        return None;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    Some(text.replace("\r\n", "\n"))
}

#[test]
fn a_terminal_gets_lines_in_colours_without_control_characters_of_the_event() {
    let server = Server::start();
    server.import(&[
        r#"{"topic":"orders.new","ts":1700000000000,"key":"k\u001b[2J\u009b7","payload":{"total": 12, "note": "x\u001b]0;owned\u0007"}}"#.to_owned(),
        "{\"topic\":\"orders.new\",\"ts\":1700000000001,\"payload\":\"c1 \u{9b}31m, rtl \u{202e}\"}".to_owned(),
    ]);
    let Some(colored) = on_terminal(&server, "tail orders.new", &[]) else { return };
    let expected = "\x1b[2m2023-11-14T22:13:20.000Z\x1b[0m  \x1b[36morders.new\x1b[0m  \x1b[33m#1\x1b[0m  \
         \x1b[35mk\\u001b[2J\\u009b7\x1b[0m  {\x1b[34m\"total\"\x1b[0m:\x1b[33m12\x1b[0m,\x1b[34m\"note\"\x1b[0m:\
         \x1b[32m\"x\\u001b]0;owned\\u0007\"\x1b[0m}";
    assert_eq!(colored.lines().next().unwrap(), expected);
    let plain = "2023-11-14T22:13:20.000Z  orders.new  #1  k\\u001b[2J\\u009b7  \
         {\"total\":12,\"note\":\"x\\u001b]0;owned\\u0007\"}\n\
         2023-11-14T22:13:20.001Z  orders.new  #2  \"c1 \\u009b31m, rtl \\u202e\"\n";
    for (arguments, environment) in [
        ("tail orders.new", &[("NO_COLOR", "1")][..]),
        ("tail orders.new", &[("TERM", "dumb")]),
        ("tail orders.new --color never", &[]),
    ] {
        assert_eq!(on_terminal(&server, arguments, environment).unwrap(), plain, "{arguments}");
    }
    let json = on_terminal(&server, "tail orders.new --json", &[]).unwrap();
    assert!(!json.chars().any(|it| it.is_control() && it != '\n') && !json.contains('\u{202e}'), "{json:?}");
    let event: Value = serde_json::from_str(json.lines().nth(1).unwrap()).unwrap();
    assert_eq!(event["payload"], "c1 \u{9b}31m, rtl \u{202e}");
    // For `less -R`.
    assert!(server.ok(&["tail", "orders.new", "--color", "always"]).starts_with(expected));
    assert_eq!(server.ok(&["tail", "orders.new"]), server.lines("orders.new"));
    let published = on_terminal(&server, "pub orders.new 1", &[]).unwrap();
    assert!(published.ends_with(" is event 3 of orders.new\n"), "{published}");
}

#[test]
fn following_continues_over_a_restart_without_loss_or_repetition() {
    let mut server = Server::start();
    server.import(&lines("orders.a", 0..10));
    let follow = |server: &Server, arguments: &[&str]| {
        Running::start(&mut server.command(&[&["tail", "--follow"], arguments].concat()))
    };
    let topic = follow(&server, &["orders.a", "-n", "2"]);
    let pattern = follow(&server, &["orders.*", "-n", "3"]);
    let since = follow(&server, &["orders.*", "--since", "1700000000008"]);
    let new = follow(&server, &["orders.later", "-n", "5"]);
    assert_eq!([number(&topic.line()), number(&topic.line())], [8, 9]);
    assert_eq!([number(&pattern.line()), number(&pattern.line()), number(&pattern.line())], [7, 8, 9]);
    assert_eq!([number(&since.line()), number(&since.line())], [8, 9]);
    assert_eq!(get_json(&server.address(), "/groups")["groups"], json!([]), "a tail creates no group");
    for round in 1..=3 {
        let numbers = round * 100..round * 100 + 20;
        server.import(&lines("orders.a", numbers.clone()));
        server.import(&lines("orders.later", numbers.clone()));
        for number_wanted in numbers.clone() {
            assert_eq!(number(&topic.line()), number_wanted);
            assert_eq!(number(&new.line()), number_wanted);
        }
        for stream in [&pattern, &since] {
            let found: Vec<u64> = (0..40).map(|_| number(&stream.line())).collect();
            assert_eq!(found[..20], numbers.clone().collect::<Vec<_>>());
            assert_eq!(found[20..], found[..20]);
        }
        // Some events are published before the streams have reconnected.
        server = server.kill_and_start_again(Duration::from_millis(100));
    }
    server.import(&lines("orders.a", 900..901));
    assert_eq!([number(&topic.line()), number(&pattern.line()), number(&since.line())], [900; 3]);
}

/// Many events are published between the steps in which `tail` starts.
#[test]
fn at_a_high_publish_rate_each_event_is_printed_once() {
    const EVENTS: u64 = 1_000_000;
    let server = Server::start();
    let mut publisher = Running::start(server.command(&["pub", "orders"]).stdin(Stdio::piped()));
    let mut stdin = publisher.stdin();
    // The publisher is killed before it has sent everything.
    std::thread::spawn(move || {
        use std::io::Write as _;
        let input: String = (1..=EVENTS).map(|number| format!("{number}\n")).collect();
        let _ = stdin.write_all(input.as_bytes());
    });
    until("events are published", || server.count("orders") >= 1_000);
    for topic in ["orders", "**"].repeat(5) {
        let tail = Running::start(&mut server.command(&["tail", topic, "-n", "20", "-f"]));
        let first = number(&tail.line());
        for expected in first + 1..first + 2_000 {
            assert_eq!(number(&tail.line()), expected, "{topic}");
        }
        assert!(first + 2_000 < EVENTS, "the publisher was too fast");
    }
}

#[test]
fn there_is_no_gap_between_stored_and_new_events() {
    const EVENTS: u64 = 3_000;
    let server = Server::start();
    let mut publisher =
        Running::start(server.command(&["pub", "orders", "--rate", "1500"]).stdin(Stdio::piped()));
    let mut stdin = publisher.stdin();
    let writer = std::thread::spawn(move || {
        use std::io::Write as _;
        let input: String = (1..=EVENTS).map(|number| format!("{number}\n")).collect();
        stdin.write_all(input.as_bytes()).unwrap();
    });
    let mut tails = Vec::new();
    for (topic, at) in [("orders", 0), ("*", 300), ("orders", 600), ("**", 900), ("orders", 1200)] {
        until("events are published", || server.count("orders") >= at);
        tails.push(Running::start(&mut server.command(&["tail", topic, "-n", "20", "-f"])));
    }
    for tail in &tails {
        let first = number(&tail.line());
        for expected in first + 1..=EVENTS {
            assert_eq!(number(&tail.line()), expected);
        }
        assert!(first < EVENTS - 20);
    }
    writer.join().unwrap();
    assert_eq!(publisher.end().0, Some(0));
}
