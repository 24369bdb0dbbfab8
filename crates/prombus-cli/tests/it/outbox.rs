//! Tests of `prombus outbox drain` with a real database and a real server.

use crate::remote::Server;
use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

fn add(connection: &Connection, id: &str, payload: &str) {
    let sql = "INSERT INTO outbox (id, topic, payload, key) VALUES (?1, 'orders', ?2, 'k')";
    connection.execute(sql, [id, payload]).unwrap();
}

#[test]
fn rows_are_published_once_and_unpublished_rows_are_reported() {
    let server = Server::start();
    let path = server.folder.path().join("shop.db");
    let file = path.to_str().unwrap();
    let drain = ["outbox", "drain", "--sqlite", file, "--once"];
    let refused = server.run(&drain);
    assert!(refused.code == Some(1) && refused.stderr.contains("--init"), "{}", refused.stderr);
    assert!(!path.exists());
    server.ok(&[&drain[..], &["--init"]].concat());
    let shop = Connection::open(&path).unwrap();
    for number in 0..250 {
        add(&shop, &format!("order-{number}"), &format!("{{\"number\": {number}}}"));
    }
    assert!(server.ok(&drain).starts_with("250 events published, 0 were already there, 0 failed"));
    // As after a crash between publishing a row and marking it as sent.
    shop.execute("UPDATE outbox SET status = 'pending' WHERE id = 'order-7'", []).unwrap();
    assert!(server.ok(&drain).starts_with("0 events published, 1 was already there"));
    let numbers: Vec<u64> =
        server.events("orders").iter().map(|it| it["payload"]["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..250).collect::<Vec<_>>());
    add(&shop, "bad", "{");
    let ran = server.run(&drain);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("1 row given up") && ran.stdout.contains("1 dead"), "{}", ran.stdout);
}

#[test]
fn a_row_larger_than_the_frame_limit_does_not_block_other_rows() {
    let server = Server::start();
    let path = server.folder.path().join("shop.db");
    let drain = ["outbox", "drain", "--sqlite", path.to_str().unwrap(), "--once", "--init"];
    server.ok(&drain);
    let shop = Connection::open(&path).unwrap();
    add(&shop, "one", "1");
    add(&shop, "large", &format!("\"{}\"", "x".repeat(3_000_000)));
    add(&shop, "two", "2");
    let ran = server.run(&drain);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("1 row given up"), "{}", ran.stdout);
    let payloads: Vec<u64> =
        server.events("orders").iter().map(|it| it["payload"].as_u64().unwrap()).collect();
    assert_eq!(payloads, [1, 2]);
}

#[test]
fn a_row_that_another_drainer_holds_is_a_failure() {
    let server = Server::start();
    let path = server.folder.path().join("shop.db");
    let drain = ["outbox", "drain", "--sqlite", path.to_str().unwrap(), "--once", "--init"];
    server.ok(&drain);
    let shop = Connection::open(&path).unwrap();
    add(&shop, "one", "1");
    // As after a kill of the drainer that held the row.
    let sql = "UPDATE outbox SET status = 'claimed', worker = 'gone', lease_until_ms = 4102444800000";
    shop.execute(sql, []).unwrap();
    let ran = server.run(&drain);
    assert!(ran.code == Some(1) && ran.stdout.contains("1 claimed"), "{ran:?}");
    shop.execute("UPDATE outbox SET lease_until_ms = 1", []).unwrap();
    assert!(server.ok(&drain).starts_with("1 event published"));
}

#[test]
fn a_drainer_waits_for_the_server_and_stops_cleanly() {
    let mut server = Server::start();
    let path = server.folder.path().join("shop.db");
    let file = path.to_str().unwrap().to_owned();
    let child = server
        .command(&["outbox", "drain", "--sqlite", &file, "--init", "--interval-ms", "10", "--worker", "one"])
        .spawn()
        .unwrap();
    let started = Instant::now();
    let wait_for = |server: &Server, count: u64| {
        while server.count("orders") < count {
            assert!(started.elapsed() < Duration::from_secs(60), "{} of {count}", server.count("orders"));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    while !path.exists() || Connection::open(&path).unwrap().prepare("SELECT 1 FROM outbox").is_err() {
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    let shop = Connection::open(&path).unwrap();
    shop.busy_timeout(Duration::from_secs(10)).unwrap();
    add(&shop, "one", "1");
    wait_for(&server, 1);
    server = server.kill_and_start_again(Duration::from_millis(100));
    add(&shop, "two", "2");
    wait_for(&server, 2);
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    // If the server is killed before it answers the first publish, the row is published again as a duplicate.
    let ends = ["2 events published, 0 were already there", "1 event published, 1 was already there"];
    assert!(ends.iter().any(|end| said.contains(end)), "{said}");
}

#[test]
fn the_error_of_a_mongodb_outbox_that_cannot_be_opened_hides_the_password() {
    let server = Server::start();
    let away = "mongodb://u:hunter2@127.0.0.1:1/shop?serverSelectionTimeoutMS=200";
    for (url, why) in [
        ("mongodb://u:hunter2@127.0.0.1:1", "--database NAME"),
        ("u:hunter2@127.0.0.1", "connection string is not valid"),
        (away, "no MongoDB server that takes writes can be reached"),
    ] {
        let refused = server.run(&["outbox", "drain", "--mongodb", url, "--once"]);
        assert_eq!(refused.code, Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains(why) && !refused.stderr.contains("hunter2"), "{}", refused.stderr);
    }
}
