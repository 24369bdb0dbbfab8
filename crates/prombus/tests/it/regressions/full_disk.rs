//! Settling and seeking while the disk is full.

use super::fill;
use crate::rig::{Rig, poll};
use prombus::Start;

/// The dead letter of a last nack finds no room. Writing other records of the group must not resolve that nack: for a first
/// attempt, not even the attempt is recorded.
#[test]
fn a_nack_whose_dead_letter_is_postponed_is_durable_when_it_resolves() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 2);
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_attempts(1));
    let first = rig.all(&mut orders);
    fill(&rig);
    let mut nacking = first[0].nack("boom");
    let early = poll(&mut nacking).is_ready();
    rig.commit();
    rig.ack(&first[1]);
    let resolved = early || poll(&mut nacking).is_ready();
    rig.disk.set_capacity(None);
    if resolved {
        for after in rig.after_power_cuts() {
            let mut orders = after.join(after.bus.subscribe("orders", "billing").max_attempts(1));
            let came = after.all(&mut orders);
            assert!(came.is_empty(), "the last nack resolved, and the event is redelivered: {came:?}");
            after.stop();
        }
    }
    rig.stop();
}

/// A member with nothing to write must not have to wait.
#[test]
fn a_member_can_leave_while_a_dead_letter_is_postponed() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 2);
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_attempts(1));
    let other = rig.subscribe("orders", "billing");
    let first = rig.all(&mut orders);
    fill(&rig);
    drop(first[0].nack("boom"));
    for _ in 0..5 {
        rig.pass(100);
        rig.commit();
    }
    let mut stale = first[0].ack();
    let mut leaving = Box::pin(other.unsubscribe());
    for _ in 0..10 {
        let _ = (poll(&mut stale), ());
        rig.pass(10);
        rig.commit();
    }
    assert!(poll(&mut leaving).is_ready(), "a member without deliveries cannot leave");
    rig.stop();
}

#[test]
fn a_cancelled_seek_does_not_block_other_calls() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 1);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    rig.ack(&all[0]);
    // The queue is full: the seek waits for room, and its future is dropped.
    let large = "x".repeat(3_900);
    let mut publishing = rig.bus.publish("orders", large.as_str()).send();
    assert!(poll(&mut publishing).is_pending());
    let floors = "y".repeat(150);
    let mut more = Vec::new();
    for _ in 0..40 {
        let mut next = rig.bus.publish("z", floors.as_str()).send();
        let _ = poll(&mut next).is_pending();
        more.push(next);
    }
    let mut seeking = Box::pin(rig.bus.seek("orders", "billing", Start::Earliest));
    let _ = poll(&mut seeking);
    drop(seeking);
    rig.done(publishing).expect("publishes");
    for next in more {
        rig.done(next).expect("publishes");
    }
    let mut stale = all[0].ack();
    assert!(stale.is_stale());
    let mut leaving = Box::pin(orders.unsubscribe());
    for _ in 0..10 {
        let _ = (poll(&mut stale), poll(&mut leaving));
        rig.pass(10);
        rig.commit();
        if poll(&mut stale).is_ready() {
            rig.stop();
            return;
        }
    }
    panic!("a stale ack does not resolve");
}
