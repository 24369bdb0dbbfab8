//! Tests of `prombus pub` with a real server.

use crate::remote::{Server, with_token};
use crate::running::{Running, until};
use crate::serving::{Serving, serve};
use crate::support::{Ran, TempFolder, prombus, run};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn an_event_is_published_with_its_options() {
    let server = Server::start();
    let id = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";
    let arguments = [
        "pub",
        "orders",
        r#"{"total": 12}"#,
        "--id",
        id,
        "--key",
        "k",
        "--header",
        "a=b=c",
        "--header",
        "d=",
        "--tag",
        "t",
    ];
    assert_eq!(server.ok(&arguments), format!("{id} 1\n"));
    let again = server.ok(&[&arguments[..], &["--json"]].concat());
    assert_eq!(again, format!("{{\"id\":\"{id}\",\"seq\":1,\"duplicate\":true}}\n"));
    server.ok(&["pub", "orders", "--text", "say \"hi\""]);
    server.ok(&["pub", "orders", "-5"]);
    let events = server.events("orders");
    assert_eq!(events.len(), 3);
    assert_eq!(events[0]["headers"], json!({"a": "b=c", "d": ""}));
    assert_eq!([&events[0]["key"], &events[0]["tags"]], [&json!("k"), &json!(["t"])]);
    assert_eq!([&events[1]["payload"], &events[2]["payload"]], [&json!("say \"hi\""), &json!(-5)]);
}

#[test]
fn an_event_is_stored_although_the_answer_cannot_be_written() {
    let server = Server::start();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran: Ran = server.command(&["pub", "orders", "1"]).stdout(full).output().unwrap().into();
    let id = server.events("orders")[0]["id"].as_str().unwrap().to_owned();
    let expected = format!(
        "prombus: the event is stored as {id} (seq 1 of orders): cannot write to standard output: No space left on device\n"
    );
    assert_eq!((ran.code, ran.stderr), (Some(1), expected));
}

#[test]
fn wrong_arguments_exit_with_2_and_say_what_to_do() {
    let cases: [(&[&str], &[&str]); 6] = [
        (&["pub", "orders", "hello"], &["not JSON", "--text", "'\"hello\"'"]),
        (&["pub", "a b", "1"], &["topic"]),
        (&["pub", "orders", "1", "--header", "a"], &["NAME=VALUE"]),
        (&["pub", "orders", "1", "--key", ""], &["key"]),
        (&["pub", "orders", "1", "--id", "x"], &["--id"]),
        (&["pub", "orders", "-", "--id", "0196f1d0-1c2a-7b3c-8d4e-5f6071829304"], &["--id"]),
    ];
    for (arguments, words) in cases {
        // Nothing listens on port 1: the arguments are checked first.
        let ran = run(&[arguments, &["--url", "http://127.0.0.1:1"]].concat());
        assert_eq!(ran.code, Some(2), "{arguments:?}: {ran:?}");
        for word in words {
            assert!(ran.stderr.contains(word), "{arguments:?}: {}", ran.stderr);
        }
    }
}

