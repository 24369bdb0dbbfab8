//! Tests of files that cannot be read while the server starts, after a clean stop and after `kill -9`.

use super::{ALL, Rig, SEGMENT_DATA_START, wait_for};
use crate::serving::Serving;
use std::time::Duration;

/// How the server ended before.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ended {
    Cleanly,
    Killed,
}

/// The expected result of a start with unreadable files.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    /// A second copy exists: the server starts and serves everything.
    Serves,
    /// The server refuses to start, names the file, and changes nothing.
    Refuses,
}

fn ended(how: Ended) -> Rig {
    let (rig, serving) = Rig::filled();
    match how {
        Ended::Cleanly => serving.stop(),
        Ended::Killed => drop(serving.kill()),
    }
    rig
}

/// Starts the server while files cannot be read, and again when they can.
fn check(rig: &Rig, rules: &[(&str, u64, u64)], expected: Start, name: &str) {
    rig.shim.fail(rules);
    match expected {
        Start::Serves => {
            let serving = rig.start();
            rig.shim.pass();
            rig.check_everything(&serving, name);
            drop(serving.kill());
        }
        Start::Refuses => {
            let output = rig.command().output().unwrap();
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{log}");
            let said = log.lines().last().unwrap_or_default();
            assert!(said.contains("cannot read") && said.contains("Input/output error"), "{log}");
            rig.shim.pass();
            let serving = rig.start();
            rig.check_everything(&serving, name);
            drop(serving.kill());
        }
    }
}

#[test]
fn after_a_clean_stop_the_server_starts_only_if_a_second_copy_exists() {
    let rig = ended(Ended::Cleanly);
    let checkpoints = rig.files(".ckpt");
    let newest = checkpoints.last().unwrap().as_str();
    let newest_segment = rig.files(".seg");
    check(&rig, &[("MANIFEST", 0, 1)], Start::Serves, "first-manifest");
    let rig = restarted(rig);
    check(&rig, &[(".idx", 0, ALL)], Start::Serves, "indexes");
    let rig = restarted(rig);
    check(&rig, &[(".seg", 0, 64)], Start::Serves, "headers");
    let rig = restarted(rig);
    check(&rig, &[("MANIFEST", 0, ALL)], Start::Refuses, "both-manifests");
    assert!(!newest.is_empty() && !newest_segment.is_empty());
}

/// Starts and cleanly stops the server, so that the next check begins after a clean stop.
fn restarted(rig: Rig) -> Rig {
    rig.start().stop();
    rig
}

#[test]
fn after_a_clean_stop_the_older_checkpoint_replaces_an_unreadable_one() {
    let rig = ended(Ended::Cleanly);
    let checkpoints = rig.files(".ckpt");
    check(&rig, &[(checkpoints.last().unwrap(), 0, ALL)], Start::Serves, "newer-checkpoint");
    let rig = restarted(rig);
    check(&rig, &[(".ckpt", 0, ALL)], Start::Refuses, "both-checkpoints");
}

#[test]
fn unreadable_segments_are_not_settled_and_not_deleted() {
    for how in [Ended::Cleanly, Ended::Killed] {
        let rig = ended(how);
        let before = rig.files(".seg");
        check(&rig, &[(".seg", SEGMENT_DATA_START, ALL)], Start::Refuses, "segments");
        let after = rig.files(".seg");
        assert!(before.iter().all(|name| after.contains(name)), "{how:?}: {before:?} became {after:?}");
    }
}

#[test]
fn temporary_errors_while_the_server_starts_lose_nothing() {
    for how in [Ended::Cleanly, Ended::Killed] {
        for part in [".seg", "MANIFEST", ".ckpt", ".idx"] {
            let rig = ended(how);
            rig.shim.fail(&[(part, 0, ALL)]);
            let serving = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_secs(1));
                    rig.shim.pass();
                });
                rig.start()
            });
            rig.check_everything(&serving, "passing");
            drop(serving);
        }
    }
}

#[test]
fn unreadable_unused_bytes_of_a_segment_do_not_matter_after_a_kill() {
    let rig = ended(Ended::Killed);
    // The end of the prepared segment and of the one being written: both contain only zeros there.
    rig.shim.fail(&[(".seg", (2 << 20) - 4096, ALL)]);
    let serving = rig.start();
    rig.check_everything(&serving, "zeros");
    rig.shim.pass();
    stop_and_verify(&rig, serving);
}

fn stop_and_verify(rig: &Rig, serving: Serving) {
    serving.stop();
    wait_for("the folder is free", || rig.run("verify", &[]).code == Some(0));
}
