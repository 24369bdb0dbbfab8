//! Tests of files that cannot be read while the server runs: by a group, a stream, an export, `/state`, cleaning, a backup, and
//! the commands `verify` and `repair`.

use super::{ALL, Consumer, EVENTS, KEYS, Rig, SEGMENT_DATA_START, health, metric, wait_for};
use crate::http_client::{get, get_json, post};
use crate::serving::Serving;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

/// A restarted server, which has no events in memory, and the name of a segment in the middle.
fn reopened() -> (Rig, Serving, String) {
    let (rig, serving) = Rig::filled();
    serving.stop();
    let serving = rig.start();
    let segment = rig.sealed_segments()[1].clone();
    (rig, serving, segment)
}

#[test]
fn a_group_waits_and_continues_when_the_error_passes() {
    let (rig, serving, segment) = reopened();
    rig.shim.fail(&[(&segment, SEGMENT_DATA_START, ALL)]);
    rig.runtime.block_on(async {
        let mut consumer = Consumer::join(&serving, "billing").await;
        let stuck_at = consumer.take_for(Duration::from_secs(2)).await;
        assert!(stuck_at > 0 && stuck_at < EVENTS, "{stuck_at}");
        let state = health(&serving);
        assert_eq!(state["status"], "degraded", "{state}");
        assert!(state["reasons"][0].as_str().unwrap().contains(&segment), "{state}");
        assert!(metric(&serving, "prombus_read_errors_total") > 0);
        assert!(metric(&serving, "prombus_events_unreadable") > 0);
        assert_eq!(consumer.take_for(Duration::from_secs(1)).await, stuck_at, "no later event is delivered");
        let info = get_json(&serving.addresses()[0], "/groups/orders/billing");
        assert_eq!(info["lag"], EVENTS - stuck_at, "nothing is settled: {info}");
        rig.shim.pass();
        consumer.take_to(EVENTS).await;
    });
    wait_for("the server is healthy again", || health(&serving)["status"] == "ok");
    assert_eq!(metric(&serving, "prombus_events_unreadable"), 0);
    assert_eq!(metric(&serving, "prombus_events_corrupt_total"), 0);
    let log = serving.kill();
    let lines = log.lines().filter(|line| line.contains("cannot read")).count();
    assert_eq!(lines, 1, "one line, not one per retry: {log}");
}

/// Running out of file descriptors is a read error too: the subscription waits, and the connection stays open.
#[test]
fn a_group_waits_while_no_file_can_be_opened() {
    let (rig, serving) = Rig::filled();
    serving.stop();
    let command = rig.command();
    let mut limited = std::process::Command::new("sh");
    limited
        .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.stdin(std::process::Stdio::null());
    limited.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let serving = Serving::start(limited);
    rig.runtime.block_on(async {
        let mut consumer = Consumer::connect(&serving, "billing").await;
        let idle: Vec<std::net::TcpStream> =
            (0..80).filter_map(|_| std::net::TcpStream::connect(serving.address()).ok()).collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        consumer.subscribe().await;
        let stuck_at = consumer.take_for(Duration::from_secs(2)).await;
        assert!(stuck_at < EVENTS, "files could be opened after all");
        drop(idle);
        consumer.take_to(EVENTS).await;
    });
    assert!(metric(&serving, "prombus_read_errors_total") > 0);
    assert_eq!(metric(&serving, "prombus_events_corrupt_total"), 0);
}

#[test]
fn a_stream_and_an_export_survive_a_temporary_error_and_fail_after_30_s() {
    let (rig, serving, segment) = reopened();
    let address = serving.addresses()[0].clone();
    rig.shim.fail(&[(&segment, SEGMENT_DATA_START, ALL)]);
    std::thread::scope(|scope| {
        let export = scope.spawn(|| lines_of(&address, "/export?topic=orders"));
        let stream = scope.spawn(|| events_of(&address, EVENTS));
        std::thread::sleep(Duration::from_secs(1));
        rig.shim.pass();
        assert_eq!(export.join().unwrap().expect("a complete export"), EVENTS);
        assert_eq!(stream.join().unwrap(), (EVENTS, None));
    });
    rig.shim.fail(&[(&segment, SEGMENT_DATA_START, ALL)]);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let export = scope.spawn(|| lines_of(&address, "/export?topic=orders"));
        let stream = scope.spawn(|| events_of(&address, EVENTS));
        let error = export.join().unwrap().expect_err("an incomplete export");
        assert!(error.to_string().contains("broke off"), "{error}");
        let (count, error) = stream.join().unwrap();
        assert!(count < EVENTS);
        let error: Value = serde_json::from_str(&error.expect("an error event")).unwrap();
        assert_eq!(error["code"], "unavailable", "{error}");
    });
    let waited = began.elapsed();
    assert!((Duration::from_secs(25)..Duration::from_secs(45)).contains(&waited), "{waited:?}");
    let replay = get(&address, "/replay?topic=orders&limit=100000", "");
    assert_eq!(replay.status, 200, "the page ends before the unreadable event");
    let page = get_json(&address, "/replay?topic=orders&limit=100000");
    let next = page["next"].as_str().expect("there is more");
    let refused = get(&address, &format!("/replay?topic=orders&from=afterId&afterId={next}"), "");
    assert_eq!(refused.status, 503);
}

/// The number of lines of an export; an error if it is incomplete.
fn lines_of(address: &str, path: &str) -> std::io::Result<u64> {
    let mut text = String::new();
    get(address, path, "").body.read_to_string(&mut text)?;
    Ok(text.lines().count() as u64)
}

