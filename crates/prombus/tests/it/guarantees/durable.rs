//! 1. Durable. A call resolves only when its effect survives a power cut.

use crate::rig::{Rig, poll, seqs};
use prombus::{RedeliveryReason, Start, Subscription};
use std::time::Duration;

#[test]
fn guarantee_1_durable_publish_resolves_when_it_survives_a_power_cut() {
    let rig = Rig::new(1);
    let mut publishing = rig.bus.publish("orders", "one").send();
    rig.assert_waits_for_a_commit("a publish", &mut publishing);
    rig.commit();
    assert!(poll(&mut publishing).is_ready());
    for after in rig.after_power_cuts() {
        assert_eq!(after.payloads("orders"), ["one"]);
    }
    rig.stop();
}

/// The test above is meaningful only if the disk can lose unsynced writes.
#[test]
fn guarantee_1_durable_is_tested_on_a_disk_that_loses_unsynced_writes() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    rig.disk.lie_about(Some(prombus_log::storage::SyncPoint::LogData));
    rig.publish("orders", "two");
    let kept: Vec<usize> = rig.after_power_cuts().map(|after| after.payloads("orders").len()).collect();
    assert!(kept.contains(&1), "nothing was lost: {kept:?}");
    rig.stop();
}

#[test]
fn guarantee_1_durable_subscribe_that_creates_a_group() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut joining = rig.bus.subscribe("orders", "billing").into_future();
    rig.assert_waits_for_a_commit("a subscribe that creates a group", &mut joining);
    // A member that joins meanwhile waits too.
    let mut second = rig.bus.subscribe("orders", "billing").into_future();
    rig.assert_waits_for_a_commit("a subscribe to a group that is being created", &mut second);
    rig.commit();
    let made = rig.done(joining).expect("subscribes");
    assert!(made.created());
    assert!(!rig.done(second).expect("subscribes").created());
    rig.publish("orders", "two");
    for after in rig.after_power_cuts() {
        let mut again = after.subscribe("orders", "billing");
        assert!(!again.created(), "the group is gone");
        // The group was created at latest: its start position is kept too.
        assert_eq!(seqs(&after.all(&mut again)), [2]);
        after.stop();
    }
    rig.stop();
}

#[test]
fn guarantee_1_durable_ack_that_is_awaited() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 2);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    let mut acking = all[0].ack();
    assert_eq!(rig.floor("orders", "billing"), 1, "an ack applies at once");
    rig.assert_waits_for_a_commit("an ack", &mut acking);
    rig.commit();
    assert!(poll(&mut acking).is_ready());
    for after in rig.after_power_cuts() {
        assert_eq!(after.floor("orders", "billing"), 1);
        assert_eq!(seqs(&after.all(&mut after.subscribe("orders", "billing"))), [2]);
        after.stop();
    }
    rig.stop();
}

#[test]
fn guarantee_1_durable_ack_by_id() {
    let rig = Rig::new(1);
    let published = rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    rig.all(&mut orders);
    let mut acking = Box::pin(rig.bus.ack("orders", "billing", published.id));
    rig.assert_waits_for_a_commit("an ack by id", &mut acking);
    rig.commit();
    assert!(poll(&mut acking).is_ready());
    for after in rig.after_power_cuts() {
        assert_eq!(after.floor("orders", "billing"), 1);
        after.stop();
    }
    rig.stop();
}

/// Checks the flusher's deadline too, so that the test does not pass only because the clock makes a large step.
#[test]
fn guarantee_1_durable_ack_that_is_not_awaited_within_10_ms() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    rig.commit();
    let began = prombus::Clock::steady_ms(&rig.clock);
    drop(all[0].ack());
    let next = rig.backend.tick().expect("there is something to write");
    assert!(next <= began + 10, "the ack is written {} ms later", next - began);
    rig.pass(10);
    rig.commit();
    for after in rig.after_power_cuts() {
        assert_eq!(after.floor("orders", "billing"), 1);
        after.stop();
    }
    rig.stop();
}

#[test]
fn guarantee_1_durable_ack_that_is_not_awaited_joins_the_next_commit() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    drop(all[0].ack());
    // No time passes.
    rig.publish("other", "two");
    for after in rig.after_power_cuts() {
        assert_eq!(after.floor("orders", "billing"), 1);
        after.stop();
    }
    rig.stop();
}

