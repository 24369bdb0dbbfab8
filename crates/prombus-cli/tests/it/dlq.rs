//! Tests of `prombus dlq` with a real server.

use crate::remote::{Server, id_of, letter, line};
use crate::serving::Serving;
use crate::support::{TempFolder, run_with_input};
use crate::ws_client::{Client, Seen};
use serde_json::{Value, json};

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
    let head = "TOPIC       OPEN  TOTAL  OLDEST OPEN               NEWEST OPEN               OPEN BY GROUP";
    assert_eq!(table.lines().next(), Some(head), "{table}");
    assert!(table.lines().nth(1).unwrap().starts_with("dlq.bills"), "{table}");
    let row = table.lines().nth(2).unwrap();
    assert!(
        row.starts_with("dlq.orders    10     10  2023-11-14T22:13:20.000Z  2023-11-14T22:13:20.009Z"),
        "{table}"
    );
    assert!(row.ends_with("audit 3, billing 7"), "{table}");
    let json: Value = serde_json::from_str(&server.ok(&["dlq", "list", "--json"])).unwrap();
    assert_eq!((&json[1]["groups"], &json[1]["open"]), (&json!({"billing": 7, "audit": 3}), &json!(10)));

    let shown = server.ok(&["dlq", "show", "orders", "--group", "billing", "--limit", "2"]);
    assert!(shown.contains("{\"number\": 6}") && !shown.contains("{\"number\": 4}"), "{shown}");
    assert!(shown.contains("  open       billing gave up after 5 attempts: no customer"), "{shown}");
    assert!(shown.contains("2 of 7 open dead letters in dlq.orders; --limit shows more"), "{shown}");
    assert!(server.ok(&["dlq", "show", "bills"]).ends_with("1 open dead letter in dlq.bills\n"));
    let whole = server.ok(&["dlq", "show", "dlq.orders", "--json"]);
    assert_eq!(whole.replace(",\"state\":\"open\"}\n", "}\n"), server.lines("dlq.orders"));
    let unknown = server.run(&["dlq", "show", "cheques"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(1), ""));
    assert!(unknown.stderr.contains("\"cheques\" has no dead letters"), "{}", unknown.stderr);
}

