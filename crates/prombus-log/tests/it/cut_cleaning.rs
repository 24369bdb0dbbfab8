//! Cuts the power at every single step of a cleaning and of a backup, with many random outcomes each.
//!
//! The random histories of `power_cut.rs` rarely cut the power between a rename and the sync of the folder. These tests do
//! it at every step.

use crate::support::{Lives, Rig, clean, event, read_all, small_options};
use prombus_log::storage::SyncPoint;
use prombus_log::storage::simulated::Disk;
use prombus_log::{EventId, NewEvent, Options, TopicId, verify_storage};
use std::sync::Arc;

const EVENTS: u64 = 260;

type Check = Result<(), String>;

/// Whether ids are kept after their events were cleaned away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ids {
    Kept,
    Forgotten,
}

fn options(ids: Ids) -> Options {
    let dedupe_ms = if ids == Ids::Kept { 1_000_000 } else { 0 };
    // Only cleaning writes checkpoints.
    Options { checkpoint_bytes: 1 << 30, dedupe_ms, ..small_options() }
}

fn id(number: u64) -> EventId {
    EventId::from_u128(u128::from(number) << 70 | 0xabc)
}

/// The first half of `t` is dead, and every tenth event of the rest lives: some segments are retired and some are
/// rewritten.
fn is_live(topic: TopicId, seq: u64) -> bool {
    topic.number() != 1 || (seq > EVENTS / 2 && seq % 10 == 0)
}

/// A disk with a log that can be cleaned. Its process was killed.
fn prepared() -> Disk {
    let rig = Rig::open(&Disk::new(1), options(Ids::Kept)).unwrap();
    let topic = rig.topic("t");
    for number in 1..=EVENTS {
        rig.put_events(&[NewEvent { id: Some(id(number)), ..event(topic, &[b'x'; 120]) }]);
    }
    rig.fill("rest", 60);
    let disk = rig.disk.fork();
    rig.disk.cut_after(0);
    disk
}

/// Checks that every live event exists, and that every id is known if ids are kept.
fn check(disk: &Disk, ids: Ids, what: &str) -> Check {
    let report = verify_storage(Arc::new(disk.fork()), |_| {}).map_err(|error| format!("{what}: {error}"))?;
    if !report.faults.is_empty() {
        return Err(format!("{what}: verify found {:?}", report.faults));
    }
    let rig = Rig::open(disk, options(ids)).map_err(|error| format!("{what}: {error}"))?;
    let topic = rig.log.topic("t").ok_or_else(|| format!("{what}: no topic"))?;
    let there: Vec<u64> = read_all(&rig.log, topic).iter().map(|read| read.seq).collect();
    for seq in (1..=EVENTS).filter(|&seq| is_live(topic, seq)) {
        if there.binary_search(&seq).is_err() {
            return Err(format!("{what}: seq {seq} is lost"));
        }
    }
    for number in (1..=EVENTS).step_by(7).filter(|&seq| ids == Ids::Kept || is_live(topic, seq)) {
        let found = rig.log.find_id(topic, id(number)).map_err(|error| format!("{what}: {error}"))?;
        if found != Some(number) {
            return Err(format!("{what}: the id of seq {number} is found at {found:?}"));
        }
    }
    if rig.listener.faults().is_empty() {
        Ok(())
    } else {
        Err(format!("{what}: {:?}", rig.listener.faults()))
    }
}

/// The random outcomes to try. Without a sync, only some of them show the loss, so more are tried.
fn draws(lie: Option<SyncPoint>) -> std::ops::Range<u64> {
    if lie.is_some() { 0..48 } else { 0..8 }
}

