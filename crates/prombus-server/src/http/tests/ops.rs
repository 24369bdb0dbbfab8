//! Health, unknown paths, and pages of other origins that may.

use super::{Rig, get, request};
use crate::options::ServerOptions;
use axum::body::Body;
use serde_json::json;

#[tokio::test]
async fn health_follows_the_bus_and_readiness_the_gateway() {
    let rig = Rig::open();
    assert_eq!(rig.get("/healthz").await.ok(), json!({"status": "ok"}));
    assert_eq!(rig.get("/readyz").await.ok(), json!({"status": "ok"}));
    rig.stop.send_replace(true);
    rig.get("/healthz").await.ok();
    rig.get("/readyz").await.error(503, "unavailable");
    rig.bus.close().await.expect("closed");
    rig.get("/healthz").await.error(503, "unavailable");
    rig.post("/publish/t", "1").await.error(503, "unavailable");
    rig.get("/topics").await.error(503, "unavailable");
}

#[tokio::test]
async fn metrics_and_the_hello_are_text() {
    let rig = Rig::open();
    rig.fill("t", 0..3).await;
    let metrics = rig.get("/metrics").await;
    assert_eq!(metrics.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = String::from_utf8(metrics.body.to_vec()).expect("text");
    assert!(text.contains("events_published_total{topic=\"t\"} 3"), "{text}");
    let hello = rig.get("/").await;
    assert!(hello.body.starts_with(b"prombus "));
    assert_eq!(hello.headers["x-content-type-options"], "nosniff");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_told_as_json() {
    let rig = Rig::open();
    for path in
        ["/none", "/publish", "/publish/", "/groups/a", "/topics/", "/publish/a/b", "//", "/state/t/k/x"]
    {
        rig.get(path).await.error(404, "bad_request");
    }
    for (method, path, allowed) in [
        ("POST", "/export", "GET,HEAD"),
        ("GET", "/publish/t", "POST"),
        ("PATCH", "/groups/t/g", "GET,HEAD,PUT,DELETE"),
        ("OPTIONS", "/publish/t", "POST"),
        ("TRACE", "/", "GET,HEAD"),
    ] {
        let answer = rig.send(request(method, path).body(Body::empty()).expect("a request")).await;
        answer.error(405, "bad_request");
        assert_eq!(answer.headers["allow"], allowed, "{method} {path}");
    }
}

#[tokio::test]
async fn head_is_get_without_a_body() {
    let rig = Rig::open();
    rig.fill("t", 0..3).await;
    for path in ["/", "/healthz", "/export?topic=t", "/replay?topic=t", "/topics", "/subscribe/t"] {
        let answer = rig.send(request("HEAD", path).body(Body::empty()).expect("a request")).await;
        assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 0), "{path}");
    }
}

#[tokio::test]
async fn no_cors_headers_unless_configured() {
    let rig = Rig::open();
    let same = request("GET", "/topics").header("origin", "http://localhost:8090");
    let answer = rig.send(same.body(Body::empty()).expect("a request")).await;
    answer.ok();
    assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("access-control")));
    assert!(!answer.headers.contains_key("vary"));
}

#[tokio::test]
async fn a_listed_origin_may_and_others_may_not() {
    let options = ServerOptions {
        cors_origins: vec!["https://app.example.com".to_owned()],
        ..ServerOptions::default()
    };
    let rig = Rig::with(options);
    let preflight = |origin: &str| {
        request("OPTIONS", "/publish/t")
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,x-trace, Content-Type, cookie")
            .body(Body::empty())
            .expect("a request")
    };
    let answer = rig.send(preflight("https://app.example.com")).await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (204, 0));
    assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example.com");
    assert_eq!(answer.headers["access-control-allow-headers"], "authorization, x-trace, Content-Type");
    assert_eq!(answer.headers["access-control-allow-methods"], "GET, HEAD, POST, PUT, DELETE");
    assert_eq!(answer.headers["vary"], "origin");
    assert!(answer.headers.contains_key("access-control-max-age"));
    assert_eq!(rig.send(preflight("https://evil.example")).await.status, 403);

    let publish = request("POST", "/publish/t").header("origin", "https://app.example.com");
    let answer = rig.send(publish.body("1".into()).expect("a request")).await;
    answer.ok();
    assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example.com");
    // Errors too, or the page could not read them.
    let wrong = request("GET", "/replay").header("origin", "https://app.example.com");
    let answer = rig.send(wrong.body(Body::empty()).expect("a request")).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example.com");
    let answer = rig.send(get("/topics")).await;
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
    assert_eq!(answer.headers["vary"], "origin");
}

#[tokio::test]
async fn with_auth_any_origin_may_be_listed() {
    let mut options = ServerOptions { cors_origins: vec!["*".to_owned()], ..ServerOptions::default() };
    let token = crate::auth::TokenOptions {
        name: "t".to_owned(),
        secret: crate::auth::TokenHash::of("t"),
        scopes: crate::auth::Scope::all(),
    };
    options.auth.tokens.push(token);
    let rig = Rig::with(options);
    let bare = request("GET", "/topics").header("origin", "https://any.example");
    let answer = rig.send(bare.body(Body::empty()).expect("a request")).await;
    answer.error(401, "unauthorized");
    assert_eq!(answer.headers["access-control-allow-origin"], "*");
}
