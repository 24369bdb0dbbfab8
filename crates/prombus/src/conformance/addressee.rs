//! Rules about events that are addressed to one group, and about the states of dead letters.

use super::probe::{ack, dead_letters, group_info, next, nothing, publish, subscribe, topic, until_floor};
use crate::engine::LetterClosing;
use crate::{
    Addressee, Bus, ClosedCount, PublishError, PublishOptions, PullLimit, Start, TopicAdminError, Uuid,
};

/// Only the addressee receives the event, with all its fields. The cursors of other groups move over it.
pub async fn only_the_addressee_receives_an_addressed_event(bus: Bus) {
    let mut billing = subscribe(&bus, "orders.*", "billing").await;
    let mut audit = subscribe(&bus, "orders.new", "audit").await;
    // The same name on another subscription is another group.
    let mut other = subscribe(&bus, "orders.new", "billing").await;
    publish(&bus, "orders.new", 1).await;
    let addressed = bus.publish("orders.new", &2).key("k").tag("t").header("h", "v");
    let addressed = addressed.addressee("orders.*", "billing").await.expect("publishes");
    publish(&bus, "orders.new", 3).await;
    for group in [&mut audit, &mut other] {
        for seq in [1, 3] {
            let delivery = next(group).await;
            assert_eq!(delivery.seq(), seq);
            ack(&delivery).await;
        }
        nothing(group).await;
    }
    for seq in 1..=3 {
        let delivery = next(&mut billing).await;
        assert_eq!((delivery.seq(), delivery.is_addressed()), (seq, seq == 2));
        if seq == 2 {
            let record = delivery.record().expect("a record");
            assert_eq!((record.id, delivery.key(), record.tags.len()), (addressed.id, Some("k"), 1));
            assert_eq!(record.addressee, Some(Addressee::new("orders.*", "billing")));
        }
        ack(&delivery).await;
    }
    for (subscription, group) in [("orders.new", "audit"), ("orders.new", "billing"), ("orders.*", "billing")]
    {
        until_floor(&bus, subscription, group, 3).await;
        let info = group_info(&bus, subscription, group).await;
        let passed_over = u64::from(subscription == "orders.new");
        assert_eq!((info.lag, info.counters.passed_over), (0, passed_over), "{subscription} {group}");
    }
    // Readers without a group see the event.
    let page = bus.read_from(&topic("orders.new"), 1, PullLimit::default()).await.expect("reads");
    let addressed: Vec<bool> = page.events.iter().map(crate::Event::is_addressed).collect();
    assert_eq!(addressed, [false, true, false]);
}

/// An addressed event is redelivered like any other, and fails into a dead letter of its group.
pub async fn an_addressed_event_that_fails_becomes_a_dead_letter(bus: Bus) {
    let group = bus.subscribe("orders", "billing").from_earliest().max_attempts(2);
    let mut billing = group.await.expect("subscribes");
    bus.publish("orders", &1).addressee("orders", "billing").await.expect("publishes");
    for attempt in 1..=2 {
        let delivery = next(&mut billing).await;
        assert_eq!(delivery.attempt(), attempt);
        delivery.nack_after(std::time::Duration::ZERO, "boom").await.expect("nacks");
    }
    let letter = &dead_letters(&bus, "orders", 1).await[0];
    assert_eq!(letter.subscription.as_deref(), Some("orders"));
    assert_eq!(letter.original.addressee, Some(Addressee::new("orders", "billing")));
}

/// An event that is addressed to a group that does not exist, or does not read its topic, is refused with its whole batch.
pub async fn an_unknown_addressee_is_an_error(bus: Bus) {
    subscribe(&bus, "orders", "billing").await.unsubscribe().await.expect("leaves");
    let unknown = [("orders", "audit"), ("orders.*", "billing")];
    for (subscription, group) in unknown {
        let refused = bus.publish("orders", &1).addressee(subscription, group).await.expect_err("is unknown");
        let (subscription, group) = (subscription.to_owned(), group.to_owned());
        assert_eq!(refused, PublishError::UnknownGroup { subscription, group });
    }
    // A group that does not read the topic would not receive the event.
    let refused = bus.publish("payments", &1).addressee("orders", "billing").await.expect_err("is not read");
    let (subscription, group) = ("orders".to_owned(), "billing".to_owned());
    assert_eq!(refused, PublishError::NotRead { subscription, group, topic: "payments".to_owned() });
    let mut batch = bus.batch();
    let options = PublishOptions { addressee: Some(Addressee::new("orders", "audit")), ..Default::default() };
    batch.push("orders", &1, &PublishOptions::default()).expect("is valid");
    batch.push("orders", &2, &options).expect("is valid");
    assert!(bus.publish_batch(batch).await.is_err());
    // The group exists although it has no member.
    let published = bus.publish("orders", &1).addressee("orders", "billing").await.expect("publishes");
    assert_eq!(published.seq, 1, "nothing of the refused batches was kept");
}

