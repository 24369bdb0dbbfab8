//! Accepted losses: the given-up bytes count as damaged from then on, also after a restart, and no other bytes do.

use super::*;
use crate::support::last_commit;
use prombus_log::storage::SyncPoint;
use prombus_log::{Missing, RepairReport, repair_storage};

const DEAD: Dead = Dead { cut: FIRST_KEPT, floor: 0 };

fn repair(disk: &Disk, accept: bool) -> RepairReport {
    repair_storage(Arc::new(disk.clone()), accept, |_| {}).unwrap()
}

/// The file and position of an event's body.
fn place_of(disk: &Disk, topic: &str, number: u64) -> (String, u64) {
    let wanted = body(topic, number);
    for name in files(disk, ".seg") {
        let bytes = disk.contents(&name).unwrap();
        if let Some(at) = bytes.windows(wanted.len()).position(|bytes| bytes == wanted) {
            return (name, at as u64);
        }
    }
    panic!("no event {topic} {number}")
}

/// Makes the sector in which the body of an event starts unreadable.
fn hide(disk: &Disk, topic: &str, number: u64) -> (String, std::ops::Range<u64>) {
    let (name, at) = place_of(disk, topic, number);
    disk.make_unreadable(&name, at..at + 1);
    (name, at / 512 * 512..at / 512 * 512 + 512)
}

/// Reads everything, and returns the seqs that are reported as damaged. Fails if another event is missing.
fn corrupt_seqs(rig: &Rig, dead: Dead, extra: u64) -> Result<Vec<(&'static str, u64)>, String> {
    let mut corrupt = Vec::new();
    for (name, last) in TOPICS {
        let Some(topic) = rig.log.topic(name) else { return Err(format!("no topic {name}")) };
        let last = if name == "t" { last + extra } else { last };
        if rig.log.last_seq(topic) != last {
            return Err(format!("{name}: last seq {} instead of {last}", rig.log.last_seq(topic)));
        }
        let living = Living { log: &rig.log, dead };
        let mut chunk = Chunk::default();
        let mut seq = 1;
        while seq <= last {
            let read = rig.log.read(topic, seq, ReadLimit { events: 9, bytes: 2500 }, &mut chunk);
            read.map_err(|error| format!("{name}: {error}"))?;
            for &Missing { first_seq, last_seq, reason } in chunk.missing() {
                for seq in first_seq..=last_seq {
                    if reason == MissingReason::Corrupt {
                        corrupt.push((name, seq));
                    } else if seq >= living.first_live(topic) && living.is_live(topic, seq) {
                        return Err(format!("{name}: seq {seq} was skipped as cleaned"));
                    }
                }
            }
            if chunk.events().any(|event| event.body != body(name, event.seq)) {
                return Err(format!("{name}: a wrong event"));
            }
            seq = chunk.next_seq();
        }
    }
    Ok(corrupt)
}

#[test]
fn repair_lists_unreadable_events_and_changes_nothing_without_consent() {
    let disk = prepared(Left::Killed);
    let (name, sector) = hide(&disk, "t", 120);
    let before = disk.names();
    let report = repair(&disk, false);
    assert_eq!(report.places.len(), 1, "{report:?}");
    let place = &report.places[0];
    assert_eq!((&place.file, place.position..place.end), (&name, sector));
    assert!(!report.is_accepted && !report.events.is_empty(), "{report:?}");
    // If header and COMMIT are both unreadable, the seq is unknown.
    let is_named = |fault: &prombus_log::Fault| {
        fault.topic.as_deref() == Some("t") && fault.seq.is_some_and(|seq| (119..=121).contains(&seq))
    };
    assert!(report.events.iter().any(is_named), "{:?}", report.events);
    assert_eq!(disk.names(), before);
    disk.make_readable();
    check_opened(&Rig::open(&disk, options()).unwrap(), DEAD, 0);
}

#[test]
fn losses_that_cost_nothing_are_listed_separately_and_need_no_consent() {
    let disk = prepared(Left::Closed);
    let (segment, _) = place_of(&disk, "t", 120);
    let newer = files(&disk, ".ckpt").pop().unwrap();
    disk.make_unreadable("MANIFEST", 0..1);
    disk.make_unreadable(&newer, 0..1);
    disk.make_unreadable(&segment, 0..1);
    let report = repair(&disk, true);
    assert_eq!(report.places, []);
    assert!(!report.is_accepted);
    let mut redundant: Vec<&str> = report.redundant.iter().map(|place| place.file.as_str()).collect();
    redundant.sort_unstable();
    let mut expected = ["MANIFEST", newer.as_str(), segment.as_str()];
    expected.sort_unstable();
    assert_eq!(redundant, expected);
}

