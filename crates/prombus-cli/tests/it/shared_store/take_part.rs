//! Tests of clean handovers, of the responses of a follower, and of moving events between engines.

use super::gateways::{Store, get, post, role, wait_for_role};
use super::servers::shared_url;
use crate::serving::Serving;
use crate::support::{TempFolder, prombus};
use std::process::Stdio;
use std::time::Duration;

#[test]
fn a_leader_that_stops_cleanly_hands_over_at_once() {
    let store = Store::new(shared_url());
    let first = store.gateway();
    wait_for_role(first.address(), "leader");
    let second = store.gateway();
    assert_eq!(post(second.address(), "/publish/a", "1").unwrap().0, 200, "through the follower");
    let started = std::time::Instant::now();
    first.stop();
    wait_for_role(second.address(), "leader");
    let took = started.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    let (status, body) = post(second.address(), "/publish/a", "2").unwrap();
    assert_eq!(status, 200);
    assert!(body.contains("\"seq\":2"), "{body}");
    println!("handed over in {:.1} s", took.as_secs_f64());
    second.stop();
}

#[test]
fn a_follower_reports_its_own_role_and_metrics() {
    let store = Store::new(shared_url());
    let first = store.gateway();
    wait_for_role(first.address(), "leader");
    let second = store.gateway();
    assert_eq!(role(second.address()).as_deref(), Some("follower"));
    let metrics = get(second.address(), "/metrics").unwrap().1;
    assert!(metrics.contains("prombus_role{role=\"follower\"} 1"), "{metrics}");
    assert!(metrics.contains("prombus_term 1"), "{metrics}");
    let metrics = get(first.address(), "/metrics").unwrap().1;
    assert!(metrics.contains("prombus_role{role=\"leader\"} 1"), "{metrics}");
    assert!(metrics.contains("prombus_takeovers_total 1"), "{metrics}");
    // A MongoDB store is backed up with MongoDB's tools.
    let refused =
        prombus(&["backup", "copy", "--url", &format!("http://{}", second.address())]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("mongodump"), "{said}");
    second.stop();
    first.stop();
}

/// The export of a topic.
fn export(serving: &Serving, topic: &str) -> Vec<u8> {
    let address = format!("http://{}", serving.address());
    let ran = prombus(&["export", topic, "--url", &address]).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    ran.stdout
}

#[test]
fn events_move_between_engines_with_their_ids_times_and_order() {
    let folder = TempFolder::new();
    let log = Serving::in_folder(&folder, &[]);
    let lines: String = (0..500).map(|number| format!("{{\"number\":{number}}}\n")).collect();
    assert_eq!(post(log.address(), "/publish/a", &lines).unwrap().0, 200);
    let store = Store::new(shared_url());
    let mongo = store.gateway();
    wait_for_role(mongo.address(), "leader");
    let other = TempFolder::new();
    let back = Serving::in_folder(&other, &[]);
    for (from, to) in [(&log, &mongo), (&mongo, &back)] {
        let address = format!("http://{}", to.address());
        let mut import = prombus(&["import", "--url", &address]).stdin(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut import.stdin.take().unwrap(), &export(from, "a")).unwrap();
        let ran = import.wait_with_output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
    let (before, between, after) = (export(&log, "a"), export(&mongo, "a"), export(&back, "a"));
    assert!(!before.is_empty());
    assert_eq!(before, between);
    assert_eq!(before, after);
    mongo.stop();
}
