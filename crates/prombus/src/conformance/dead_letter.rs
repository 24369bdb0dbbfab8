//! Rules about events that a group gives up.

use super::probe::{
    ack, dead_letters, floor, group_info, next, nothing, payloads, publish, publish_numbers, subscribe,
    until, until_floor,
};
use crate::{Bus, Subscription};
use std::collections::HashSet;
use std::time::Duration;

async fn with_attempts(bus: &Bus, topic: &str, group: &str, attempts: u32) -> Subscription {
    let subscribe = bus.subscribe(topic, group).from_earliest().max_attempts(attempts);
    subscribe.await.expect("subscribes")
}

async fn fail(subscription: &mut Subscription, times: u32, reason: &str) {
    for attempt in 1..=times {
        let delivery = next(subscription).await;
        assert_eq!(delivery.attempt(), attempt);
        delivery.nack_after(Duration::ZERO, reason).await.expect("nacks");
    }
}

/// After its last attempt an event is published to `dlq.<topic>`, and the group continues.
pub async fn a_poison_event_becomes_a_dead_letter_and_the_group_continues(bus: Bus) {
    let poison = bus.publish("orders", "poison").key("k").header("h", "v").tag("t").ts(1_000);
    let poison = poison.await.expect("publishes");
    let mut orders = with_attempts(&bus, "orders", "billing", 3).await;
    let before = now_ms(&bus).await;
    fail(&mut orders, 3, "boom").await;
    publish(&bus, "orders", "good").await;
    let good = next(&mut orders).await;
    assert_eq!((good.seq(), good.attempt()), (2, 1));
    ack(&good).await;
    until_floor(&bus, "orders", "billing", 2).await;

    let letter = &dead_letters(&bus, "orders", 1).await[0];
    assert_eq!((letter.topic.as_str(), letter.group.as_str()), ("orders", "billing"));
    assert_eq!((letter.err.as_str(), letter.attempts), ("boom", 3));
    assert!(letter.ts >= before, "given up at {}, after {before}", letter.ts);
    let original = &letter.original;
    assert_eq!((original.id, original.seq, original.ts), (poison.id, 1, 1_000));
    assert_eq!((original.topic.as_str(), original.payload.get()), ("orders", "\"poison\""));
    assert_eq!((original.key.as_deref(), original.tags.as_slice()), (Some("k"), &["t".to_owned()][..]));
    assert_eq!(original.headers.get("h").map(String::as_str), Some("v"));
    let info = group_info(&bus, "orders", "billing").await;
    assert_eq!((info.counters.dead_lettered, info.waiting, info.in_flight), (1, 0, 0));
}

/// The current time of the bus: the `ts` that it gives to an event now.
async fn now_ms(bus: &Bus) -> i64 {
    publish(bus, "clock", 0).await;
    let page = bus.read_from(&super::probe::topic("clock"), 1, crate::PullLimit::default()).await;
    page.expect("reads").events[0].ts()
}

/// A dead letter has these seven fields and no other.
pub async fn a_dead_letter_has_the_documented_fields(bus: Bus) {
    publish(&bus, "orders", "poison").await;
    let mut orders = with_attempts(&bus, "orders", "billing", 1).await;
    fail(&mut orders, 1, "boom").await;
    dead_letters(&bus, "orders", 1).await;
    let letter: serde_json::Value =
        serde_json::from_str(&payloads(&bus, "dlq.orders").await[0]).expect("a dead letter is JSON");
    let fields: HashSet<&str> = letter.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        HashSet::from(["topic", "group", "original", "err", "attempts", "ts", "subscription"])
    );
    assert_eq!(letter["subscription"], "orders");
}

/// A member can give up an event at once, without using all attempts.
pub async fn an_event_that_is_given_up_is_a_dead_letter_at_once(bus: Bus) {
    publish(&bus, "orders", "poison").await;
    let mut orders = with_attempts(&bus, "orders", "billing", 5).await;
    next(&mut orders).await.give_up("no such customer").await.expect("gives up");
    let letter = &dead_letters(&bus, "orders", 1).await[0];
    assert_eq!((letter.err.as_str(), letter.attempts), ("no such customer", 1));
    until_floor(&bus, "orders", "billing", 1).await;
    nothing(&mut orders).await;
    let info = group_info(&bus, "orders", "billing").await;
    assert_eq!((info.counters.dead_lettered, info.counters.nacked, info.in_flight), (1, 1, 0));
}

/// An expired lease is a failed attempt too; the dead letter names it as the error.
pub async fn an_event_that_times_out_becomes_a_dead_letter(bus: Bus) {
    publish(&bus, "orders", "slow").await;
    let orders = bus.subscribe("orders", "billing").from_earliest().max_attempts(1);
    let mut orders = orders.ack_timeout(Duration::from_millis(60)).await.expect("subscribes");
    next(&mut orders).await;
    let letter = &dead_letters(&bus, "orders", 1).await[0];
    assert_eq!((letter.err.as_str(), letter.attempts), ("lease_expired", 1));
    until_floor(&bus, "orders", "billing", 1).await;
}

