//! The routes that a follower serves itself: health, readiness and metrics, in both roles.

use crate::shared_rig::{Pair, SharedRig, exchange, json_of, shared_options, status_of};
use prombus::Bus;
use prombus_server::ServerOptions;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn health_and_readiness_of_a_follower_follow_the_leader() {
    let mut pair = Pair::start().await;
    let leader = pair.leader.address.to_string();
    let expected = json!({"status": "ok", "role": "follower", "leader": leader});
    let answer = pair.follower.ask("GET /healthz").await;
    assert_eq!((status_of(&answer), json_of(&answer)), (200, expected.clone()));
    assert!(answer.to_lowercase().contains("\r\nconnection: close"), "{answer}");
    let ready = pair.follower.wait_ready(200).await;
    assert_eq!(json_of(&ready), expected);
    assert_eq!(pair.follower.metric("prombus_leader_reached").await, 1);
    pair.leader.stop().await;
    let not_ready = pair.follower.wait_ready(503).await;
    assert_eq!(json_of(&not_ready)["code"], "unavailable");
    assert!(not_ready.contains(&leader), "{not_ready}");
    assert_eq!(status_of(&pair.follower.ask("GET /healthz").await), 200, "the process is alive");
    assert_eq!(pair.follower.metric("prombus_leader_reached").await, 0);
    pair.follower.follow(None);
    while !pair.follower.wait_ready(503).await.contains("no gateway leads") {}
    let health = pair.follower.ask("GET /healthz").await;
    assert_eq!(json_of(&health), json!({"status": "ok", "role": "follower", "leader": null}));
}

