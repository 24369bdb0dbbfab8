//! After a failed write or fdatasync nothing is acknowledged, reading continues, and opening the log again recovers it.

use crate::support::{Random, Rig, event, read_all, small_options};
use prombus_log::storage::SyncPoint;
use prombus_log::storage::simulated::Disk;
use prombus_log::{Append, AppendError, Outcomes, Step, Unavailable};

#[test]
fn a_failed_sync_stops_writing_and_is_never_retried() {
    let rig = Rig::new(1);
    let topic = rig.fill("t", 10);
    rig.disk.fail_next_sync(SyncPoint::LogData);
    let append = Append { events: &[event(topic, b"x")], ..Append::default() };
    let mut outcomes = Outcomes::default();
    let ticket = rig.log.try_append(&append, &mut outcomes).unwrap();
    assert_eq!(rig.log.step_commit(), Step::Stopped);
    assert!(matches!(rig.log.wait(ticket), Err(Unavailable::Poisoned(_))));
    let refused = rig.log.try_append(&append, &mut outcomes);
    assert!(matches!(refused, Err(AppendError::Unavailable(Unavailable::Poisoned(_)))), "{refused:?}");
    assert_eq!(rig.log.step_commit(), Step::Stopped, "a second sync might succeed without the lost pages");
    assert_eq!(
        read_all(&rig.log, topic).len(),
        10,
        "reading continues, without the event that may not be durable"
    );
    let disk = rig.disk.clone();
    assert!(rig.log.close().is_err());
    let rig = Rig::open(&disk, small_options()).unwrap();
    assert!((10..=11).contains(&read_all(&rig.log, topic).len()));
    rig.fill("t", 1);
}

/// After a failed fsync the page cache and the disk differ. Everything that recovery serves must be on the disk.
#[test]
fn events_served_after_recovery_from_a_failed_sync_survive_a_power_cut() {
    for seed in 0..500 {
        let rig = Rig::new(seed);
        let topic = rig.fill("t", 1 + seed % 20);
        rig.disk.fail_next_sync(SyncPoint::LogData);
        let append = Append { events: &[event(topic, &[b'x'; 700])], ..Append::default() };
        rig.log.try_append(&append, &mut Outcomes::default()).unwrap();
        assert_eq!(rig.log.step_commit(), Step::Stopped);
        let survivor = rig.disk.fork();
        rig.disk.cut_after(0);
        drop(rig);
        let rig = Rig::open(&survivor, small_options()).unwrap();
        let seen = read_all(&rig.log, topic);
        survivor.cut_after(0);
        drop(rig);
        survivor.power_cut();
        let rig = Rig::open(&survivor, small_options()).unwrap();
        assert_eq!(read_all(&rig.log, topic), seen, "seed {seed}");
        assert!(rig.listener.faults().is_empty());
    }
}

/// Any single file operation may fail: acknowledged events exist after a restart, and nothing panics.
#[test]
fn a_failed_file_operation_loses_no_acknowledged_event() {
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let disk = Disk::new(seed);
        if random.one_in(2) {
            let rig = Rig::open(&disk, small_options()).unwrap();
            rig.fill("t", random.below(150));
            rig.log.close().unwrap();
        }
        disk.fail_at(random.between(1, 120));
        let mut acknowledged = 0;
        if let Ok(rig) = Rig::open(&disk, small_options()) {
            for _ in 0..60 {
                let Ok(topic) = rig.log.ensure_topic("t") else {
                    let _ = (rig.log.step_commit(), rig.log.step_housekeeping());
                    continue;
                };
                let append = Append { events: &[event(topic, &[b'y'; 120])], ..Append::default() };
                let mut outcomes = Outcomes::default();
                let appended = rig.log.try_append(&append, &mut outcomes);
                let _ = (rig.log.step_commit(), rig.log.step_housekeeping());
                if appended.is_ok_and(|ticket| rig.log.is_durable(ticket)) {
                    acknowledged = outcomes[0].seq;
                }
            }
            let survivor = disk.fork();
            disk.cut_after(0);
            drop(rig);
            survivor.power_cut();
            let rig = Rig::open(&survivor, small_options()).unwrap();
            let there = rig.log.topic("t").map_or(0, |topic| read_all(&rig.log, topic).len() as u64);
            assert!(there >= acknowledged, "seed {seed}: {there} of {acknowledged}");
            assert!(rig.listener.faults().is_empty(), "seed {seed}: {:?}", rig.listener.faults());
        }
    }
}
