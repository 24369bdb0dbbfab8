//! Finding events by id, time and key. (The power-cut tests also compare every lookup with a scan of all events.)

use crate::support::{Random, Rig, event, read_all};
use prombus_log::{EventId, NewEvent};

#[test]
fn a_publishers_id_is_a_duplicate_over_the_whole_history_and_after_a_restart() {
    let mut rig = Rig::new(1);
    let mut random = Random::new(7);
    let topic = rig.topic("t");
    let ids: Vec<EventId> = (0..400).map(|_| random.id()).collect();
    let with_id = |id: EventId| NewEvent { id: Some(id), ..event(topic, b"once") };
    for (at, &id) in ids.iter().enumerate() {
        let outcome = rig.put_events(&[with_id(id)])[0];
        assert_eq!((outcome.seq, outcome.duplicate), (at as u64 + 1, false));
    }
    assert!(rig.log.stats().segments > 3);
    for round in 0..2 {
        for (at, &id) in ids.iter().enumerate() {
            let outcome = rig.put_events(&[with_id(id)])[0];
            assert_eq!(
                (outcome.seq, outcome.duplicate, outcome.id),
                (at as u64 + 1, true, id),
                "round {round}"
            );
        }
        rig = rig.reopen();
    }
    assert_eq!(rig.log.last_seq(topic), 400);
    let other = rig.topic("other");
    let elsewhere = rig.put_events(&[NewEvent { topic: other, ..with_id(ids[0]) }])[0];
    assert!(!elsewhere.duplicate, "an id is a duplicate only in its own topic");
}

#[test]
fn a_duplicate_inside_one_append_and_of_a_pending_append_is_found() {
    let rig = Rig::new(2);
    let topic = rig.topic("t");
    let id = EventId::from_u128(99);
    let with_id = NewEvent { id: Some(id), ..event(topic, b"x") };
    let outcomes = rig.put_events(&[with_id, event(topic, b"y"), with_id]);
    assert_eq!(
        outcomes.iter().map(|o| (o.seq, o.duplicate)).collect::<Vec<_>>(),
        [(1, false), (2, false), (1, true)]
    );
}

#[test]
fn a_server_id_is_a_duplicate_when_a_publisher_sends_it() {
    let mut rig = Rig::new(3);
    let topic = rig.fill("t", 150);
    for _ in 0..2 {
        for read in read_all(&rig.log, topic) {
            assert_eq!(rig.log.find_id(topic, read.id).unwrap(), Some(read.seq));
            let outcome = rig.put_events(&[NewEvent { id: Some(read.id), ..event(topic, b"again") }])[0];
            assert_eq!((outcome.seq, outcome.duplicate), (read.seq, true));
        }
        rig = rig.reopen();
    }
}

#[test]
fn a_time_is_found_exactly_when_publishers_times_are_out_of_order() {
    let rig = Rig::new(4);
    let topic = rig.topic("t");
    let mut random = Random::new(1);
    let mut times = Vec::new();
    for at in 0..400 {
        let ts = at + random.below(60) as i64 - if random.one_in(20) { 500 } else { 0 };
        times.push(ts);
        rig.put_events(&[NewEvent { ts, ..event(topic, &[b'x'; 90]) }]);
    }
    let rig = rig.reopen();
    for ts in -600..=480 {
        let first = times.iter().position(|&other| other >= ts).map(|at| at as u64 + 1);
        assert_eq!(rig.log.first_at_or_after(topic, ts).unwrap(), first, "ts {ts}");
    }
}

#[test]
fn the_newest_event_of_a_key_is_found_wherever_it_is() {
    let rig = Rig::new(5);
    let (topic, other) = (rig.topic("t"), rig.topic("other"));
    let put = |topic, key: &str| {
        rig.put_events(&[NewEvent { key: Some(key.as_bytes()), ..event(topic, b"v") }])[0].seq
    };
    let rare = put(topic, "rare");
    let mut newest = std::collections::HashMap::new();
    for at in 0..300 {
        let key = format!("key-{}", at % 7);
        newest.insert(key.clone(), put(topic, &key));
        put(other, "rare");
    }
    let empty = put(topic, "");
    let rig = rig.reopen();
    assert_eq!(rig.log.find_key(topic, b"rare").unwrap(), Some(rare));
    assert_eq!(rig.log.find_key(topic, b"").unwrap(), Some(empty));
    assert_eq!(rig.log.find_key(topic, b"never").unwrap(), None);
    for (key, seq) in newest {
        assert_eq!(rig.log.find_key(topic, key.as_bytes()).unwrap(), Some(seq));
    }
}
