//! A real server over an engine whose database is behind a slow network.

use crate::rig::{Rig, options};
use prombus::engine::Engine;
use prombus::engine::simulated::{Database, NetworkOptions, SimulatedEngine};
use prombus::{Bus, SystemClock};
use serde_json::json;
use std::sync::Arc;

/// A client drops what it holds when its SEEK is answered. If it got an event again before that answer, it would drop that event too,
/// and nobody would settle it until its lease expires.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_delivered_again_only_after_the_ok_of_their_seek() {
    let network =
        NetworkOptions { tail_bytes: 1 << 20, read_latency_us: 20_000..=30_000, ..NetworkOptions::default() };
    let engine = SimulatedEngine::open(&Database::default(), network, Arc::new(SystemClock::default()));
    let bus = Bus::builder().over_engine(Arc::new(engine.expect("an engine opens")) as Arc<dyn Engine>);
    let rig = Rig::over(bus.expect("a bus opens"), options()).await;
    let mut client = rig.client().await;
    client.subscribe("orders", "g", json!({})).await;
    client.subscribe("other", "g", json!({})).await;
    let first = client.publish("orders", json!(1)).await["id"].clone();
    client.publish("orders", json!(2)).await;
    for _ in 0..2 {
        client.event().await;
    }
    for _ in 0..10 {
        let to = json!({"from": "afterId", "afterId": first});
        client.ok(json!({"op": "SEEK", "topic": "orders", "group": "g", "to": to})).await;
        assert_eq!(client.kept(), [] as [serde_json::Value; 0], "before the OK");
        assert_eq!(client.event().await["event"]["payload"], 2);
    }
    // A seek that fails moves nothing, and deliveries continue.
    let to = json!({"from": "afterId", "afterId": uuid::Uuid::nil()});
    client.err(json!({"op": "SEEK", "topic": "orders", "group": "g", "to": to}), "unknown_id").await;
    client.publish("orders", json!(3)).await;
    assert_eq!(client.event().await["event"]["payload"], 3);
}