fn cut_everywhere_in_cleaning(ids: Ids, lie: Option<SyncPoint>) -> Check {
    let base = prepared();
    let run = |draw, cut_after| {
        let disk = base.fork();
        disk.reseed(draw);
        disk.lie_about(lie);
        let rig = Rig::open(&disk, options(ids)).unwrap();
        let before = disk.operations();
        disk.cut_after(cut_after);
        let cleaned = clean(&rig.log, &Lives(is_live));
        let steps = disk.operations() - before;
        drop(rig);
        (disk, cleaned, steps)
    };
    let (_, cleaned, steps) = run(0, u64::MAX);
    let report = cleaned.map_err(|error| error.to_string())?;
    assert!(report.segments_retired > 0 && report.segments_rewritten > 1, "{report:?}");
    assert!(steps > 20, "{steps}");
    // The last steps, in which the manifest is written, matter most.
    for step in (1..=steps).rev() {
        for draw in draws(lie) {
            let (disk, _, _) = run(draw, step);
            assert!(disk.is_off());
            disk.power_cut();
            check(&disk, ids, &format!("cut at step {step}, draw {draw}"))?;
        }
    }
    Ok(())
}

fn cut_everywhere_in_a_backup(lie: Option<SyncPoint>) -> Check {
    let rig = Rig::open(&prepared(), options(Ids::Kept)).map_err(|error| error.to_string())?;
    clean(&rig.log, &Lives(is_live)).map_err(|error| error.to_string())?;
    let run = |draw, cut_after| {
        let copy = Disk::new(draw);
        copy.lie_about(lie);
        copy.cut_after(cut_after);
        let outcome = rig.log.backup_storage(Arc::new(copy.clone()), &mut |_| {});
        (copy, outcome)
    };
    let (copy, outcome) = run(0, u64::MAX);
    outcome.map_err(|error| error.to_string())?;
    let steps = copy.operations();
    assert!(steps > 20, "{steps}");
    for step in (1..=steps).rev() {
        for draw in draws(lie) {
            let (copy, outcome) = run(draw, step);
            assert!(copy.is_off() && outcome.is_err());
            copy.power_cut();
            if copy.names().iter().any(|name| name == "MANIFEST") {
                check(&copy, Ids::Kept, &format!("cut at step {step}, draw {draw}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_cut_at_any_step_of_cleaning_loses_nothing() {
    assert_eq!(cut_everywhere_in_cleaning(Ids::Kept, None), Ok(()));
    assert_eq!(cut_everywhere_in_cleaning(Ids::Forgotten, None), Ok(()));
}

#[test]
fn a_cut_at_any_step_of_a_backup_leaves_a_complete_one_or_none() {
    assert_eq!(cut_everywhere_in_a_backup(None), Ok(()));
}

fn cleaning_needs(ids: Ids, point: SyncPoint) {
    let message = cut_everywhere_in_cleaning(ids, Some(point)).expect_err("cleaning does not need that sync");
    println!("without {point:?}: {message}");
}

fn a_backup_needs(point: SyncPoint) {
    let message = cut_everywhere_in_a_backup(Some(point)).expect_err("a backup does not need that sync");
    println!("without {point:?}: {message}");
}

#[test]
fn cleaning_needs_the_sync_of_a_rewritten_segment() {
    cleaning_needs(Ids::Kept, SyncPoint::Rewritten);
}

#[test]
fn cleaning_needs_the_sync_of_the_folder_after_a_rewritten_segment() {
    // If ids were kept, the sync of the folder for them would follow and make this one unnecessary.
    cleaning_needs(Ids::Forgotten, SyncPoint::RewrittenFolder);
}

#[test]
fn cleaning_needs_the_sync_of_kept_ids() {
    cleaning_needs(Ids::Kept, SyncPoint::KeptIndex);
}

#[test]
fn cleaning_needs_the_sync_of_the_folder_before_the_manifest_lists_kept_ids() {
    cleaning_needs(Ids::Kept, SyncPoint::KeptIndexFolder);
}

#[test]
fn a_backup_needs_the_sync_of_its_files() {
    a_backup_needs(SyncPoint::Backup);
}

#[test]
fn a_backup_needs_the_sync_of_its_folder() {
    a_backup_needs(SyncPoint::BackupFolder);
}
