//! Tests of `prombus export`, `import` and `replay` with real servers.

use crate::long_form::Random;
use crate::remote::{Server, id_of, line, lines, with_token};
use crate::support::{TempFolder, prombus, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::Duration;

fn seqs(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["seq"].as_u64().unwrap()).collect()
}

fn ids(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["id"].as_str().unwrap()).collect()
}

#[test]
fn an_imported_export_is_identical_and_importing_it_twice_adds_nothing() {
    let (one, other) = (Server::start(), Server::start());
    one.import(&lines("orders", 0..2_500));
    let file = one.folder.path().join("orders.ndjson");
    let file = file.to_str().unwrap();
    let said = one.ok(&["export", "orders", "-o", file]);
    assert!(said.contains("2500 events"), "{said}");
    let exported = std::fs::read_to_string(file).unwrap();
    assert_eq!(exported, one.lines("orders"));
    assert_eq!(one.ok(&["export", "orders"]), exported);

    assert_eq!(other.ok(&["import", file]), "2500 events imported, 0 were already there\n");
    assert_eq!(other.lines("orders"), exported);
    assert_eq!(seqs(&other.events("orders")), (1..=2_500).collect::<Vec<_>>());
    assert_eq!(other.ok(&["import", file]), "0 events imported, 2500 were already there\n");
    assert_eq!(other.lines("orders"), exported);

    assert_eq!(other.ok(&["import", "copy", file]), "2500 events imported, 0 were already there\n");
    assert_eq!(ids(&other.events("copy")), ids(&other.events("orders")));
}

#[test]
fn an_export_can_start_after_an_event_or_select_a_time_range() {
    let server = Server::start();
    server.import(&lines("orders", 0..20));
    let exported = |arguments: &[&str]| {
        let text = server.ok(&[&["export", "orders"], arguments].concat());
        let numbers = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        numbers.map(|event| event["payload"]["number"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(exported(&["--from", &id_of("orders", 16)]), [17, 18, 19]);
    assert_eq!(exported(&["--from-ts", "1700000000003", "--to-ts", "1700000000005"]), [3, 4, 5]);
    assert_eq!(exported(&["--from-ts", "2023-11-14T22:13:20.018Z"]), [18, 19]);
    let unknown = server.run(&["export", "nothing"]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("no topic \"nothing\""), "{}", unknown.stderr);
}

#[test]
fn an_interrupted_export_resumes_after_its_last_complete_line() {
    let server = Server::start();
    server.import(&lines("orders", 0..300));
    let whole = server.ok(&["export", "orders"]);
    let path = server.folder.path().join("orders.ndjson");
    let file = path.to_str().unwrap();
    let third_end = whole.match_indices('\n').nth(2).unwrap().0 + 1;
    for cut in [0, 1, third_end - 1, third_end, third_end + 1, whole.len() / 2, whole.len() - 1, whole.len()]
    {
        std::fs::write(&path, &whole[..cut]).unwrap();
        server.ok(&["export", "orders", "-o", file, "--resume"]);
        assert!(std::fs::read_to_string(&path).unwrap() == whole, "cut at {cut}");
    }
    // If the topic no longer has the event of the last line, the export resumes after its seq.
    let gone = whole[..third_end].replace(&id_of("orders", 2), &id_of("elsewhere", 2));
    std::fs::write(&path, &gone).unwrap();
    server.ok(&["export", "orders", "-o", file, "--resume"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), gone + &whole[third_end..]);
    std::fs::write(&path, &whole).unwrap();

    let refused = server.run(&["export", "orders", "-o", file]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("--resume"), "{}", refused.stderr);
    // A complete file gets the new events; the file of another topic is not changed.
    server.import(&lines("orders", 300..310));
    assert!(server.ok(&["export", "orders", "-o", file, "--resume"]).contains(": 10 events"));
    server.import(&lines("bills", 0..3));
    let refused = server.run(&["export", "bills", "-o", file, "--resume"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("events of orders"), "{}", refused.stderr);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), server.lines("orders"));
}

#[test]
fn a_bad_line_is_reported_after_all_lines_before_it_are_imported() {
    let server = Server::start();
    let mut text = lines("orders", 0..30);
    text[16] = r#"{"id": "not one", "topic": "orders", "payload": 1}"#.to_owned();
    text[25] = "{\"topic\": \"orders\", \"payl".to_owned();
    let file = server.folder.file("orders.ndjson", &text.join("\n"));
    let ran = server.run(&["import", &file]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), "16 events imported, 0 were already there\n"));
    assert!(ran.stderr.contains("line 17: ") && ran.stderr.contains("--from-line 17"), "{}", ran.stderr);
    assert_eq!(server.count("orders"), 16);

    let ran = server.run(&["import", &file, "--from-line", "18"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), "8 events imported, 0 were already there\n"));
    assert!(ran.stderr.contains("line 26: "), "{}", ran.stderr);

    let ran = server.run(&["import", &file, "--skip-bad"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), "4 events imported, 24 were already there\n"));
    for word in ["line 17: ", "line 26: ", "2 bad lines"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    let numbers: Vec<u64> =
        server.events("orders").iter().map(|event| event["payload"]["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..30).filter(|number| ![16, 25].contains(number)).collect::<Vec<_>>());
}

#[test]
fn a_line_that_the_server_refuses_is_reported() {
    let server = Server::start();
    let mut text = lines("orders", 0..5);
    let large = format!(
        r#"{{"topic":"orders","id":"{}","payload":"{}"}}"#,
        id_of("orders", 2),
        "x".repeat(1_100_000)
    );
    text[2] = large;
    let ran = server.feed(&["import"], &text.join("\n"));
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("line 3: ") && ran.stderr.contains("too_large"), "{}", ran.stderr);
    let ran = server.feed(&["import", "--skip-bad"], &text.join("\n"));
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("1 bad line was skipped"), "{}", ran.stderr);
    assert_eq!(server.count("orders"), 4);
}