/// For every sector that an open needs: the open refuses, the loss is accepted, and the log opens with all other events.
#[test]
fn a_log_that_was_refused_opens_once_the_loss_is_accepted() {
    for left in [Left::Closed, Left::Killed] {
        let base = prepared(left);
        let (growing, newest) = place_of(&base, "t", 150);
        let mut accepted = 0;
        for sector in 8..newest / 512 {
            let what = format!("{left:?}, sector {sector}");
            let disk = base.fork();
            disk.make_unreadable(&growing, sector * 512..sector * 512 + 1);
            let error = Rig::open(&disk, options()).err().unwrap_or_else(|| panic!("{what}: the log opened"));
            assert!(is_unreadable(&error), "{what}: {error}");
            let report = repair(&disk, true);
            assert!(report.is_accepted, "{what}");
            // The events are reported as lost, also after a kill, and while the disk still cannot read them.
            let rig = Rig::open(&disk, options()).unwrap_or_else(|error| panic!("{what}: {error}"));
            let corrupt = corrupt_seqs(&rig, DEAD, 0).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!((1..=5).contains(&corrupt.len()), "{what}: {corrupt:?}");
            assert!(rig.log.stats().faults > 0, "{what}: not counted");
            assert_eq!(rig.log.read_health().events_unreadable, 0, "{what}");
            put(&rig, "t", 151).unwrap();
            let disk = kill(rig);
            let rig = Rig::open(&disk, options()).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(corrupt_seqs(&rig, DEAD, 1), Ok(corrupt), "{what}");
            rig.log.close().unwrap();
            // The disk recovers: bytes that were not overwritten are served again.
            disk.make_readable();
            let rig = Rig::open(&disk, options()).unwrap();
            assert_eq!(corrupt_seqs(&rig, DEAD, 1), Ok(Vec::new()), "{what}");
            accepted += 1;
        }
        assert!(accepted > 3, "{accepted}");
    }
}

/// The same in a running log, for every used sector of every segment.
#[test]
fn a_running_log_gives_up_unreadable_events() {
    let base = prepared(Left::Killed);
    let mut accepted = 0;
    for name in files(&base, ".seg") {
        for sector in 8..length(&base, &name) / 512 {
            let what = format!("{name}, sector {sector}");
            let disk = base.fork();
            let rig = Rig::open(&disk, options()).unwrap();
            rig.settle();
            if disk.contents(&name).is_none() {
                continue;
            }
            disk.make_unreadable(&name, sector * 512..sector * 512 + 1);
            let mut chunk = Chunk::default();
            let mut hidden = Vec::new();
            for (topic, last) in TOPICS {
                let id = rig.log.topic(topic).unwrap();
                let mut seq = 1;
                while seq <= last {
                    match rig.log.read(id, seq, ReadLimit { events: 9, bytes: 2500 }, &mut chunk) {
                        Ok(()) => seq = chunk.next_seq(),
                        Err(ReadError::Unreadable { first_seq, last_seq, .. }) => {
                            hidden.extend((first_seq..=last_seq).map(|seq| (topic, seq)));
                            seq = last_seq + 1;
                        }
                        Err(error) => panic!("{what}: {error}"),
                    }
                }
            }
            let listed: u64 = rig.log.unreadable().iter().map(|it| it.last_seq - it.first_seq + 1).sum();
            assert_eq!(listed, hidden.len() as u64, "{what}");
            let given_up = rig.log.accept_losses().unwrap();
            if hidden.is_empty() {
                assert_eq!(given_up, [], "{what}");
                continue;
            }
            assert!(
                given_up
                    .iter()
                    .all(|it| it.bytes == std::slice::from_ref(&(sector * 512..sector * 512 + 512))),
                "{what}: {given_up:?}"
            );
            assert_eq!(corrupt_seqs(&rig, DEAD, 0), Ok(hidden.clone()), "{what}");
            assert!(rig.log.stats().faults > 0, "{what}: not counted");
            assert_eq!(rig.log.read_health().events_unreadable, 0, "{what}");
            put(&rig, "t", 151).unwrap();
            let disk = kill(rig);
            disk.power_cut();
            let rig = Rig::open(&disk, options()).unwrap_or_else(|error| panic!("{what}: {error}"));
            let corrupt = corrupt_seqs(&rig, DEAD, 1).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(corrupt, hidden, "{what}, opened again");
            disk.make_readable();
            assert_eq!(corrupt_seqs(&rig, DEAD, 1), Ok(Vec::new()), "{what}, readable again");
            accepted += 1;
        }
    }
    assert!(accepted > 50, "{accepted}");
}

