//! Random histories on the simulated disk. The power is cut at any step, also during recovery, and twice in a row.
//!
//! These rules are checked:
//! - Appends become durable in order. After a cut the log contains exactly the first K appends, complete, in order and
//!   once. K includes every append that was acknowledged or visible before the cut.
//! - Cleaning removes only dead events. Removed events do not come back, and their publishers' ids are still duplicates.
//! - A successful backup contains every event that was acknowledged before it, even after a power cut of its disk.
//! - Reads may fail at any time, for a while or until the sectors are made readable. An open, an append or a backup may
//!   then be refused, but nothing is lost.
//!
//! `PROMBUS_SEED` and `PROMBUS_HISTORIES` select the histories.
//!
//! This file contains the state of a history, `life.rs` its course, `actions.rs` its operations on the log, and `checks.rs`
//! the checks.

use crate::support::{HandClock, Listener, Random, Read, Remembered, read_all, setting};
use parking_lot::Mutex;
use prombus_log::storage::SyncPoint;
use prombus_log::storage::simulated::{Disk, DiskStep};
use prombus_log::{
    Append, AppendError, BackupError, Chunk, CleanOptions, Clock, EventId, LiveCount, Liveness, Log,
    MissingReason, NewEvent, NewState, OpenError, Options, Outcomes, ReadError, ReadLimit, Ticket, TopicId,
    VerifyError, verify_storage,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

mod actions;
mod checks;
mod life;
mod living;

use living::{Dead, Living};

const TOPICS: [&str; 4] = ["orders", "heartbeat.received", "t", "process.state"];
/// The compacted topics.
const SPARSE: [&str; 2] = ["heartbeat.received", "process.state"];

/// An append, durable or not.
#[derive(Clone)]
struct Appended {
    ticket: Option<Ticket>,
    events: Vec<Expected>,
    states: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Expected {
    topic: &'static str,
    seq: u64,
    id: EventId,
    ts: i64,
    key: Option<Vec<u8>>,
    body: Vec<u8>,
}

/// One history.
struct History {
    random: Random,
    disk: Disk,
    clock: Arc<HandClock>,
    /// The latest time of the clock, which sometimes goes back.
    latest_ms: i64,
    options: Options,
    listener: Arc<Listener>,
    /// All appends that may exist, in order.
    appended: Vec<Appended>,
    /// How many of them must exist.
    durable: usize,
    next_number: u64,
    dead: Dead,
    /// Events that cleaning removed. They must never be served again.
    removed: HashSet<(&'static str, u64)>,
    lie: Option<SyncPoint>,
    backups: usize,
    newest_server_id: EventId,
    passing: PassingTopics,
    cuts: HashSet<DiskStep>,
    refused: Refused,
}

/// The number of operations that were refused because of read errors.
#[derive(Clone, Copy, Debug, Default)]
struct Refused {
    opens: u64,
    appends: u64,
    backups: u64,
    reads: u64,
    cleanings: u64,
}

impl Refused {
    fn add(&mut self, other: Self) {
        self.opens += other.opens;
        self.appends += other.appends;
        self.backups += other.backups;
        self.reads += other.reads;
        self.cleanings += other.cleanings;
    }
}

/// Topics that are created and deleted again.
#[derive(Default)]
struct PassingTopics {
    made: u64,
    alive: Vec<String>,
    /// Deleted topics whose deletion may not be durable.
    deleting: Vec<(Ticket, String)>,
    /// Durably deleted topics. They must never come back.
    deleted: HashSet<String>,
    /// The highest durable internal id. New topics must have higher ones.
    highest_id: u32,
}

type Check = Result<(), String>;

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(message()) }
}

/// Runs one history; a panic inside the log counts as a failure.
fn run(seed: u64, lie: Option<SyncPoint>) -> Result<(HashSet<DiskStep>, Refused), String> {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut history = History::new(seed, lie);
        history.run().map(|()| (history.cuts, history.refused))
    }));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("?")))
    })
}

