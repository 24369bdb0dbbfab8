//! 7. Bounded retries: a poison event is given up.

use crate::rig::Rig;
use prombus::{RedeliveryReason, Subscription};
use prombus_log::storage::simulated::Disk;
use std::time::Duration;

fn fail_once(rig: &Rig, orders: &mut Subscription) -> u32 {
    let delivery = rig.redelivered(orders).expect("it is delivered again");
    rig.done(delivery.nack_after(Duration::ZERO, "boom")).expect("nacks");
    delivery.attempt()
}

#[test]
fn guarantee_7_bounded_a_poison_event_is_given_up_after_five_attempts() {
    let rig = Rig::new(1);
    rig.publish("orders", "poison");
    rig.publish("orders", "good");
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().batch_size(1));
    let attempts: Vec<u32> = (0..5).map(|_| fail_once(&rig, &mut orders)).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5]);
    rig.commit();
    let good = rig.next(&mut orders).expect("the group continues");
    assert_eq!(good.seq(), 2);
    rig.ack(&good);
    assert_eq!(rig.floor("orders", "billing"), 2);
    let letters = rig.letters("orders");
    let letter = &letters[0];
    assert_eq!((letters.len(), letter.attempts, letter.err.as_str()), (1, 5, "boom"));
    assert_eq!((letter.group.as_str(), letter.original.seq), ("billing", 1));
    rig.stop();
}

/// An event that kills the process on every delivery is given up too, once its first attempt has failed: from the second
/// attempt on, each attempt is durable before it is delivered. (A first attempt that ends in a crash may not be counted.)
#[test]
fn guarantee_7_bounded_an_event_that_kills_the_process_is_given_up() {
    for delay in [Duration::ZERO, Duration::from_millis(100)] {
        let mut rig = Rig::new(1);
        rig.publish("orders", "deadly");
        let mut orders = rig.subscribe("orders", "billing");
        let delivery = rig.next(&mut orders).expect("there is an event");
        rig.done(delivery.nack_after(delay, "boom")).expect("nacks");
        rig.pass(100);
        for attempt in 2..=5 {
            let delivery = rig.redelivered(&mut orders).expect("it is delivered again");
            assert_eq!(delivery.attempt(), attempt, "delay {delay:?}");
            let reason =
                if attempt == 2 { RedeliveryReason::Nacked } else { RedeliveryReason::ServerRestarted };
            assert_eq!(delivery.reason(), Some(reason), "attempt {attempt}");
            // The power is cut while the member holds it; no time passes, and nothing more is committed.
            rig = rig.power_cut();
            orders = rig.subscribe("orders", "billing");
        }
        assert!(rig.redelivered(&mut orders).is_none(), "the fifth attempt was the last");
        rig.commit();
        let letters = rig.letters("orders");
        assert_eq!((rig.floor("orders", "billing"), letters.len()), (1, 1));
        assert_eq!((letters[0].attempts, letters[0].err.as_str()), (5, "server_restarted"));
        rig.stop();
    }
}

/// A redelivery is never delivered before its own attempt is durable, whatever its reason.
#[test]
fn guarantee_7_bounded_a_redelivery_waits_until_its_attempt_is_durable() {
    let reasons = [RedeliveryReason::Nacked, RedeliveryReason::LeaseExpired, RedeliveryReason::MemberLost];
    for reason in reasons {
        let rig = Rig::new(1);
        rig.publish("orders", "one");
        let mut orders = rig.subscribe("orders", "billing");
        let delivery = rig.next(&mut orders).expect("there is an event");
        match reason {
            RedeliveryReason::Nacked => rig.done(delivery.nack("boom")).map(drop).expect("nacks"),
            RedeliveryReason::LeaseExpired => {}
            _ => {
                drop(orders);
                rig.commit();
                orders = rig.subscribe("orders", "billing");
            }
        }
        rig.pass(30_000);
        assert!(rig.next(&mut orders).is_none(), "{reason}: delivered before its attempt is durable");
        rig.commit();
        let again = rig.next(&mut orders).expect("its attempt is durable");
        assert_eq!((again.attempt(), again.reason()), (2, Some(reason)));
        for after in rig.after_power_cuts() {
            let mut orders = after.subscribe("orders", "billing");
            let again = after.redelivered(&mut orders).expect("it is delivered again");
            assert_eq!((again.attempt(), again.reason()), (3, Some(RedeliveryReason::ServerRestarted)));
            after.stop();
        }
        rig.stop();
    }
}