#[test]
fn an_unreachable_server_and_a_wrong_token_are_one_line_errors() {
    let ran = run(&["pub", "orders", "1", "--url", "http://127.0.0.1:1"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("cannot connect to"), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    let folder = TempFolder::new();
    let serving = with_token(&folder, "right");
    let url = format!("http://{}", serving.address());
    for command in [&["pub", "orders", "1"][..], &["tail", "orders"], &["sub", "orders", "--group", "g"]] {
        let ran = run(&[command, &["--url", &url, "--token", "wrong"]].concat());
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 1), "{command:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("token"), "{command:?}: {}", ran.stderr);
    }
    let ran: Ran = prombus(&["pub", "orders", "1", "--url", &url])
        .env("PROMBUS_TOKEN", "right")
        .output()
        .unwrap()
        .into();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[test]
fn a_token_without_the_scope_is_a_one_line_error() {
    let folder = TempFolder::new();
    let made = run(&["token", "new", "--name", "reader", "--scope", "subscribe:orders.new"]).stdout;
    let token = made.lines().find(|line| line.starts_with("prombus_")).unwrap();
    let config = folder.file("prombus.toml", &made[made.find("[[auth.token]]").unwrap()..]);
    let serving = Serving::start(serve(&folder, &["--config", &config]));
    let server = ["--url", &format!("http://{}", serving.address()), "--token", token];
    let commands: [&[&str]; 7] = [
        &["pub", "orders.new", "1"],
        &["tail", "orders.old"],
        &["tail", "orders.*"],
        &["tail", "orders.*", "--follow"],
        &["tail", "**", "--since", "1d"],
        &["sub", "orders.old", "--group", "g"],
        &["sub", "orders.*", "--group", "g", "--exec", "true"],
    ];
    for command in commands {
        let ran = run(&[command, &server].concat());
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 1), "{command:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("forbidden"), "{command:?}: {}", ran.stderr);
    }
    let missing = run(&[&["tail", "orders.new"], &server[..]].concat());
    assert!(missing.stderr.contains("no topic \"orders.new\""), "{}", missing.stderr);
}

#[test]
fn lines_of_stdin_are_published_in_order() {
    let server = Server::start();
    let input: String = (1..=5_000).map(|number| format!("{{\"n\": {number}}}\n")).collect();
    let ran = server.feed(&["pub", "orders", "--key", "all"], &input);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{}", ran.stderr);
    assert!(ran.stderr.starts_with("5000 events published to orders in "), "{}", ran.stderr);
    let ran = server.feed(&["pub", "orders", "-", "--json"], "{\"n\": 5001}\n\n{\"n\": 5002}");
    let answers: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!([&answers[0]["seq"], &answers[1]["seq"]], [&json!(5001), &json!(5002)]);
    let events = server.events("orders");
    let numbers: Vec<u64> = events.iter().map(|event| event["payload"]["n"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=5_002).collect::<Vec<_>>());
    assert!(events[..5_000].iter().all(|event| event["key"] == "all"));
}

#[test]
fn a_bad_line_ends_the_command_after_all_lines_before_it() {
    let server = Server::start();
    let mut input: Vec<String> = (1..=3_000).map(|number| number.to_string()).collect();
    input[2_500] = "{\"a\": oops}".to_owned();
    let ran = server.feed(&["pub", "orders"], &input.join("\n"));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("2500 events published"), "{}", ran.stderr);
    assert!(ran.stderr.contains("prombus: line 2501: not JSON at byte 6"), "{}", ran.stderr);
    assert_eq!(server.count("orders"), 2_500);
    // A line that the server refuses.
    let ran = server.feed(&["pub", "big", "--text"], &format!("a\n{}\n", "b".repeat(1_100_000)));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("line 2: ") && ran.stderr.contains("too_large"), "{}", ran.stderr);
}

#[test]
fn every_refused_line_is_reported_with_the_line_to_continue_with() {
    let folder = TempFolder::new();
    let mut command = serve(&folder, &[]);
    command.env("PROMBUS_LIMITS_MAX_PAYLOAD_BYTES", "10");
    let server = Server { serving: Serving::start(command), folder };
    let ran = server.feed(&["pub", "orders"], "1\n\"too long for it\"\n3\n\"also too long\"\n5\n");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for text in ["3 events published", "line 2: ", "line 4: ", "2 lines were refused", "from line 6 on"] {
        assert!(ran.stderr.contains(text), "{text}: {}", ran.stderr);
    }
    assert_eq!(server.count("orders"), 3);
}

#[test]
fn a_line_is_published_before_the_next_one_arrives() {
    let server = Server::start();
    let mut running = Running::start(server.command(&["pub", "orders"]).stdin(Stdio::piped()));
    let mut stdin = running.stdin();
    for number in 1..=3 {
        writeln!(stdin, "{number}").unwrap();
        until("the line is published", || server.count("orders") == number);
    }
    // A signal ends the command, although the input is open.
    running.signal(Signal::INT);
    let (code, _, said) = running.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("3 events published"), "{said}");
}

#[test]
fn the_rate_limits_publishing() {
    let server = Server::start();
    let started = Instant::now();
    let input: String = (0..20).map(|number| format!("{number}\n")).collect();
    let ran = server.feed(&["pub", "orders", "--rate", "20"], &input);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    // Two events leave at once, the others at 20 a second.
    assert!(started.elapsed() >= Duration::from_millis(890), "{:?}", started.elapsed());
    assert_eq!(server.count("orders"), 20);
}

#[test]
fn lines_survive_a_restart_of_the_server_and_are_stored_once() {
    let server = Server::start();
    let mut running =
        Running::start(server.command(&["pub", "orders", "--rate", "1000"]).stdin(Stdio::piped()));
    let mut stdin = running.stdin();
    let writer = std::thread::spawn(move || {
        for number in 1..=2_000 {
            writeln!(stdin, "{number}").unwrap();
        }
    });
    until("some events are there", || server.count("orders") >= 300);
    let server = server.kill_and_start_again(Duration::from_millis(200));
    let (code, _, said) = running.end();
    writer.join().unwrap();
    assert_eq!(code, Some(0), "{said}");
    let payloads: Vec<u64> =
        server.events("orders").iter().map(|event| event["payload"].as_u64().unwrap()).collect();
    assert_eq!(payloads, (1..=2_000).collect::<Vec<_>>());
}
