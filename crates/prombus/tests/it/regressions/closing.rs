//! Closing the bus.

use super::hooked_engine::hooked;
use crate::rig::Rig;
use prombus::{Bus, PullLimit, ReadError, Start, StoreError, Topic, Unavailable};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A publish includes the pending acks in its append, finds no room, and returns them while the bus is being closed.
#[test]
fn close_writes_the_acks_that_a_refused_publish_had_taken() {
    let (rig, store) = hooked();
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    rig.commit();
    drop(all[0].ack());
    let (backend, closing) = (rig.backend.clone(), Arc::new(Mutex::new(None)));
    let closer = Arc::clone(&closing);
    *store.in_append.lock().expect("no panic") = Some(Box::new(move || {
        *closer.lock().expect("no panic") = Some(std::thread::spawn(move || backend.close_blocking()));
        std::thread::sleep(Duration::from_millis(200));
        Some(StoreError::Busy)
    }));
    drop(rig.bus.publish("orders", "two").send());
    let closing = closing.lock().expect("no panic").take().expect("it was started");
    closing.join().expect("no panic").expect("closes");
    let after = Rig::open(&rig.disk);
    assert_eq!(after.floor("orders", "billing"), 1, "close reported that everything is durable");
    after.stop();
}

#[tokio::test]
async fn all_calls_return_that_the_bus_is_closed() {
    let bus = Bus::memory();
    bus.publish("orders", &1).await.expect("publishes");
    let topic = Topic::new("orders").expect("a topic");
    bus.close().await.expect("closes");
    let closed = ReadError::Unavailable(Unavailable::Closed);
    assert_eq!(bus.topics().await, Err(closed.clone()));
    assert_eq!(bus.groups().await, Err(closed.clone()));
    assert!(bus.get_cursor("orders", "billing").await.is_err());
    let read = bus.read(&topic, Start::Earliest, PullLimit::default()).await;
    assert_eq!(read.expect_err("it is closed"), closed);
}
