//! Tests of subscription tickets: they work for reconnects, also after restarts, and for nothing else.

use super::subscribe::Source;
use super::{Answer, Rig, get, request, token_options};
use crate::auth::{JwtKey, JwtOptions};
use crate::options::ServerOptions;
use axum::body::Body;
use axum::extract::Request;
use jsonwebtoken::{EncodingKey, Header, encode};
use prombus::Bus;
use serde_json::json;
use std::path::PathBuf;

const READER: &[(&str, &[&str])] = &[("reader", &["subscribe:orders.**"])];
const SECRET: &str = "a secret that is long enough for HS256";

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("prombus-tickets-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        Self(folder)
    }

    fn open(&self) -> Bus {
        Bus::builder().open_blocking(&self.0).expect("opens")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn asked(rig: &Rig, token: &str, body: &str) -> Answer {
    let request = request("POST", "/tickets").header("authorization", format!("Bearer {token}"));
    rig.send(request.body(Body::from(body.to_owned())).expect("a request")).await
}

async fn ticket(rig: &Rig, token: &str, body: &str) -> String {
    let answer = asked(rig, token, body).await.ok();
    assert!(answer["reconnect_ms"].as_i64().expect("a time") <= 86_400_000);
    answer["ticket"].as_str().expect("a ticket").to_owned()
}

fn again(path: &str, id: &str) -> Request {
    request("GET", path).header("last-event-id", id).body(Body::empty()).expect("a request")
}

#[tokio::test]
async fn a_ticket_works_for_reconnects_over_two_restarts_and_no_event_is_lost() {
    let folder = Folder::new("restarts");
    let bus = folder.open();
    let rig = Rig::over(bus.clone(), token_options(READER));
    let path =
        format!("/subscribe/orders.*?ticket={}", ticket(&rig, "reader", r#"{"topic": "orders.*"}"#).await);
    let mut source = Source::open(&rig, &path).await;
    source.has_event_ids = false;
    // Disconnect before the first event.
    let mut last_id = source.first_id().await;
    drop(source);
    let mut seen = Vec::new();
    for round in 0..3 {
        let (bus, rig) = match round {
            0 => (bus.clone(), Rig::over(bus.clone(), token_options(READER))),
            _ => {
                let bus = folder.open();
                (bus.clone(), Rig::over(bus, token_options(READER)))
            }
        };
        for topic in ["orders.b", "orders.a", "other", "orders.c"] {
            rig.fill(topic, round * 10..round * 10 + 2).await;
        }
        for cut in [2, 4] {
            let mut source = Source::new(rig.start(again(&path, &last_id)).await);
            source.has_event_ids = false;
            for _ in 0..cut {
                let event = source.next().await.expect("an event");
                seen.push((event["topic"].as_str().expect("a topic").to_owned(), event["seq"].as_u64()));
            }
            last_id = source.last_id.clone().expect("an id");
        }
        // A request without the header counts as a first use. No server process accepts a first use of this ticket again. The
        // query parameter does not replace the header.
        rig.get(&path).await.error(401, "bad_token");
        rig.get(&format!("{path}&lastEventId={last_id}")).await.error(401, "bad_token");
        drop(rig);
        bus.close().await.expect("closes");
    }
    let mut expected = Vec::new();
    for topic in ["orders.a", "orders.b", "orders.c"] {
        expected.extend((1..=6).map(|seq| (topic.to_owned(), Some(seq))));
    }
    seen.sort();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_ticket_is_for_its_topic_and_query_only() {
    let rig = Rig::with_tokens(READER);
    rig.fill("orders.a", 0..3).await;
    let ticket =
        ticket(&rig, "reader", r#"{"topic": "orders.a", "query": "?from=earliest&header=x:1&key=k"}"#).await;
    let good = format!("from=earliest&header=x:1&key=k&ticket={ticket}");
    for path in [
        format!("/subscribe/orders.b?{good}"),
        format!("/subscribe/orders.*?{good}"),
        format!("/subscribe/orders.a?ticket={ticket}"),
        format!("/subscribe/orders.a?from=latest&header=x:1&key=k&ticket={ticket}"),
        format!("/subscribe/orders.a?{good}&tag=t"),
        format!("/subscribe/orders.a?{good}&header=x:2"),
    ] {
        rig.get(&path).await.error(401, "bad_token");
        rig.send(again(&path, "p1.1.1.1")).await.error(401, "bad_token");
    }
    rig.get(&format!("/export?topic=orders.a&ticket={ticket}")).await.error(401, "unauthorized");
    // Neither the order of names nor their encoding matters.
    let path = format!("/subscribe/orders.a?ticket={ticket}&key=%6B&header=x%3A1&from=earliest");
    assert_eq!(rig.start(get(&path)).await.status(), 200);
    // A query as an object.
    let body =
        json!({"topic": "orders.a", "query": {"from": "earliest", "header": ["x:1", "y:2"], "key": 7}});
    let ticket = self::ticket(&rig, "reader", &body.to_string()).await;
    let path = format!("/subscribe/orders.a?from=earliest&header=x:1&header=y:2&key=7&ticket={ticket}");
    assert_eq!(rig.start(get(&path)).await.status(), 200);
}

#[tokio::test]
async fn modified_and_foreign_tickets_are_refused() {
    let rig = Rig::with_tokens(READER);
    let other = Rig::with_tokens(READER);
    let ticket = async |rig: &Rig| ticket(rig, "reader", r#"{"topic": "orders.a"}"#).await;
    let own = ticket(&rig).await;
    let foreign = ticket(&other).await;
    // A server whose store has no ticket key.
    let fresh = Rig::with_tokens(READER);
    for (rig, ticket) in [(&rig, &foreign), (&other, &own), (&fresh, &own)] {
        let path = format!("/subscribe/orders.a?ticket={ticket}");
        rig.get(&path).await.error(401, "bad_token");
        rig.send(again(&path, "p1.1.1.1")).await.error(401, "bad_token");
    }
    let characters: Vec<char> = own.chars().collect();
    for at in (0..characters.len()).step_by(7).chain([characters.len() - 1]) {
        let mut changed = characters.clone();
        changed[at] = if changed[at] == 'A' { 'B' } else { 'A' };
        let changed: String = changed.into_iter().collect();
        rig.get(&format!("/subscribe/orders.a?ticket={changed}")).await.error(401, "bad_token");
    }
    for cut in [3, 4, own.len() / 2, own.len() - 1] {
        rig.get(&format!("/subscribe/orders.a?ticket={}", &own[..cut])).await.error(401, "bad_token");
    }
    assert_eq!(rig.start(get(&format!("/subscribe/orders.a?ticket={own}"))).await.status(), 200);
}

#[tokio::test]
async fn a_ticket_depends_on_its_token() {
    let rig = Rig::with_tokens(READER);
    let path =
        format!("/subscribe/orders.a?ticket={}", ticket(&rig, "reader", r#"{"topic": "orders.a"}"#).await);
    let mut source = Source::open(&rig, &path).await;
    let id = source.first_id().await;
    drop(source);
    let restarted = |options: ServerOptions| Rig::over(rig.bus.clone(), options);
    assert_eq!(restarted(token_options(READER)).start(again(&path, &id)).await.status(), 200);
    // The token may no longer read the topic.
    let less = restarted(token_options(&[("reader", &["subscribe:orders.b"])]));
    less.send(again(&path, &id)).await.error(403, "forbidden");
    // Another token with the same name; the same token with another name; no such token.
    let mut changed = token_options(READER);
    changed.auth.tokens[0].secret = crate::auth::TokenHash::of("another");
    let mut renamed = token_options(READER);
    renamed.auth.tokens[0].name = "writer".to_owned();
    for options in [changed, renamed, token_options(&[("other", &["subscribe:**"])])] {
        restarted(options).send(again(&path, &id)).await.error(401, "bad_token");
    }
}

#[tokio::test]
async fn a_ticket_expires_with_its_jwt_and_is_revoked_with_the_key() {
    let options = |secret: &str, audience: Option<&str>| {
        let mut options = ServerOptions::default();
        let keys = vec![JwtKey::Secret(secret.to_owned())];
        options.auth.jwt =
            Some(JwtOptions { keys, audience: audience.map(str::to_owned), ..JwtOptions::default() });
        options
    };
    let rig = Rig::with(options(SECRET, None));
    let now_s = crate::clock::now_ms() / 1000;
    let claims = json!({"sub": "page", "exp": now_s + 600, "scope": "subscribe:orders.** publish:orders.a"});
    let jwt =
        encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET.as_bytes())).expect("a token");
    let answer = asked(&rig, &jwt, r#"{"topic": "orders.a"}"#).await.ok();
    let left_ms = answer["reconnect_ms"].as_i64().expect("a time");
    assert!((600_000..=630_000).contains(&left_ms), "{left_ms}");
    asked(&rig, &jwt, r#"{"topic": "other"}"#).await.error(403, "forbidden");
    let path = format!("/subscribe/orders.a?ticket={}", answer["ticket"].as_str().expect("a ticket"));
    let id = Source::open(&rig, &path).await.first_id().await;
    let restarted = |options: ServerOptions| Rig::over(rig.bus.clone(), options);
    assert_eq!(restarted(options(SECRET, None)).start(again(&path, &id)).await.status(), 200);
    let other = "another secret that is long enough for HS256";
    restarted(options(other, None)).send(again(&path, &id)).await.error(401, "bad_token");
    restarted(options(SECRET, Some("us"))).send(again(&path, &id)).await.error(401, "bad_token");
}

#[tokio::test]
async fn bad_bodies_are_named() {
    let rig = Rig::with_tokens(READER);
    for (body, code) in [
        ("1", "bad_request"),
        ("{}", "bad_request"),
        ("{", "bad_json"),
        (r#"{"topic": "a..b"}"#, "bad_topic"),
        (r#"{"topic": "orders.a", "query": 7}"#, "bad_request"),
        (r#"{"topic": "orders.a", "query": "a=%ff"}"#, "bad_request"),
        (r#"{"topic": "orders.a", "query": {"from": true}}"#, "bad_request"),
        (r#"{"topic": "orders.a", "Query": ""}"#, "bad_request"),
    ] {
        asked(&rig, "reader", body).await.error(400, code);
    }
    // An unknown field is listed.
    let other = asked(&rig, "reader", r#"{"topic": "orders.a", "until": 1}"#).await.ok();
    assert_eq!(other["ignored"], json!(["until"]));
    asked(&rig, "reader", r#"{"topic": "**"}"#).await.error(403, "forbidden");
    asked(&rig, "wrong", r#"{"topic": "orders.a"}"#).await.error(401, "bad_token");
    // Without a body, a ticket works once, on any topic that the token may read.
    let once = asked(&rig, "reader", " ").await.ok();
    assert!(once.get("reconnect_ms").is_none());
    let path = format!("/subscribe/orders.x?ticket={}", once["ticket"].as_str().expect("a ticket"));
    assert_eq!(rig.start(get(&path)).await.status(), 200);
    rig.send(again(&path, "p1.1.1.1")).await.error(401, "bad_token");
}
