//! Appends near the size of a segment.

use crate::rig::Rig;
use prombus::{PublishError, Topic};

/// Records of a group that are larger than a segment are divided into several appends.
#[test]
fn group_records_that_do_not_fit_into_one_append_are_divided() {
    let rig = Rig::new(1);
    let mut batch = rig.bus.batch();
    for _ in 0..3_000 {
        let topic = Topic::new("orders").expect("a good name");
        batch.push_json(topic, b"1", &prombus::PublishOptions::default()).expect("fits");
        if batch.len() == 50 {
            rig.done(rig.bus.publish_batch(std::mem::replace(&mut batch, rig.bus.batch())))
                .expect("publishes");
        }
    }
    let subscribe =
        rig.bus.subscribe("orders", "billing").from_earliest().max_in_flight(3_000).batch_size(1_000);
    let mut orders = rig.join(subscribe);
    let all = rig.all(&mut orders);
    assert_eq!(all.len(), 3_000);
    // All of them fail at once.
    drop((all, orders));
    let mut again = rig.subscribe("orders", "billing");
    for _ in 0..20 {
        rig.pass(10);
        rig.commit();
    }
    rig.done(rig.bus.publish("other", "x").send()).expect("publishers are not affected");
    assert!(rig.redelivered(&mut again).is_some(), "nothing is redelivered");
    rig.stop();
}

/// An event that fits must not be refused because acks are written in the same append.
#[test]
fn a_publish_that_fits_is_not_too_large_because_of_acks_in_the_same_append() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 50);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    let mut length = 16_000;
    // Find the largest payload that fits.
    loop {
        match rig.done(rig.bus.publish("large", "x".repeat(length).as_str()).send()) {
            Ok(_) => break,
            Err(PublishError::TooLarge { .. }) => length -= 8,
            Err(other) if other.to_string().contains("large") || other.to_string().contains("bytes") => {
                length -= 8;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    for delivery in all.iter().step_by(2) {
        drop(delivery.ack());
    }
    rig.done(rig.bus.publish("large", "x".repeat(length).as_str()).send()).expect("it fitted before");
    rig.stop();
}
