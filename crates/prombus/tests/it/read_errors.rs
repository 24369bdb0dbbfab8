//! Unreadable is neither damaged nor absent: groups, folds, projectors and retention wait, and lose nothing.

use crate::projector::{Sums, sums_options};
use crate::rig::{Rig, poll, seqs};
use prombus::consume::projector::Projector;
use prombus::engine::Engine as _;
use prombus::{
    Backend as _, Problem, PublishError, PullLimit, ReadError, Start, Topic, TopicOptions, TopicRule, Uuid,
};
use prombus_log::storage::simulated::Disk;
use prombus_protocol::ErrorCode;
use std::task::Poll;

/// Longer than a sector, so that a sector contains at most one event.
fn payload(number: u64) -> String {
    format!("payload-{number:04}-{}", "x".repeat(700))
}

/// A bus with the events 1 to `count`, none of them in memory.
fn rig_with(count: u64) -> Rig {
    let rig = Rig::new(1);
    for number in 1..=count {
        rig.publish("orders", &payload(number));
    }
    rig.restart()
}

/// Makes the middle of an event's payload unreadable.
fn hide(disk: &Disk, number: u64) {
    let wanted = format!("payload-{number:04}-");
    for name in disk.names().into_iter().filter(|name| name.ends_with(".seg")) {
        let bytes = disk.contents(&name).expect("a file");
        if let Some(at) = bytes.windows(wanted.len()).position(|window| window == wanted.as_bytes()) {
            let middle = at as u64 + 350;
            return disk.make_unreadable(&name, middle..middle + 1);
        }
    }
    panic!("no segment holds {wanted}");
}

impl Rig {
    fn is_degraded(&self) -> bool {
        self.backend.problems().iter().any(|problem| matches!(problem, Problem::Unreadable(_)))
    }
}

#[test]
fn a_group_waits_for_an_event_that_cannot_be_read_and_settles_nothing() {
    let rig = rig_with(40);
    hide(&rig.disk, 7);
    let mut orders = rig.subscribe("orders", "billing");
    let before = rig.all(&mut orders);
    assert_eq!(seqs(&before), [1, 2, 3, 4, 5, 6]);
    before.iter().for_each(|delivery| rig.ack(delivery));
    for _ in 0..59 {
        rig.pass(1_000);
        assert!(rig.all(&mut orders).is_empty(), "no later event is delivered within a minute");
    }
    assert!(rig.is_degraded());
    assert_eq!(rig.floor("orders", "billing"), 6);
    assert_eq!(rig.store.figures().events_unreadable, 1);
    assert!(rig.store.figures().read_errors > 0);
    rig.disk.make_readable();
    rig.pass(5_000);
    let after = rig.all(&mut orders);
    assert_eq!(seqs(&after), (7..=40).collect::<Vec<u64>>());
    assert_eq!(after[0].attempt(), 1, "a read error does not use an attempt");
    after.iter().for_each(|delivery| rig.ack(delivery));
    assert_eq!(rig.floor("orders", "billing"), 40);
    let figures = rig.store.figures();
    assert_eq!((figures.events_unreadable, figures.faults), (0, 0));
    rig.pass(60_000);
    assert!(!rig.is_degraded());
    rig.stop();
}

#[test]
fn after_a_minute_later_events_are_delivered_and_the_unreadable_one_holds_the_floor() {
    let rig = rig_with(40);
    hide(&rig.disk, 3);
    hide(&rig.disk, 20);
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_unsettled(1));
    let mut seen = Vec::new();
    let mut drain = |rig: &Rig, orders: &mut prombus::Subscription| {
        while let Some(delivery) = rig.next(orders) {
            seen.push(delivery.seq());
            rig.ack(&delivery);
        }
        seen.clone()
    };
    assert_eq!(drain(&rig, &mut orders), [1, 2]);
    for _ in 0..140 {
        rig.pass(1_000);
        drain(&rig, &mut orders);
    }
    let all_but_two: Vec<u64> = (1..=40).filter(|seq| ![3, 20].contains(seq)).collect();
    assert_eq!(
        drain(&rig, &mut orders),
        all_but_two,
        "unreadable events must not count towards max_unsettled"
    );
    assert_eq!(rig.floor("orders", "billing"), 2);
    assert_eq!(rig.info("orders", "billing").lag, 2);
    rig.disk.make_readable();
    rig.pass(6_000);
    let mut late = drain(&rig, &mut orders).split_off(all_but_two.len());
    late.sort_unstable();
    assert_eq!(late, [3, 20]);
    assert_eq!(rig.floor("orders", "billing"), 40);
    rig.stop();
}

