//! Rules about the information and counters of topics and groups.

use super::probe::{ack, group_info, next, publish, publish_numbers, subscribe, take};
use crate::{Bus, TopicInfo};
use std::time::Duration;

/// `topics()` lists all topics, sorted by name.
pub async fn topics_list_their_seqs_and_groups(bus: Bus) {
    publish_numbers(&bus, "orders", 3).await;
    publish(&bus, "apples", 1).await;
    let _empty = subscribe(&bus, "later", "billing").await;
    let _one = subscribe(&bus, "orders", "billing").await;
    let _two = subscribe(&bus, "orders", "shipping").await;
    let _all = subscribe(&bus, "**", "audit").await;
    let info = |name, first_seq, last_seq, groups| TopicInfo {
        topic: super::probe::topic(name),
        first_seq,
        last_seq,
        groups,
        events: last_seq,
        bytes: 0,
    };
    let expected = [info("apples", Some(1), 1, 1), info("later", None, 0, 2), info("orders", Some(1), 3, 3)];
    let mut topics = bus.topics().await.expect("lists topics");
    for topic in &mut topics {
        // The number of bytes depends on the store.
        assert_eq!(std::mem::take(&mut topic.bytes) > 0, topic.events > 0, "{topic:?}");
    }
    assert_eq!(topics, expected);
}

/// `groups()` reports the members, the lag, the deliveries in flight and waiting, and the oldest unsettled event.
pub async fn groups_report_lag_in_flight_and_oldest_unacked(bus: Bus) {
    let published = publish_numbers(&bus, "orders", 6).await;
    let orders = bus.subscribe("orders", "billing").from_earliest().max_in_flight(4);
    let mut orders = orders.await.expect("subscribes");
    let _idle = subscribe(&bus, "orders", "billing").await;
    let all = take(&mut orders, 4).await;
    ack(&all[0]).await;
    ack(&all[2]).await;
    all[3].nack_after(Duration::from_secs(60), "later").await.expect("nacks");
    let info = group_info(&bus, "orders", "billing").await;
    assert_eq!((info.topic.as_str(), info.group.as_str(), info.members), ("orders", "billing", 2));
    assert_eq!((info.lag, info.in_flight, info.waiting), (4, 1, 1));
    let oldest = info.oldest_unacked.expect("something is not acked");
    assert_eq!((oldest.topic.as_str(), oldest.seq, oldest.id), ("orders", 2, published[1].id));
    assert_eq!(oldest.ts, all[1].ts());
    assert!(oldest.age_ms < 60_000 && info.made_ms >= all[0].ts(), "{oldest:?}");
    let [age] = &bus.backend().group_ages().await[..] else { panic!("one group has one age") };
    assert_eq!((age.topic.as_str(), age.group.as_str()), ("orders", "billing"));
    assert!(
        age.age_ms.is_some_and(|age_ms| (oldest.age_ms..60_000).contains(&age_ms)),
        "{age:?}, {oldest:?}"
    );
    let topic = &info.topics[0];
    assert_eq!((topic.floor, topic.settled_above, topic.last_seq, topic.lag), (1, 1, 6, 4));
    let counters = info.counters;
    assert_eq!((counters.delivered, counters.acked, counters.nacked), (4, 2, 1));
}

/// A group that has settled all events has no lag and no oldest unacked event.
pub async fn a_group_that_has_settled_everything_has_no_lag(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    assert_eq!(group_info(&bus, "orders", "billing").await.lag, 1);
    ack(&next(&mut orders).await).await;
    let info = group_info(&bus, "orders", "billing").await;
    assert_eq!((info.lag, info.in_flight, info.oldest_unacked), (0, 0, None));
    assert_eq!(bus.backend().group_ages().await[0].age_ms, Some(0));
    drop(orders);
    assert_eq!(group_info(&bus, "orders", "billing").await.members, 0);
}

/// `groups()` lists the leases with their event, member, attempt and remaining time.
pub async fn groups_list_their_leases(bus: Bus) {
    let published = publish_numbers(&bus, "orders", 2).await;
    let member = || bus.subscribe("orders", "billing").from_earliest().batch_size(1);
    let mut one = member().ack_timeout(Duration::from_secs(100)).await.expect("subscribes");
    let mut other = member().await.expect("subscribes");
    next(&mut one).await;
    let again = next(&mut other).await;
    again.nack_after(Duration::ZERO, "again").await.expect("nacks");
    next(&mut other).await;
    let leases = group_info(&bus, "orders", "billing").await.leases;
    let shown: Vec<_> = leases.iter().map(|it| (it.topic.as_str(), it.seq, it.id, it.attempt)).collect();
    assert_eq!(shown, [("orders", 1, published[0].id, 1), ("orders", 2, published[1].id, 2)]);
    assert_ne!(leases[0].member, leases[1].member);
    assert!((80_000..=100_000).contains(&leases[0].ends_in_ms), "{} ms", leases[0].ends_in_ms);
    assert!((20_000..=30_000).contains(&leases[1].ends_in_ms), "{} ms", leases[1].ends_in_ms);
}

