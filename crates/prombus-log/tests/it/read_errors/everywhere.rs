//! One burst of failing reads at every position of a script: open, read, look up, publish, clean, compact, delete, back up,
//! verify, close, open again.

use super::*;
use prombus_log::storage::Storage;
use prombus_log::{BackupError, VerifyError, verify_storage};
use std::sync::atomic::{AtomicU64, Ordering};

const EXTRA: u64 = 25;

/// Runs the script. Every operation that read errors refuse is retried.
fn live(disk: &Disk) -> Dead {
    let rig = open_patiently(disk);
    let mut dead = Dead { cut: FIRST_KEPT, floor: 0 };
    check_opened(&rig, dead, 0);
    look_up(&rig.log);
    // Ids in a kept index, in a sealed segment, and in the newest one.
    for number in [3, 40, 70, 101, 149] {
        check_duplicate(&rig, number);
    }
    for number in 151..=150 + EXTRA {
        patiently("publish", || put(&rig, "t", number), |error| matches!(error, AppendError::Lookup(_)));
    }
    check(&rig, dead, EXTRA);
    let gone = rig.log.topic("gone").unwrap();
    rig.log.delete_topic(gone).unwrap();
    rig.settle();
    dead = Dead { cut: 100, floor: 80 };
    for _ in 0..2 {
        clean(&rig.log, &Living { log: &rig.log, dead }).unwrap();
        rig.settle();
    }
    check(&rig, dead, EXTRA);
    check_duplicate(&rig, 3);
    check_duplicate(&rig, 99);
    check_backup(&rig, dead);
    patiently("usage", || rig.log.usage(), is_read_error);
    let topic = rig.log.topic("t").unwrap();
    let first = patiently("first_within_bytes", || rig.log.first_within_bytes(topic, 1 << 30), is_read_error);
    assert!(first <= 100, "{first}");
    check_health(&rig);
    rig.log.close().unwrap();
    check_verify(disk);
    let rig = open_patiently(disk);
    check_opened(&rig, dead, EXTRA);
    check_duplicate(&rig, 3);
    check_duplicate(&rig, 99);
    dead
}

fn look_up(log: &Log) {
    let (t, k) = (log.topic("t").unwrap(), log.topic("k").unwrap());
    let find =
        |what: &str, find: &dyn Fn() -> Result<Option<u64>, ReadError>| patiently(what, find, is_read_error);
    assert_eq!(find("find_id", &|| log.find_id(t, id(65))), Some(65));
    assert_eq!(find("find_id", &|| log.find_id(t, id(140))), Some(140));
    assert_eq!(find("find_id of none", &|| log.find_id(t, id(9_999))), None);
    assert_eq!(find("find_key", &|| log.find_key(k, &key(15))), Some(105));
    assert_eq!(find("find_key of none", &|| log.find_key(k, b"none")), None);
    assert_eq!(find("at or after", &|| log.first_at_or_after(t, 77)), Some(77));
    let first = find("first_seq", &|| log.first_seq(t)).unwrap();
    assert!(first <= FIRST_KEPT, "{first}");
    let has = patiently("has_key_before", || log.has_key_before(k, &key(15), 105), is_read_error);
    assert!(has);
}

fn check_backup(rig: &Rig, dead: Dead) {
    let copy = patiently(
        "backup",
        || {
            let copy = Disk::new(5);
            let made = rig.log.backup_storage(Arc::new(copy.clone()), &mut |_| {});
            if made.is_err() {
                assert_eq!(copy.names(), [""; 0], "a failed backup leaves nothing behind");
            }
            made.map(|_| copy)
        },
        |error| matches!(error, BackupError::Read { source, .. } if is_eio(source)),
    );
    check_opened(&Rig::open(&copy, options()).unwrap(), dead, EXTRA);
}

/// Checks that verify finds no fault, and lists the bytes that it could not read as unreadable.
fn check_verify(disk: &Disk) {
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let report = patiently(
        "verify",
        || verify_storage(Arc::clone(&storage), |_| {}),
        |error| match error {
            VerifyError::Open(error) => is_unreadable(error),
            VerifyError::Io { source, .. } => is_eio(source),
            _ => false,
        },
    );
    assert_eq!(report.faults, []);
}

fn every_position(left: Left, count: u64) {
    let base = prepared(left);
    let healthy = base.fork();
    let before = healthy.reads();
    live(&healthy);
    let reads = healthy.reads() - before;
    println!("{left:?}: {reads} reads");
    assert!(reads > 300, "{reads} reads");
    let next = AtomicU64::new(0);
    // Bursts may start anywhere. Long ones overlap, so not every start is tried.
    let step = if count > 8 { 5 } else { 1 };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let skipped = next.fetch_add(step, Ordering::Relaxed);
                    if skipped >= reads {
                        return;
                    }
                    let disk = base.fork();
                    disk.fail_reads(skipped, count);
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| live(&disk)));
                    assert!(outcome.is_ok(), "{left:?}: fail_reads({skipped}, {count})");
                    assert!(disk.failed_reads() >= 1, "{left:?}: nothing failed: {skipped}, {count}");
                }
            });
        }
    });
}

#[test]
fn one_failing_read_anywhere_loses_nothing_after_a_clean_stop() {
    every_position(Left::Closed, 1);
}

#[test]
fn one_failing_read_anywhere_loses_nothing_after_a_kill() {
    every_position(Left::Killed, 1);
}

#[test]
fn a_short_burst_of_failing_reads_anywhere_loses_nothing() {
    every_position(Left::Killed, 4);
}

#[test]
fn a_burst_that_hides_a_segment_loses_nothing_after_a_clean_stop() {
    every_position(Left::Closed, 70);
}

#[test]
fn a_burst_that_hides_a_segment_loses_nothing_after_a_kill() {
    every_position(Left::Killed, 70);
}