#[test]
fn a_line_larger_than_the_frame_limit_does_not_affect_other_lines() {
    let server = Server::start();
    let mut text = lines("orders", 0..8);
    for number in [2, 5] {
        let (id, payload) = (id_of("orders", number as u64), "x".repeat(1_700_000 + number));
        text[number] = format!(r#"{{"topic":"orders","id":"{id}","payload":"{payload}"}}"#);
    }
    // Both lines are reported, although each of them closes the connection; the other lines are imported.
    let ran = server.feed(&["import"], &text.join("\n"));
    assert_eq!(ran.code, Some(1));
    for word in ["line 3: ", "line 6: ", "too_large", "retrying"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    let ran = server.feed(&["import", "--skip-bad"], &text.join("\n"));
    assert_eq!(ran.code, Some(1));
    for word in ["line 3: ", "line 6: ", "2 bad lines"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    let expected: Vec<String> = [0, 1, 3, 4, 6, 7].map(|number| id_of("orders", number)).to_vec();
    assert_eq!(ids(&server.events("orders")), expected);
}

#[test]
fn an_export_whose_reader_closes_the_pipe_prints_no_error() {
    let server = Server::start();
    server.import(&lines("orders", 0..5_000));
    let mut child = server.command(&["export", "orders"]).spawn().unwrap();
    let mut beginning = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut beginning).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(141));
}

#[test]
fn an_interrupted_import_says_how_to_continue() {
    let server = Server::start();
    let mut child =
        server.command(&["import", "--payloads", "orders", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // One full chunk, and one that never becomes full.
    for number in 0..1_500 {
        writeln!(input, "{number}").unwrap();
    }
    while server.count("orders") < 1_000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted") && said.contains("--from-line 1001"), "{said}");
    assert_eq!(server.count("orders"), 1_000);
}

#[test]
fn an_export_does_not_resume_with_another_topic_of_the_same_name() {
    let server = Server::start();
    server.import(&lines("orders", 0..20));
    let path = server.folder.path().join("orders.ndjson");
    let file = path.to_str().unwrap();
    server.ok(&["export", "orders", "-o", file]);
    let before = std::fs::read_to_string(&path).unwrap();
    server.ok(&["topic", "delete", "orders", "--yes"]);
    server.import(&lines("orders", 100..105));
    let ran = server.run(&["export", "orders", "-o", file, "--resume"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("another topic of this name"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
}

#[test]
fn payloads_are_imported_into_the_named_topic() {
    let server = Server::start();
    let ran = server.feed(&["import", "--payloads", "orders", "-"], "{\"a\": 1}\n\n[2]\nnull");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "3 events imported, 0 were already there\n"));
    let payloads: Vec<Value> = server.events("orders").iter().map(|event| event["payload"].clone()).collect();
    assert_eq!(payloads, [serde_json::json!({"a": 1}), serde_json::json!([2]), Value::Null]);
    let ran = server.feed(&["import", "--payloads"], "1");
    assert!(ran.code == Some(2) && ran.stderr.contains("needs a topic"), "{ran:?}");
    let ran = server.feed(&["import", "mistyped.ndjson"], "");
    assert!(ran.code == Some(1) && ran.stderr.contains("no file mistyped.ndjson"), "{ran:?}");
    // Lines without ids would be added twice by a second run: the message says how to continue.
    let ran = server.feed(&["import", "--payloads", "orders", "-"], "1\n2\n}\n4\n");
    assert!(ran.code == Some(1) && ran.stderr.contains("--from-line 3"), "{}", ran.stderr);
}

#[test]
fn an_import_that_is_killed_and_repeated_adds_each_event_once() {
    const EVENTS: u64 = 40_000;
    let mut random = Random::from_environment("an_import_that_is_killed");
    let server = Server::start();
    let file = server.folder.file("orders.ndjson", &lines("orders", 0..EVENTS).join("\n"));
    let mut kills = 0;
    for round in 0..3 {
        let mut child = server.command(&["import", &file]).spawn().unwrap();
        let at = server.count("orders") + 1 + random.below(5_000);
        kills += u32::from(server.kill_at(&mut child, "orders", at));
        println!("round {round}: {} events", server.count("orders"));
    }
    assert!(kills > 0, "all imports ended before they were killed");
    server.ok(&["import", &file]);
    let events = server.events("orders");
    let expected: Vec<String> = (0..EVENTS).map(|number| id_of("orders", number)).collect();
    assert!(ids(&events) == expected, "{} events", events.len());
    assert!(seqs(&events) == (1..=EVENTS).collect::<Vec<_>>());
}

#[test]
fn an_import_continues_when_the_server_is_back() {
    const EVENTS: u64 = 40_000;
    let mut server = Server::start();
    let file = server.folder.file("orders.ndjson", &lines("orders", 0..EVENTS).join("\n"));
    let child = server.command(&["import", &file]).spawn().unwrap();
    while server.count("orders") < 2_000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    server = server.kill_and_start_again(Duration::from_millis(300));
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("retrying"), "{said}");
    let events = server.events("orders");
    let expected: Vec<String> = (0..EVENTS).map(|number| id_of("orders", number)).collect();
    assert!(ids(&events) == expected, "{} events", events.len());
}

#[test]
fn an_import_waits_at_a_rate_limit() {
    let server = Server::start();
    server.import(&lines("orders", 0..1));
    server.ok(&["topic", "set", "orders", "publish_rate=200", "publish_burst=50"]);
    let ran = server.feed(&["import"], &lines("orders", 1..251).join("\n"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "250 events imported, 0 were already there\n"));
    assert_eq!(server.count("orders"), 251);
}

#[test]
fn a_replay_copies_the_events_that_match_all_filters_once() {
    let server = Server::start();
    server.import(&lines("orders", 0..100));
    let filters = ["--filter", "header.parity=1", "--filter", "tag=t0"];
    let expected: Vec<u64> = (0..100).filter(|number| number % 2 == 1 && number % 3 == 0).collect();
    let dry = server.ok(&[&["replay", "orders", "check", "--dry-run"], &filters[..]].concat());
    assert!(
        dry.contains(&format!("{} events of orders would be published to check", expected.len())),
        "{dry}"
    );
    assert_eq!(dry.lines().filter(|line| line.contains("\"number\"")).count(), 5, "{dry}");
    assert_eq!(server.count("check"), 0);

    // A part, then everything, then everything again.
    server.ok(&[&["replay", "orders", "check", "--limit", "5"], &filters[..]].concat());
    assert_eq!(server.count("check"), 5);
    let said = server.ok(&[&["replay", "orders", "check"], &filters[..]].concat());
    assert_eq!(
        said,
        format!("{} events of orders published to check, 5 were already there\n", expected.len() - 5)
    );
    server.ok(&[&["replay", "orders", "check"], &filters[..]].concat());
    let copies = server.events("check");
    let numbers: Vec<u64> = copies.iter().map(|it| it["payload"]["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, expected);
    for (copy, number) in copies.iter().zip(expected) {
        let original: Value = serde_json::from_str(&line("orders", number)).unwrap();
        assert_eq!(copy["caused_by"], serde_json::json!([original["id"]]));
        for field in ["key", "headers", "tags", "payload"] {
            assert_eq!(copy[field], original[field], "{field}");
        }
        assert_ne!(copy["id"], original["id"]);
    }
    server.ok(&["replay", "orders", "check", "--filter", "key=k1", "--new-ids"]);
    server.ok(&["replay", "orders", "check", "--filter", "key=k1", "--new-ids"]);
    let copies = server.events("check");
    assert_eq!(copies.len(), numbers.len() + 20);
    assert_eq!(ids(&copies).into_iter().collect::<HashSet<_>>().len(), copies.len());
    let refused = server.run(&["replay", "orders", "orders"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("itself"), "{}", refused.stderr);
}

#[test]
fn errors_say_what_to_do() {
    let unreachable = run(&["topic", "list", "--url", "http://127.0.0.1:1"]);
    assert_eq!(unreachable.code, Some(1));
    for word in ["http://127.0.0.1:1", "start a server with `prombus serve`", "--url"] {
        assert!(unreachable.stderr.contains(word), "{word}: {}", unreachable.stderr);
    }
    let folder = TempFolder::new();
    let serving = with_token(&folder, "secret");
    let url = format!("ws://{}/ws", serving.address());
    let file = folder.file("orders.ndjson", &line("orders", 1));
    for arguments in [vec!["topic", "list", "--url", &url], vec!["import", &file, "--url", &url]] {
        let refused = run(&arguments);
        assert!(refused.code == Some(1) && refused.stderr.contains("PROMBUS_TOKEN"), "{}", refused.stderr);
        let wrong = run(&[&arguments[..], &["--token", "wrong"]].concat());
        assert!(wrong.code == Some(1) && wrong.stderr.contains("not valid"), "{}", wrong.stderr);
        for variable in ["PROMBUS_TOKEN", "WS_TOKEN"] {
            let output = prombus(&arguments).env(variable, "secret").output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        }
        assert_eq!(run(&[&arguments[..], &["--token", "secret"]].concat()).code, Some(0));
    }
}

#[test]
fn an_event_for_a_group_that_does_not_exist_can_be_skipped_and_a_replay_keeps_its_addressee() {
    let server = Server::start();
    let addressed = line("orders", 1)
        .replace("\"payload\"", "\"addressee\":{\"subscription\":\"*\",\"group\":\"billing\"},\"payload\"");
    let input = format!("{}\n{addressed}\n{}\n", line("orders", 0), line("orders", 2));
    let ran = server.feed(&["import", "-"], &input);
    let advice = "`prombus group create '*' billing` creates the group";
    assert!(ran.code == Some(1) && ran.stderr.contains("line 2: "), "{ran:?}");
    assert!(ran.stderr.contains(advice) && ran.stderr.contains("--from-line 2 "), "{ran:?}");
    let ran = server.feed(&["import", "-", "--skip-bad"], &input);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("skipped") && ran.stderr.contains("1 bad line was skipped"), "{ran:?}");
    assert_eq!(server.count("orders"), 2);
    server.ok(&["group", "create", "*", "billing"]);
    assert_eq!(server.feed(&["import", "-"], &input).code, Some(0));
    server.ok(&["replay", "orders", "copy"]);
    let copies = server.events("copy");
    assert_eq!(copies.len(), 3);
    assert_eq!(copies[2]["addressee"], json!({"subscription": "*", "group": "billing"}), "{copies:?}");
    // The group does not read this topic, and no other group may get its event.
    let text = server.ok(&["replay", "orders", "other.copy"]);
    assert!(text.contains("1 event for groups that do not read other.copy left out"), "{text}");
    let text = server.ok(&["replay", "orders", "other.copy", "--dry-run", "--json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&json["events"], &json["not_for_target"]), (&json!(2), &json!(1)));
    assert!(server.events("other.copy").iter().all(|event| event.get("addressee").is_none()));
    // The event of a group that was deleted stops nothing.
    server.ok(&["group", "delete", "*", "billing", "--yes"]);
    let ran = server.run(&["replay", "orders", "again"]);
    assert!(ran.code == Some(1) && ran.stdout.starts_with("2 events of orders published"), "{ran:?}");
    assert!(ran.stderr.contains("1 event for one group was not copied: "), "{ran:?}");
    // With another topic, creating the group would not help.
    let ran = server.feed(&["import", "other.orders", "-"], &addressed);
    assert!(ran.code == Some(1) && ran.stderr.contains("does not cover the topic"), "{ran:?}");
}
