//! A revoked token ends its WebSockets, streams, tickets and leases; the clients of other tokens notice nothing.

use super::{PATIENCE, Reloading, tokens, until};
use crate::http_client::get;
use crate::long_form::alone;
use crate::ws_client::{Client, Seen, ack_text};
use futures_util::{SinkExt, StreamExt};
use jsonwebtoken::{EncodingKey, Header, encode};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::Read;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, block_in_place};
use tokio_tungstenite::tungstenite::Message;

/// Connections of each of the two tokens.
const CONNECTIONS: usize = 100;
/// Events that are published before and after the reload.
const HALF: u64 = 50;
/// The promise is 1 s, which the tests of prombus-server require. Here, other programs of the test run delay the processes.
const END_MAX: Duration = Duration::from_secs(2);

async fn client(address: SocketAddr, token: &str) -> Client {
    let mut client = Client::connect(address).await;
    client.ok(json!({"op": "AUTH", "token": token})).await;
    client
}

/// Opens connections with a token, each with a group of its own.
async fn members(address: SocketAddr, token: &'static str) -> Vec<(Client, String)> {
    let mut opening = JoinSet::new();
    for number in 0..CONNECTIONS {
        opening.spawn(async move {
            let mut client = client(address, token).await;
            let group = format!("{token}-{number}");
            client.subscribe("load", &group, json!({})).await;
            (client, group)
        });
    }
    opening.join_all().await
}

/// Receives and acks events until the last one; returns their seqs.
async fn consume(mut client: Client, group: String) -> Vec<u64> {
    let mut seqs = Vec::new();
    while seqs.last() != Some(&(2 * HALF)) {
        let frame = client.frame().await;
        let event = frame.event.unwrap_or_else(|| panic!("{group}: {} {}", frame.code, frame.msg));
        seqs.push(event.seq);
        let ack = ack_text("load", &group, &event.id, None);
        client.socket.send(Message::text(ack)).await.unwrap();
    }
    seqs
}

/// Receives until the connection ends. Returns the messages of ERRs, the close code, and when it arrived.
async fn end_of(mut client: Client) -> (Vec<String>, Option<u16>, Instant) {
    let mut errors = Vec::new();
    loop {
        match client.see().await {
            Seen::Frame(frame) if frame.event.is_some() => {}
            Seen::Frame(frame) => errors.push(format!("{}: {}", frame.code, frame.msg)),
            Seen::Close(code) => return (errors, code, Instant::now()),
            Seen::Gone => return (errors, None, Instant::now()),
        }
    }
}

#[test]
fn of_200_connections_those_of_the_revoked_token_end_and_the_others_miss_nothing() {
    alone(two_hundred());
}

async fn two_hundred() {
    let it = block_in_place(|| Reloading::start(&tokens(&["keep", "gone"]), &["--log", "warn,prombus=info"]));
    let address = it.serving.address();
    let (kept, revoked) = (members(address, "keep").await, members(address, "gone").await);
    let mut consuming = JoinSet::new();
    kept.into_iter().for_each(|(client, group)| drop(consuming.spawn(consume(client, group))));
    let mut ending = JoinSet::new();
    revoked.into_iter().for_each(|(client, _)| drop(ending.spawn(end_of(client))));
    let mut publisher = client(address, "keep").await;
    for number in 0..HALF {
        publisher.publish("load", json!(number)).await;
    }
    std::fs::write(&it.config, tokens(&["keep"])).unwrap();
    let signalled = Instant::now();
    it.serving.signal(Signal::HUP);
    for number in 0..HALF {
        publisher.publish("load", json!(number)).await;
    }
    let ended = ending.join_all().await;
    let took = ended.iter().map(|(_, _, at)| at.duration_since(signalled)).max().unwrap();
    println!("reload: {CONNECTIONS} connections of the revoked token ended within {took:?}");
    assert!(took < END_MAX, "{took:?}");
    for (errors, code, _) in ended {
        assert_eq!((errors, code), (vec!["unauthorized: the token was revoked".to_owned()], Some(1008)));
    }
    let expected: Vec<u64> = (1..=2 * HALF).collect();
    for seqs in consuming.join_all().await {
        assert_eq!(seqs, expected, "every event once, in order");
    }
    let mut refused = Client::connect(address).await;
    assert_eq!(refused.ask(json!({"op": "AUTH", "token": "gone"})).await.code, "bad_token");
}

