//! A failed write or fdatasync stops all OKs; reading goes on; opening again recovers.

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
    assert_eq!(rig.log.step_commit(), Step::Stopped, "a second sync might have called it good");
    assert_eq!(read_all(&rig.log, topic).len(), 10, "reading goes on, without the event of unknown fate");
    let disk = rig.disk.clone();
    assert!(rig.log.close().is_err());
    let rig = Rig::open(&disk, small_options()).unwrap();
    assert!((10..=11).contains(&read_all(&rig.log, topic).len()));
    rig.fill("t", 1);
}

/// After a failed fsync the page cache says one thing and the disk another; what recovery serves must be on the disk.
#[test]
fn what_recovery_serves_after_a_failed_sync_survives_a_power_cut() {
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

/// Any single file operation may fail: what was acknowledged is there after a restart, and nothing panics.
#[test]
fn an_operation_that_fails_anywhere_loses_nothing_acknowledged() {
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
