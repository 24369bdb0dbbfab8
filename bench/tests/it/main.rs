//! Runs a small load on each real server: no message is lost, and no data is left behind.
//!
//! A server that is not on this machine is skipped with a message. With `CI=true`, a missing redis-server or nats-server is a failure.

mod growth;

use prombus_bench::process::find_program;
use prombus_bench::{Length, Pace, Plan};
use prombus_compare::peer::{AppendFsync, NatsPeer, Peer, RabbitPeer, RedisPeer, Tuning};
use prombus_compare::wire::{Delivery, QueueType};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MESSAGES: u64 = 3_000;

/// Reports a skipped test. Writes to stderr directly: the test harness hides printed output of tests that pass.
fn skip(name: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {name} is not on this machine");
}

/// Finds the program, or reports that the test is skipped.
fn program(variable: &str, name: &str) -> Option<PathBuf> {
    let found = find_program(variable, name);
    if found.is_none() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{name} is not on this machine");
        skip(name);
    }
    found
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()))
}

/// Publishes and consumes, and checks that every message is accounted for.
fn round_trip(peer: &Peer, name: &str) {
    let folder = folder(name);
    let server = peer.start(&folder, false).expect("it starts");
    let plan = Plan {
        publishers: 2,
        groups: 2,
        window: 100,
        pace: Pace::Full,
        length: Length::Messages(MESSAGES),
        warm_up: Duration::ZERO,
        patience: Duration::from_secs(10),
        ..Plan::default()
    };
    let measurement = server.run(&plan).expect("the run succeeds");
    let balance = measurement.balance;
    assert!(balance.is_clean(), "{balance:?}");
    assert_eq!((balance.answered, balance.delivered), (MESSAGES, 2 * MESSAGES));
    assert!(measurement.server_resident_bytes.is_some_and(|bytes| bytes > 0));
    drop(server);
    assert!(!folder.exists(), "its data is deleted");
}

#[test]
fn redis_loses_nothing_in_either_setting() {
    let Some(program) = program("REDIS_SERVER", "redis-server") else { return };
    for (fsync, name) in [(AppendFsync::Everysec, "redis-everysec"), (AppendFsync::Always, "redis-always")] {
        let peer = Peer::Redis(RedisPeer::new(&program, fsync, Tuning::default()).expect("it has a version"));
        assert_eq!(peer.description().name, name);
        round_trip(&peer, name);
    }
}

#[test]
fn nats_loses_nothing_with_push_and_with_pull_consumers() {
    let Some(program) = program("NATS_SERVER", "nats-server") else { return };
    for (nats_delivery, name) in [(Delivery::Push, "nats-push"), (Delivery::Pull, "nats-pull")] {
        let tuning = Tuning { nats_delivery, ..Tuning::default() };
        let peer = NatsPeer::new(&program, false, tuning).expect("it has a version");
        round_trip(&Peer::Nats(peer), name);
    }
}

/// Skipped with nats-server before 2.10, such as Debian's, even with `CI=true`.
#[test]
fn nats_that_syncs_before_each_answer_loses_nothing() {
    let Some(program) = find_program("NATS_SERVER", "nats-server") else {
        return skip("nats-server 2.10 or newer");
    };
    let peer = NatsPeer::new(&program, true, Tuning::default()).expect("it has a version");
    if !peer.has_sync_always() {
        return skip("nats-server 2.10 or newer");
    }
    round_trip(&Peer::Nats(peer), "nats-always");
}

/// Skipped without RabbitMQ, even with `CI=true`: it needs Erlang and is not installed for this test.
#[test]
fn rabbitmq_loses_nothing_with_either_queue() {
    let Some(program) = RabbitPeer::find() else { return skip("rabbitmq-server") };
    for (rabbitmq_queue, name) in
        [(QueueType::Quorum, "rabbitmq-quorum"), (QueueType::Classic, "rabbitmq-classic")]
    {
        let tuning = Tuning { rabbitmq_queue, ..Tuning::default() };
        let peer = RabbitPeer::new(&program, tuning).expect("it has a version");
        round_trip(&Peer::Rabbit(peer), name);
    }
}

#[test]
fn a_server_that_does_not_start_says_why() {
    let peer = NatsPeer::new(Path::new("/bin/false"), false, Tuning::default()).expect("it says nothing");
    let folder = folder("no-server");
    let error = Peer::Nats(peer).start(&folder, false).expect_err("it ends at once");
    assert!(error.to_string().starts_with("nats-server ended at once"), "{error}");
    assert!(!folder.exists());
}
