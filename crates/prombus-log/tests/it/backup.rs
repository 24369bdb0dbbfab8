//! Backups of a running log.

use crate::support::{Cut, Lives, Rig, SetOnDrop, clean, event, read_all, small_options};
use prombus_log::storage::simulated::Disk;
use prombus_log::{
    Append, BackupError, EventId, Log, NewEvent, Options, Outcomes, TopicId, Unavailable, verify,
    verify_storage,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("prombus-log-backup-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn bodies(log: &Log, topic: TopicId) -> Vec<(u64, Vec<u8>)> {
    read_all(log, topic).into_iter().map(|read| (read.seq, read.body)).collect()
}

#[test]
fn a_backup_opens_verifies_and_continues_like_the_log_itself() {
    let rig = Rig::new(1);
    let topic = rig.fill("t", 300);
    let id = EventId::from_u128(77);
    let chosen = [NewEvent { id: Some(id), ..event(topic, b"chosen") }];
    let seq = rig.put_events(&chosen)[0].seq;
    rig.fill("t", 300);
    // Sealed and rewritten segments, kept indexes, and a growing segment.
    clean(&rig.log, &Lives(|_, seq| seq > 400 || seq % 9 == 0)).unwrap();
    rig.fill("t", 10);
    let expected = bodies(&rig.log, topic);
    assert!(expected.iter().all(|(there, _)| *there != seq));

    let copy = Disk::new(2);
    let mut reported = Vec::new();
    let report =
        rig.log.backup_storage(Arc::new(copy.clone()), &mut |progress| reported.push(progress)).unwrap();
    assert_eq!(report.batch, rig.log.durable_batch());
    assert!(report.segments > 2, "{report:?}");
    assert!(reported.is_sorted_by_key(|progress| progress.bytes_done));
    assert_eq!(reported.last().unwrap().bytes_done, report.bytes);
    rig.fill("t", 50);
    copy.power_cut();
    let verified = verify_storage(Arc::new(copy.clone()), |_| {}).unwrap();
    assert_eq!((verified.faults, verified.torn_tail_bytes), (vec![], 0));

    let restored = Rig::open(&copy, small_options()).unwrap();
    assert_eq!(bodies(&restored.log, topic), expected);
    assert!(restored.listener.notices().is_empty(), "{:?}", restored.listener.notices());
    let again = restored.put_events(&chosen)[0];
    assert_eq!((again.duplicate, again.seq), (true, seq), "the backup contains the ids of cleaned events");
    restored.fill("t", 200);
    let restored = restored.reopen();
    assert_eq!(restored.log.last_seq(topic), 811);
}

#[test]
fn a_backup_under_load_has_everything_acknowledged_before_it_began() {
    let (source, copy) = (folder("load"), folder("load-copy"));
    let options = Options {
        segment_bytes: 256 * 1024,
        tail_bytes: 64 * 1024,
        checkpoint_bytes: 128 * 1024,
        ..Options::default()
    };
    let log = Log::open(&source, options.clone()).unwrap();
    let topic = log.ensure_topic("t").unwrap();
    let is_done = AtomicBool::new(false);
    let publish = |rounds: u64| {
        let mut outcomes = Outcomes::default();
        for _ in 0..rounds {
            let bodies: Vec<String> = (0..20).map(|n| format!("{n} {}", "x".repeat(300))).collect();
            let events: Vec<NewEvent<'_>> = bodies.iter().map(|body| event(topic, body.as_bytes())).collect();
            let ticket = log.append(&Append { events: &events, ..Append::default() }, &mut outcomes).unwrap();
            log.wait(ticket).unwrap();
        }
    };
    publish(300);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&is_done);
        scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                publish(1);
            }
        });
        scope.spawn(|| {
            // Cleaning must not remove segments while they are being copied.
            while !is_done.load(Ordering::SeqCst) {
                let floor = log.last_seq(topic).saturating_sub(2_000);
                clean(&log, &Cut(|_| floor)).unwrap();
            }
        });
        for round in 0..3 {
            let copy = copy.join(round.to_string());
            let acknowledged = log.last_seq(topic);
            log.backup(&copy, &mut |_| {}).unwrap();
            assert_eq!(verify(&copy, |_| {}).unwrap().faults, []);
            let restored = Log::open(&copy, options.clone()).unwrap();
            assert!(restored.last_seq(topic) >= acknowledged);
            let events = read_all(&restored, topic);
            assert_eq!(events.last().unwrap().seq, restored.last_seq(topic));
            let is_whole = events.is_sorted_by(|before, event| before.seq + 1 == event.seq);
            assert!(is_whole && events.len() as u64 >= 1_900, "{} events", events.len());
        }
    });
    log.close().unwrap();
    std::fs::remove_dir_all(&source).unwrap();
    std::fs::remove_dir_all(&copy).unwrap();
}

#[test]
fn a_folder_that_is_not_empty_is_refused_and_left_alone() {
    let rig = Rig::new(3);
    rig.fill("t", 10);
    let copy = folder("not-empty");
    std::fs::create_dir(&copy).unwrap();
    std::fs::write(copy.join("notes.txt"), "mine").unwrap();
    match rig.log.backup(&copy, &mut |_| {}) {
        Err(error @ BackupError::NotEmpty { .. }) => {
            assert!(error.to_string().contains("notes.txt"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read_dir(&copy).unwrap().count(), 1);
    std::fs::remove_dir_all(&copy).unwrap();
}

#[test]
fn a_backup_without_room_fails_and_leaves_nothing_behind() {
    let rig = Rig::new(4);
    rig.fill("t", 400);
    let copy = Disk::new(5);
    for capacity in [0, 5_000, 20_000, 60_000] {
        copy.set_capacity(Some(capacity));
        match rig.log.backup_storage(Arc::new(copy.clone()), &mut |_| {}) {
            Err(error @ BackupError::Full { .. }) => assert!(error.to_string().contains("full"), "{error}"),
            other => panic!("{capacity}: {other:?}"),
        }
        assert_eq!(copy.names(), Vec::<String>::new(), "{capacity}");
    }
    assert_eq!(rig.log.unavailable(), None);
}

#[test]
fn a_backup_that_fails_anywhere_does_not_open() {
    let rig = Rig::new(6);
    rig.fill("t", 200);
    let mut failed = 0;
    for operation in 1.. {
        let copy = Disk::new(operation);
        copy.fail_at(operation);
        match rig.log.backup_storage(Arc::new(copy.clone()), &mut |_| {}) {
            Ok(_) => break,
            Err(BackupError::Write { .. }) => failed += 1,
            Err(error) => panic!("{error}"),
        }
        assert_eq!(copy.names(), Vec::<String>::new(), "operation {operation}");
    }
    assert!(failed > 20, "{failed}");
    assert_eq!(rig.log.unavailable(), None);
}

#[test]
fn a_new_log_can_be_backed_up() {
    let rig = Rig::new(7);
    let copy = Disk::new(8);
    rig.log.backup_storage(Arc::new(copy.clone()), &mut |_| {}).unwrap();
    let restored = Rig::open(&copy, small_options()).unwrap();
    let topic = restored.fill("t", 3);
    assert_eq!(restored.bodies(topic).len(), 3);
}

#[test]
fn a_closed_log_is_not_backed_up() {
    let rig = Rig::new(8);
    let other = rig.log.clone();
    rig.log.close().unwrap();
    match other.backup_storage(Arc::new(Disk::new(9)), &mut |_| {}) {
        Err(BackupError::Unavailable(Unavailable::Closed)) => {}
        other => panic!("{other:?}"),
    }
}