#[test]
fn a_redelivery_that_cannot_be_read_waits_and_costs_no_attempt() {
    let rig = rig_with(5);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    rig.done(all[1].nack("later")).expect("nacks");
    for delivery in all.iter().filter(|delivery| delivery.seq() != 2) {
        rig.ack(delivery);
    }
    drop(all);
    // Remove it from the reader's memory.
    rig.publish("other", &payload(900));
    hide(&rig.disk, 2);
    for _ in 0..30 {
        rig.pass(1_000);
        rig.commit();
        assert!(rig.all(&mut orders).is_empty());
    }
    assert_eq!(rig.floor("orders", "billing"), 1);
    rig.disk.make_readable();
    rig.pass(6_000);
    rig.commit();
    let again = rig.all(&mut orders);
    assert_eq!(seqs(&again), [2]);
    assert_eq!(again[0].attempt(), 2);
    rig.ack(&again[0]);
    assert_eq!(rig.floor("orders", "billing"), 5);
    rig.stop();
}

#[test]
fn temporary_read_errors_of_any_length_cost_a_group_nothing() {
    for failing in [1, 2, 5, 40, 400] {
        let rig = rig_with(60);
        let mut orders = rig.subscribe("orders", "billing");
        rig.disk.fail_reads(0, failing);
        let mut seen = Vec::new();
        for _ in 0..400 {
            for delivery in rig.all(&mut orders) {
                assert_eq!(delivery.attempt(), 1);
                seen.push(delivery.seq());
                rig.ack(&delivery);
            }
            rig.pass(1_000);
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=60).collect::<Vec<u64>>(), "{failing} reads failed");
        assert_eq!(rig.floor("orders", "billing"), 60);
        assert_eq!(rig.store.figures().faults, 0);
        rig.stop();
    }
}

#[test]
fn a_read_ends_before_an_unreadable_event_and_the_next_read_is_an_error() {
    let rig = rig_with(20);
    hide(&rig.disk, 9);
    let (topic, limit) =
        (Topic::new("orders").unwrap(), PullLimit { bytes: usize::MAX, ..PullLimit::default() });
    let page = rig.done(Box::pin(rig.bus.read(&topic, Start::Earliest, limit))).expect("the first part");
    assert_eq!((page.events.len(), page.next_seq), (8, 9));
    let error = rig.done(Box::pin(rig.bus.read_from(&topic, 9, limit))).expect_err("it cannot be read");
    assert!(matches!(error, ReadError::Unreadable { first_seq: 9, last_seq: 9, .. }), "{error:?}");
    let page = rig.done(Box::pin(rig.bus.read_from(&topic, 10, limit))).expect("the rest");
    assert_eq!(page.events.len(), 11);
    rig.stop();
}

#[test]
fn a_publish_whose_id_cannot_be_looked_up_is_unavailable_and_never_treated_as_new() {
    let rig = Rig::new(3);
    let id = Uuid::new_v5(&Uuid::NAMESPACE_URL, b"order 17");
    let publish = |rig: &Rig| rig.done(rig.bus.publish("orders", &payload(1)).id(id).send());
    assert_eq!(publish(&rig).expect("publishes").seq, 1);
    for number in 2..=60 {
        rig.publish("orders", &payload(number));
    }
    let rig = rig.restart();
    for name in rig.disk.names().into_iter().filter(|name| !name.ends_with(".ckpt")) {
        rig.disk.make_unreadable(&name, 0..1 << 20);
    }
    let error = publish(&rig).expect_err("the id cannot be looked up");
    assert!(matches!(error, PublishError::Lookup(_)), "{error:?}");
    assert_eq!(error.code(), ErrorCode::Unavailable);
    rig.disk.make_readable();
    let published = publish(&rig).expect("publishes");
    assert!(published.duplicate && published.seq == 1, "{published:?}");
    rig.stop();
}

