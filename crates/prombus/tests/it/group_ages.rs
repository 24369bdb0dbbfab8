//! The age of the oldest unsettled event of a group.

use crate::rig::{Rig, run_maintenance};
use prombus::{Backend as _, Bus, Topic, TopicOptions};

fn age_ms(rig: &Rig, group: &str) -> Option<u64> {
    let ages = rig.done(rig.backend.group_ages());
    ages.into_iter().find(|it| it.group == group).expect("the group exists").age_ms
}

#[test]
fn an_age_is_that_of_the_first_unsettled_event_and_survives_a_restart() {
    let rig = Rig::new(1);
    let mut fast = rig.subscribe("t", "fast");
    let slow = rig.subscribe("t", "slow");
    assert_eq!((age_ms(&rig, "fast"), age_ms(&rig, "slow")), (Some(0), Some(0)));
    rig.publish("t", "1");
    rig.pass(5_000);
    rig.publish("t", "2");
    rig.pass(1_000);
    assert_eq!((age_ms(&rig, "fast"), age_ms(&rig, "slow")), (Some(6_000), Some(6_000)));
    let first = rig.next(&mut fast).expect("an event");
    let second = rig.next(&mut fast).expect("an event");
    // The floor does not move: the first event is still unsettled.
    rig.ack(&second);
    assert_eq!(age_ms(&rig, "fast"), Some(6_000));
    rig.ack(&first);
    assert_eq!((age_ms(&rig, "fast"), age_ms(&rig, "slow")), (Some(0), Some(6_000)));
    drop((fast, slow));
    let rig = rig.restart();
    let after_start = age_ms(&rig, "slow").expect("known");
    rig.pass(500);
    assert_eq!(age_ms(&rig, "slow"), Some(after_start + 500));
    assert_eq!(age_ms(&rig, "fast"), Some(0));
}

#[test]
fn events_that_retention_removed_have_no_age() {
    let rig = Rig::new(2);
    let topic = Topic::new("t").expect("a topic");
    drop(rig.subscribe("t", "g"));
    rig.publish("t", "1");
    rig.pass(60_000);
    rig.publish("t", "2");
    rig.pass(1_000);
    assert_eq!(age_ms(&rig, "g"), Some(61_000));
    let options = TopicOptions { retention_ms: Some(30_000), ..TopicOptions::default() };
    rig.done(rig.backend.set_topic(&topic, options)).expect("set");
    run_maintenance(&rig.backend);
    assert_eq!(age_ms(&rig, "g"), Some(1_000), "the second event is the oldest that is kept");
}

/// One call looks up at most 2,000 events, and the next calls the others.
#[tokio::test]
async fn with_more_groups_than_lookups_every_group_gets_its_turn() {
    const GROUPS: usize = 2_100;
    let bus = Bus::memory();
    for n in 0..GROUPS {
        let subscribing = bus.subscribe(format!("t{n}"), "g").from_earliest();
        drop(subscribing.await.expect("subscribes"));
        bus.publish(format!("t{n}"), &n).await.expect("publishes");
    }
    let mut known = Vec::new();
    while known.last() != Some(&GROUPS) {
        let ages = bus.backend().group_ages().await;
        assert_eq!(ages.len(), GROUPS);
        known.push(ages.iter().filter(|it| it.age_ms.is_some()).count());
        assert!(known.len() < 100, "{known:?}");
    }
    assert!(known[0] <= 2_000 && known.is_sorted(), "{known:?}");
}
