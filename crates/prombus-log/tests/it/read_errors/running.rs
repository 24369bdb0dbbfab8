//! Read errors in a running log: readers, lookups, cleaning, backup, verify and statistics, during the errors and after
//! them.

use super::*;
use crate::support::{Cut, Lives};
use prombus_log::{BackupError, MissingReason, Notice, verify_storage};

/// A log with 300 events of `t`, in which `sealed` is the name of its second segment.
fn filled(options: Options) -> (Rig, TopicId, String) {
    let rig = Rig::open(&Disk::new(3), options).unwrap();
    let topic = rig.topic("t");
    for number in 1..=300 {
        put(&rig, "t", number).unwrap();
    }
    let sealed = files(&rig.disk, ".seg")[1].clone();
    (rig, topic, sealed)
}

fn all_seqs(rig: &Rig, topic: TopicId) -> Vec<u64> {
    read_patiently(&rig.log, topic).0.iter().map(|event| event.seq).collect()
}

fn make_all_unreadable(disk: &Disk, name: &str) {
    disk.make_unreadable(name, 0..length(disk, name));
}

#[test]
fn read_health_shows_unreadable_events_until_they_are_readable() {
    let clock = HandClock::at(1_700_000_000_000);
    let (rig, topic, sealed) = filled(Options { clock: Arc::<HandClock>::clone(&clock), ..options() });
    assert_eq!(rig.log.read_health(), prombus_log::ReadHealth::default());
    rig.disk.make_unreadable(&sealed, 8192..8193);
    let mut chunk = Chunk::default();
    let mut seq = 1;
    let mut unreadable = 0;
    while seq <= 300 {
        match rig.log.read(topic, seq, ReadLimit::default(), &mut chunk) {
            Ok(()) => seq = chunk.next_seq(),
            Err(ReadError::Unreadable { first_seq, last_seq, file, .. }) => {
                assert_eq!(file, sealed);
                unreadable += last_seq - first_seq + 1;
                seq = last_seq + 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!((1..=4).contains(&unreadable), "{unreadable}");
    let health = rig.log.read_health();
    assert_eq!(health.events_unreadable, unreadable);
    assert!(
        health.errors >= 1 && health.problem.as_ref().is_some_and(|text| text.contains(&sealed)),
        "{health:?}"
    );
    // The error persists: the log stays degraded, and the error is reported once.
    clock.move_by(60_000);
    rig.log.probe_unreadable();
    assert_eq!(rig.log.read_health().events_unreadable, unreadable);
    assert!(rig.log.read_health().problem.is_some());
    let told = |rig: &Rig, wanted: fn(&Notice) -> bool| {
        rig.listener.notices().iter().filter(|it| wanted(it)).count()
    };
    assert_eq!(told(&rig, |notice| matches!(notice, Notice::Unreadable { .. })), 1);
    assert_eq!(told(&rig, |notice| matches!(notice, Notice::ReadableAgain)), 0);
    rig.disk.make_readable();
    rig.log.probe_unreadable();
    clock.move_by(60_000);
    let health = rig.log.read_health();
    assert_eq!((health.events_unreadable, health.problem), (0, None));
    assert_eq!(told(&rig, |notice| matches!(notice, Notice::ReadableAgain)), 1);
    assert_eq!(all_seqs(&rig, topic), (1..=300).collect::<Vec<_>>());
    check_health(&rig);
}

#[test]
fn unreadable_events_that_retention_removes_leave_the_list() {
    let (rig, topic, sealed) = filled(options());
    make_all_unreadable(&rig.disk, &sealed);
    let error = rig.log.read(topic, 40, ReadLimit::default(), &mut Chunk::default()).unwrap_err();
    assert!(is_read_error(&error), "{error}");
    assert!(rig.log.read_health().events_unreadable > 0);
    let report = clean(&rig.log, &Cut(|_| 150)).unwrap();
    assert!(report.segments_retired > 1, "{report:?}");
    rig.log.probe_unreadable();
    assert_eq!(rig.log.read_health().events_unreadable, 0);
    assert!((100..=150).contains(&all_seqs(&rig, topic)[0]));
    check_health(&rig);
}

#[test]
fn unreadable_events_of_a_deleted_topic_leave_the_list() {
    let (rig, topic, sealed) = filled(options());
    rig.fill("other", 100);
    make_all_unreadable(&rig.disk, &sealed);
    assert!(rig.log.read(topic, 40, ReadLimit::default(), &mut Chunk::default()).is_err());
    rig.log.delete_topic(topic).unwrap();
    rig.settle();
    let report = clean(&rig.log, &Cut(|_| 1)).unwrap();
    assert!(report.segments_retired > 1, "{report:?}");
    rig.log.probe_unreadable();
    assert_eq!(rig.log.read_health().events_unreadable, 0);
    assert!(!rig.disk.names().contains(&sealed) || rig.log.stats().segments < 10);
    check_health(&rig);
}

#[test]
fn compaction_leaves_a_segment_that_it_cannot_read() {
    let (rig, topic, sealed) = filled(options());
    rig.disk.make_unreadable(&sealed, 9000..9001);
    let is_live = |_, seq| seq % 10 == 0;
    let report = clean(&rig.log, &Lives(is_live)).unwrap();
    assert!(report.was_unreadable && !report.was_full && report.segments_rewritten > 0, "{report:?}");
    assert!(rig.disk.names().contains(&sealed));
    check_health(&rig);
    rig.disk.make_readable();
    let there = all_seqs(&rig, topic);
    assert!((1..=300).filter(|seq| seq % 10 == 0).all(|seq| there.contains(&seq)), "{there:?}");
    let report = clean(&rig.log, &Lives(is_live)).unwrap();
    assert!(!report.was_unreadable && report.segments_rewritten > 0, "{report:?}");
    let there = all_seqs(&rig, topic);
    assert!((1..=300).filter(|seq| seq % 10 == 0).all(|seq| there.contains(&seq)), "{there:?}");
    check_health(&rig);
}

/// The caller's liveness may be wrong about events that it could not read, so it is not used for a segment with such
/// events.
#[test]
fn compaction_does_not_retire_a_segment_that_a_reader_could_not_read() {
    let (rig, topic, sealed) = filled(options());
    rig.disk.make_unreadable(&sealed, 9000..9001);
    let mut chunk = Chunk::default();
    let mut seq = 1;
    let mut hidden = 0;
    while seq <= 300 && hidden == 0 {
        match rig.log.read(topic, seq, ReadLimit::default(), &mut chunk) {
            Ok(()) => seq = chunk.next_seq(),
            Err(ReadError::Unreadable { first_seq, .. }) => hidden = first_seq,
            Err(error) => panic!("{error}"),
        }
    }
    // According to the liveness no event of the segment lives.
    let report = clean(&rig.log, &Lives(|_, seq| seq > 250)).unwrap();
    assert!(report.was_unreadable, "{report:?}");
    rig.disk.make_readable();
    assert!(all_seqs(&rig, topic).contains(&hidden), "seq {hidden} was removed");
    check_health(&rig);
}

#[test]
fn a_dead_segment_stays_while_the_ids_in_it_cannot_be_read() {
    let (rig, topic, sealed) = filled(options());
    rig.settle();
    make_all_unreadable(&rig.disk, &sealed);
    make_all_unreadable(&rig.disk, &sealed.replace(".seg", ".idx"));
    let report = clean(&rig.log, &Cut(|_| 200)).unwrap();
    assert!(report.was_unreadable && !report.was_full, "{report:?}");
    assert!(rig.disk.names().contains(&sealed));
    rig.disk.make_readable();
    let report = clean(&rig.log, &Cut(|_| 200)).unwrap();
    assert!(!report.was_unreadable, "{report:?}");
    for number in (1..=300).step_by(3) {
        check_duplicate(&rig, number);
    }
    assert!(all_seqs(&rig, topic).contains(&200));
    check_health(&rig);
}

/// According to its index the segment is dead, but the page with its ids cannot be read.
#[test]
fn a_dead_segment_stays_while_only_its_ids_cannot_be_read() {
    let (rig, _, sealed) = filled(options());
    rig.settle();
    let index = sealed.replace(".seg", ".idx");
    // A page of ids and a page of keys are the last ones.
    let ids = length(&rig.disk, &index) - 6_144;
    rig.disk.make_unreadable(&index, ids..ids + 1);
    make_all_unreadable(&rig.disk, &sealed);
    let report = clean(&rig.log, &Cut(|_| 200)).unwrap();
    assert!(report.was_unreadable && !report.was_full && report.segments_retired > 0, "{report:?}");
    assert!(rig.disk.names().contains(&sealed));
    rig.disk.make_readable();
    clean(&rig.log, &Cut(|_| 200)).unwrap();
    for number in 1..=300 {
        check_duplicate(&rig, number);
    }
    check_health(&rig);
}

#[test]
fn a_publish_whose_id_cannot_be_looked_up_is_refused() {
    let (rig, topic, sealed) = filled(options());
    let again = |rig: &Rig, number| {
        let events = [NewEvent { id: Some(id(number)), ..event(topic, b"again") }];
        rig.log.try_append(&Append { events: &events, ..Append::default() }, &mut Outcomes::default())
    };
    // The index of a sealed segment is unreadable: while the segment is readable, the index is rebuilt from it.
    let number = 45;
    rig.disk.make_unreadable(&sealed.replace(".seg", ".idx"), 512..1 << 20);
    make_all_unreadable(&rig.disk, &sealed);
    assert!(matches!(again(&rig, number), Err(AppendError::Lookup(_))));
    let health = rig.log.read_health();
    assert!(health.errors > 0 && health.problem.is_some(), "{health:?}");
    rig.disk.make_readable();
    check_duplicate(&rig, number);
    rig.disk.make_unreadable(&sealed.replace(".seg", ".idx"), 512..1 << 20);
    check_duplicate(&rig, number);
    rig.disk.make_readable();
    // An id in a kept index.
    clean(&rig.log, &Cut(|_| 200)).unwrap();
    rig.settle();
    // (The file of its segment may still exist, for recycling.)
    files(&rig.disk, ".idx").iter().for_each(|name| make_all_unreadable(&rig.disk, name));
    assert!(matches!(again(&rig, 3), Err(AppendError::Lookup(_))));
    // An id outside of the ranges of all unreadable files is known to be new, so it can be published.
    put(&rig, "t", 301).unwrap();
    rig.disk.make_readable();
    check_duplicate(&rig, 3);
    assert_eq!(rig.log.last_seq(topic), 301);
    check_health(&rig);
}

#[test]
fn lookups_of_unreadable_bytes_fail_and_never_return_a_wrong_result() {
    let (rig, topic, _) = filled(options());
    let log = &rig.log;
    type Find<'a> = (&'a str, Option<u64>, Box<dyn Fn() -> Result<Option<u64>, ReadError> + 'a>);
    let finds: Vec<Find<'_>> = vec![
        ("find_id", Some(45), Box::new(|| log.find_id(topic, id(45)))),
        ("find_key", Some(285), Box::new(|| log.find_key(topic, &key(15)))),
        ("first_at_or_after", Some(45), Box::new(|| log.first_at_or_after(topic, 45))),
        ("first_seq", Some(1), Box::new(|| log.first_seq(topic))),
        ("first_within_bytes", Some(1), Box::new(|| log.first_within_bytes(topic, 1 << 30).map(Some))),
        ("usage", Some(300), Box::new(|| log.usage().map(|usage| usage.first().map(|it| it.events)))),
    ];
    let mut refused = 0;
    for (what, expected, find) in &finds {
        for name in rig.disk.names().iter().filter(|name| name.ends_with(".seg") || name.ends_with(".idx")) {
            rig.disk.make_unreadable(name, 4096..length(&rig.disk, name).max(4097));
            if name.ends_with(".idx") {
                make_all_unreadable(&rig.disk, name);
                make_all_unreadable(&rig.disk, &name.replace(".idx", ".seg"));
            }
            match find() {
                Ok(found) => assert_eq!(found, *expected, "{what} without {name}"),
                Err(error) => {
                    assert!(is_read_error(&error), "{what} without {name}: {error}");
                    refused += 1;
                }
            }
            rig.disk.make_readable();
            assert_eq!(find().unwrap(), *expected, "{what}");
            rig.settle();
        }
    }
    assert!(refused > 20, "{refused}");
    check_health(&rig);
}

#[test]
fn an_unreadable_index_is_rebuilt_from_its_segment() {
    let (rig, topic, sealed) = filled(options());
    let index = sealed.replace(".seg", ".idx");
    make_all_unreadable(&rig.disk, &index);
    assert_eq!(all_seqs(&rig, topic), (1..=300).collect::<Vec<_>>());
    assert!(rig.log.read_health().errors > 0, "the error is counted");
    rig.settle();
    let rebuilt = |notice: &Notice| matches!(notice, Notice::IndexRebuilt { file } if *file == index);
    assert!(rig.listener.notices().iter().any(rebuilt));
    check_health(&rig);
}

#[test]
fn a_backup_of_unreadable_bytes_fails_and_leaves_nothing() {
    let (rig, topic, sealed) = filled(options());
    rig.disk.make_unreadable(&sealed, 9000..9001);
    let copy = Disk::new(9);
    match rig.log.backup_storage(Arc::new(copy.clone()), &mut |_| {}) {
        Err(BackupError::Read { file, .. }) => assert_eq!(file, sealed),
        other => panic!("{other:?}"),
    }
    assert_eq!(copy.names(), [""; 0]);
    check_health(&rig);
    rig.disk.make_readable();
    // An unreadable index is not an error, because it can be rebuilt from its segment.
    make_all_unreadable(&rig.disk, &sealed.replace(".seg", ".idx"));
    rig.log.backup_storage(Arc::new(copy.clone()), &mut |_| {}).unwrap();
    let restored = Rig::open(&copy, options()).unwrap();
    assert_eq!(all_seqs(&restored, topic), (1..=300).collect::<Vec<_>>());
    check_health(&restored);
}

#[test]
fn verify_lists_exactly_the_unreadable_bytes_and_reports_no_damage() {
    for left in [Left::Closed, Left::Killed] {
        let base = prepared(left);
        assert_eq!(verify(&base).faults, []);
        for file in base.names().into_iter().filter(|name| !["LOCK", "RESERVE"].contains(&name.as_str())) {
            for sector in 0..length(&base, &file).div_ceil(512) {
                let disk = base.fork();
                disk.make_unreadable(&file, sector * 512..sector * 512 + 1);
                let report = match verify_storage(Arc::new(disk.fork()), |_| {}) {
                    Ok(report) => report,
                    Err(error) => panic!("{left:?} {file} {sector}: {error}"),
                };
                assert_eq!(report.faults, [], "{left:?} {file} {sector}");
                for place in &report.unreadable {
                    assert_eq!((&place.file, place.position), (&file, sector * 512), "{left:?}");
                }
                let is_segment = file.ends_with(".seg");
                let is_used = is_segment && !report.unreadable_events.is_empty();
                assert!(!is_used || report.unreadable.len() == 1, "{left:?} {file} {sector}: {report:?}");
                if file == "MANIFEST" || file.ends_with(".ckpt") {
                    assert_eq!(report.unreadable.len(), 1, "{left:?} {file} {sector}");
                }
            }
        }
    }
}

#[test]
fn unreadable_events_are_not_reported_as_missing() {
    let (rig, topic, sealed) = filled(options());
    for sector in 8..32 {
        rig.disk.make_unreadable(&sealed, sector * 512..sector * 512 + 1);
        let mut chunk = Chunk::default();
        for seq in 1..=300 {
            // Reads start at every seq, and must not skip an event.
            if rig.log.read(topic, seq, ReadLimit { events: 3, bytes: 900 }, &mut chunk).is_ok() {
                let is_passed =
                    chunk.missing().iter().any(|missing| missing.reason != MissingReason::Corrupt);
                assert!(!is_passed && chunk.missing().is_empty(), "{:?}", chunk.missing());
                assert!(chunk.events().enumerate().all(|(at, event)| event.seq == seq + at as u64));
                assert_eq!(chunk.next_seq(), seq + chunk.len() as u64);
            }
        }
        rig.disk.make_readable();
    }
    check_health(&rig);
}

/// Small files of kept ids are merged. A file that cannot be read is not merged and keeps its ids.
#[test]
fn merging_kept_ids_keeps_ids_that_cannot_be_read() {
    let rig = Rig::open(&Disk::new(4), options()).unwrap();
    let topic = rig.topic("t");
    let mut number = 0;
    let mut unreadable = None;
    for round in 0..14 {
        for _ in 0..40 {
            number += 1;
            put(&rig, "t", number).unwrap();
        }
        for at in 1..=40 {
            put(&rig, "rest", round * 40 + at).unwrap();
        }
        clean(&rig.log, &Cut(|id| if id == topic { number - 5 } else { 1 })).unwrap();
        rig.settle();
        let names = rig.disk.names();
        let is_kept =
            |name: &String| name.ends_with(".idx") && !names.contains(&name.replace(".idx", ".seg"));
        if let (None, Some(name)) = (&unreadable, names.iter().find(|name| is_kept(name))) {
            make_all_unreadable(&rig.disk, name);
            unreadable = Some(name.clone());
        }
    }
    let unreadable = unreadable.unwrap();
    assert!(rig.disk.names().contains(&unreadable), "a file of ids that could not be read was removed");
    assert!(rig.log.read_health().errors > 0);
    rig.disk.make_readable();
    clean(&rig.log, &Cut(|id| if id == topic { number - 5 } else { 1 })).unwrap();
    rig.settle();
    for number in 1..=number {
        check_duplicate(&rig, number);
    }
    check_health(&rig);
}
