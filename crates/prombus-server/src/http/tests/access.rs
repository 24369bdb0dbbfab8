//! Tests of access: tokens, tickets and origins.

use super::{Answer, Rig, get, request};
use crate::http::access::Access;
use crate::http::routes::ROUTES;
use axum::body::Body;
use serde_json::{Value, json};

async fn with_token(rig: &Rig, method: &str, path: &str, token: &str) -> Answer {
    let request = request(method, path).header("authorization", format!("Bearer {token}"));
    let body = if path == "/tickets" { Body::empty() } else { Body::from("1") };
    rig.send(request.body(body).expect("a request")).await
}

fn address(path: &str) -> String {
    let path = path.replace("{topic}", "orders").replace("{group}", "g");
    if ["/replay", "/export"].contains(&path.as_str()) { format!("{path}?topic=orders") } else { path }
}

#[tokio::test]
async fn every_route_except_the_open_ones_needs_a_token() {
    let rig = Rig::with_tokens(&[("reader", &["subscribe:other"])]);
    for route in ROUTES {
        let (method, path) = (route.verb.name().to_uppercase(), address(route.path));
        let bare = request(&method, &path).body(Body::from("1")).expect("a request");
        let answer = rig.send(bare).await;
        if route.access == Access::Open {
            assert_eq!(answer.status, 200, "{path}");
            continue;
        }
        answer.error(401, "unauthorized");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        with_token(&rig, &method, &path, "wrong").await.error(401, "bad_token");
        with_token(&rig, &method, &path, "").await.error(401, "unauthorized");
        let basic = request(&method, &path).header("authorization", "Basic cmVhZGVyOg==");
        rig.send(basic.body(Body::empty()).expect("a request")).await.error(401, "unauthorized");
        // A token in the URL is ignored.
        let separator = if path.contains('?') { '&' } else { '?' };
        for name in ["token", "access_token", "authorization"] {
            let path = format!("{path}{separator}{name}=reader");
            let request = request(&method, &path).body(Body::empty()).expect("a request");
            rig.send(request).await.error(401, "unauthorized");
        }
        // A token for other topics.
        let lists = ["/tickets", "/topics", "/groups"];
        if !lists.contains(&path.as_str()) {
            with_token(&rig, &method, &path, "reader").await.error(403, "forbidden");
        }
    }
    assert_eq!(rig.bus.topics().await.expect("topics").len(), 0);
}

#[tokio::test]
async fn lists_show_what_the_token_may_read() {
    let rig = Rig::with_tokens(&[
        ("all", &["subscribe:**", "subscribe:dlq.**"]),
        ("eu", &["subscribe:orders.eu"]),
        ("admin", &["admin"]),
    ]);
    rig.fill("orders.eu", 0..1).await;
    rig.fill("orders.us", 0..1).await;
    for topic in ["orders.*", "orders.eu", "orders.us"] {
        drop(rig.bus.subscribe(topic, "g").await.expect("joined"));
    }
    drop(rig.bus.subscribe("orders.eu", "both").topics(["orders.us"]).await.expect("joined"));
    let names = async |path: &str, list: &str, token: &str| -> Vec<Value> {
        let listed = with_token(&rig, "GET", path, token).await.ok();
        listed[list].as_array().expect("a list").iter().map(|it| it["topic"].clone()).collect()
    };
    assert_eq!(names("/topics", "topics", "eu").await, ["orders.eu"]);
    assert_eq!(names("/topics", "topics", "all").await.len(), 2);
    assert_eq!(names("/topics", "topics", "admin").await.len(), 2);
    assert_eq!(names("/groups", "groups", "eu").await, ["orders.eu"]);
    assert_eq!(names("/groups", "groups", "all").await.len(), 4);
    assert_eq!(names("/groups", "groups", "admin").await.len(), 4);
    with_token(&rig, "GET", "/topics/orders.us", "eu").await.error(403, "forbidden");
    with_token(&rig, "GET", "/topics/none", "eu").await.error(403, "forbidden");
    with_token(&rig, "GET", "/groups/orders.*/g", "eu").await.error(403, "forbidden");
    with_token(&rig, "GET", "/groups/orders.eu/both", "eu").await.error(403, "forbidden");
    with_token(&rig, "GET", "/groups/orders.eu/g", "eu").await.ok();
    // The scope admin does not include reading events.
    with_token(&rig, "GET", "/export?topic=orders.eu", "admin").await.error(403, "forbidden");
    with_token(&rig, "GET", "/replay?topic=orders.eu", "admin").await.error(403, "forbidden");
    with_token(&rig, "GET", "/subscribe/orders.eu", "admin").await.error(403, "forbidden");
    assert_eq!(with_token(&rig, "GET", "/metrics", "admin").await.status, 200);
    with_token(&rig, "GET", "/metrics", "all").await.error(403, "forbidden");
    // A sum must not reveal the size of topics that the token may not read.
    let eu = with_token(&rig, "GET", "/topics", "eu").await.ok();
    assert_eq!(eu["bytes"], eu["topics"][0]["bytes"], "{eu}");
    let admin = with_token(&rig, "GET", "/topics", "admin").await.ok();
    assert!(admin["bytes"].as_u64() > eu["bytes"].as_u64(), "{admin}");
}

