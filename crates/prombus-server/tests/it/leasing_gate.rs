//! A leader whose lease could not be renewed: its leasing gate is closed.

use crate::rig::{Rig, options};
use crate::shared_rig::{SharedRig, shared_options, status_of};
use prombus::{Bus, LeasingGate, SystemClock};
use serde_json::json;
use std::sync::Arc;

/// A bus whose gate the test opens and closes.
fn gated_bus() -> (Bus, Arc<LeasingGate>) {
    let gate = Arc::new(LeasingGate::new(Arc::new(SystemClock::default())));
    gate.open_until(u64::MAX);
    let bus = Bus::builder().leasing_gate(Arc::clone(&gate)).memory().expect("the defaults are allowed");
    (bus, gate)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_could_not_renew_its_lease_is_not_ready() {
    let (bus, gate) = gated_bus();
    let leader = SharedRig::start(shared_options()).await;
    leader.lead(&bus, 1);
    leader.wait_ready(200).await;
    gate.close();
    for path in ["/readyz", "/healthz"] {
        let answer = leader.ask(&format!("GET {path}")).await;
        assert_eq!(status_of(&answer), 503, "{answer}");
        assert!(answer.contains("the lease could not be renewed"), "{answer}");
    }
    gate.open_until(u64::MAX);
    leader.wait_ready(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_extended_while_another_gateway_may_have_the_event() {
    let (bus, gate) = gated_bus();
    let rig = Rig::over(bus, options()).await;
    let mut client = rig.client().await;
    client.subscribe("orders", "g", json!({})).await;
    client.publish("orders", json!(1)).await;
    let id = client.event().await["event"]["id"].clone();
    let extend = json!({"op": "MODACK", "topic": "orders", "group": "g", "id": id, "extend_ms": 5000});
    client.ok(extend.clone()).await;
    gate.close();
    client.err(extend.clone(), "unavailable").await;
    gate.open_until(u64::MAX);
    client.ok(extend).await;
}