/// Groups are listed in the order in which they were created.
pub async fn groups_are_listed_oldest_first(bus: Bus) {
    for (topic, group) in [("z", "one"), ("a", "two"), ("m.*", "three")] {
        subscribe(&bus, topic, group).await;
    }
    let groups = bus.groups().await.expect("lists groups");
    let names: Vec<_> = groups.iter().map(|it| (it.topic.as_str(), it.group.as_str())).collect();
    assert_eq!(names, [("z", "one"), ("a", "two"), ("m.*", "three")]);
}

/// `group()` lists the members and the leases of one group.
pub async fn a_group_lists_its_members(bus: Bus) {
    publish_numbers(&bus, "orders", 2).await;
    let spec = crate::GroupSpec {
        subscription: crate::Pattern::new("orders").expect("a pattern"),
        group: crate::GroupName::new("billing").expect("a name"),
        topics: Vec::new(),
        filter: None,
        from: crate::Start::Earliest,
        expire_ms: None,
    };
    let options = crate::MemberOptions { label: Some("ann".to_owned()), ..crate::MemberOptions::default() };
    let joined = bus.backend().join(spec, options).await.expect("joins");
    joined.membership.pause(true);
    let mut other = subscribe(&bus, "orders", "billing").await;
    take(&mut other, 2).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let info = bus.backend().group("orders", "billing").await.expect("can be read").expect("is there");
    let members: Vec<_> =
        info.member_list.iter().map(|it| (it.label.as_str(), it.in_flight, it.is_paused)).collect();
    assert_eq!(members, [("ann", 0, true), ("in process", 2, false)]);
    assert!(info.leases.iter().all(|it| (20..10_000).contains(&it.age_ms)), "{:?}", info.leases);
    assert_eq!(info.leases[0].member, info.member_list[1].number);
    assert!(bus.backend().group("orders", "unknown").await.expect("can be read").is_none());
}

/// Figures count publishes by topic, and acks, nacks and redeliveries by group.
pub async fn figures_count_publishes_and_settles(bus: Bus) {
    publish_numbers(&bus, "orders", 5).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let deliveries = take(&mut orders, 3).await;
    ack(&deliveries[0]).await;
    deliveries[1].nack_after(Duration::ZERO, "again").await.expect("nacks");
    let again = loop {
        let delivery = next(&mut orders).await;
        if delivery.attempt() == 2 {
            break delivery;
        }
    };
    assert_eq!(again.seq(), 2);
    let figures = bus.backend().figures();
    let topics: Vec<_> = figures.topics.iter().map(|it| (it.topic.as_str(), it.published)).collect();
    assert_eq!(topics, [("orders", 5)]);
    let group = &figures.groups[0];
    assert_eq!((group.topic.as_str(), group.group.as_str(), group.members), ("orders", "billing", 1));
    assert_eq!((group.lag, group.counters.acked, group.counters.nacked), (4, 1, 1));
    assert_eq!(group.counters.redelivered_nacked, 1);
    assert!(figures.store.bytes > 0);
}

/// `arrival()` waits, without a group, until a topic has an event with a given seq, also if the topic does not exist yet.
pub async fn arrival_waits_for_the_next_event(bus: Bus) {
    let (backend, topic) = (bus.backend(), super::probe::topic("orders"));
    assert_eq!(backend.topic(topic.as_str()), None);
    for seq in 1..=3 {
        let mut arrival = backend.arrival(&topic, seq);
        let early = tokio::time::timeout(super::probe::WHILE, &mut arrival).await;
        assert!(early.is_err(), "`arrival` resolved before seq {seq} was published");
        publish(&bus, "orders", seq).await;
        super::probe::soon("the arrival", arrival).await.expect("it came");
    }
    assert_eq!(backend.topic(topic.as_str()), Some(topic.clone()));
    super::probe::soon("an event that exists", backend.arrival(&topic, 1)).await.expect("it is there");
    let waiting = backend.arrival(&topic, 9);
    let closing = async {
        tokio::time::sleep(super::probe::WHILE).await;
        assert_eq!(backend.health(), Ok(()));
        bus.close().await.expect("closes");
    };
    let (ended, ()) = super::probe::soon("the end", async { tokio::join!(waiting, closing) }).await;
    assert!(ended.is_err(), "`arrival` succeeded although the bus was closed");
    assert!(backend.health().is_err());
}