/// The next EVENT, as JSON.
async fn event(client: &mut Client) -> Value {
    loop {
        let message = tokio::time::timeout(PATIENCE, client.socket.next()).await.expect("an event in time");
        if let Message::Text(text) = message.unwrap().unwrap() {
            let frame: Value = serde_json::from_str(&text).unwrap();
            if frame["op"] == "EVENT" {
                return frame;
            }
        }
    }
}

#[test]
fn leases_return_at_once_and_a_token_with_other_scopes_must_reconnect() {
    alone(leases());
}

async fn leases() {
    let it = block_in_place(|| Reloading::start(&tokens(&["keep", "gone", "less"]), &[]));
    let address = it.serving.address();
    let mut revoked = client(address, "gone").await;
    let slow = json!({"ackTimeoutMs": 600_000});
    revoked.subscribe("work", "g", slow.clone()).await;
    let mut kept = client(address, "keep").await;
    kept.publish("work", json!(1)).await;
    assert_eq!(event(&mut revoked).await["event"]["seq"], 1);
    kept.subscribe("work", "g", slow).await;
    let changed = client(address, "less").await;
    let less = tokens(&["less"]).replace("\"admin\"", "\"subscribe:dlq.**\"");
    block_in_place(|| it.reload(&(tokens(&["keep"]) + &less)));
    let redelivered = event(&mut kept).await;
    assert_eq!(redelivered["event"]["seq"], 1);
    assert_eq!(redelivered["ctx"]["attempt"], 1, "the attempt does not count");
    let (errors, code, _) = end_of(changed).await;
    assert_eq!(code, Some(1012), "{errors:?}");
    client(address, "less").await;
}

#[test]
fn streams_and_tickets_of_a_revoked_token_end() {
    let it = Reloading::start(&tokens(&["keep", "gone"]), &[]);
    let address = it.serving.address().to_string();
    let publish = || assert_eq!(it.request("POST", "/publish/news", "keep", "1").0, 200);
    publish();
    let ticket = |token: &str, body: &str| {
        let (status, text) = it.request("POST", "/tickets", token, body);
        assert_eq!(status, 200, "{text}");
        let view: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        view["ticket"].as_str().unwrap().to_owned()
    };
    let stream = |token: &str| {
        get(&address, "/subscribe/news?from=earliest", &format!("authorization: Bearer {token}\r\n"))
    };
    let by_ticket = |ticket: &str| get(&address, &format!("/subscribe/news?ticket={ticket}"), "");
    let mut ending = stream("gone");
    let mut staying = stream("keep");
    let mut of_ticket = by_ticket(&ticket("gone", "{\"topic\": \"news\"}"));
    assert_eq!([ending.status, staying.status, of_ticket.status], [200; 3]);
    let unused = [ticket("gone", ""), ticket("gone", "{\"topic\": \"news\"}")];
    let valid = [ticket("keep", ""), ticket("keep", "{\"topic\": \"news\"}")];

    it.reload(&tokens(&["keep"]));
    let reloaded = Instant::now();
    for stream in [&mut ending, &mut of_ticket] {
        let mut text = String::new();
        stream.body.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("retry: "), "{text}");
    }
    println!("reload: two streams of the revoked token ended within {:?}", reloaded.elapsed());
    assert!(reloaded.elapsed() < END_MAX);
    assert_eq!(unused.map(|ticket| by_ticket(&ticket).status), [401; 2]);
    assert_eq!(valid.map(|ticket| by_ticket(&ticket).status), [200; 2]);
    assert_eq!(stream("gone").status, 401);
    publish();
    let mut text = String::new();
    let mut piece = [0; 1024];
    while text.matches("data: ").count() < 2 {
        let count = staying.body.read(&mut piece).unwrap();
        assert!(count > 0, "the stream of the other token ended: {text}");
        text.push_str(std::str::from_utf8(&piece[..count]).unwrap());
    }
}