/// Reads up to `count` events of a stream. Returns their number, and the data of an error event.
fn events_of(address: &str, count: u64) -> (u64, Option<String>) {
    let answer = get(address, "/subscribe/orders?from=earliest", "");
    let mut seen = 0;
    let mut is_error = false;
    for line in BufReader::new(answer.body).lines() {
        let line = line.expect("the error comes before the end");
        is_error |= line == "event: error";
        if let Some(data) = line.strip_prefix("data: ") {
            if is_error {
                return (seen, Some(data.to_owned()));
            }
            seen += 1;
            if seen == count {
                break;
            }
        }
    }
    (seen, None)
}

#[test]
fn state_and_cleaning_keep_events_that_they_cannot_read() {
    let (rig, serving) = Rig::filled();
    serving.stop();
    rig.shim.pass();
    let serving = rig.start();
    let address = serving.addresses()[0].clone();
    for segment in rig.files(".seg") {
        rig.shim.fail(&[(&segment, SEGMENT_DATA_START, ALL)]);
        let _ = get(&address, "/state/prices?limit=10", "");
        // Deleting a topic triggers a cleaning at once, instead of within 5 s.
        assert!(post(&address, "/publish/passing", "1").contains("200 OK"));
        delete(&address, "/topics/passing");
        std::thread::sleep(Duration::from_millis(300));
    }
    rig.shim.pass();
    let state = get_json(&address, "/state/prices?limit=1000");
    assert_eq!(state["events"].as_array().map_or(0, Vec::len) as u64, KEYS, "{state}");
    assert_eq!(metric(&serving, "prombus_events_corrupt_total"), 0);
    rig.check_everything(&serving, "after");
}

fn delete(address: &str, path: &str) {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "DELETE {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
}

#[test]
fn a_backup_survives_a_temporary_error_and_leaves_nothing_after_a_permanent_one() {
    let (rig, serving, segment) = reopened();
    let address = serving.addresses()[0].clone();
    let backup = |name: &str| {
        let folder = rig.folder.path().join(name);
        let body = serde_json::json!({ "folder": folder }).to_string();
        (post(&address, "/backup", &body), folder)
    };
    rig.shim.fail(&[(&segment, SEGMENT_DATA_START, ALL)]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            rig.shim.pass();
        });
        let (answer, folder) = backup("passing");
        assert!(answer.contains("\"done\":true"), "{answer}");
        let ran = crate::support::run(&["verify", "--data", folder.to_str().unwrap()]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    });
    rig.shim.fail(&[(&segment, SEGMENT_DATA_START, ALL)]);
    let (answer, folder) = backup("permanent");
    assert!(answer.contains("\"error\"") && answer.contains(&segment), "{answer}");
    assert!(!folder.exists(), "an incomplete backup is left behind");
    rig.shim.pass();
    rig.check_everything(&serving, "after");
}

#[test]
fn verify_and_repair_list_unreadable_events_and_repair_gives_them_up_on_request() {
    let (rig, serving, segment) = reopened();
    serving.stop();
    let rule = [(segment.as_str(), 500_000, 500_001)];
    rig.shim.fail(&rule);
    let ran = rig.run("verify", &[]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains(&segment) && ran.stdout.contains("cannot be read"), "{ran:?}");
    let ran = rig.run("repair", &["--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["unreadable"][0]["file"], segment.as_str(), "{report}");
    let lost = report["events"].as_array().unwrap();
    assert!((1..=2).contains(&lost.len()), "a sector contains parts of one or two events: {report}");
    assert!(lost.iter().all(|event| event["topic"] == "orders" && event["seq"].is_u64()), "{report}");
    let lost = lost.len() as u64;
    rig.shim.pass();
    let ran = rig.run("verify", &[]);
    assert_eq!(ran.code, Some(0), "listing changes nothing: {ran:?}");
    rig.shim.fail(&rule);
    let ran = rig.run("repair", &["--accept-loss"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let serving = rig.start();
    let mut text = String::new();
    get(&serving.addresses()[0], "/export?topic=orders", "").body.read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count() as u64, EVENTS - lost);
    assert_eq!(health(&serving)["status"], "ok");
}

#[test]
fn a_running_server_lists_and_gives_up_unreadable_events() {
    let (rig, serving, segment) = reopened();
    let address = serving.addresses()[0].clone();
    rig.shim.fail(&[(&segment, 500_000, 500_001)]);
    rig.runtime.block_on(async {
        let mut consumer = Consumer::join(&serving, "billing").await;
        let stuck_at = consumer.take_for(Duration::from_secs(1)).await;
        assert!(stuck_at < EVENTS);
        let listed = post(&address, "/repair", "");
        assert!(listed.contains("\"accepted\":false") && listed.contains("\"orders\""), "{listed}");
        assert_eq!(consumer.take_for(Duration::from_millis(500)).await, stuck_at);
        let accepted = post(&address, "/repair", "{\"accept_loss\":true}");
        assert!(accepted.contains("\"accepted\":true"), "{accepted}");
        // All events but the accepted losses are delivered.
        consumer.next_seq += 1;
        let last = consumer.client.frame().await;
        let event = last.event.expect("an event");
        consumer.next_seq = event.seq;
        assert!(event.seq <= stuck_at + 3, "{}", event.seq);
        consumer.take(event).await;
        consumer.take_to(EVENTS).await;
    });
    assert!(metric(&serving, "prombus_events_corrupt_total") > 0);
    wait_for("the server is healthy again", || health(&serving)["status"] == "ok");
}