fn compacted() -> Vec<TopicRule> {
    let options = TopicOptions {
        compaction: Some(true),
        snapshot_interval_ms: Some(0),
        tombstone_ms: Some(60_000),
        ..TopicOptions::default()
    };
    vec![TopicRule::new("prices", options).expect("a good rule")]
}

#[test]
fn a_fold_that_cannot_read_makes_compaction_delete_nothing() {
    for permanent in [false, true] {
        let rig = Rig::new(4);
        let mut expected = Vec::new();
        for round in 0..6 {
            for key in 0..40 {
                let value = payload(1_000 + round * 100 + key);
                rig.done(rig.bus.publish("prices", &value).key(format!("key-{key}")).send())
                    .expect("publishes");
                if round == 5 {
                    expected.push((format!("key-{key}"), value));
                }
            }
        }
        let rig = rig.restart();
        rig.backend.set_topic_rules(compacted());
        if permanent {
            hide(&rig.disk, 1_234);
        } else {
            rig.disk.fail_reads(3, 5);
        }
        for _ in 0..10 {
            crate::rig::run_maintenance(&rig.backend);
            rig.commit();
            rig.pass(30_000);
        }
        if permanent {
            let error = rig.done(Box::pin(rig.bus.load_state("prices"))).map(|_| ()).expect_err("it waits");
            assert!(error.is_unreadable(), "{error:?}");
        }
        rig.disk.make_readable();
        for _ in 0..10 {
            crate::rig::run_maintenance(&rig.backend);
            rig.commit();
            rig.pass(30_000);
        }
        let state = rig.done(Box::pin(rig.bus.load_state("prices"))).expect("loads");
        for (key, value) in &expected {
            let event = state.get(key).unwrap_or_else(|| panic!("{key} is gone"));
            assert_eq!(&event.json::<String>().expect("a string"), value);
        }
        assert_eq!(rig.store.figures().faults, 0);
        rig.stop();
    }
}

#[test]
fn compaction_does_not_touch_an_unreadable_segment() {
    for is_hidden in [false, true] {
        let rig = Rig::new(6);
        rig.backend.set_topic_rules(compacted());
        for round in 0..6 {
            for key in 0..40 {
                let value = payload(1_000 + round * 100 + key);
                let sent = rig.bus.publish("prices", &value).key(format!("key-{key}")).send();
                rig.done(sent).expect("publishes");
            }
        }
        // The fold has read everything: all events of the oldest segment are superseded.
        let state = rig.done(Box::pin(rig.bus.load_state("prices"))).expect("loads");
        assert_eq!(state.iter().count(), 40);
        let oldest = rig.disk.names().into_iter().find(|name| name.ends_with(".seg")).expect("a segment");
        if is_hidden {
            rig.disk.make_unreadable(&oldest, 4096..16 * 1024);
            let topic = Topic::new("prices").unwrap();
            let read = rig.done(Box::pin(rig.bus.read_from(&topic, 1, PullLimit::default())));
            assert!(read.is_err_and(|error| error.is_unreadable()));
        }
        for _ in 0..10 {
            crate::rig::run_maintenance(&rig.backend);
            rig.commit();
            rig.pass(30_000);
        }
        let is_there = segment_is_named(&rig, &oldest);
        assert_eq!(is_there, is_hidden, "a readable one is cleaned, an unreadable one is not");
        rig.disk.make_readable();
        for _ in 0..10 {
            crate::rig::run_maintenance(&rig.backend);
            rig.commit();
            rig.pass(30_000);
        }
        assert!(!segment_is_named(&rig, &oldest), "it is cleaned when it can be read");
        rig.stop();
    }
}

/// Whether a file is still part of the log: a retired file may keep its old name until it is reused.
fn segment_is_named(rig: &Rig, name: &str) -> bool {
    let copy = rig.disk.fork();
    copy.make_readable();
    let report = prombus_log::verify_storage(std::sync::Arc::new(copy.clone()), |_| {}).expect("verifies");
    assert_eq!(report.faults, []);
    let manifest = copy.contents("MANIFEST").expect("a manifest");
    let number = u64::from_str_radix(&name[..16], 16).expect("a number").to_le_bytes();
    // A row of the manifest begins with the number, followed by a random salt and the kind.
    manifest
        .windows(8)
        .enumerate()
        .any(|(at, window)| window == number && at >= 24 + 61 && manifest[at + 12] <= 1)
}

