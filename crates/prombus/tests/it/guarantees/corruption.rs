//! 10. Corruption is loud: it is found, left out, and hides nothing else.

use crate::rig::{Rig, poll, seqs};
use prombus::{PublishError, Unavailable};
use prombus_log::storage::SyncPoint;
use prombus_log::storage::simulated::Disk;
use std::task::Poll;

/// A closed log with the events 1 to 9; `prepare` may use a group before the close.
fn closed_log(prepare: impl FnOnce(&Rig)) -> Disk {
    let rig = Rig::new(1);
    for number in 1..=9 {
        rig.publish("orders", &format!("payload-{number}"));
    }
    prepare(&rig);
    let disk = rig.disk.clone();
    drop(rig);
    disk
}

/// Flips one bit in the payload of an event.
fn damage(disk: &Disk, number: u32) {
    let wanted = format!("payload-{number}");
    for name in disk.names().into_iter().filter(|name| name.ends_with(".seg")) {
        let bytes = disk.contents(&name).expect("a file");
        if let Some(at) = bytes.windows(wanted.len()).position(|window| window == wanted.as_bytes()) {
            disk.flip_bit(&name, at as u64, 0);
            return;
        }
    }
    panic!("no segment holds {wanted}");
}

#[test]
fn guarantee_10_corruption_is_loud_and_hides_no_other_event() {
    let disk = closed_log(|_| {});
    damage(&disk, 4);
    let rig = Rig::open(&disk);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    assert_eq!(seqs(&all), [1, 2, 3, 5, 6, 7, 8, 9]);
    for delivery in &all {
        assert_eq!(delivery.json::<String>().expect("a string"), format!("payload-{}", delivery.seq()));
    }
    assert_eq!(rig.payloads("orders").len(), 8);
    assert!(rig.store.log().stats().faults >= 1, "{:?}", rig.store.log().stats());
    // The group continues and settles it.
    for delivery in &all {
        rig.ack(delivery);
    }
    let info = rig.info("orders", "billing");
    assert_eq!((info.topics[0].floor, info.lag, info.counters.passed_over), (9, 0, 1));
    assert_eq!(rig.publish("orders", "next").seq, 10);
    assert_eq!(seqs(&rig.all(&mut orders)), [10]);
    rig.stop();
}

/// The damage may be at the first event, at the last, or at several.
#[test]
fn guarantee_10_corruption_is_loud_at_the_ends_too() {
    for damaged in [&[1][..], &[9], &[1, 2, 3], &[8, 9], &[1, 5, 9]] {
        let disk = closed_log(|_| {});
        damaged.iter().for_each(|&number| damage(&disk, number));
        let rig = Rig::open(&disk);
        let mut orders = rig.subscribe("orders", "billing");
        let all = rig.all(&mut orders);
        let expected: Vec<u64> = (1..=9).filter(|seq| !damaged.contains(&(*seq as u32))).collect();
        assert_eq!(seqs(&all), expected, "{damaged:?}");
        all.iter().for_each(|delivery| rig.ack(delivery));
        assert_eq!(rig.floor("orders", "billing"), 9, "{damaged:?}");
        rig.stop();
    }
}

/// The group settles a damaged event that was delivered before and waits for redelivery.
#[test]
fn guarantee_10_corruption_is_loud_for_redeliveries_too() {
    let disk = closed_log(|rig| {
        let mut orders = rig.subscribe("orders", "billing");
        let all = rig.all(&mut orders);
        rig.done(all[3].nack("boom")).expect("nacks");
    });
    damage(&disk, 4);
    let rig = Rig::open(&disk);
    rig.pass(60_000);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all_redelivered(&mut orders);
    assert_eq!(seqs(&all), [1, 2, 3, 5, 6, 7, 8, 9]);
    all.iter().for_each(|delivery| rig.ack(delivery));
    rig.pass(60_000);
    rig.all(&mut orders);
    let info = rig.info("orders", "billing");
    assert_eq!((info.topics[0].floor, info.in_flight, info.waiting), (9, 0, 0));
    assert!(rig.letters("orders").is_empty());
    rig.stop();
}

/// The cursor still returns what is known about a damaged event at the floor, and does not fail.
#[test]
fn guarantee_10_corruption_is_loud_but_cursor_and_groups_still_work() {
    let disk = closed_log(|rig| {
        let mut orders = rig.subscribe("orders", "billing");
        for delivery in rig.all(&mut orders).iter().take(4) {
            rig.ack(delivery);
        }
    });
    damage(&disk, 4);
    damage(&disk, 5);
    let rig = Rig::open(&disk);
    let info = rig.info("orders", "billing");
    assert_eq!((info.topics[0].floor, info.lag), (4, 5));
    let cursor = rig.done(Box::pin(rig.bus.get_cursor("orders", "billing")));
    assert!(cursor.expect("succeeds").is_some());
    assert_eq!(seqs(&rig.all_redelivered(&mut rig.subscribe("orders", "billing"))), [6, 7, 8, 9]);
    rig.stop();
}

/// A failed fsync stops writes: nothing that depends on it succeeds, then or later.
#[test]
fn guarantee_10_a_failed_fsync_stops_writes() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 2);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    let mut publishing = rig.bus.publish("orders", "pending").send();
    let mut acking = all[0].ack();
    assert!(poll(&mut acking).is_pending());
    rig.disk.fail_next_sync(SyncPoint::LogData);
    rig.commit();
    let poisoned = |error: &Unavailable| matches!(error, Unavailable::Poisoned(_));
    let Poll::Ready(Err(PublishError::Unavailable(reason))) = poll(&mut publishing) else {
        panic!("a publish whose sync failed resolved as {publishing:?}");
    };
    assert!(poisoned(&reason), "{reason}");
    assert!(rig.done(acking).is_err_and(|error| poisoned(&error)));
    let refused = rig.done(rig.bus.publish("orders", "later").send()).expect_err("writing has stopped");
    assert!(matches!(&refused, PublishError::Unavailable(reason) if poisoned(reason)), "{refused}");
    assert!(refused.to_string().contains("restart"), "{refused}");
    assert!(rig.done(all[1].ack()).is_err_and(|error| poisoned(&error)));
    let joining = rig.bus.subscribe("orders", "other").into_future();
    assert!(rig.done(joining).is_err());
    // Reading still works, and a restart repairs writing.
    assert_eq!(rig.payloads("orders"), ["1", "2"]);
    drop((all, orders));
    let rig = rig.power_cut();
    assert_eq!(rig.payloads("orders")[..2], ["1", "2"]);
    rig.publish("orders", "again");
    rig.stop();
}
