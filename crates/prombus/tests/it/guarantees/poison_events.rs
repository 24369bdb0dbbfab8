//! 7. Bounded: a poison event leaves.

use crate::rig::Rig;
use prombus::Subscription;
use prombus_log::storage::simulated::Disk;
use std::time::Duration;

fn fail_once(rig: &Rig, orders: &mut Subscription) -> u32 {
    let delivery = rig.next(orders).expect("it is delivered again");
    rig.done(delivery.nack_after(Duration::ZERO, "boom")).expect("nacks");
    delivery.attempt()
}

#[test]
fn guarantee_7_bounded_a_poison_event_leaves_after_five_attempts() {
    let rig = Rig::new(1);
    rig.publish("orders", "poison");
    rig.publish("orders", "good");
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().batch_size(1));
    let attempts: Vec<u32> = (0..5).map(|_| fail_once(&rig, &mut orders)).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5]);
    rig.commit();
    let good = rig.next(&mut orders).expect("the group goes on");
    assert_eq!(good.seq(), 2);
    rig.ack(&good);
    assert_eq!(rig.floor("orders", "billing"), 2);
    let letters = rig.letters("orders");
    let letter = &letters[0];
    assert_eq!((letters.len(), letter.attempts, letter.err.as_str()), (1, 5, "boom"));
    assert_eq!((letter.group.as_str(), letter.original.seq), ("billing", 1));
    rig.stop();
}

/// An event that kills the process leaves too, once a second attempt was written down. (A first attempt that runs in a crash is
/// not: it may be counted again.)
#[test]
fn guarantee_7_bounded_an_event_that_kills_the_process_leaves() {
    let mut rig = Rig::new(1);
    rig.publish("orders", "deadly");
    let mut orders = rig.subscribe("orders", "billing");
    assert_eq!(fail_once(&rig, &mut orders), 1);
    drop(orders);
    for lives in 2..20 {
        let mut orders = rig.subscribe("orders", "billing");
        let delivery = rig.next(&mut orders);
        rig.pass(10);
        rig.commit();
        if delivery.is_none() {
            assert_eq!((rig.floor("orders", "billing"), rig.letters("orders").len()), (1, 1));
            assert_eq!(lives, 6, "the fifth attempt was the last");
            rig.stop();
            return;
        }
        // Not lost in the eyes of the bus: the power goes while the member has it.
        rig = rig.power_cut();
    }
    panic!("it never leaves");
}

/// Up to the last nack, and then the power goes at the given operation. Whether it did.
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

/// The letter and the settling are one commit: after a power cut at any step there are both or neither, and in the end one
/// letter.
#[test]
fn guarantee_7_bounded_the_dead_letter_and_the_settling_are_one_commit() {
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

/// An error text that no segment can hold must not keep the event in the group.
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

/// An event that just fits into a segment has a dead letter that does not: it leaves all the same.
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