#[test]
fn retention_removes_an_unreadable_segment() {
    let rig = rig_with(60);
    hide(&rig.disk, 2);
    let options = TopicOptions { retention_ms: Some(10_000), ..TopicOptions::default() };
    rig.backend.set_topic_rules(vec![TopicRule::new("orders", options).expect("a good rule")]);
    let mut orders = rig.subscribe("orders", "billing");
    assert_eq!(seqs(&rig.all(&mut orders)), [1]);
    rig.pass(20_000);
    rig.publish("orders", &payload(61));
    let segments = rig.store.stats().segments;
    crate::rig::run_maintenance(&rig.backend);
    rig.commit();
    assert!(rig.store.stats().segments < segments, "expired events are removed, readable or not");
    assert_eq!(rig.store.figures().events_unreadable, 0);
    assert_eq!(seqs(&rig.all(&mut orders)), [61]);
    rig.stop();
}

#[test]
fn a_projector_never_folds_events_after_one_that_cannot_be_read() {
    let rig = Rig::new(5);
    let (count, sum) = (150, 150 * 151 / 2);
    for number in 1..=count {
        rig.done(rig.bus.publish("numbers", &number).key("sum").send()).expect("publishes");
    }
    let rig = rig.restart();
    let options = sums_options(100);
    let mut projector = rig.done(Box::pin(Projector::open(&rig.bus, options, Sums))).expect("opens");
    let names: Vec<String> = rig.disk.names().into_iter().filter(|name| name.ends_with(".seg")).collect();
    rig.disk.make_unreadable(&names[0], 12_000..12_001);
    let mut run = |rounds: u32| {
        for _ in 0..rounds {
            for _ in 0..20 {
                let mut next = Box::pin(projector.next());
                // A future that is pending after some commits waits for events, so it may be dropped.
                for _ in 0..5 {
                    if let Poll::Ready(done) = poll(&mut next) {
                        done.expect("folds");
                        break;
                    }
                    rig.commit();
                }
            }
            rig.pass(5_000);
        }
        projector.states().get("all").copied().unwrap_or(0)
    };
    let stuck = run(100);
    assert!(stuck < sum, "the sum includes all events although one cannot be read: {stuck}");
    let prefix_sums: Vec<i64> = (0..=count).map(|count| count * (count + 1) / 2).collect();
    assert!(prefix_sums.contains(&stuck), "{stuck} is not the sum of the first events");
    rig.disk.make_readable();
    assert_eq!(run(20), sum);
    rig.stop();
}

#[test]
fn events_whose_loss_is_accepted_count_as_damaged_and_the_group_continues() {
    let rig = rig_with(40);
    hide(&rig.disk, 7);
    let mut orders = rig.subscribe("orders", "billing");
    rig.all(&mut orders).iter().for_each(|delivery| rig.ack(delivery));
    let listed = rig.done(Box::pin(async { rig.backend.unreadable().await })).expect("lists");
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].topic.as_str(), listed[0].first_seq, listed[0].last_seq), ("orders", 7, 7));
    rig.pass(5_000);
    assert!(rig.all(&mut orders).is_empty(), "listing changes nothing");
    let accepted = rig.done(Box::pin(async { rig.backend.accept_losses().await })).expect("accepts");
    assert_eq!(accepted.len(), 1);
    rig.pass(5_000);
    let rest = rig.all(&mut orders);
    assert_eq!(seqs(&rest), (8..=40).collect::<Vec<u64>>());
    rest.iter().for_each(|delivery| rig.ack(delivery));
    assert_eq!(rig.floor("orders", "billing"), 40);
    let figures = rig.store.figures();
    assert_eq!((figures.events_unreadable, figures.faults), (0, 1));
    drop((orders, rest));
    // It stays accepted while the disk cannot read it.
    let rig = rig.power_cut();
    assert_eq!(rig.payloads("orders").len(), 39);
    rig.stop();
}
