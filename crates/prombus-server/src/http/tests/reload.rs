//! Tests of requests and responses that are in progress during a reload.

use super::{Rig, request, token_options};
use crate::live::LiveOptions;
use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use futures_util::stream::{StreamExt as _, once};
use http_body_util::BodyExt as _;
use std::convert::Infallible;
use tokio::sync::oneshot;

const ALL: &[&str] = &["publish:**", "subscribe:**", "admin"];

/// Makes these the only tokens.
fn reload(rig: &Rig, tokens: &[(&str, &[&str])]) {
    let options = token_options(tokens);
    rig.gateway.live.replace(LiveOptions::new(&options, None).expect("valid options"));
}

fn with_token(method: &str, path: &str, token: &str, body: Body) -> Request {
    let request = request(method, path).header("authorization", format!("Bearer {token}"));
    request.body(body).expect("a request")
}

#[tokio::test]
async fn a_response_in_progress_is_aborted_when_its_token_is_revoked() {
    let rig = Rig::with_tokens(&[("keep", ALL), ("gone", ALL)]);
    // More than one piece of 256 KiB.
    rig.fill("many", 0..20_000).await;
    let export = |token| rig.start(with_token("GET", "/export?topic=many", token, Body::empty()));
    let (kept, revoked) = (export("keep").await, export("gone").await);
    reload(&rig, &[("keep", ALL)]);
    assert!(revoked.into_body().collect().await.is_err(), "it must not look complete");
    let lines = kept.into_body().collect().await.expect("a complete response").to_bytes();
    assert_eq!(lines.iter().filter(|&&byte| byte == b'\n').count(), 20_000);
}

#[tokio::test]
async fn a_body_that_arrives_after_its_token_was_revoked_has_no_effect() {
    let rig = Rig::with_tokens(&[("keep", ALL), ("gone", ALL)]);
    for (path, body) in [("/publish/late", "1"), ("/tickets", "{\"topic\": \"late\"}")] {
        reload(&rig, &[("keep", ALL), ("gone", ALL)]);
        let (send, arrived) = oneshot::channel::<()>();
        let first = once(async { Ok::<_, Infallible>(Bytes::from_static(b" ")) });
        let rest = once(async move {
            drop(arrived.await);
            Ok(Bytes::from(body))
        });
        let sending = rig.send(with_token("POST", path, "gone", Body::from_stream(first.chain(rest))));
        let revoking = async {
            tokio::task::yield_now().await;
            reload(&rig, &[("keep", ALL)]);
            send.send(()).expect("the request waits");
        };
        let (answer, ()) = tokio::join!(sending, revoking);
        assert_eq!(answer.error(401, "bad_token"), "the token was revoked");
    }
    assert!(rig.bus.backend().topic("late").is_none(), "nothing was published");
}
