//! Rules about publishing and reading.

use super::probe::{payloads, publish, publish_numbers, topic};
use crate::{Bus, PublishOptions, Published, PullLimit, ReadError, Start, Uuid};

const ID: Uuid = Uuid::from_u128(0x0196_f1d0_1234_7000_8000_0000_0000_0042);

/// Seqs are 1, 2, 3 … in each topic.
pub async fn publish_returns_seqs_1_2_3_in_each_topic(bus: Bus) {
    let seqs = |published: &[Published]| published.iter().map(|it| it.seq).collect::<Vec<_>>();
    assert_eq!(seqs(&publish_numbers(&bus, "orders", 3).await), [1, 2, 3]);
    assert_eq!(seqs(&publish_numbers(&bus, "other", 2).await), [1, 2]);
    let fourth = publish(&bus, "orders", 4).await;
    assert_eq!((fourth.seq, fourth.duplicate), (4, false));
    assert_eq!(payloads(&bus, "orders").await, ["1", "2", "3", "4"]);
}

/// Ids that the bus assigns are UUIDv7 and rise across all topics.
pub async fn ids_are_uuid_v7_and_rise(bus: Bus) {
    let mut ids = Vec::new();
    for number in 0..50 {
        ids.push(publish(&bus, ["a", "b"][number % 2], number).await.id);
    }
    let mut batch = bus.batch();
    for number in 0..50 {
        batch.push("a", &number, &PublishOptions::default()).expect("a good event");
    }
    ids.extend(bus.publish_batch(batch).await.expect("publishes").iter().map(|it| it.id));
    assert!(ids.iter().all(|id| id.get_version_num() == 7), "{ids:?}");
    assert!(ids.is_sorted_by(|one, other| one < other), "{ids:?}");
}

/// Publishes that do not wait for each other are stored in the order of calls.
pub async fn publishes_without_waiting_keep_their_order(bus: Bus) {
    let in_progress: Vec<_> = (1..=100u64).map(|number| bus.publish("orders", &number).send()).collect();
    for (publishing, number) in in_progress.into_iter().zip(1u64..) {
        assert_eq!(publishing.await.expect("publishes").seq, number);
    }
    let expected: Vec<String> = (1..=100).map(|number| number.to_string()).collect();
    assert_eq!(payloads(&bus, "orders").await, expected);
}

/// A publish with an id that the topic already has adds nothing. In another topic the same id is the id of another event.
pub async fn publish_with_a_known_id_is_a_duplicate_and_adds_nothing(bus: Bus) {
    let first = bus.publish("orders", "first").id(ID).await.expect("publishes");
    assert_eq!(first, Published { id: ID, seq: 1, duplicate: false });
    publish(&bus, "orders", "between").await;
    let again = bus.publish("orders", "again").id(ID).await.expect("succeeds");
    assert_eq!(again, Published { id: ID, seq: 1, duplicate: true });
    assert_eq!(payloads(&bus, "orders").await, ["\"first\"", "\"between\""]);

    let elsewhere = bus.publish("other", "first").id(ID).await.expect("publishes");
    assert_eq!(elsewhere, Published { id: ID, seq: 1, duplicate: false });
    assert_eq!(publish(&bus, "orders", "next").await.seq, 3);
}

/// Two concurrent publishes with the same id add one event.
pub async fn a_duplicate_of_a_publish_in_progress_adds_nothing(bus: Bus) {
    let one = bus.publish("orders", "one").id(ID).send();
    let other = bus.publish("orders", "other").id(ID).send();
    let (one, other) = (one.await.expect("publishes"), other.await.expect("succeeds"));
    assert_eq!((one.duplicate, other.duplicate), (false, true));
    assert_eq!(payloads(&bus, "orders").await, ["\"one\""]);
}

/// An id that the bus assigned is known too: a second publish with the returned id adds nothing.
pub async fn publish_with_an_id_that_the_bus_assigned_is_a_duplicate(bus: Bus) {
    let published = publish_numbers(&bus, "orders", 3).await;
    let again = bus.publish("orders", "again").id(published[1].id).await.expect("succeeds");
    assert_eq!(again, Published { duplicate: true, ..published[1] });
    assert_eq!(payloads(&bus, "orders").await, ["1", "2", "3"]);
}

/// If an id occurs twice in one batch, only one event is added.
pub async fn a_repeated_id_inside_one_batch_is_a_duplicate(bus: Bus) {
    let with_id = PublishOptions { id: Some(ID), ..PublishOptions::default() };
    let mut batch = bus.batch();
    batch.push("orders", "first", &with_id).expect("a good event");
    batch.push("orders", "second", &PublishOptions::default()).expect("a good event");
    batch.push("orders", "again", &with_id).expect("a good event");
    let published = bus.publish_batch(batch).await.expect("publishes");
    let outcomes: Vec<_> = published.iter().map(|it| (it.seq, it.duplicate)).collect();
    assert_eq!(outcomes, [(1, false), (2, false), (1, true)]);
    assert_eq!(payloads(&bus, "orders").await, ["\"first\"", "\"second\""]);
}