#[test]
fn guarantee_1_durable_nack() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    let mut nacking = all[0].nack_after(Duration::from_secs(10), "boom");
    rig.assert_waits_for_a_commit("a nack", &mut nacking);
    rig.commit();
    assert!(poll(&mut nacking).is_ready());
    for after in rig.after_power_cuts() {
        let mut again = after.subscribe("orders", "billing");
        assert!(after.next(&mut again).is_none(), "it must wait for ten seconds");
        after.pass(9_999);
        assert!(after.next(&mut again).is_none(), "it must wait for ten seconds");
        after.pass(1);
        let delivery = after.redelivered(&mut again).expect("it is due");
        assert_eq!((delivery.attempt(), delivery.reason()), (2, Some(RedeliveryReason::Nacked)));
        after.stop();
    }
    rig.stop();
}

/// A group whose event is given up after the next failure.
fn with_last_attempt(rig: &Rig, topic: &str) -> Subscription {
    rig.publish(topic, "poison");
    rig.join(rig.bus.subscribe(topic, "billing").from_earliest().max_attempts(1))
}

#[test]
fn guarantee_1_durable_last_nack_resolves_when_the_dead_letter_is_durable() {
    let rig = Rig::new(1);
    let mut orders = with_last_attempt(&rig, "orders");
    let delivery = rig.next(&mut orders).expect("there is an event");
    let mut nacking = delivery.nack("boom");
    rig.assert_waits_for_a_commit("the last nack", &mut nacking);
    rig.commit();
    assert!(poll(&mut nacking).is_ready());
    for after in rig.after_power_cuts() {
        assert_eq!((after.floor("orders", "billing"), after.letters("orders").len()), (1, 1));
        after.stop();
    }
    rig.stop();
}

#[test]
fn guarantee_1_durable_nack_that_parks_a_dead_letter() {
    let rig = Rig::new(1);
    let mut letters = with_last_attempt(&rig, "dlq.orders");
    let delivery = rig.next(&mut letters).expect("there is an event");
    let mut nacking = delivery.nack("boom");
    rig.assert_waits_for_a_commit("the last nack", &mut nacking);
    rig.commit();
    assert!(poll(&mut nacking).is_ready());
    for after in rig.after_power_cuts() {
        assert_eq!(after.floor("dlq.orders", "billing"), 1);
        after.stop();
    }
    rig.stop();
}

#[test]
fn guarantee_1_durable_seek() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 3);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    rig.ack(&all[0]);
    // An ack that is not written yet: the seek must be written after it.
    drop(all[2].ack());
    let mut seeking = Box::pin(rig.bus.seek("orders", "billing", Start::AfterId(all[1].id())));
    rig.assert_waits_for_a_commit("a seek", &mut seeking);
    rig.commit();
    assert!(poll(&mut seeking).is_ready());
    for after in rig.after_power_cuts() {
        assert_eq!(after.floor("orders", "billing"), 2);
        assert_eq!(seqs(&after.all(&mut after.subscribe("orders", "billing"))), [3]);
        after.stop();
    }
    rig.stop();
}

#[test]
fn guarantee_1_durable_delete_of_a_group() {
    let rig = Rig::new(1);
    rig.subscribe("orders", "billing");
    let mut deleting = Box::pin(rig.bus.delete_group("orders", "billing"));
    rig.assert_waits_for_a_commit("a delete", &mut deleting);
    rig.commit();
    assert!(poll(&mut deleting).is_ready());
    for after in rig.after_power_cuts() {
        assert!(after.done(Box::pin(after.bus.groups())).expect("lists groups").is_empty());
        after.stop();
    }
    rig.stop();
}

/// All confirmed publishes and acks are there after a close.
#[test]
fn guarantee_1_durable_across_a_close() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 3);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    drop(all[0].ack());
    let rig = rig.restart();
    assert_eq!(rig.payloads("orders"), ["1", "2", "3"]);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    assert_eq!(all.iter().map(|it| (it.seq(), it.attempt())).collect::<Vec<_>>(), [(2, 1), (3, 1)]);
    rig.stop();
}