#[tokio::test(flavor = "multi_thread")]
async fn health_of_a_leader_shows_its_role() {
    let rig = SharedRig::start(shared_options()).await;
    rig.wait_ready(503).await;
    let bus = Bus::memory();
    rig.lead(&bus, 3);
    let ready = rig.wait_ready(200).await;
    assert_eq!(json_of(&ready), json!({"status": "ok", "role": "leader"}));
    assert_eq!(json_of(&rig.ask("GET /healthz").await), json!({"status": "ok", "role": "leader"}));
    // A probe accepts every response, so a follower of an unhealthy leader still relays.
    let follower = SharedRig::start(shared_options()).await;
    follower.follow(Some(rig.endpoint(3)));
    follower.wait_ready(200).await;
    bus.close().await.expect("closed");
    assert_eq!(status_of(&rig.ask("GET /readyz").await), 503);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    follower.wait_ready(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_answers_preflights_of_its_own_routes() {
    let origin = "https://page.example";
    let options = ServerOptions { cors_origins: vec![origin.to_owned()], ..shared_options() };
    let follower = SharedRig::start(options).await;
    let preflight =
        |origin| format!("OPTIONS /readyz\nOrigin: {origin}\nAccess-Control-Request-Method: GET\n");
    let answer = follower.ask(&preflight(origin)).await;
    assert_eq!(status_of(&answer), 204, "{answer}");
    assert!(
        answer.to_lowercase().contains(&format!("\r\naccess-control-allow-origin: {origin}\r\n")),
        "{answer}"
    );
    let answer = follower.ask(&preflight("https://other.example")).await;
    assert!(!answer.to_lowercase().contains("\r\naccess-control-allow-origin"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_is_not_ready_before_its_leader_leads() {
    let (taking_over, follower) =
        (SharedRig::start(shared_options()).await, SharedRig::start(shared_options()).await);
    follower.follow(Some(taking_over.endpoint(2)));
    let answer = follower.wait_ready(503).await;
    assert!(answer.contains("not reached yet") || answer.contains("does not lead"), "{answer}");
    taking_over.lead(&Bus::memory(), 2);
    follower.wait_ready(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_show_role_term_and_takeovers() {
    let options = shared_options();
    let takeovers = options.takeovers.clone();
    let bus = Bus::memory();
    let rig = SharedRig::start(options).await;
    let other = SharedRig::start(shared_options()).await;
    other.lead(&bus, 4);
    rig.follow(Some(other.endpoint(4)));
    rig.wait_metric("prombus_leader_reached", 1).await;
    assert_eq!(rig.metric("prombus_role{role=\"follower\"}").await, 1);
    assert_eq!(rig.metric("prombus_role{role=\"leader\"}").await, 0);
    assert_eq!(rig.metric("prombus_term").await, 4);
    let open = rig.ask("GET /metrics\nAccept: application/openmetrics-text; version=1.0.0\n").await;
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(
        open.contains("# TYPE prombus_takeovers counter\n") && open.trim_end().ends_with("# EOF"),
        "{open}"
    );
    assert!(open.contains("route=\"/metrics\",method=\"GET\",code=\"200\""), "{open}");
    assert_eq!(rig.metric("prombus_takeovers_total").await, 0);
    rig.wait_metric("prombus_connections", 1).await;
    takeovers.fetch_add(1, Ordering::Relaxed);
    rig.lead(&bus, 5);
    rig.wait_metric("prombus_role{role=\"leader\"}", 1).await;
    assert_eq!(rig.metric("prombus_role{role=\"follower\"}").await, 0);
    assert_eq!(rig.metric("prombus_term").await, 5);
    assert_eq!(rig.metric("prombus_takeovers_total").await, 1);
    assert_eq!(rig.metric("prombus_bus_healthy").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn own_routes_accept_the_same_methods_as_on_the_leader() {
    let pair = Pair::start().await;
    let head = pair.follower.ask("HEAD /healthz").await;
    assert_eq!(status_of(&head), 200);
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    let posted = pair.follower.ask("POST /healthz\n\n1").await;
    assert_eq!(status_of(&posted), 405);
    assert_eq!(json_of(&posted)["code"], "method_not_allowed");
    assert!(posted.to_lowercase().contains("\r\nallow: get,head"), "{posted}");
    // A longer path is relayed to the leader.
    assert_eq!(status_of(&pair.follower.ask("GET /healthz/x").await), 404);
    assert_eq!(pair.follower.metric("prombus_relayed_connections_total").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_a_follower_refuses_are_counted() {
    let follower = SharedRig::start(shared_options()).await;
    assert_eq!(status_of(&follower.ask("POST /publish/a\n\n1").await), 503, "there is no leader");
    assert_eq!(status_of(&follower.ask("GET /topics\nHost: second.example\n").await), 400);
    assert_eq!(status_of(&exchange(follower.address, b"not HTTP\r\n\r\n").await), 400);
    for labels in [
        "route=\"unmatched\",method=\"POST\",code=\"503\"",
        "route=\"unmatched\",method=\"GET\",code=\"400\"",
        "route=\"unmatched\",method=\"other\",code=\"400\"",
    ] {
        assert_eq!(follower.metric(&format!("prombus_http_requests_total{{{labels}}}")).await, 1, "{labels}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_metrics_of_a_shared_store_are_those_of_a_follower() {
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md"));
    let document = document.expect("the document");
    let section = document.split("\n## Metrics\n").nth(1).and_then(|it| it.split("\n## ").next());
    let (others, shared) = section
        .and_then(|it| it.split_once("\nWhere several gateways share a store, also:\n"))
        .expect("two tables");
    let names = |table: &str| -> BTreeSet<String> {
        let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
        let names =
            cells.flat_map(|cell| cell.split([',', ' ']).map(|name| name.trim_matches('`').to_owned()));
        names.filter(|name| !name.is_empty()).collect()
    };
    let rig = SharedRig::start(shared_options()).await;
    let text = rig.ask("GET /metrics").await;
    let families: BTreeSet<String> = text
        .lines()
        .filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned()))
        .collect();
    let of_all_servers = names(others);
    let only_here: BTreeSet<String> = families.difference(&of_all_servers).cloned().collect();
    assert_eq!(names(shared), only_here);
    for name in ["prombus_connections", "prombus_build_info", "prombus_http_requests_total"] {
        assert!(families.contains(name), "{families:?}");
    }
}