#[test]
fn a_stream_that_its_client_does_not_read_ends_too() {
    let it = Reloading::start(&tokens(&["keep", "gone"]), &[]);
    let address = it.serving.address().to_string();
    // More than fits into the sockets.
    let payload = format!("\"{}\"", "x".repeat(500_000));
    for _ in 0..50 {
        assert_eq!(it.request("POST", "/publish/big", "keep", &payload).0, 200);
    }
    let sockets = it.settled_socket_count();
    let stalled = ["/export?topic=big", "/subscribe/big?from=earliest"]
        .map(|path| get(&address, path, "authorization: Bearer gone\r\n"));
    until("both streams are open", || it.serving.socket_count() == sockets + stalled.len());
    // Until their sockets are full.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(it.serving.socket_count(), sockets + stalled.len());
    it.reload(&tokens(&["keep"]));
    let reloaded = Instant::now();
    until("the connections end", || it.serving.socket_count() == sockets);
    println!("reload: two stalled streams of the revoked token ended within {:?}", reloaded.elapsed());
    assert!(reloaded.elapsed() < END_MAX);
    drop(stalled);
}

fn jwks(kids: &[&str]) -> String {
    let key = |kid: &&str| json!({"kty": "oct", "alg": "HS256", "kid": kid, "k": base64_of(kid)});
    json!({"keys": kids.iter().map(key).collect::<Vec<_>>()}).to_string()
}

/// The secret of a kid: 48 times its letter.
fn secret_of(kid: &str) -> Vec<u8> {
    kid.repeat(48).into_bytes()
}

/// The secret of a kid in base64url.
fn base64_of(kid: &str) -> &'static str {
    match kid {
        "a" => "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFh",
        _ => "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJi",
    }
}

fn jwt(kid: &str, expires_at: u64) -> String {
    let claims = json!({"sub": kid, "exp": expires_at, "scope": "publish:** subscribe:**"});
    let header = Header { kid: Some(kid.to_owned()), ..Header::default() };
    encode(&header, &claims, &EncodingKey::from_secret(&secret_of(kid))).unwrap()
}

#[test]
fn a_removed_jwt_key_ends_the_connections_of_its_tokens_and_the_log_names_the_rule() {
    alone(removed_key());
}

async fn removed_key() {
    let folder = crate::support::TempFolder::new();
    let file = folder.file("jwks.json", &jwks(&["a", "b"]));
    let config = format!("[auth.jwt]\njwks_file = \"{file}\"\n");
    let it = block_in_place(|| Reloading::start(&config, &[]));
    let address = it.serving.address();
    let far = 4_000_000_000;
    let (removed, mut kept) = (client(address, &jwt("a", far)).await, client(address, &jwt("b", far)).await);
    std::fs::write(&file, jwks(&["b"])).unwrap();
    let log = block_in_place(|| it.hang_up());
    assert!(log.contains("reloaded: 1 JWT key removed; in effect: 0 tokens, 1 JWT key, "), "{log}");
    assert_eq!(end_of(removed).await.1, Some(1008));
    kept.publish("still", json!("there")).await;

    let expired = jwt("b", 1_000);
    for (token, rule) in [
        (jwt("a", far), "a JWT was refused: no configured key has the key id (kid) of the header"),
        (expired.clone(), "a JWT was refused: it has expired (exp)"),
        (jwt("b", far) + "x", "a JWT was refused: the signature does not match a configured key"),
    ] {
        let mut refused = Client::connect(address).await;
        assert_eq!(refused.ask(json!({"op": "AUTH", "token": token})).await.code, "bad_token");
        block_in_place(|| until(rule, || it.serving.log().contains(rule)));
    }
    assert!(!it.serving.log().contains(expired.split('.').nth(1).unwrap()), "no token is logged");
}