#[test]
fn a_redrive_needs_yes_and_publishes_only_selected_events() {
    let server = Server::start();
    server.make_group("orders", "billing");
    let mut letters: Vec<String> =
        (0..30).map(|number| letter("orders", number, "billing", "timeout 3")).collect();
    letters.extend((30..40).map(|number| letter("orders", number, "audit", "timeout 3")));
    letters.push(letter("orders", 40, "billing", "no customer"));
    letters.push(line("dlq.orders", 99));
    server.import(&letters);
    let selection = ["--group", "billing", "--error-contains", "timeout", "--filter", "key=k1"];
    let redrive = [&["dlq", "redrive", "orders"][..], &selection].concat();
    let dry = server.ok(&redrive);
    assert!(dry.contains("3 events would be published again"), "{dry}");
    assert!(
        dry.contains("nothing was published") && dry.contains("1 skipped, because they are not dead letters"),
        "{dry}"
    );
    assert_eq!(server.count("orders"), 0);
    let said = server.ok(&[&redrive[..], &["--yes", "--limit", "2"]].concat());
    assert!(said.starts_with("2 events published again"), "{said}");
    // Redriven letters are not open any more, so a dry run does not count them.
    let dry = server.ok(&redrive);
    assert!(dry.contains("1 event would be published again"), "{dry}");
    let said = server.ok(&[&redrive[..], &["--yes", "--limit", "2"]].concat());
    assert!(said.starts_with("1 event published again"), "{said}");
    let events = server.events("orders");
    assert_eq!(events.len(), 3);
    for (event, number) in events.iter().zip([1, 11, 21]) {
        let original: Value = serde_json::from_str(&line("orders", number)).unwrap();
        assert_eq!(event["caused_by"], json!([original["id"]]));
        assert_eq!(event["addressee"], json!({"subscription": "orders", "group": "billing"}));
        assert_eq!(event["headers"]["x-redrives"], "1");
        assert_eq!(event["headers"]["parity"], original["headers"]["parity"]);
        for field in ["key", "tags", "payload"] {
            assert_eq!(event[field], original[field], "{field}");
        }
    }
    assert_eq!(server.count("dlq.orders"), 42);
    let json: Value = serde_json::from_str(&server.ok(&["dlq", "list", "--json"])).unwrap();
    assert_eq!((&json[0]["open"], &json[0]["letters"]), (&json!(38), &json!(41)));

    // Discarding: a dry run, letters by id, the rest of a group.
    let discard = ["dlq", "discard", "orders", "--group", "audit"];
    assert!(server.ok(&discard).starts_with("10 open dead letters in dlq.orders would be discarded"));
    let said = server.ok(&["dlq", "discard", "orders", &id_of("dlq.orders", 30), "--yes"]);
    assert_eq!(said, "1 dead letter discarded in dlq.orders\n");
    let said = server.ok(&[&discard[..], &["--yes"]].concat());
    assert_eq!(said, "9 dead letters discarded in dlq.orders\n");
    let unknown = server.run(&["dlq", "discard", "orders", &id_of("none", 1), "--yes"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    let shown = server.ok(&["dlq", "show", "orders", "--all", "--limit", "100"]);
    let count = |state: &str| shown.lines().filter(|it| it.contains(&format!("Z  {state:9}  "))).count();
    assert_eq!((count("open"), count("redriven"), count("discarded")), (28, 3, 10), "{shown}");
    let shown = server.ok(&["dlq", "show", "orders", "--group", "audit"]);
    assert_eq!(shown, "0 open dead letters in dlq.orders; --all also shows 10 redriven or discarded\n");

    // The states survive a crash of the server.
    let server = server.kill_and_start_again(std::time::Duration::ZERO);
    let json: Value = serde_json::from_str(&server.ok(&["dlq", "list", "--json"])).unwrap();
    assert_eq!((&json[0]["open"], &json[0]["groups"]), (&json!(28), &json!({"billing": 28})));
}

/// A token for `publish:dlq.orders` must not reach other topics through an admin who redrives.
#[test]
fn a_letter_whose_event_is_of_another_topic_is_not_redriven() {
    let server = Server::start();
    server.make_group("payments", "billing");
    let planted = letter("payments", 1, "billing", "timeout").replacen("dlq.payments", "dlq.orders", 1);
    server.import(&[planted]);
    for more in [&["--yes"][..], &["--yes", "--all-groups"]] {
        let said = server.ok(&[&["dlq", "redrive", "orders"], more].concat());
        assert!(
            said.contains("0 events published again; 1 skipped, because they are not dead letters"),
            "{said}"
        );
    }
    assert_eq!(server.count("payments"), 0);
}

/// Redrives all letters of `billing`, one of three groups, and checks that each event reaches `billing` exactly once, and the
/// other groups never.
fn redriven_to_one_group_of_three(letters: u64, interrupt: impl FnOnce(Server) -> Server) {
    let server = Server::start();
    for group in ["billing", "audit", "shipping"] {
        server.make_group("orders", group);
    }
    let all: Vec<String> =
        (0..letters).map(|number| letter("orders", number, "billing", "timeout")).collect();
    server.import(&all);
    let server = interrupt(server);
    server.ok(&["dlq", "redrive", "orders", "--yes", "--rate", "100000"]);
    assert_eq!(server.count("orders"), letters);
    server.import(&[line("orders", 1_000_000)]);
    let mut numbers: Vec<u64> = server
        .drain("orders", "billing", letters as usize + 1)
        .iter()
        .map(|it| it["number"].as_u64().unwrap())
        .collect();
    numbers.sort_unstable();
    let expected: Vec<u64> = (0..letters).chain([1_000_000]).collect();
    assert_eq!(numbers, expected);
    for group in ["audit", "shipping"] {
        assert_eq!(server.drain("orders", group, 1), [json!({"number": 1_000_000})]);
    }
    let json: Value = serde_json::from_str(&server.ok(&["dlq", "list", "--json"])).unwrap();
    assert_eq!((&json[0]["open"], &json[0]["letters"]), (&json!(0), &json!(letters)));
}

#[test]
fn a_redrive_that_is_killed_and_repeated_reaches_one_group_of_three_once() {
    redriven_to_one_group_of_three(1_000, |server| {
        for at in [100, 500] {
            let mut child =
                server.command(&["dlq", "redrive", "orders", "--yes", "--rate", "200"]).spawn().unwrap();
            assert!(server.kill_at(&mut child, "orders", at), "the redrive ended before it was killed");
        }
        server
    });
}

#[test]
fn a_redrive_survives_a_server_that_is_killed() {
    redriven_to_one_group_of_three(1_000, |server| {
        let mut child =
            server.command(&["dlq", "redrive", "orders", "--yes", "--rate", "200"]).spawn().unwrap();
        while server.count("orders") < 300 {
            assert!(child.try_wait().unwrap().is_none(), "the redrive ended before the server was killed");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let server = server.kill_and_start_again(std::time::Duration::from_millis(100));
        // The command reconnects, or fails and is repeated; it must end.
        child.wait().unwrap();
        server
    });
}

#[test]
fn all_groups_and_letters_without_a_subscription_and_unknown_groups() {
    let server = Server::start();
    server.make_group("orders", "billing");
    server.make_group("orders", "audit");
    let old =
        |number| letter("orders", number, "billing", "timeout").replace(",\"subscription\":\"orders\"", "");
    server.import(&[
        old(1),
        old(2),
        letter("orders", 3, "billing", "timeout"),
        letter("orders", 4, "gone", "x"),
    ]);
    // Letters without a subscription and of a group that does not exist are skipped; the others are redriven.
    let ran = server.run(&["dlq", "redrive", "orders", "--yes"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stdout.starts_with("1 event published again; 2 skipped, because they need --subscription"),
        "{ran:?}"
    );
    assert!(
        ran.stderr.contains("1 dead letter skipped: the event is addressed to the group \"gone\""),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("--subscription, or use --all-groups"), "{ran:?}");
    let old_2 = ["--filter", "key=k2"];
    let said =
        server.ok(&[&["dlq", "redrive", "orders", "--yes", "--subscription", "orders"][..], &old_2].concat());
    assert_eq!(said, "1 event published again\n");
    let said = server.ok(&["dlq", "redrive", "orders", "--yes", "--all-groups"]);
    assert_eq!(said, "2 events published again\n");
    let numbers = |group, count| -> Vec<Value> {
        server.drain("orders", group, count).iter().map(|payload| payload["number"].clone()).collect()
    };
    assert_eq!(numbers("audit", 2), [1, 4]);
    assert_eq!(numbers("billing", 4), [3, 2, 1, 4]);
    assert_eq!(server.ok(&["dlq", "redrive", "orders", "--yes"]), "0 events published again\n");
}

#[test]
fn a_letter_that_is_refused_permanently_does_not_stop_the_others() {
    let server = Server::start();
    server.make_group("orders", "billing");
    let bad = letter("orders", 1, "billing", "x")
        .replace("\"subscription\":\"orders\"", "\"subscription\":\"no pattern\"");
    server.import(&[bad, letter("orders", 2, "billing", "x")]);
    let dry: Value = serde_json::from_str(&server.ok(&["dlq", "redrive", "orders", "--json"])).unwrap();
    assert_eq!((&dry["events"], &dry["dry_run"]), (&json!(2), &json!(true)));
    let ran = server.run(&["dlq", "redrive", "orders", "--yes", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let done: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&done["published"], &done["refused"]), (&json!(1), &json!(1)), "{ran:?}");
    assert!(ran.stderr.contains("1 dead letter skipped: "), "{ran:?}");
    assert_eq!(server.drain("orders", "billing", 1), [json!({"number": 2})]);
}

#[test]
fn events_that_are_not_dead_letters_can_be_discarded() {
    let server = Server::start();
    server.import(&[letter("orders", 1, "billing", "x"), line("dlq.orders", 8), line("dlq.orders", 9)]);
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&server.ok(&[arguments, &["--json"]].concat())).unwrap()
    };
    let by_id = json(&["dlq", "discard", "orders", &id_of("dlq.orders", 8), "--yes"]);
    assert_eq!((&by_id["discarded"], &by_id["others"]), (&json!(1), &json!(1)));
    let of_group = json(&["dlq", "discard", "orders", "--group", "billing"]);
    assert_eq!((&of_group["discarded"], &of_group["dry_run"]), (&json!(1), &json!(true)));
    let said = server.ok(&["dlq", "discard", "orders", "--yes"]);
    assert_eq!(said, "1 dead letter and 1 other event discarded in dlq.orders\n");
    assert_eq!(json(&["dlq", "list"])[0]["open"], 0);
    assert_eq!(
        server.ok(&["dlq", "discard", "orders"]).lines().next(),
        Some("0 open dead letters in dlq.orders would be discarded")
    );
}

#[test]
fn a_token_without_the_scope_gets_an_error_that_names_it() {
    let folder = TempFolder::new();
    let config = folder.path().join("prombus.toml");
    let token = |name: &str, scopes: &str| {
        let hash = run_with_input(&["token", "hash"], &format!("{name}-secret-secret-secret\n")).stdout;
        format!("[[auth.token]]\nname = \"{name}\"\nhash = \"{}\"\nscopes = [{scopes}]\n", hash.trim())
    };
    let text = token("reader", "\"subscribe:**\"") + &token("bills", "\"subscribe:dlq.bills\"");
    std::fs::write(&config, text).unwrap();
    let serving = Serving::in_folder(&folder, &["--config", config.to_str().unwrap()]);
    let server = Server { serving, folder };
    let run = |arguments: &[&str], name: &str| {
        let token = format!("{name}-secret-secret-secret");
        let ran: crate::support::Ran =
            server.command(arguments).env("PROMBUS_TOKEN", token).output().unwrap().into();
        ran
    };
    let listed = run(&["dlq", "list"], "reader");
    assert_eq!((listed.code, listed.stdout.as_str()), (Some(1), ""), "{listed:?}");
    assert!(listed.stderr.contains("it needs the scope \"subscribe:dlq.**\""), "{listed:?}");
    for arguments in
        [&["dlq", "show", "orders"][..], &["dlq", "redrive", "orders"], &["dlq", "discard", "orders"]]
    {
        let ran = run(arguments, "bills");
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        assert!(ran.stderr.contains("it needs the scope \"subscribe:dlq.orders\""), "{ran:?}");
    }
    let listed = run(&["dlq", "list"], "bills");
    let expected = "no dead letters in the topics that this token may read\n";
    assert_eq!((listed.code, listed.stdout.as_str()), (Some(0), expected), "{listed:?}");
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
                assert_eq!(said, "1 event published again\n");
            } else {
                assert!(said.starts_with("0 events published again; 1 skipped"), "{said}");
            }
        }
    });
    let redrives: Vec<Value> =
        server.events("orders").iter().map(|event| event["headers"]["x-redrives"].clone()).collect();
    assert_eq!(redrives, [Value::Null, json!("1"), json!("2"), json!("3")]);
    let said = server.ok(&["dlq", "redrive", "orders", "--yes", "--max-redrives", "4", "--rate", "100000"]);
    assert!(said.starts_with("1 event published again"), "{said}");
}