/// A batch may contain events of several topics; it returns one outcome per event, in order.
pub async fn a_batch_returns_an_outcome_for_each_event(bus: Bus) {
    let mut batch = bus.batch();
    for (name, number) in [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("a", 3)] {
        batch.push(name, &number, &PublishOptions::default()).expect("a good event");
    }
    let published = bus.publish_batch(batch).await.expect("publishes");
    assert_eq!(published.iter().map(|it| it.seq).collect::<Vec<_>>(), [1, 1, 2, 1, 3]);
    assert_eq!(payloads(&bus, "a").await, ["1", "2", "3"]);
    assert!(bus.publish_batch(bus.batch()).await.expect("an empty batch is fine").is_empty());
}

/// A bad event is refused when it is added; the batch keeps its good events and can still be published.
pub async fn a_bad_event_is_refused_when_it_is_added_to_a_batch(bus: Bus) {
    let mut batch = bus.batch();
    batch.push("orders", &1, &PublishOptions::default()).expect("a good event");
    batch.push_json(topic("orders"), b"{\"a\":", &PublishOptions::default()).expect_err("not JSON");
    batch.push("bad topic", &2, &PublishOptions::default()).expect_err("a bad topic");
    let bad_time = PublishOptions { ts: Some(-1), ..PublishOptions::default() };
    batch.push("orders", &3, &bad_time).expect_err("a bad option");
    assert_eq!(batch.len(), 1);
    assert_eq!(payloads(&bus, "orders").await, [""; 0]);
    bus.publish_batch(batch).await.expect("publishes");
    assert_eq!(payloads(&bus, "orders").await, ["1"]);
}

/// All fields of an event are returned as they were published, the payload byte by byte.
pub async fn an_event_keeps_all_its_fields(bus: Bus) {
    let (sid, cause) = (Uuid::from_u128(7), Uuid::from_u128(8));
    let json = "{ \"amount\": 1.50,\t\"text\": \"\\u00e9 é\" }";
    let published = bus
        .publish_json("orders", json)
        .ts(1_700_000_000_123)
        .key("customer-1")
        .header("trace", "a\"b")
        .tag("#duck")
        .tag("#stt")
        .caused_by(cause)
        .sid(sid)
        .await
        .expect("publishes");
    let mut orders = super::probe::subscribe(&bus, "orders", "billing").await;
    let delivery = super::probe::next(&mut orders).await;
    let page = bus.read(&topic("orders"), Start::Earliest, PullLimit::default()).await.expect("reads");
    for event in [delivery.event(), &page.events[0]] {
        assert_eq!((event.id(), event.seq()), (published.id, published.seq));
        assert_eq!((event.ts(), event.key()), (1_700_000_000_123, Some("customer-1")));
        assert_eq!(event.header("trace").as_deref(), Some("a\"b"));
        assert!(event.has_tag("#duck") && event.has_tag("#stt") && !event.has_tag("#other"));
        assert_eq!(event.payload(), json);
        let record = event.record().expect("a record");
        assert_eq!((record.id, record.seq, record.sid), (published.id, 1, Some(sid)));
        assert_eq!((record.topic.as_str(), record.caused_by), ("orders", vec![cause]));
    }
}

/// Line breaks between tokens become spaces, so that a record is one line.
pub async fn line_breaks_in_a_payload_become_spaces(bus: Bus) {
    bus.publish_json("orders", "{\r\n\"a\":\n[1,\n2]}").await.expect("publishes");
    assert_eq!(payloads(&bus, "orders").await, ["{  \"a\": [1, 2]}"]);
}

/// Events can be read without a group, page by page.
pub async fn read_goes_page_by_page(bus: Bus) {
    let published = publish_numbers(&bus, "orders", 10).await;
    let orders = topic("orders");
    let limit = PullLimit { events: 4, ..PullLimit::default() };
    let mut page = bus.read(&orders, Start::Earliest, limit).await.expect("reads");
    let mut pages = Vec::new();
    while !page.events.is_empty() {
        pages.push(page.events.iter().map(crate::Event::seq).collect::<Vec<_>>());
        page = bus.read_from(&orders, page.next_seq, limit).await.expect("reads");
    }
    assert_eq!(pages, [vec![1, 2, 3, 4], vec![5, 6, 7, 8], vec![9, 10]]);
    assert_eq!(page.next_seq, 11);

    let first = |page: crate::Page| page.events.first().map(crate::Event::seq);
    let after = bus.read(&orders, Start::AfterId(published[6].id), limit).await.expect("reads");
    assert_eq!(first(after), Some(8));
    let latest = bus.read(&orders, Start::Latest, limit).await.expect("reads");
    assert_eq!((latest.next_seq, first(latest)), (11, None));
    let one_byte = PullLimit { bytes: 1, ..PullLimit::default() };
    let smallest = bus.read(&orders, Start::Earliest, one_byte).await.expect("reads");
    assert_eq!((smallest.events.len(), smallest.next_seq), (1, 2), "one event is returned whatever its size");
}

/// Reading an unknown topic, or from an unknown id, is an error.
pub async fn read_of_an_unknown_topic_or_id_is_an_error(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let limit = PullLimit::default();
    let unknown = bus.read(&topic("other"), Start::Earliest, limit).await.expect_err("no such topic");
    assert_eq!(unknown, ReadError::UnknownTopic("other".to_owned()));
    let unknown = bus.read(&topic("orders"), Start::AfterId(ID), limit).await.expect_err("no such id");
    assert_eq!(unknown, ReadError::UnknownId(ID));
}
