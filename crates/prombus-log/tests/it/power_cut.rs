//! Random histories on the simulated disk, with the power cut at any step, also while the log recovers, and twice in a row.
//!
//! The rule that is checked: appends are durable in the order they were made. After a cut the log holds exactly the first K of
//! them, whole, in order, once, with K no smaller than what was acknowledged or seen before the cut. Cleaning may take what is
//! dead and nothing else, what it took stays away, and the publishers' ids of that stay duplicates. A backup that was answered
//! with OK holds what was acknowledged before, whatever becomes of its disk. Reads fail at any moment too, for a while or until
//! the sectors are made readable again: that may refuse an open, an append or a backup, and must cost nothing. `PROMBUS_SEED` and
//! `PROMBUS_HISTORIES` choose what runs.
//!
//! Here is what a history knows; `life.rs` has its course, `actions.rs` what it does to the log, `checks.rs` what must hold.

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
/// Those that are compacted.
const SPARSE: [&str; 2] = ["heartbeat.received", "process.state"];

/// What was appended, whether or not it came to the disk.
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
    /// The latest time that the clock showed; it also goes back.
    latest_ms: i64,
    options: Options,
    listener: Arc<Listener>,
    /// Everything appended that may still be there, in order.
    appended: Vec<Appended>,
    /// How many of them must be there.
    durable: usize,
    next_number: u64,
    dead: Dead,
    /// What cleaning took for good: it must never be served again.
    removed: HashSet<(&'static str, u64)>,
    lie: Option<SyncPoint>,
    backups: usize,
    newest_own_id: EventId,
    passing: PassingTopics,
    cuts: HashSet<DiskStep>,
    refused: Refused,
}

/// What read errors refused.
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

/// Topics that are made and deleted again.
#[derive(Default)]
struct PassingTopics {
    made: u64,
    alive: Vec<String>,
    /// Deleted, and perhaps not durably.
    deleting: Vec<(Ticket, String)>,
    /// Deleted for good: they must never come back.
    deleted: HashSet<String>,
    /// The highest internal id that was durable: no new topic may have it or a lower one.
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
fn power_cuts_lose_nothing_acknowledged_and_leave_nothing_half_there() {
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
            assert!(refused > 0, "read errors never mattered: {refused}");
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

/// The suite above is worth something only if it fails for a log that leaves out a sync.
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

/// A hole hides the remains of a torn batch in a segment that an open then sets aside. Later it can be read, and must not be taken
/// for a segment that was used.
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