/// Runs up to the last nack, with a power cut at the given operation. Returns the disk, or `None` if the operation was not
/// reached.
fn cut_at_operation(seed: u64, operation: u64) -> Option<Disk> {
    let rig = Rig::new(seed);
    rig.publish("orders", "poison");
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_attempts(1));
    let delivery = rig.next(&mut orders).expect("there is an event");
    rig.disk.cut_after(operation);
    drop(delivery.nack("boom"));
    rig.backend.tick();
    rig.pass(10);
    rig.commit();
    let was_cut = rig.disk.is_off();
    let disk = rig.disk.fork();
    rig.stop();
    disk.power_cut();
    was_cut.then_some(disk)
}

/// The dead letter and the settle are one commit: after a power cut at any step there are both or neither, and in the end
/// exactly one dead letter.
#[test]
fn guarantee_7_bounded_the_dead_letter_and_the_settle_are_one_commit() {
    let mut outcomes = [0, 0];
    for seed in 0..12 {
        for operation in 1.. {
            let Some(disk) = cut_at_operation(seed, operation) else { break };
            let rig = Rig::open(&disk);
            let settled = rig.floor("orders", "billing") == 1;
            let place = format!("seed {seed}, operation {operation}");
            assert_eq!(rig.letters("orders").len(), usize::from(settled), "{place}");
            outcomes[usize::from(settled)] += 1;
            let mut orders = rig.join(rig.bus.subscribe("orders", "billing").max_attempts(1));
            let again = rig.next(&mut orders);
            assert_eq!(again.is_none(), settled, "{place}");
            if let Some(delivery) = again {
                rig.done(delivery.nack("boom")).expect("nacks");
                rig.pass(10);
                rig.commit();
            }
            assert_eq!((rig.floor("orders", "billing"), rig.letters("orders").len()), (1, 1), "{place}");
            rig.stop();
        }
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "neither and both must have happened: {outcomes:?}");
}

/// An error text that does not fit into a segment must not keep the event in the group.
#[test]
fn guarantee_7_bounded_whatever_the_error_says() {
    let rig = Rig::new(1);
    rig.publish("orders", "poison");
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_attempts(1));
    let delivery = rig.next(&mut orders).expect("there is an event");
    drop(delivery.nack(&"é".repeat(20_000)));
    for _ in 0..5 {
        rig.pass(2_000);
        rig.commit();
    }
    assert_eq!((rig.floor("orders", "billing"), rig.letters("orders").len()), (1, 1));
    rig.stop();
}

/// An event that just fits into a segment has a dead letter that does not: it is given up all the same.
#[test]
fn guarantee_7_bounded_whatever_the_size_of_the_event() {
    let rig = Rig::new(1);
    let largest = (1..16_000).rev().step_by(50).find(|&length| {
        let publishing = rig.bus.publish("orders", &"x".repeat(length)).send();
        rig.done(publishing).is_ok()
    });
    assert!(largest.is_some_and(|length| length > 10_000), "{largest:?}");
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_attempts(1));
    let delivery = rig.next(&mut orders).expect("there is an event");
    drop(delivery.nack("boom"));
    for _ in 0..5 {
        rig.pass(2_000);
        rig.commit();
    }
    assert_eq!(rig.floor("orders", "billing"), 1, "the event never leaves the group");
    rig.stop();
}
