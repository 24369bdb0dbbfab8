//! After a restart, events that may have been delivered before it have the reason `server_restarted`, without a higher
//! attempt.

use crate::rig::{Rig, seqs};
use prombus::{Delivery, RedeliveryReason, Start};

fn reasons(deliveries: &[Delivery]) -> Vec<(u64, u32, Option<RedeliveryReason>)> {
    deliveries.iter().map(|delivery| (delivery.seq(), delivery.attempt(), delivery.reason())).collect()
}

const RESTARTED: Option<RedeliveryReason> = Some(RedeliveryReason::ServerRestarted);

#[test]
fn after_a_power_cut_possibly_delivered_events_have_the_reason_and_later_ones_do_not() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 3);
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_in_flight(2));
    let had = rig.all(&mut orders);
    assert_eq!(reasons(&had), [(1, 1, None), (2, 1, None)]);
    rig.ack(&had[0]);
    for after in rig.after_power_cuts() {
        let mut orders = after.subscribe("orders", "billing");
        // It is unknown whether the third event was delivered: the lease mark is recorded ahead.
        assert_eq!(reasons(&after.all(&mut orders)), [(2, 1, RESTARTED), (3, 1, RESTARTED)]);
        after.publish("orders", "4");
        assert_eq!(reasons(&after.all(&mut orders)), [(4, 1, None)]);
        assert_eq!(after.info("orders", "billing").counters.redelivered_restarted, 2);
        after.stop();
    }
    rig.stop();
}

#[test]
fn power_cuts_do_not_raise_the_attempt() {
    let mut rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    assert_eq!(reasons(&rig.all(&mut orders)), [(1, 1, None)]);
    for _ in 0..10 {
        rig = rig.power_cut();
        let mut orders = rig.subscribe("orders", "billing");
        assert_eq!(reasons(&rig.all(&mut orders)), [(1, 1, RESTARTED)]);
    }
    rig.stop();
}

#[test]
fn a_recorded_reason_survives_a_power_cut() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let delivery = rig.next(&mut orders).expect("there is an event");
    rig.done(delivery.nack("boom")).expect("nacks");
    for after in rig.after_power_cuts() {
        let mut orders = after.subscribe("orders", "billing");
        after.pass(1_000);
        let again = after.redelivered(&mut orders).expect("the backoff is over");
        assert_eq!((again.attempt(), again.reason()), (2, Some(RedeliveryReason::Nacked)));
        after.stop();
    }
    rig.stop();
}

#[test]
fn after_a_clean_stop_the_reason_is_exact() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 3);
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_in_flight(2));
    assert_eq!(seqs(&rig.all(&mut orders)), [1, 2]);
    let rig = rig.restart();
    let mut orders = rig.subscribe("orders", "billing");
    let mut all = rig.all(&mut orders);
    // Events that were leased before may be leased again at once; later ones need a higher mark first.
    assert_eq!(reasons(&all), [(1, 1, RESTARTED), (2, 1, RESTARTED)]);
    rig.commit();
    all.extend(rig.all(&mut orders));
    assert_eq!(reasons(&all)[2..], [(3, 1, None)]);
    rig.stop();
}

#[test]
fn a_clean_stop_undoes_recorded_attempts_that_were_not_delivered() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_in_flight(1));
    let delivery = rig.next(&mut orders).expect("there is an event");
    let mut other = rig.subscribe("orders", "billing");
    assert!(rig.next(&mut other).is_none());
    // It is due at once, and its second attempt is recorded because a member waits for events; but that member does not
    // pull.
    rig.done(delivery.nack_after(std::time::Duration::ZERO, "boom")).expect("nacks");
    let rig = rig.restart();
    let mut orders = rig.subscribe("orders", "billing");
    let again = rig.redelivered(&mut orders).expect("it is due");
    assert_eq!((again.attempt(), again.reason()), (2, Some(RedeliveryReason::Nacked)));
    rig.stop();
}

#[test]
fn a_seek_resets_the_reason() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 3);
    let mut orders = rig.subscribe("orders", "billing");
    assert_eq!(seqs(&rig.all(&mut orders)), [1, 2, 3]);
    let rig = rig.power_cut();
    let mut orders = rig.subscribe("orders", "billing");
    rig.done(Box::pin(rig.bus.seek("orders", "billing", Start::Earliest))).expect("seeks");
    assert_eq!(reasons(&rig.all(&mut orders)), [(1, 1, None), (2, 1, None), (3, 1, None)]);
    // Two events are skipped, and the third was not delivered since.
    let second = rig.read("orders").events[1].id();
    rig.done(Box::pin(rig.bus.seek("orders", "billing", Start::AfterId(second)))).expect("seeks");
    let rig = rig.restart();
    let mut orders = rig.subscribe("orders", "billing");
    rig.redelivered(&mut orders).map_or_else(
        || panic!("the third event is missing"),
        |third| assert_eq!((third.seq(), third.reason()), (3, None)),
    );
    rig.stop();
}

/// A higher mark is durable before it is needed, so pulls of a group that keeps up do not wait for it.
#[test]
fn the_lease_mark_is_ahead_of_the_leases_without_its_own_commits() {
    let rig = Rig::new(1);
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").batch_size(1_000).max_in_flight(2_000));
    for round in 0..250 {
        let mut batch = rig.bus.batch();
        for number in 0..80_u32 {
            batch.push("orders", &number, &prombus::PublishOptions::default()).expect("it fits");
        }
        rig.done(rig.bus.publish_batch(batch)).expect("publishes");
        let mut had = 0;
        while had < 80 {
            let delivery =
                rig.next(&mut orders).unwrap_or_else(|| panic!("round {round}: a pull waits at {had}"));
            drop(delivery.ack());
            had += 1;
        }
    }
    rig.stop();
}
