//! Unauthorized access is refused over HTTP and WebSocket, on every route in the server's OpenAPI document.

use crate::rig::{Client, Rig, Seen, options};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use prombus::Pattern;
use prombus_server::{
    Action, AuthOptions, Effect, JwtKey, JwtOptions, Rule, Scope, ServerOptions, TokenHash, TokenOptions,
};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SECRET: &str = "a secret of more than thirty-two bytes, for tests only";
const MASTER: &str = "master";

/// Sends a request without an HTTP library, so that it can be invalid. Returns the status and the body.
pub async fn http(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String) {
    let mut socket = TcpStream::connect(address).await.expect("it connects");
    let host = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
    let own_host = address.to_string();
    let host = host.map_or(own_host.as_str(), |(_, value)| value);
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for (name, value) in headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("host")) {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    socket.write_all(request.as_bytes()).await.expect("it sends");
    let mut answer = Vec::new();
    // An accepted subscription would never end.
    let _ = tokio::time::timeout(Duration::from_secs(5), socket.read_to_end(&mut answer)).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}

fn seconds_from_now(seconds: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    now as i64 + seconds
}

fn claims() -> Value {
    json!({
        "sub": "ann", "iss": "us", "aud": "bus", "exp": seconds_from_now(600),
        "scope": "publish:orders.* subscribe:orders.*",
    })
}

fn signed(claims: &Value) -> String {
    encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(SECRET.as_bytes()))
        .expect("it signs")
}

fn with(name: &str, value: Value) -> Value {
    let mut changed = claims();
    changed[name] = value;
    changed
}

fn guarded() -> ServerOptions {
    let token = TokenOptions { name: "master".into(), secret: TokenHash::of(MASTER), scopes: Scope::all() };
    let jwt = JwtOptions {
        keys: vec![JwtKey::Secret(SECRET.to_owned())],
        issuer: Some("us".to_owned()),
        audience: Some("bus".to_owned()),
        leeway: Duration::ZERO,
    };
    let auth = AuthOptions { tokens: vec![token], jwt: Some(jwt), rules: Vec::new() };
    ServerOptions { auth, ..options() }
}

/// Tokens that a server must refuse.
fn bad_tokens() -> Vec<(&'static str, String)> {
    let good = signed(&claims());
    let parts: Vec<&str> = good.split('.').collect();
    let base64 = |text: &str| {
        use base64::Engine as _;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text)
    };
    let none = base64(r#"{"alg":"none","typ":"JWT"}"#);
    let rs256 = base64(r#"{"alg":"RS256","typ":"JWT"}"#);
    let admin = base64(&with("scope", json!("admin publish:** subscribe:**")).to_string());
    let other_key = EncodingKey::from_secret(b"another secret of more than thirty-two bytes");
    vec![
        ("empty", String::new()),
        ("wrong", "nope".to_owned()),
        ("a prefix of the right one", MASTER[..5].to_owned()),
        ("the right one and more", format!("{MASTER}x")),
        ("in upper case", MASTER.to_uppercase()),
        ("expired", signed(&with("exp", json!(seconds_from_now(-5))))),
        ("without exp", signed(&json!({"sub": "ann", "iss": "us", "aud": "bus", "scope": "admin"}))),
        ("not yet valid", signed(&with("nbf", json!(seconds_from_now(600))))),
        ("wrong audience", signed(&with("aud", json!("others")))),
        ("wrong issuer", signed(&with("iss", json!("them")))),
        ("alg none", format!("{none}.{}.", parts[1])),
        ("alg none with a signature", format!("{none}.{}.{}", parts[1], parts[2])),
        ("alg confusion", format!("{rs256}.{}.{}", parts[1], parts[2])),
        ("tampered payload", format!("{}.{admin}.{}", parts[0], parts[2])),
        ("no signature", format!("{}.{}.", parts[0], parts[1])),
        ("another key", encode(&Header::new(Algorithm::HS256), &claims(), &other_key).expect("it signs")),
        (
            "HS512",
            encode(&Header::new(Algorithm::HS512), &claims(), &EncodingKey::from_secret(SECRET.as_bytes()))
                .expect("it signs"),
        ),
        ("exp as text", signed(&with("exp", json!("tomorrow")))),
    ]
}

/// Every route of the OpenAPI document, with values for its parameters.
async fn routes(address: SocketAddr) -> Vec<(String, String)> {
    let (status, document) =
        http(address, "GET", "/openapi.json", &[("authorization", "Bearer master")], "").await;
    assert_eq!(status, 200);
    let document: Value = serde_json::from_str(&document).expect("the description is JSON");
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("methods").keys() {
            if matches!(method.as_str(), "get" | "post" | "put" | "delete" | "patch") {
                let path = path.replace("{topic}", "orders.eu").replace("{group}", "g").replace("{key}", "k");
                routes.push((method.to_uppercase(), path));
            }
        }
    }
    assert!(routes.len() > 12, "{routes:?}");
    routes
}

