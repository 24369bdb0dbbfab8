//! 8. Idempotent publish.

use crate::rig::{Rig, poll};
use prombus::{Published, Uuid};

fn id(number: u128) -> Uuid {
    Uuid::from_u128(0x0196_f1d0_1234_7000_8000_0000_0000_0000 | number)
}

fn publish(rig: &Rig, number: u128, payload: &str) -> Published {
    rig.done(rig.bus.publish("orders", payload).id(id(number)).send()).expect("publishes")
}

/// Checks that the id is known, and that a second publish adds nothing.
fn check_known(rig: &Rig, published: Published, place: &str) {
    let before = rig.payloads("orders");
    let again = rig.done(rig.bus.publish("orders", "again").id(published.id).send()).expect("succeeds");
    assert_eq!(again, Published { duplicate: true, ..published }, "{place}");
    assert_eq!(rig.payloads("orders"), before, "{place}");
}

#[test]
fn guarantee_8_idempotent_publish_resolves_when_the_original_is_durable() {
    let rig = Rig::new(1);
    let mut original = rig.bus.publish("orders", "one").id(id(1)).send();
    let mut duplicate = rig.bus.publish("orders", "again").id(id(1)).send();
    rig.assert_waits_for_a_commit("the original", &mut original);
    rig.assert_waits_for_a_commit("the duplicate", &mut duplicate);
    rig.commit();
    assert!(poll(&mut original).is_ready());
    let duplicate = rig.done(duplicate).expect("succeeds");
    assert_eq!(duplicate, Published { id: id(1), seq: 1, duplicate: true });
    assert_eq!(rig.payloads("orders"), ["one"]);
    rig.stop();
}

#[test]
fn guarantee_8_idempotent_publish_after_a_restart_and_after_a_power_cut() {
    let rig = Rig::new(1);
    let chosen = publish(&rig, 1, "one");
    let made = rig.publish("orders", "two");
    for after in rig.after_power_cuts() {
        check_known(&after, chosen, "an id of the publisher, after a power cut");
        check_known(&after, made, "an id of the bus, after a power cut");
        after.stop();
    }
    let rig = rig.restart();
    check_known(&rig, chosen, "an id of the publisher, after a close");
    check_known(&rig, made, "an id of the bus, after a close");
    rig.stop();
}

/// For a power cut at every step: whether the publish survived or not, a retry with the same id leaves exactly one event.
#[test]
fn guarantee_8_idempotent_publish_makes_a_retry_after_a_crash_safe() {
    for operation in 1.. {
        let rig = Rig::new(operation);
        publish(&rig, 1, "before");
        rig.disk.cut_after(operation);
        let mut publishing = rig.bus.publish("orders", "one").id(id(2)).send();
        rig.commit();
        let was_cut = rig.disk.is_off();
        let _ = poll(&mut publishing);
        let rig = rig.power_cut();
        publish(&rig, 2, "one");
        publish(&rig, 1, "before");
        assert_eq!(rig.payloads("orders"), ["before", "one"], "cut at operation {operation}");
        rig.stop();
        if !was_cut {
            return;
        }
    }
}

/// Ids are known over the whole history, also in segments that were sealed long ago.
#[test]
fn guarantee_8_idempotent_publish_over_the_whole_history() {
    let rig = Rig::new(1);
    let text = "x".repeat(500);
    let all: Vec<Published> = (1..=200).map(|number| publish(&rig, number, &text)).collect();
    assert!(rig.disk.names().iter().filter(|name| name.ends_with(".seg")).count() >= 4);
    let rig = rig.power_cut();
    for published in [all[0], all[1], all[99], all[198], all[199]] {
        check_known(&rig, published, "far back");
    }
    rig.stop();
}

/// A dead letter's id is derived from topic, group and event: giving up the same event again after a seek adds no second
/// one.
#[test]
fn guarantee_8_idempotent_dead_letters() {
    let rig = Rig::new(1);
    rig.publish("orders", "poison");
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_attempts(1));
    for _ in 0..2 {
        let delivery = rig.next(&mut orders).expect("there is an event");
        drop(delivery.nack("boom"));
        rig.pass(10);
        rig.commit();
        assert_eq!((rig.floor("orders", "billing"), rig.letters("orders").len()), (1, 1));
        rig.done(Box::pin(rig.bus.seek("orders", "billing", prombus::Start::Earliest))).expect("seeks");
    }
    rig.stop();
}

/// The key of a publish gives the same id in the library as over the wire, where the protocol derives it from the options.
#[tokio::test]
async fn an_idempotency_key_gives_the_same_id_in_the_library_and_over_the_wire() {
    let bus = prombus::Bus::memory();
    let first = bus.publish("payments", &20).idempotency_key("payment-17").await.expect("it publishes");
    let wire = r#"{"idempotencyKey": "payment-17"}"#;
    let wire = prombus::PublishOptions::from_json(wire).expect("valid options");
    assert_eq!(Some(first.id), wire.id);
    let again = bus.publish("payments", &20).options(wire).await.expect("it publishes");
    assert_eq!((again.seq, again.duplicate), (first.seq, true));
    // A UUID is used as it is.
    let id = prombus::Uuid::from_u128(17);
    let own = bus.publish("payments", &21).idempotency_key(id.to_string()).await.expect("it publishes");
    assert_eq!(own.id, id);
    for (key, bytes) in [(String::new(), 0), ("k".repeat(256), 256)] {
        let error = bus.publish("payments", &20).idempotency_key(key).await.expect_err("refused");
        assert_eq!(error.to_string(), format!("\"idempotencyKey\" of {bytes} bytes: 1 to 255 are allowed"));
    }
}
