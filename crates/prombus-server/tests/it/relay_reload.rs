//! Reloads on gateways of a shared store.

use crate::raw_client::Raw;
use crate::revoked::{begin, connections_end_in_time, fill};
use crate::rig::{PATIENCE, Seen};
use crate::shared_rig::{Certificate, Pair, shared_options, status_of};
use prombus_server::{Scope, ServerOptions, TokenHash, TokenOptions};
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::time::sleep;

fn with_tokens(names: &[&str], options: ServerOptions) -> ServerOptions {
    let mut options = options;
    for name in names {
        let (name, secret) = ((*name).to_owned(), TokenHash::of(name));
        options.auth.tokens.push(TokenOptions { name, secret, scopes: Scope::all() });
    }
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_ends_relayed_connections_of_a_revoked_token() {
    let both = with_tokens(&["keep", "gone"], shared_options());
    let pair = Pair::with(both.clone(), both).await;
    let (mut kept, mut revoked) = (pair.follower.client().await, pair.follower.client().await);
    kept.ok(json!({"op": "AUTH", "token": "keep"})).await;
    revoked.ok(json!({"op": "AUTH", "token": "gone"})).await;
    // The follower has the old tokens, but the leader decides.
    pair.leader.reload.reload(&with_tokens(&["keep"], shared_options())).expect("valid options");
    assert_eq!(revoked.frame().await["msg"], "the token was revoked");
    let seen = revoked.see().await;
    assert!(matches!(seen, Seen::Close(Some(1008))), "{seen:?}");
    kept.publish("a", json!(1)).await;
    let publish = |token: &str| format!("POST /publish/a\nAuthorization: Bearer {token}\n\n1");
    assert_eq!(status_of(&pair.follower.ask(&publish("gone")).await), 401);
    assert_eq!(status_of(&pair.follower.ask(&publish("keep")).await), 200);
}

/// The number of open connections of the follower, without that of this request.
async fn connections(pair: &Pair) -> u64 {
    let text = pair.follower.ask("GET /metrics\nAuthorization: Bearer keep").await;
    let value = text.lines().find_map(|line| line.strip_prefix("prombus_connections "));
    value.expect("the metric").trim().parse::<u64>().expect("a number") - 1
}

/// Neither the follower nor the leader waits for such a client until its `stall_timeout` is over.
async fn relayed_clients_that_read_nothing(pair: Pair) -> Duration {
    fill(&pair.bus).await;
    let follower = pair.follower.address;
    let kept = begin(follower, "/export?topic=big", "keep").await;
    let mut revoked = Vec::new();
    for path in ["/export?topic=big", "/subscribe/big?from=earliest", "/topics"] {
        revoked.push(begin(follower, path, "gone").await);
    }
    let mut websocket = Raw::connect(follower).await;
    websocket.text(json!({"op": "AUTH", "token": "gone"})).await;
    let opts = json!({"from": {"kind": "earliest"}, "max_in_flight": 1000});
    websocket.text(json!({"op": "SUBSCRIBE", "topic": "big", "group": "g", "opts": opts})).await;
    // Until the sockets are full.
    sleep(Duration::from_millis(500)).await;
    assert_eq!(connections(&pair).await, 5);
    pair.leader.reload.reload(&with_tokens(&["keep"], shared_options())).expect("valid options");
    let reloaded = Instant::now();
    while connections(&pair).await > 1 {
        assert!(reloaded.elapsed() < PATIENCE, "{} connections are open", connections(&pair).await);
        sleep(Duration::from_millis(10)).await;
    }
    let took = reloaded.elapsed();
    drop((kept, revoked, websocket));
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn relayed_clients_that_read_nothing_end_with_their_token_over_tcp() {
    let both = || with_tokens(&["keep", "gone"], shared_options());
    connections_end_in_time(async || {
        relayed_clients_that_read_nothing(Pair::with(both(), both()).await).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relayed_clients_that_read_nothing_end_with_their_token_over_tls() {
    let certificate = Certificate::make();
    connections_end_in_time(async || {
        let leader = with_tokens(&["keep", "gone"], certificate.options());
        let follower = with_tokens(&["keep", "gone"], shared_options());
        relayed_clients_that_read_nothing(Pair::with(leader, follower).await).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_reaches_the_leader_after_the_leader_replaced_its_certificate() {
    let (first, second) = (Certificate::make(), Certificate::make());
    let pair = Pair::with(first.options(), shared_options()).await;
    let mut open = pair.follower.client().await;
    open.publish("a", json!(1)).await;
    let changes = pair.leader.reload.reload(&second.options()).expect("valid options");
    assert!(changes.certificate.is_some());
    open.publish("a", json!(2)).await;
    pair.follower.client().await.publish("a", json!(3)).await;
}