/// Routes that reveal nothing about events.
fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/healthz" | "/readyz" | "/openapi.json")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_route_is_open_to_a_bad_token() {
    let rig = Rig::with(guarded()).await;
    let query = "?topic=orders.eu&ticket=nope&token=master&access_token=master";
    for (method, path) in routes(rig.address).await.iter().filter(|(_, path)| !is_open(path)) {
        let path = format!("{path}{query}");
        let (status, body) = http(rig.address, method, &path, &[], "1").await;
        assert_eq!(status, 401, "{method} {path} without a token: {body}");
        assert!(body.contains("\"code\":"), "{body}");
        for (what, token) in bad_tokens() {
            let bearer = format!("Bearer {token}");
            let (status, body) = http(rig.address, method, &path, &[("authorization", &bearer)], "1").await;
            assert_eq!(status, 401, "{method} {path}, {what}: {body}");
        }
        let basic = [("authorization", "Basic bWFzdGVyOm1hc3Rlcg==")];
        assert_eq!(http(rig.address, method, &path, &basic, "1").await.0, 401, "{method} {path} basic");
    }
    assert!(rig.bus.topics().await.expect("topics").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_websocket_is_open_to_a_bad_token() {
    let rig = Rig::with(guarded()).await;
    for (what, token) in bad_tokens() {
        let mut client = rig.client().await;
        let answer = client.ask(json!({"op": "AUTH", "token": token})).await;
        assert_eq!(answer["code"], "bad_token", "{what}: {answer}");
        for frame in [
            json!({"op": "PUBLISH", "topic": "orders.eu", "payload": 1}),
            json!({"op": "SUBSCRIBE", "topic": "orders.eu", "group": "g"}),
            json!({"op": "CURSOR", "topic": "orders.eu", "group": "g"}),
            json!({"op": "SEEK", "topic": "orders.eu", "group": "g", "to": "earliest"}),
            json!({"op": "ACK", "topic": "orders.eu", "group": "g", "id": uuid::Uuid::nil()}),
        ] {
            client.err(frame, "unauthorized").await;
        }
    }
    let mut client = rig.client().await;
    client.err(json!({"op": "AUTH"}), "bad_token").await;
    client.err(json!({"op": "AUTH", "token": null}), "bad_token").await;
    client.err(json!({"op": "AUTH", "token": "x"}), "bad_token").await;
    assert_eq!(client.see().await, Seen::Close(Some(1008)), "the third wrong token ends the connection");
    assert!(rig.bus.topics().await.expect("topics").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_end_where_their_patterns_end() {
    let rig = Rig::with(guarded()).await;
    let token = signed(&claims());
    let bearer = format!("Bearer {token}");
    let auth = [("authorization", bearer.as_str())];
    let mut client = rig.client().await;
    client.ok(json!({"op": "AUTH", "token": token})).await;
    client.publish("orders.eu", json!(1)).await;
    client.subscribe("orders.*", "g", json!({})).await;
    for topic in ["payments", "orders", "orders.eu.west", "order", "ordersx.eu", "dlq.orders.eu"] {
        client.err(json!({"op": "PUBLISH", "topic": topic, "payload": 1}), "forbidden").await;
        client.err(json!({"op": "SUBSCRIBE", "topic": topic, "group": "g"}), "forbidden").await;
        assert_eq!(
            http(rig.address, "POST", &format!("/publish/{topic}"), &auth, "1").await.0,
            403,
            "{topic}"
        );
        for path in [
            format!("/replay?topic={topic}"),
            format!("/export?topic={topic}"),
            format!("/subscribe/{topic}"),
            format!("/topics/{topic}"),
            format!("/groups/{topic}/g"),
        ] {
            let (status, body) = http(rig.address, "GET", &path, &auth, "").await;
            assert!(matches!(status, 403 | 404), "{path}: {status} {body}");
        }
    }
    for pattern in ["**", "orders.**", "*.eu", "*.*", "orders.*.*", "dlq.**", "dlq.orders.*"] {
        client.err(json!({"op": "SUBSCRIBE", "topic": pattern, "group": "x"}), "forbidden").await;
        client.err(json!({"op": "CURSOR", "topic": pattern, "group": "x"}), "forbidden").await;
        client
            .err(json!({"op": "SEEK", "topic": pattern, "group": "x", "to": "earliest"}), "forbidden")
            .await;
        let more = json!({"topics": [pattern]});
        let frame = json!({"op": "SUBSCRIBE", "topic": "orders.us", "group": "x", "opts": more});
        client.err(frame, "forbidden").await;
    }
    for (method, path) in [
        ("GET", "/metrics"),
        ("DELETE", "/groups/orders.*/g"),
        ("POST", "/groups/orders.*/g/seek"),
        ("PUT", "/groups/orders.eu/new"),
    ] {
        let (status, body) = http(rig.address, method, path, &auth, "{\"to\":\"earliest\"}").await;
        assert_eq!(status, 403, "{method} {path}: {body}");
    }
    assert_eq!(http(rig.address, "GET", "/export?topic=orders.eu", &auth, "").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_matching_rule_applies_and_without_one_access_is_refused() {
    let pattern = |text: &str| Pattern::new(text).expect("a pattern");
    let rule = |effect, topics: &[&str], groups: &[&str]| Rule {
        effect,
        subjects: Vec::new(),
        actions: vec![Action::Subscribe],
        topics: topics.iter().map(|it| pattern(it)).collect(),
        groups: groups.iter().map(|&it| it.to_owned()).collect(),
    };
    let mut options = guarded();
    options.auth.rules =
        vec![rule(Effect::Deny, &["orders.secret"], &[]), rule(Effect::Allow, &["orders.*"], &["billing-*"])];
    let rig = Rig::with(options).await;
    let mut client = rig.client().await;
    client.ok(json!({"op": "AUTH", "token": MASTER})).await;
    client.subscribe("orders.eu", "billing-1", json!({})).await;
    for (topic, group) in [
        ("orders.secret", "billing-1"),
        ("orders.eu", "audit"),
        ("orders.*", "billing-1"),
        ("a", "billing-1"),
    ] {
        client.err(json!({"op": "SUBSCRIBE", "topic": topic, "group": group}), "forbidden").await;
    }
    client.err(json!({"op": "PUBLISH", "topic": "orders.eu", "payload": 1}), "forbidden").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_expires_ends_its_connection() {
    let rig = Rig::with(guarded()).await;
    let token = signed(&with("exp", json!(seconds_from_now(2))));
    let mut client = rig.client().await;
    client.ok(json!({"op": "AUTH", "token": token})).await;
    client.subscribe("orders.eu", "g", json!({})).await;
    match client.see().await {
        Seen::Frame(frame) => assert_eq!(frame["code"], "unauthorized"),
        other => panic!("{other:?}"),
    }
    assert_eq!(client.see().await, Seen::Close(Some(1008)));
    let bearer = format!("Bearer {}", signed(&with("exp", json!(seconds_from_now(2)))));
    let begun = std::time::Instant::now();
    let (status, _) =
        http(rig.address, "GET", "/subscribe/orders.eu", &[("authorization", &bearer)], "").await;
    assert_eq!(status, 200);
    assert!(begun.elapsed() < Duration::from_secs(4), "the tail ends with the token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_auth_is_disconnected() {
    let mut options = guarded();
    options.connections.auth_timeout = Duration::from_millis(300);
    let rig = Rig::with(options).await;
    let mut client = rig.client().await;
    match client.see().await {
        Seen::Frame(frame) => assert_eq!(frame["code"], "unauthorized"),
        other => panic!("{other:?}"),
    }
    assert_eq!(client.see().await, Seen::Close(Some(1008)));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_auth_pages_of_other_origins_are_refused() {
    let rig = Rig::memory().await;
    let port = rig.address.port();
    let own = format!("http://127.0.0.1:{port}");
    let upgrade = [
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let rebound = format!("evil.example:{port}");
    let attempts: Vec<(&str, &str)> = vec![
        ("origin", "http://evil.example"),
        ("origin", "https://evil.example:8090"),
        ("origin", "null"),
        ("origin", "http://127.0.0.1.evil.example"),
        ("origin", "http://localhost.evil.example"),
        ("origin", "http://localhost:1"),
        ("origin", "file://"),
        ("host", "evil.example"),
        ("host", &rebound),
        ("host", "127.0.0.1.nip.io"),
        ("host", "localhost.evil.example"),
        ("host", "10.0.0.1"),
        ("host", ""),
    ];
    for &attempt in &attempts {
        for (method, path) in routes(rig.address).await {
            let text = [attempt, ("content-type", "text/plain")];
            let (status, body) = http(rig.address, &method, &path, &text, "{\"stolen\":1}").await;
            assert!(matches!(status, 403 | 400), "{method} {path} {attempt:?}: {status} {body}");
        }
        for path in ["/", "/ws"] {
            let headers: Vec<_> = upgrade.iter().copied().chain([attempt]).collect();
            let (status, body) = http(rig.address, "GET", path, &headers, "").await;
            assert!(matches!(status, 403 | 400), "upgrade of {path} {attempt:?}: {status} {body}");
        }
    }
    assert!(rig.bus.topics().await.expect("topics").is_empty(), "nothing was written");
    assert_eq!(http(rig.address, "POST", "/publish/t", &[("origin", &own)], "1").await.0, 200);
    let local = format!("localhost:{port}");
    assert_eq!(http(rig.address, "POST", "/publish/t", &[("host", &local)], "1").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_the_upgrade_needs_no_auth_frame() {
    let rig = Rig::with(guarded()).await;
    let mut client =
        Client::connect_with(rig.address, &[("authorization", "Bearer master")]).await.expect("accepted");
    client.publish("t", json!(1)).await;
    assert!(Client::connect_with(rig.address, &[("authorization", "Bearer nope")]).await.is_err());
}
