//! Tests of `prombus group` with a real server.

use crate::remote::{Server, id_of, lines, with_token};
use crate::support::{Ran, TempFolder, prombus};
use crate::ws_client::Client;
use serde_json::{Value, json};
use std::time::Duration;

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn groups_are_created_listed_shown_and_deleted() {
    let server = Server::start();
    assert_eq!(server.ok(&["group", "list"]), "no groups\n");
    server.import(&lines("orders.eu", 0..12));
    let create = ["group", "create", "orders.eu", "billing", "--from", "earliest"];
    assert_eq!(server.ok(&create), "created group billing on orders.eu\n");
    assert_eq!(server.ok(&create), "group billing on orders.eu already exists; nothing changed\n");
    let after = id_of("orders.eu", 7);
    let filtered = ["group", "create", "orders.*", "audit", "--from", &after, "--filter", "key=k9", "--json"];
    assert_eq!(parsed(&server.ok(&filtered)), json!({"created": true}));
    let table = server.ok(&["group", "list"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["TOPIC", "GROUP", "MEMBERS", "LAG", "IN-FLIGHT", "WAITING", "OLDEST", "STATE"]);
    assert_eq!(rows[1][..6], ["orders.*", "audit", "0", "4", "0", "0"], "{table}");
    assert_eq!(rows[2][..4], ["orders.eu", "billing", "0", "12"], "{table}");
    assert!(table.lines().all(|line| line.trim_end() == line) && table.contains("no members"), "{table}");
    let json = parsed(&server.ok(&["group", "list", "--topic", "orders.eu", "--json"]));
    assert_eq!((&json["groups"][0]["lag"], json["groups"].as_array().unwrap().len()), (&json!(12), 1));
    assert_eq!(server.ok(&["group", "list", "--prefix", "none"]), "no groups\n");

    let twice = ["group", "create", "orders.eu", "eu", "--filter", "tag=a", "--filter", "tag=b"];
    assert_eq!(server.run(&twice).code, Some(2));

    let shown = server.ok(&["group", "show", "orders.*", "audit"]);
    for line in ["state      no members", "lag        4", "orders.eu      8              0    12    4"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert_eq!(parsed(&server.ok(&["group", "show", "orders.*", "audit", "--json"]))["paused"], json!(false));

    let asked = server.run(&["group", "delete", "orders.eu", "billing"]);
    assert_eq!(asked.code, Some(1));
    assert!(
        asked
            .stderr
            .contains("add --yes to delete group billing on orders.eu with 0 members and 12 unsettled")
    );
    let deleted = server.ok(&["group", "delete", "orders.eu", "billing", "--yes"]);
    assert_eq!(deleted, "deleted group billing on orders.eu\n");
    assert_eq!(server.ok(&["group", "list", "--topic", "orders.eu"]), "no groups\n");
}

#[test]
fn a_command_about_an_unknown_group_names_it() {
    let server = Server::start();
    server.import(&lines("orders", 0..1));
    let id = id_of("orders", 0);
    let commands: [&[&str]; 6] = [
        &["show", "orders", "none"],
        &["seek", "orders", "none", "--to", "earliest", "--yes"],
        &["pause", "orders", "none"],
        &["resume", "orders", "none"],
        &["delete", "orders", "none", "--yes"],
        &["settle", "orders", "none", &id, "ack"],
    ];
    for command in commands {
        let ran = server.run(&[&["group"], command].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{command:?}");
        assert!(ran.stderr.starts_with("prombus: no group \"none\" on \"orders\" at "), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1);
    }
    let unknown =
        server.run(&["group", "create", "orders", "new", "--from", "0199a1c2-7d40-7000-8000-000000000001"]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("unknown_id"), "{}", unknown.stderr);
}

#[test]
fn changes_need_the_scope_admin() {
    let folder = TempFolder::new();
    let made =
        prombus(&["token", "new", "--name", "reader", "--scope", "subscribe:orders"]).output().unwrap();
    let made = Ran::from(made).stdout;
    let reader = made.lines().find(|line| line.starts_with("prombus_")).unwrap();
    let config = folder.file("p.toml", &made[made.find("[[auth.token]]").unwrap()..]);
    let mut command = crate::serving::serve(&folder, &["--config", &config]);
    command.env("WS_TOKEN", "all");
    let serving = crate::serving::Serving::start(command);
    let run = |token: &str, arguments: &[&str]| -> Ran {
        let mut command = prombus(arguments);
        command.env("PROMBUS_URL", format!("http://{}", serving.address())).env("PROMBUS_TOKEN", token);
        command.output().unwrap().into()
    };
    let created = run("all", &["group", "create", "orders", "billing"]);
    assert_eq!(created.code, Some(0), "{created:?}");
    let listed = run(reader, &["group", "list"]);
    assert!(listed.stdout.contains("billing"), "{listed:?}");
    let commands: [&[&str]; 7] = [
        &["group", "create", "orders", "other"],
        &["group", "seek", "orders", "billing", "--to", "latest", "--yes"],
        &["group", "pause", "orders", "billing"],
        &["group", "resume", "orders", "billing"],
        &["group", "delete", "orders", "billing", "--yes"],
        &["group", "settle", "orders", "billing", "0199a1c2-7d40-7000-8000-000000000001", "ack"],
        &["settings"],
    ];
    for arguments in commands {
        let refused = run(reader, arguments);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{arguments:?}");
        assert!(refused.stderr.contains("scope \"admin\""), "{arguments:?}: {}", refused.stderr);
        let wrong = run("wrong", arguments);
        assert!(wrong.code == Some(1) && wrong.stderr.contains("refused access"), "{}", wrong.stderr);
    }
    serving.stop();
}

#[test]
fn a_seek_shows_its_effect_and_needs_yes() {
    let server = Server::start();
    server.import(&lines("orders", 0..1_204));
    server.ok(&["group", "create", "orders", "billing", "--from", "latest"]);
    let lag = || parsed(&server.ok(&["group", "show", "orders", "billing", "--json"]))["lag"].clone();
    let seek = |more: &[&str]| server.run(&[&["group", "seek", "orders", "billing"], more].concat());
    let asked = seek(&["--to", "earliest"]);
    assert_eq!((asked.code, asked.stdout.as_str()), (Some(1), "would redeliver 1,204 events\n"));
    assert!(asked.stderr.contains("nothing was changed; add --yes"), "{}", asked.stderr);
    let dry = seek(&["--to", "earliest", "--dry-run", "--json"]);
    let preview = parsed(&dry.stdout);
    assert_eq!(
        (dry.code, &preview["preview"], &preview["redeliver"]),
        (Some(0), &json!(true), &json!(1_204))
    );
    assert_eq!(lag(), 0);

    let moved = seek(&["--to", &id_of("orders", 1_000), "--yes"]);
    let text = "moved group billing on orders: redeliver 203 events; 203 events to settle\n";
    assert_eq!((moved.code, moved.stdout.as_str()), (Some(0), text), "{}", moved.stderr);
    assert_eq!(lag(), 203);
    // The events have the times 1700000000000, 1700000000001, …
    let moved = parsed(&seek(&["--to", "2023-11-14T22:13:21.200Z", "--yes", "--json"]).stdout);
    assert_eq!((&moved["skip"], &moved["redeliver"], &moved["lag"]), (&json!(199), &json!(0), &json!(4)));
    assert_eq!(
        (moved["cursor"]["lastId"].as_str(), lag()),
        (Some(id_of("orders", 1_199).as_str()), json!(4))
    );
    assert_eq!(seek(&["--to", "soon"]).code, Some(2));
}

#[test]
fn a_paused_group_gets_nothing_even_after_a_restart_until_it_is_resumed() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = Server::start();
    server.ok(&["group", "create", "orders", "billing"]);
    assert_eq!(server.ok(&["group", "pause", "orders", "billing"]), "paused group billing on orders\n");
    let again = server.ok(&["group", "pause", "orders", "billing", "--json"]);
    assert_eq!(parsed(&again), json!({"paused": true}));
    server.import(&lines("orders", 0..2));
    let server = server.kill_and_start_again(Duration::ZERO);
    assert!(server.ok(&["group", "list"]).contains("paused"));
    runtime.block_on(async {
        let mut member = Client::connect(server.serving.address()).await;
        member.subscribe("orders", "billing", json!({})).await;
        let early = tokio::time::timeout(Duration::from_millis(300), member.frame()).await;
        assert!(early.is_err(), "the group is paused: {early:?}");
        assert_eq!(server.ok(&["group", "resume", "orders", "billing"]), "resumed group billing on orders\n");
        assert_eq!(member.frame().await.event.unwrap().seq, 1);
    });
}

#[test]
fn an_event_is_settled_on_behalf_of_its_member() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = Server::start();
    server.import(&lines("orders", 0..3));
    let settle =
        |id: &str, more: &[&str]| server.run(&[&["group", "settle", "orders", "billing", id], more].concat());
    runtime.block_on(async {
        let mut member = Client::connect(server.serving.address()).await;
        member.subscribe("orders", "billing", json!({"from": "earliest", "maxInFlight": 1})).await;
        let first = member.frame().await.event.unwrap();
        let shown = server.ok(&["group", "show", "orders", "billing"]);
        assert!(
            shown.contains("LEASED EVENT") && shown.contains(&first.id) && shown.contains("127.0.0.1"),
            "{shown}"
        );
        let extended = settle(&first.id, &["extend", "--extend-ms", "600000"]);
        assert_eq!(
            extended.stdout,
            format!("extended {}: the lease ends in 10 min\n", first.id),
            "{extended:?}"
        );
        assert_eq!(settle(&first.id, &["release"]).stdout, format!("released {}\n", first.id));
        assert_eq!(member.frame().await.event.unwrap().id, first.id, "it is redelivered at once");
        let dead = settle(&first.id, &["dead", "--reason", "bad address"]);
        assert_eq!(dead.stdout, format!("{} is a dead letter now\n", first.id), "{dead:?}");
        assert_eq!(server.events("dlq.orders")[0]["payload"]["err"], "bad address");
        let second = member.frame().await.event.unwrap();
        let nacked = settle(&second.id, &["nack", "--delay-ms", "0", "--reason", "again"]);
        assert_eq!(nacked.code, Some(0), "{nacked:?}");
        assert_eq!(member.frame().await.event.unwrap().id, second.id);
        assert_eq!(parsed(&settle(&second.id, &["ack", "--json"]).stdout), json!({"stale": false}));
    });
    let stale = settle(&id_of("orders", 0), &["ack"]);
    assert_eq!((stale.code, stale.stdout.as_str()), (Some(1), ""));
    assert!(stale.stderr.contains("no member of group billing holds"), "{}", stale.stderr);
    let misplaced = settle(&id_of("orders", 0), &["ack", "--delay-ms", "5"]);
    assert!(
        misplaced.code == Some(2)
            && misplaced.stderr.contains("--delay-ms has no effect with the verdict ack"),
        "{}",
        misplaced.stderr
    );
    assert_eq!(settle("no-id", &["ack"]).code, Some(2));
    assert_eq!(settle(&id_of("orders", 0), &["extend"]).code, Some(2));
}

#[test]
fn a_wrong_token_and_a_dead_server_are_one_clear_line() {
    let folder = TempFolder::new();
    let serving = with_token(&folder, "secret");
    let url = format!("http://{}", serving.address());
    let wrong: Ran = prombus(&["group", "list", "--url", &url, "--token", "no"]).output().unwrap().into();
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.stderr.contains("refused access") && wrong.stderr.lines().count() == 1, "{}", wrong.stderr);
    serving.stop();
    for arguments in [&["group", "list"][..], &["state", "orders"], &["settings"], &["health"]] {
        let dead: Ran = prombus(&[arguments, &["--url", &url]].concat()).output().unwrap().into();
        assert_eq!((dead.code, dead.stdout.as_str()), (Some(1), ""), "{arguments:?}");
        let is_clear = dead.stderr.contains("cannot connect") && dead.stderr.lines().count() == 1;
        assert!(is_clear, "{arguments:?}: {}", dead.stderr);
    }
}
