//! Tests of health, the greeting, unknown paths, and CORS.

use super::{Rig, get, request};
use crate::options::ServerOptions;
use crate::shutdown::StopReason;
use axum::body::Body;
use serde_json::json;

#[tokio::test]
async fn health_follows_the_bus_and_readiness_the_server() {
    let rig = Rig::open();
    assert_eq!(rig.get("/healthz").await.ok(), json!({"status": "ok"}));
    assert_eq!(rig.get("/readyz").await.ok(), json!({"status": "ok"}));
    rig.stop.send_replace(Some(StopReason::Shutdown));
    rig.get("/healthz").await.ok();
    rig.get("/readyz").await.error(503, "unavailable");
    rig.bus.close().await.expect("closed");
    rig.get("/healthz").await.error(503, "unavailable");
    rig.post("/publish/t", "1").await.error(503, "unavailable");
    rig.get("/topics").await.error(503, "unavailable");
}

#[tokio::test]
async fn metrics_and_the_greeting_are_text() {
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
async fn unknown_paths_and_methods_get_json_errors() {
    let rig = Rig::open();
    for path in
        ["/none", "/publish", "/publish/", "/groups/a", "/topics/", "/publish/a/b", "//", "/state/t/k/x"]
    {
        rig.get(path).await.error(404, "not_found");
    }
    for (method, path, allowed) in [
        ("POST", "/export", "GET,HEAD"),
        ("GET", "/publish/t", "POST"),
        ("PATCH", "/groups/t/g", "GET,HEAD,PUT,DELETE"),
        ("OPTIONS", "/publish/t", "POST"),
        ("TRACE", "/", "GET,HEAD"),
    ] {
        let answer = rig.send(request(method, path).body(Body::empty()).expect("a request")).await;
        answer.error(405, "method_not_allowed");
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
async fn a_listed_origin_is_allowed_and_others_are_not() {
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
    for name in [
        "If-None-Match",
        "Idempotency-Key",
        "Last-Event-ID",
        "Authorization",
        "Content-Type",
        "Content-Encoding",
        "Accept",
        "X-Anything",
    ] {
        let preflight = request("OPTIONS", "/state/t/k")
            .header("origin", "https://app.example.com")
            .header("access-control-request-method", "GET")
            .header("access-control-request-headers", name.to_ascii_lowercase());
        let answer = rig.send(preflight.body(Body::empty()).expect("a request")).await;
        assert_eq!(answer.headers["access-control-allow-headers"], name.to_ascii_lowercase());
    }
    assert_eq!(rig.send(preflight("https://evil.example")).await.status, 403);

    let publish = request("POST", "/publish/t").header("origin", "https://app.example.com");
    let answer = rig.send(publish.body("1".into()).expect("a request")).await;
    answer.ok();
    assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example.com");
    let exposed = answer.headers["access-control-expose-headers"].to_str().expect("text");
    for name in
        ["etag", "x-position-id", "x-position-seq", "retry-after", "location", "www-authenticate", "allow"]
    {
        assert!(exposed.split(", ").any(|exposed| exposed == name), "{name}: {exposed}");
    }
    // Error responses need the header too: without it, the page could not read them.
    let wrong = request("GET", "/replay").header("origin", "https://app.example.com");
    let answer = rig.send(wrong.body(Body::empty()).expect("a request")).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example.com");
    let answer = rig.send(get("/topics")).await;
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
    assert_eq!(answer.headers["vary"], "origin");
}

#[tokio::test]
async fn with_auth_all_origins_can_be_allowed() {
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

/// Counts warnings that contain a text.
struct Warnings(&'static str, std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{value:?}");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        if text.0.contains(self.0) && text.0.contains("http.cors_origins") {
            self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_refused_origin_is_logged_once_with_what_to_configure() {
    let open = Rig::open();
    let locked = Rig::with_tokens(&[("t", &["subscribe:**"])]);
    for (rig, status) in [(open, 403), (locked, 200)] {
        let lines = std::sync::Arc::default();
        let warnings = Warnings("https://page.example", std::sync::Arc::clone(&lines));
        let _guard = tracing::subscriber::set_default(warnings);
        for origin in ["https://page.example", "https://page.example", "http://localhost:8090"] {
            let request =
                request("GET", "/topics").header("origin", origin).header("authorization", "Bearer t");
            let answer = rig.send(request.body(Body::empty()).expect("a request")).await;
            assert_eq!(answer.status.as_u16(), if origin.contains("page") { status } else { 200 });
        }
        assert_eq!(lines.load(std::sync::atomic::Ordering::SeqCst), 1, "{status}");
    }
}
