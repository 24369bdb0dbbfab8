//! Tests of requests and responses that are in progress during a reload.

use super::{Rig, request, token_options};
use crate::live::LiveOptions;
use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use futures_util::stream::{StreamExt as _, once};
use futures_util::{future, poll};
use http_body_util::BodyExt as _;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;
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
async fn a_response_that_was_not_sent_yet_is_refused_or_aborted_when_its_token_is_revoked() {
    let rig = Rig::with_tokens(&[("keep", ALL), ("gone", ALL)]);
    for number in 0..1_000 {
        rig.bus.publish("kv", &number).key(number.to_string()).ts(number).await.expect("published");
    }
    for path in ["/state/kv/7?at=2000", "/state/kv?at=2000&key=7", "/state/kv?at=2000"] {
        for attempt in 0.. {
            reload(&rig, &[("keep", ALL), ("gone", ALL)]);
            let mut starting = pin!(rig.start(with_token("GET", path, "gone", Body::empty())));
            // A state of the past is read on another thread, which may be ready at once.
            if poll!(starting.as_mut()).is_ready() {
                assert!(attempt < 100, "{path} never waits");
                continue;
            }
            reload(&rig, &[("keep", ALL)]);
            assert_eq!(starting.await.status(), 401, "{path}");
            break;
        }
    }
    // The first page is read before the response begins.
    for path in ["/state/kv", "/state/kv?ndjson=1", "/export?topic=kv"] {
        reload(&rig, &[("keep", ALL), ("gone", ALL)]);
        let response = rig.start(with_token("GET", path, "gone", Body::empty())).await;
        assert_eq!(response.status(), 200, "{path}");
        reload(&rig, &[("keep", ALL)]);
        let mut pieces = response.into_body().into_data_stream();
        let first = pieces.next().await.expect("no complete response");
        assert!(first.is_err(), "{path}: no data is sent");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_body_is_still_arriving_ends_when_its_token_is_revoked() {
    let rig = Rig::with_tokens(&[("keep", ALL), ("gone", ALL)]);
    for path in ["/publish/late", "/tickets"] {
        reload(&rig, &[("keep", ALL), ("gone", ALL)]);
        let first = once(async { Ok::<_, Infallible>(Bytes::from_static(b" ")) });
        let body = Body::from_stream(first.chain(once(future::pending())));
        let sending = rig.send(with_token("POST", path, "gone", body));
        let revoking = async {
            tokio::task::yield_now().await;
            reload(&rig, &[("keep", ALL)]);
        };
        let began = tokio::time::Instant::now();
        let (answer, ()) = tokio::join!(sending, revoking);
        assert_eq!(answer.error(401, "bad_token"), "the token was revoked");
        assert_eq!(began.elapsed(), Duration::ZERO, "it does not wait for the body");
    }
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
