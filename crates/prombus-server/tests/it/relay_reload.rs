//! Reloads on gateways of a shared store.

use crate::rig::Seen;
use crate::shared_rig::{Certificate, Pair, shared_options, status_of};
use prombus_server::{Scope, ServerOptions, TokenHash, TokenOptions};
use serde_json::json;

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