#[test]
fn power_cuts_lose_no_acknowledged_append_and_leave_none_incomplete() {
    let first = setting("PROMBUS_SEED", 1);
    let histories = setting("PROMBUS_HISTORIES", 10_000);
    println!("PROMBUS_SEED={first} PROMBUS_HISTORIES={histories}");
    let next = AtomicU64::new(first);
    let failures: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
    let cuts: Mutex<HashSet<DiskStep>> = Mutex::new(HashSet::new());
    let refused: Mutex<Refused> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + histories || failures.lock().len() >= 5 {
                        return;
                    }
                    match run(seed, None) {
                        Ok((steps, refusals)) => {
                            cuts.lock().extend(steps);
                            refused.lock().add(refusals);
                        }
                        Err(message) => failures.lock().push((seed, message)),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    for (seed, message) in &failures {
        println!("PROMBUS_SEED={seed} PROMBUS_HISTORIES=1: {message}");
    }
    assert!(
        failures.is_empty(),
        "{} histories failed, the first with seed {}",
        failures.len(),
        failures[0].0
    );
    let refused = refused.into_inner();
    println!("{refused:?}");
    if histories >= 5_000 {
        let Refused { opens, appends, backups, reads, cleanings } = refused;
        for refused in [opens, appends, backups, reads, cleanings] {
            assert!(refused > 0, "read errors never refused an operation: {refused}");
        }
        let cuts = cuts.into_inner();
        for step in [
            DiskStep::Write,
            DiskStep::Create,
            DiskStep::Rename,
            DiskStep::Remove,
            DiskStep::Sync(SyncPoint::LogData),
            DiskStep::Sync(SyncPoint::Segment),
            DiskStep::Sync(SyncPoint::Manifest),
            DiskStep::Sync(SyncPoint::Checkpoint),
            DiskStep::Sync(SyncPoint::RecoveredTail),
            DiskStep::Sync(SyncPoint::Index),
            DiskStep::Sync(SyncPoint::Cut),
            DiskStep::SyncFolder(SyncPoint::SegmentFolder),
            DiskStep::SyncFolder(SyncPoint::ManifestFolder),
            DiskStep::SyncFolder(SyncPoint::CheckpointFolder),
            DiskStep::Sync(SyncPoint::Rewritten),
            DiskStep::SyncFolder(SyncPoint::RewrittenFolder),
            DiskStep::Sync(SyncPoint::KeptIndex),
            DiskStep::SyncFolder(SyncPoint::KeptIndexFolder),
        ] {
            assert!(cuts.contains(&step), "the power was never cut at {step:?}");
        }
    }
}

/// Checks that the test above fails for a log that omits a sync. Otherwise it would prove nothing.
fn fails_without(point: SyncPoint) {
    let first = setting("PROMBUS_SEED", 1);
    for seed in first..first + 3_000 {
        if let Err(message) = run(seed, Some(point)) {
            println!("without {point:?}: seed {seed}: {message}");
            assert_eq!(run(seed, None).err(), None, "seed {seed} fails with all syncs too");
            return;
        }
    }
    panic!("3,000 histories passed without the sync of {point:?}");
}

#[test]
fn without_the_sync_of_log_data_the_suite_fails() {
    fails_without(SyncPoint::LogData);
}

#[test]
fn without_the_sync_of_a_zero_filled_segment_the_suite_fails() {
    fails_without(SyncPoint::Segment);
}

#[test]
fn without_the_sync_of_the_folder_after_a_segment_the_suite_fails() {
    fails_without(SyncPoint::SegmentFolder);
}

#[test]
fn without_the_sync_of_the_manifest_the_suite_fails() {
    fails_without(SyncPoint::Manifest);
}

#[test]
fn without_the_sync_of_the_folder_after_the_manifest_the_suite_fails() {
    fails_without(SyncPoint::ManifestFolder);
}

#[test]
fn without_the_sync_of_a_checkpoint_the_suite_fails() {
    fails_without(SyncPoint::Checkpoint);
}

#[test]
fn without_the_sync_of_the_folder_after_a_checkpoint_the_suite_fails() {
    fails_without(SyncPoint::CheckpointFolder);
}

#[test]
fn without_the_sync_of_the_recovered_tail_the_suite_fails() {
    fails_without(SyncPoint::RecoveredTail);
}

#[test]
fn without_the_sync_of_an_index_the_suite_fails() {
    fails_without(SyncPoint::Index);
}

#[test]
fn without_the_sync_of_a_rewritten_segment_the_suite_fails() {
    fails_without(SyncPoint::Rewritten);
}

#[test]
fn without_the_sync_of_kept_ids_the_suite_fails() {
    fails_without(SyncPoint::KeptIndex);
}

#[test]
fn without_the_sync_of_a_backup_the_suite_fails() {
    fails_without(SyncPoint::Backup);
}

/// An unreadable range hides the bytes of a torn batch, so an open sets the segment aside. When the range can be read
/// later, the segment must not be taken for one that was begun.
#[test]
fn a_segment_that_an_open_set_aside_stays_empty() {
    assert_eq!(History::new(3_031_107, None).run(), Ok(()));
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let names = |seed| {
            let mut history = History::new(seed, None);
            let outcome = history.run();
            (outcome, history.disk.names(), history.disk.operations(), history.appended.len())
        };
        assert_eq!(names(seed), names(seed), "seed {seed}");
    }
}