/// An event whose members are lost each time becomes a dead letter too.
pub async fn an_event_whose_members_are_lost_becomes_a_dead_letter(bus: Bus) {
    publish(&bus, "orders", "deadly").await;
    for attempt in 1..=2 {
        let mut orders = with_attempts(&bus, "orders", "billing", 2).await;
        assert_eq!(next(&mut orders).await.attempt(), attempt);
    }
    let letter = &dead_letters(&bus, "orders", 1).await[0];
    assert_eq!((letter.err.as_str(), letter.attempts), ("member_lost", 2));
    until_floor(&bus, "orders", "billing", 1).await;
}

/// A member with a lower limit of attempts gives up an event that others have tried as often as its limit.
pub async fn a_member_with_a_lower_limit_gives_up_an_event_that_others_tried(bus: Bus) {
    publish_numbers(&bus, "orders", 2).await;
    let patient = bus.subscribe("orders", "billing").from_earliest().max_attempts(10).batch_size(1);
    let mut patient = patient.await.expect("subscribes");
    fail(&mut patient, 2, "boom").await;
    patient.unsubscribe().await.expect("leaves");
    let mut hasty = with_attempts(&bus, "orders", "billing", 2).await;
    let second = next(&mut hasty).await;
    assert_eq!(second.seq(), 2);
    assert_eq!(dead_letters(&bus, "orders", 1).await[0].attempts, 2);
}

/// Two groups that give up the same event write two dead letters.
pub async fn dead_letters_of_two_groups_do_not_collide(bus: Bus) {
    publish(&bus, "orders", "poison").await;
    for group in ["billing", "shipping"] {
        let mut orders = with_attempts(&bus, "orders", group, 1).await;
        fail(&mut orders, 1, group).await;
    }
    let letters = dead_letters(&bus, "orders", 2).await;
    assert_eq!((letters[0].group.as_str(), letters[1].group.as_str()), ("billing", "shipping"));
    assert_eq!(letters[0].original.id, letters[1].original.id);
}

/// An event that fails in a dead-letter topic stays there: no dead letter of a dead letter is written.
pub async fn events_that_fail_in_a_dead_letter_topic_are_parked(bus: Bus) {
    publish(&bus, "orders", "poison").await;
    let mut orders = with_attempts(&bus, "orders", "billing", 1).await;
    fail(&mut orders, 1, "boom").await;
    let mut letters = with_attempts(&bus, "dlq.orders", "doctor", 1).await;
    fail(&mut letters, 1, "hopeless").await;
    until_floor(&bus, "dlq.orders", "doctor", 1).await;
    nothing(&mut letters).await;
    let topics = bus.topics().await.expect("lists topics");
    let names: Vec<&str> = topics.iter().map(|info| info.topic.as_str()).collect();
    assert_eq!(names, ["dlq.orders", "orders"]);
    assert_eq!(payloads(&bus, "dlq.orders").await.len(), 1);
}

/// A group that reads dead letters gets them as they arrive.
pub async fn a_group_on_dead_letters_gets_them_as_they_arrive(bus: Bus) {
    let mut letters = subscribe(&bus, "dlq.orders", "doctor").await;
    let waiting = tokio::spawn(async move { next(&mut letters).await.json::<crate::DeadLetter>() });
    publish(&bus, "orders", "poison").await;
    let mut orders = with_attempts(&bus, "orders", "billing", 1).await;
    fail(&mut orders, 1, "boom").await;
    let letter =
        super::probe::soon("the dead letter", waiting).await.expect("no panic").expect("a dead letter");
    assert_eq!(letter.err, "boom");
}

/// An ack after the event was given up is too late.
pub async fn an_ack_of_an_event_that_was_given_up_is_stale(bus: Bus) {
    publish(&bus, "orders", "poison").await;
    let mut orders = with_attempts(&bus, "orders", "billing", 1).await;
    let delivery = next(&mut orders).await;
    delivery.nack("boom").await.expect("nacks");
    dead_letters(&bus, "orders", 1).await;
    assert!(delivery.ack().await.expect("succeeds").stale);
    assert_eq!(floor(&bus, "orders", "billing").await, 1);
}

/// A deleted group gives nothing up: the deliveries of its members have not failed.
pub async fn a_deleted_group_writes_no_dead_letters(bus: Bus) {
    publish(&bus, "orders", "fine").await;
    let mut orders = with_attempts(&bus, "orders", "billing", 1).await;
    let delivery = next(&mut orders).await;
    bus.delete_group("orders", "billing").await.expect("deletes");
    drop(delivery.nack("too late"));
    drop(orders);
    // A test cannot wait for a dead letter that must not come. So it waits for a later dead letter, of another group.
    let mut other = with_attempts(&bus, "orders", "other", 1).await;
    fail(&mut other, 1, "boom").await;
    until("the dead letter", || async { !payloads(&bus, "dlq.orders").await.is_empty() }).await;
    let letters = dead_letters(&bus, "orders", 1).await;
    assert_eq!(letters[0].group, "other");
}