/// States by key ignore an addressed event: it neither sets nor deletes its key.
pub async fn states_ignore_addressed_events(bus: Bus) {
    subscribe(&bus, "kv", "g").await.unsubscribe().await.expect("leaves");
    bus.publish("kv", "old").key("a").await.expect("publishes");
    bus.publish("kv", "kept").key("b").await.expect("publishes");
    let mut follower = bus.follow_state("kv").await.expect("follows");
    bus.publish("kv", "copy").key("a").addressee("kv", "g").await.expect("publishes");
    bus.publish_json("kv", "null").key("b").addressee("kv", "g").await.expect("publishes");
    bus.publish("kv", "copy").key("c").addressee("kv", "g").await.expect("publishes");
    let state = bus.load_state("kv").await.expect("loads");
    let found = |key| state.get(key).map(|event| event.payload().to_owned());
    assert_eq!((found("a").as_deref(), found("b").as_deref()), (Some("\"old\""), Some("\"kept\"")));
    assert_eq!((state.len(), state.position().map(|position| position.seq)), (2, Some(5)));
    for _ in 0..3 {
        follower.next().await.expect("follows");
    }
    assert_eq!(follower.state().get("a").map(|event| event.payload().to_owned()), found("a"));
    assert_eq!((follower.state().len(), follower.state().position().map(|it| it.seq)), (2, Some(5)));
    // A tombstone after the addressed copies still deletes the key.
    bus.publish_json("kv", "null").key("a").await.expect("publishes");
    assert_eq!(bus.load_state("kv").await.expect("loads").len(), 1);
}

/// Letters are open until they are closed; the first closing counts.
pub async fn dead_letters_are_open_until_they_are_closed(bus: Bus) {
    let mut billing =
        bus.subscribe("orders", "billing").from_earliest().max_attempts(1).await.expect("subscribes");
    for number in 1..=4 {
        publish(&bus, "orders", number).await;
        next(&mut billing).await.nack("boom").await.expect("nacks");
    }
    dead_letters(&bus, "orders", 4).await;
    let letters = topic("dlq.orders");
    let page = bus.read_from(&letters, 1, PullLimit::default()).await.expect("reads");
    let ids: Vec<Uuid> = page.events.iter().map(crate::Event::id).collect();
    let backend = bus.backend();
    let open = || {
        backend.figures().dead_letters.iter().map(|it| (it.topic.to_string(), it.open)).collect::<Vec<_>>()
    };
    assert_eq!(open(), [("dlq.orders".to_owned(), 4)]);
    let close = |ids: Vec<Uuid>, closing| {
        let letters = letters.clone();
        async move { backend.close_dead_letters(&letters, &ids, closing).await }
    };
    let closed = close(vec![ids[0], ids[2], Uuid::nil()], LetterClosing::Redriven).await;
    assert_eq!(closed, Ok(ClosedCount { closed: 2, unknown: 1 }));
    let closed = close(vec![ids[0], ids[1]], LetterClosing::Discarded).await;
    assert_eq!(closed, Ok(ClosedCount { closed: 1, unknown: 0 }));
    let states = backend.dead_letters(&letters).expect("the topic exists");
    assert_eq!((states.open, states.last_seq), (1, 4));
    assert_eq!((states.redriven, states.discarded), (vec![(1, 1), (3, 3)], vec![(2, 2)]));
    assert_eq!(open(), [("dlq.orders".to_owned(), 1)]);
    // Other topics have no letters.
    let orders = topic("orders");
    assert_eq!(backend.dead_letters(&orders), None);
    let refused = backend.close_dead_letters(&orders, &ids, LetterClosing::Redriven).await;
    assert_eq!(refused, Err(TopicAdminError::UnknownTopic("orders".to_owned())));
    // A topic that is deleted and created again has only open letters.
    bus.delete_topic(&letters).await.expect("deletes");
    publish(&bus, "orders", 5).await;
    next(&mut billing).await.nack("boom").await.expect("nacks");
    dead_letters(&bus, "orders", 1).await;
    assert_eq!(open(), [("dlq.orders".to_owned(), 1)]);
}

/// An event that fails again after its dead letter was closed becomes a new dead letter, which is open.
pub async fn an_event_that_fails_again_after_its_letter_was_closed_has_a_new_letter(bus: Bus) {
    let group = bus.subscribe("orders", "billing").from_earliest().max_attempts(1);
    let mut billing = group.await.expect("subscribes");
    publish(&bus, "orders", 1).await;
    let letters = topic("dlq.orders");
    let mut ids = Vec::new();
    for round in 1..=3 {
        next(&mut billing).await.nack(&format!("boom {round}")).await.expect("nacks");
        dead_letters(&bus, "orders", round).await;
        let states = bus.backend().dead_letters(&letters).expect("the topic exists");
        assert_eq!((states.open, states.last_seq), (1, round as u64));
        let page = bus.read_from(&letters, states.last_seq, PullLimit::default()).await.expect("reads");
        ids.push(page.events[0].id());
        // While the letter is open, another failure adds nothing.
        bus.seek("orders", "billing", Start::Earliest).await.expect("moves");
        next(&mut billing).await.nack("boom again").await.expect("nacks");
        until_floor(&bus, "orders", "billing", 1).await;
        assert_eq!(bus.backend().dead_letters(&letters).expect("the topic exists").last_seq, round as u64);
        let last = *ids.last().expect("a letter");
        bus.backend().close_dead_letters(&letters, &[last], LetterClosing::Discarded).await.expect("closes");
        bus.seek("orders", "billing", Start::Earliest).await.expect("moves");
    }
    ids.dedup();
    assert_eq!(ids.len(), 3);
}