#[tokio::test]
async fn a_refusal_names_the_scope_that_is_missing() {
    let rig = Rig::with_tokens(&[("reader", &["subscribe:orders.*"])]);
    let cases = [
        ("POST", "/publish/orders.new", "this needs the scope \"publish:orders.new\""),
        ("GET", "/export?topic=invoices", "this needs the scope \"subscribe:invoices\""),
        ("GET", "/replay?topic=orders.**", "this needs the scope \"subscribe:orders.**\""),
        ("GET", "/topics/dlq.orders.new", "this needs the scope \"subscribe:dlq.orders.new\""),
        ("GET", "/groups/invoices/billing", "this needs the scope \"subscribe:invoices\""),
        ("GET", "/metrics", "this needs a token with the scope \"admin\""),
        ("DELETE", "/groups/orders.new/billing", "this needs a token with the scope \"admin\""),
    ];
    for (method, path, why) in cases {
        let answer = with_token(&rig, method, path, "reader").await;
        let message = answer.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(answer.status == 403 && message.ends_with(why), "{method} {path}: {message}");
    }
}

#[tokio::test]
async fn without_a_token_a_caller_does_not_learn_about_other_errors() {
    let rig = Rig::with_tokens(&[("reader", &["subscribe:orders"])]);
    for path in ["/topics?LIMIT=1", "/topics?limit=1&limt=2", "/topics?limit=%ff", "/metrics?%ff=1"] {
        rig.get(path).await.error(401, "unauthorized");
        with_token(&rig, "GET", path, "wrong").await.error(401, "bad_token");
    }
    with_token(&rig, "GET", "/topics?LIMIT=1", "reader").await.error(400, "bad_request");
    with_token(&rig, "GET", "/topics?limit=%ff", "reader").await.error(400, "bad_request");
    with_token(&rig, "GET", "/metrics?%ff=1", "reader").await.error(403, "forbidden");
    rig.get("/subscribe/orders?FROM=earliest").await.error(401, "unauthorized");
    rig.get("/subscribe/orders?FROM=earliest&ticket=x").await.error(401, "bad_token");
    let open = Rig::open();
    open.get("/topics?LIMIT=1").await.error(400, "bad_request");
}

#[tokio::test]
async fn a_ticket_works_once_and_only_for_the_tail() {
    let rig = Rig::with_tokens(&[("reader", &["subscribe:orders"])]);
    let ticket = async || {
        let ticket = with_token(&rig, "POST", "/tickets", "reader").await.ok();
        assert_eq!(ticket["expires_in_ms"], 30_000);
        ticket["ticket"].as_str().expect("a ticket").to_owned()
    };
    let path = format!("/subscribe/orders?ticket={}", ticket().await);
    assert_eq!(rig.start(get(&path)).await.status(), 200);
    rig.get(&path).await.error(401, "bad_token");
    rig.get(&format!("/subscribe/other?ticket={}", ticket().await)).await.error(403, "forbidden");
    rig.get(&format!("/export?topic=orders&ticket={}", ticket().await)).await.error(401, "unauthorized");
    rig.get("/subscribe/orders?ticket=").await.error(401, "bad_token");
    rig.get("/subscribe/orders?ticket=a&ticket=b").await.error(400, "bad_request");
}

#[tokio::test]
async fn without_auth_pages_of_other_origins_are_refused() {
    let rig = Rig::open();
    for (name, value) in
        [("origin", "https://evil.example"), ("origin", "null"), ("host", "evil.example:8090")]
    {
        for route in ROUTES {
            let (method, path) = (route.verb.name().to_uppercase(), address(route.path));
            let mut request = request(&method, &path).header("content-type", "text/plain");
            request.headers_mut().expect("headers").insert(name, value.parse().expect("a value"));
            let answer = rig.send(request.body(Body::from("1")).expect("a request")).await;
            assert_eq!((answer.status.as_u16(), answer.json()["code"].as_str()), (403, Some("forbidden")));
            assert!(!answer.headers.contains_key("access-control-allow-origin"));
        }
    }
    for name in ["host", "origin"] {
        let twice = request("GET", "/healthz").header(name, "http://localhost:8090");
        let twice = twice.header(name, "localhost").body(Body::empty()).expect("a request");
        let status = if name == "host" { 400 } else { 403 };
        assert_eq!(rig.send(twice).await.status, status);
    }
    let absolute = request("GET", "http://evil.example/healthz").body(Body::empty()).expect("a request");
    assert_eq!(rig.send(absolute).await.status, 403);
    assert_eq!(rig.bus.topics().await.expect("topics").len(), 0);
    assert_eq!(rig.get("/groups").await.ok(), json!({"groups": []}));
}
