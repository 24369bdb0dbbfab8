//! `wait_idle` resolves when a group has settled everything, and not before.

use crate::folder::Folder;
use prombus::{Bus, GroupError, Unavailable};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(10);
/// How long to check that a group does not become idle.
const WHILE: Duration = Duration::from_millis(60);

async fn idle(bus: &Bus, group: &str) {
    timeout(SOON, bus.wait_idle(group)).await.expect("idle in time").expect("the group exists");
}

async fn not_idle(bus: &Bus, group: &str) {
    assert!(timeout(WHILE, bus.wait_idle(group)).await.is_err(), "the group has unsettled events");
}

#[tokio::test]
async fn a_group_is_idle_when_its_last_delivery_is_settled() {
    let bus = Bus::memory();
    let mut orders = bus.subscribe("orders", "billing").from_earliest().await.expect("it subscribes");
    idle(&bus, "billing").await;
    for number in 1..=2 {
        bus.publish("orders", &number).await.expect("it publishes");
    }
    not_idle(&bus, "billing").await;
    let first = orders.next().await.expect("open").expect("an event");
    let second = orders.next().await.expect("open").expect("an event");
    drop(second.ack());
    not_idle(&bus, "billing").await;
    // Waiting for redelivery is not idle.
    drop(first.nack_after(Duration::from_millis(100), "later"));
    not_idle(&bus, "billing").await;
    let again = orders.next().await.expect("open").expect("an event");
    let waiting = tokio::spawn({
        let bus = bus.clone();
        async move { bus.wait_idle("billing").await }
    });
    drop(again.ack());
    timeout(SOON, waiting).await.expect("the ack wakes it").expect("no panic").expect("idle");
}

#[tokio::test]
async fn it_covers_retries_dead_letters_filtered_events_and_events_that_handlers_publish() {
    let bus = Bus::memory();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let publisher = bus.clone();
    let countdown = bus.subscribe("numbers", "countdown").from_earliest().max_attempts(2);
    let countdown = countdown.filter(|event| event.key() != Some("skip")).handler(move |event, context| {
        counted.fetch_add(1, Ordering::SeqCst);
        let bus = publisher.clone();
        async move {
            let number: u32 = event.json().map_err(|error| error.to_string())?;
            if number == 3 && context.attempt == 1 {
                return Err("again".to_owned());
            }
            if number > 0 {
                bus.publish("numbers", &(number - 1)).await.map_err(|error| error.to_string())?;
            }
            Ok(())
        }
    });
    let _countdown = countdown.await.expect("it subscribes");
    bus.publish("numbers", &5).await.expect("it publishes");
    bus.publish("numbers", &9).key("skip").await.expect("it publishes");
    bus.publish("numbers", "not a number").await.expect("it publishes");
    idle(&bus, "countdown").await;
    // Five to zero, the number three twice, and two attempts at the text.
    assert_eq!(calls.load(Ordering::SeqCst), 6 + 1 + 2);
    let info = bus.group("numbers", "countdown").await.expect("it reads").expect("it exists");
    assert_eq!((info.lag, info.in_flight, info.waiting), (0, 0, 0));
    assert_eq!(info.counters.dead_lettered, 1);
}

#[tokio::test]
async fn groups_of_one_name_are_waited_for_together_or_one_by_one() {
    let bus = Bus::memory();
    let _orders = bus.subscribe("orders", "billing").from_earliest().await.expect("it subscribes");
    let _refunds = bus.subscribe("refunds", "billing").from_earliest().await.expect("it subscribes");
    bus.publish("refunds", &1).await.expect("it publishes");
    not_idle(&bus, "billing").await;
    timeout(SOON, bus.wait_idle_on("orders", "billing")).await.expect("in time").expect("idle");
    assert!(timeout(WHILE, bus.wait_idle_on("refunds", "billing")).await.is_err());
}

#[tokio::test]
async fn a_group_that_is_missing_or_goes_away_is_an_error() {
    let bus = Bus::memory();
    let error = bus.wait_idle("billing").await.expect_err("there is no group");
    assert_eq!(error.to_string(), "there is no group \"billing\"");
    let error = bus.wait_idle_on("orders", "billing").await.expect_err("there is no group");
    assert!(matches!(error, GroupError::UnknownGroup { .. }), "{error}");
    for group in ["deleted", "closed"] {
        let _orders = bus.subscribe("orders", group).from_earliest().await.expect("it subscribes");
        bus.publish("orders", &1).await.expect("it publishes");
        let mut waiting = Box::pin(bus.wait_idle(group));
        assert!(timeout(Duration::from_millis(10), &mut waiting).await.is_err());
        let expected = match group {
            "deleted" => {
                bus.delete_group("orders", group).await.expect("it deletes");
                GroupError::Deleted
            }
            _ => {
                bus.close().await.expect("it closes");
                GroupError::Unavailable(Unavailable::Closed)
            }
        };
        assert_eq!(timeout(SOON, waiting).await.expect("in time"), Err(expected));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dead_letters_of_an_idle_group_can_be_read() {
    let folder = Folder::new();
    let bus = Bus::open(folder.path()).await.expect("it opens");
    let orders = bus.subscribe("orders", "billing").from_earliest().max_attempts(1);
    let _orders =
        orders.handler(|_, _| async { Err::<(), _>("boom".to_owned()) }).await.expect("it subscribes");
    for number in 1..=20_u64 {
        bus.publish("orders", &number).await.expect("it publishes");
        idle(&bus, "billing").await;
        let letters = bus.topics().await.expect("it lists");
        let letters = letters.iter().find(|it| it.topic.as_str() == "dlq.orders").expect("it exists");
        assert_eq!(letters.last_seq, number);
    }
}