/// A reader does not try every sector if many are bad, and may have recorded sectors that became readable. Such readable
/// sectors must not be given up.
#[test]
fn sectors_that_can_be_read_are_not_given_up() {
    let options = Options { segment_bytes: 256 * 1024, ..options() };
    let rig = Rig::open(&Disk::new(8), options).unwrap();
    for number in 1..=1_000 {
        put(&rig, "t", number).unwrap();
    }
    let topic = rig.log.topic("t").unwrap();
    let name = files(&rig.disk, ".seg")[0].clone();
    let read = || {
        let (mut seq, mut chunk, mut unreadable) = (1, Chunk::default(), 0);
        while seq <= 1_000 {
            match rig.log.read(topic, seq, ReadLimit::default(), &mut chunk) {
                Ok(()) => seq = chunk.next_seq(),
                Err(ReadError::Unreadable { last_seq, .. }) => {
                    unreadable += 1;
                    seq = last_seq + 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        unreadable
    };
    rig.disk.make_unreadable(&name, 40_000..60_000);
    assert!(read() > 0);
    rig.disk.make_readable();
    let bad: Vec<u64> = (100..500).step_by(2).collect();
    bad.iter().for_each(|sector| rig.disk.make_unreadable(&name, sector * 512..sector * 512 + 1));
    assert!(read() > 0);
    let mut given_up: Vec<u64> = Vec::new();
    for range in rig.log.accept_losses().unwrap().into_iter().flat_map(|events| events.bytes) {
        assert_eq!(range.end - range.start, 512, "{range:?}");
        given_up.push(range.start / 512);
    }
    given_up.sort_unstable();
    given_up.dedup();
    assert_eq!(given_up, bad);
    assert_eq!(rig.log.read_health().events_unreadable, 0);
    assert_eq!(read(), 0);
}

/// An incomplete append after a crash is cut off in a log with accepted losses too.
#[test]
fn an_unfinished_batch_is_cut_beside_accepted_losses() {
    let disk = prepared(Left::Killed);
    hide(&disk, "t", 148);
    assert!(repair(&disk, true).is_accepted);
    let (name, _) = place_of(&disk, "t", 150);
    let commit = last_commit(&disk, &name);
    let (_, at) = place_of(&disk, "t", 150);
    assert!(at > place_of(&disk, "t", 148).1 / 512 * 512 + 512, "the last batch is in another sector");
    // As if the last batch had reached the disk without its COMMIT.
    let mut bytes = disk.contents(&name).unwrap();
    bytes[commit as usize..].fill(0);
    let survivor = disk.fork();
    survivor.replace(&name, bytes);
    survivor.make_unreadable(&name, place_of(&disk, "t", 148).1..place_of(&disk, "t", 148).1 + 1);
    let rig = Rig::open(&survivor, options()).unwrap();
    let topic = rig.log.topic("t").unwrap();
    assert_eq!(rig.log.last_seq(topic), 149, "a part of an append exists");
}

/// Accepting losses writes a list. A power cut at any step leaves the losses accepted or not, and accepted losses stay
/// accepted.
fn cut_everywhere_in_accepting(lie: Option<SyncPoint>) -> Result<(), String> {
    let base = prepared(Left::Killed);
    hide(&base, "t", 148);
    let run = |draw, cut_after| {
        let disk = base.fork();
        disk.reseed(draw);
        disk.lie_about(lie);
        disk.cut_after(cut_after);
        let repaired = repair_storage(Arc::new(disk.clone()), true, |_| {});
        (disk, repaired.is_ok_and(|report| report.is_accepted))
    };
    let (disk, is_accepted) = run(0, u64::MAX);
    assert!(is_accepted);
    let steps = disk.operations() - base.operations();
    assert!(steps >= 4, "{steps}");
    for draw in 0..if lie.is_some() { 48 } else { 8 } {
        for step in 1..=steps + 1 {
            let (disk, is_accepted) = run(draw, step);
            disk.power_cut();
            match Rig::open(&disk, options()) {
                Ok(rig) => {
                    let corrupt = corrupt_seqs(&rig, DEAD, 0)?;
                    assert!(corrupt.contains(&("t", 148)), "{corrupt:?}");
                    if let Some(fault) = rig.listener.faults().iter().find(|fault| fault.file == "LOSSES") {
                        return Err(format!("cut at step {step}, draw {draw}: {fault}"));
                    }
                }
                Err(error) if is_accepted => return Err(format!("cut at step {step}, draw {draw}: {error}")),
                Err(error) => assert!(is_unreadable(&error), "{error}"),
            }
        }
    }
    Ok(())
}

#[test]
fn accepted_losses_survive_a_power_cut() {
    assert_eq!(cut_everywhere_in_accepting(None), Ok(()));
}

#[test]
fn accepting_losses_needs_its_syncs() {
    let message =
        cut_everywhere_in_accepting(Some(SyncPoint::AcceptedLosses)).expect_err("the syncs are not needed");
    println!("without {:?}: {message}", SyncPoint::AcceptedLosses);
}

#[test]
fn kept_ids_can_be_given_up() {
    let disk = prepared(Left::Closed);
    let has_segment = |name: &String| disk.names().contains(&name.replace(".idx", ".seg"));
    let kept: Vec<String> = files(&disk, ".idx").into_iter().filter(|name| !has_segment(name)).collect();
    kept.iter().for_each(|name| disk.make_unreadable(name, 0..1));
    assert!(is_unreadable(&Rig::open(&disk, options()).err().unwrap()));
    let report = repair(&disk, true);
    assert_eq!((report.places.len(), report.is_accepted), (kept.len(), true));
    let rig = Rig::open(&disk, options()).unwrap();
    assert_eq!(corrupt_seqs(&rig, DEAD, 0), Ok(Vec::new()));
    assert!(rig.log.stats().faults > 0);
    check_duplicate(&rig, 149);
}

/// A list that cannot be read temporarily does not count as empty. A list that cannot be read at all is written again.
#[test]
fn an_unreadable_list_of_losses_is_neither_fatal_nor_forgotten() {
    let base = prepared(Left::Killed);
    hide(&base, "t", 148);
    assert!(repair(&base, true).is_accepted);
    let healthy = base.fork();
    let before = healthy.reads();
    drop(Rig::open(&healthy, options()).unwrap());
    for skipped in 0..healthy.reads() - before {
        let disk = base.fork();
        disk.fail_reads(skipped, 1);
        let rig = open_patiently(&disk);
        let corrupt =
            patiently("read", || corrupt_seqs(&rig, DEAD, 0), |error| error.contains("cannot read"));
        assert!(corrupt.contains(&("t", 148)), "{skipped}: {corrupt:?}");
    }
    let disk = base.fork();
    disk.make_unreadable("LOSSES", 0..1);
    assert!(is_unreadable(&Rig::open(&disk, options()).err().unwrap()));
    let report = repair(&disk, true);
    assert!(report.is_accepted, "{report:?}");
    let rig = Rig::open(&disk, options()).unwrap();
    assert!(corrupt_seqs(&rig, DEAD, 0).unwrap().contains(&("t", 148)));
}

/// A backup contains the remaining events, and the given-up events are damaged in it too.
#[test]
fn a_backup_of_a_log_with_accepted_losses_reports_the_same_events() {
    for number in [70, 101, 130, 145] {
        let disk = prepared(Left::Killed);
        hide(&disk, "t", number);
        if !repair(&disk, true).is_accepted {
            panic!("{number}: nothing to accept");
        }
        let rig = Rig::open(&disk, options()).unwrap();
        let corrupt = corrupt_seqs(&rig, DEAD, 0).unwrap();
        assert!(corrupt.iter().any(|&(topic, seq)| topic == "t" && seq.abs_diff(number) < 3), "{corrupt:?}");
        let copy = Disk::new(6);
        rig.log.backup_storage(Arc::new(copy.clone()), &mut |_| {}).unwrap();
        let restored = Rig::open(&copy, options()).unwrap();
        assert_eq!(corrupt_seqs(&restored, DEAD, 0), Ok(corrupt), "{number}");
    }
}

/// The same with the loss accepted while the log runs, in its growing segment.
#[test]
fn a_backup_of_a_running_log_with_accepted_losses_reports_the_same_events() {
    let disk = prepared(Left::Killed);
    let rig = Rig::open(&disk, options()).unwrap();
    hide(&disk, "t", 130);
    let topic = rig.log.topic("t").unwrap();
    assert!(rig.log.read(topic, 130, ReadLimit { events: 1, bytes: 1 }, &mut Chunk::default()).is_err());
    assert!(!rig.log.accept_losses().unwrap().is_empty());
    let corrupt = corrupt_seqs(&rig, DEAD, 0).unwrap();
    let copy = Disk::new(6);
    rig.log.backup_storage(Arc::new(copy.clone()), &mut |_| {}).unwrap();
    let restored = Rig::open(&copy, options()).unwrap();
    assert_eq!(corrupt_seqs(&restored, DEAD, 0), Ok(corrupt));
}
