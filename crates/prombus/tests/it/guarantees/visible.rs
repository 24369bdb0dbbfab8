//! 2. Visible only when durable.

use crate::rig::{Rig, poll};
use prombus::{Start, Topic};
use prombus_log::storage::SyncPoint;
use prombus_log::storage::simulated::Disk;

#[test]
fn guarantee_2_visible_only_when_durable_to_groups_and_readers() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    rig.all(&mut orders);
    let mut publishing = rig.bus.publish("orders", "two").send();
    rig.assert_waits_for_a_commit("a publish", &mut publishing);
    assert!(rig.next(&mut orders).is_none(), "a member sees an event that is not durable");
    assert_eq!(rig.payloads("orders"), ["one"]);
    let topics = rig.done(Box::pin(rig.bus.topics())).expect("lists topics");
    assert_eq!(topics[0].last_seq, 1);
    assert_eq!(rig.info("orders", "billing").lag, 1);
    let orders_topic = Topic::new("orders").expect("a good name");
    let found = rig.bus.backend().locate(&orders_topic, Start::Ts(0));
    assert_eq!(rig.done(found).expect("finds"), 1);
    rig.commit();
    assert!(poll(&mut publishing).is_ready());
    assert_eq!(rig.next(&mut orders).expect("it is durable").seq(), 2);
    rig.stop();
}

/// A dead letter is an event like any other: it is not visible before it is durable.
#[test]
fn guarantee_2_visible_only_when_durable_dead_letters() {
    let rig = Rig::new(1);
    let mut doctor = rig.subscribe("dlq.orders", "doctor");
    rig.publish("orders", "poison");
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_attempts(1));
    let delivery = rig.next(&mut orders).expect("there is an event");
    drop(delivery.nack("boom"));
    rig.backend.tick();
    assert!(rig.next(&mut doctor).is_none(), "a member sees an event that is not durable");
    rig.pass(10);
    rig.commit();
    assert!(rig.next(&mut doctor).is_some());
    rig.stop();
}

/// Events that were written but whose sync failed may exist only in the page cache. Returns how many events are visible
/// after the process was killed and restarted, and how many of them a power cut then removes.
fn visible_and_lost(seed: u64, prepare: impl Fn(&Disk)) -> (usize, usize) {
    let rig = Rig::new(seed);
    rig.publish("orders", "one");
    rig.disk.fail_next_sync(SyncPoint::LogData);
    let mut publishing = rig.bus.publish("orders", "two").send();
    rig.commit();
    assert!(matches!(poll(&mut publishing), std::task::Poll::Ready(Err(_))), "its outcome is unknown");
    let disk = rig.disk.fork();
    rig.stop();
    prepare(&disk);
    let rig = Rig::open(&disk);
    let seen = rig.payloads("orders").len();
    let kept = rig.after_power_cuts().map(|after| after.payloads("orders").len()).min().expect("some");
    rig.stop();
    (seen, seen - kept)
}

#[test]
fn guarantee_2_visible_only_when_durable_also_after_a_restart() {
    let mut seen_two = 0;
    for seed in 0..30 {
        let (seen, lost) = visible_and_lost(seed, |_| {});
        assert_eq!(lost, 0, "seed {seed}: a power cut removed a visible event");
        seen_two += usize::from(seen == 2);
    }
    assert!(seen_two > 0, "no event was only in the page cache: the test proves nothing");
}

/// Without the sync of recovery, the test above would fail.
#[test]
fn guarantee_2_visible_only_when_durable_needs_the_sync_of_recovery() {
    let lie = |disk: &Disk| disk.lie_about(Some(SyncPoint::RecoveredTail));
    let lost: usize = (0..30).map(|seed| visible_and_lost(seed, lie).1).sum();
    assert!(lost > 0, "nothing was lost without the sync");
}
