//! Tests of a WebSocket whose token a reload withdraws, over a socket that takes little at a time.

use super::{Session, WebSocket};
use crate::auth::{Scope, TokenHash, TokenOptions};
use crate::gateway::Gateway;
use crate::live::LiveOptions;
use crate::options::ServerOptions;
use crate::peer::Peer;
use crate::shutdown::Stopping;
use crate::test_util::put_masked;
use prombus::{Bus, TopicFigures};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::timeout;

/// Size of the socket.
const PIPE_BYTES: usize = 16 * 1024;
/// More events than fit into the socket.
const EVENTS: u64 = 100;
/// The answers of these publishes fit into the socket when it is empty. So they are sent at once when the client reads, and the
/// test does not depend on how fast both sides run.
const PUBLISHES: u64 = 150;
/// How often a test of a time limit is repeated. A busy machine may delay some of the runs, but hardly all of them.
const ATTEMPTS: usize = 3;
/// Nothing takes longer than this, even on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn options(scopes: &[&str]) -> ServerOptions {
    let scopes: Vec<Scope> = scopes.iter().map(|scope| scope.parse().expect("a scope")).collect();
    let mut options = ServerOptions::default();
    options.auth.tokens.push(TokenOptions { name: "a".to_owned(), secret: TokenHash::of("a"), scopes });
    options
}

/// A client that has subscribed and published and read nothing yet, and the gateway of its connection.
async fn stalled() -> (DuplexStream, Arc<Gateway>, Bus) {
    let bus = Bus::memory();
    let (stop, stopping) = Stopping::new();
    let all = options(&["publish:**", "subscribe:**"]);
    let live = LiveOptions::new(&all, None).expect("valid options");
    let gateway = Arc::new(Gateway::new(Arc::clone(bus.backend()), live, all, stopping));
    let peer = Peer::local(gateway.rates.connection(), &gateway.metrics.connections);
    let session = Session::new(Arc::clone(&gateway), peer, None, 0);
    let (mut client, server) = tokio::io::duplex(PIPE_BYTES);
    let web_socket = WebSocket::new(server, &[], Arc::clone(&gateway), session, None);
    tokio::spawn(async move {
        web_socket.run().await;
        drop(stop);
    });
    let frames = [
        json!({"op": "AUTH", "token": "a", "corr": "auth"}),
        json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "corr": "subscribe", "opts": {"from": "earliest", "maxInFlight": 1000}}),
    ];
    send(&mut client, frames.into_iter()).await;
    for number in 0..EVENTS {
        bus.publish("t", &number).await.expect("published");
    }
    // Until the socket is full of events.
    while bus.backend().figures().groups.first().is_none_or(|it| it.counters.delivered < EVENTS) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let publish = |number| json!({"op": "PUBLISH", "topic": "u", "payload": number, "corr": number});
    send(&mut client, (0..PUBLISHES).map(publish)).await;
    let is_published = |it: &TopicFigures| it.topic.as_str() == "u" && it.published == PUBLISHES;
    while !bus.backend().figures().topics.iter().any(is_published) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The answers are queued now.
    tokio::time::sleep(Duration::from_millis(100)).await;
    (client, gateway, bus)
}

async fn send(client: &mut DuplexStream, frames: impl Iterator<Item = Value>) {
    for frame in frames {
        let mut bytes = Vec::new();
        put_masked(&mut bytes, 0x81, frame.to_string().as_bytes());
        client.write_all(&bytes).await.expect("sent");
    }
}

/// The text frames until the end, and the code of the close frame.
async fn read_all(client: &mut DuplexStream) -> (Vec<Value>, Option<u16>) {
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).await.expect("read");
    let (mut texts, mut rest) = (Vec::new(), bytes.as_slice());
    while let [first, second, after @ ..] = rest {
        let (skipped, length) = match second {
            126 => (2, usize::from(u16::from_be_bytes([after[0], after[1]]))),
            short => (0, usize::from(*short)),
        };
        let payload = &after[skipped..skipped + length];
        match first & 0x0f {
            1 => texts.push(serde_json::from_slice(payload).expect("JSON")),
            8 => return (texts, Some(u16::from_be_bytes([payload[0], payload[1]]))),
            _ => {}
        }
        rest = &after[skipped + length..];
    }
    (texts, None)
}

#[tokio::test]
async fn answers_of_durable_publishes_are_sent_before_the_connection_of_a_changed_token_ends() {
    let (mut client, gateway, _bus) = timeout(PATIENCE, stalled()).await.expect("it is stalled in time");
    let more = options(&["publish:**", "subscribe:**", "admin"]);
    gateway.live.replace(LiveOptions::new(&more, None).expect("valid options"));
    let (texts, code) = read_all(&mut client).await;
    let is_answer = |frame: &&Value| frame["op"] == "OK" && frame["seq"].is_u64();
    assert_eq!((texts.iter().filter(is_answer).count() as u64, code), (PUBLISHES, Some(1012)));
    let last = texts.last().expect("frames");
    assert_eq!(last["msg"], "the permissions of the token have changed: connect again");
    let bytes_before =
        texts.iter().take_while(|frame| !is_answer(frame)).map(|it| it.to_string().len()).sum::<usize>();
    assert!(bytes_before > PIPE_BYTES / 2, "the answers were queued after {bytes_before} bytes");
}

#[tokio::test]
async fn a_stalled_connection_of_a_revoked_token_ends_within_a_second() {
    let mut took = Duration::MAX;
    for _ in 0..ATTEMPTS {
        let (client, gateway, _bus) = timeout(PATIENCE, stalled()).await.expect("it is stalled in time");
        let mut other = options(&["admin"]);
        other.auth.tokens[0].secret = TokenHash::of("other");
        gateway.live.replace(LiveOptions::new(&other, None).expect("valid options"));
        let revoked = Instant::now();
        while gateway.metrics.ws_connections.load(Ordering::Relaxed) > 0 {
            assert!(revoked.elapsed() < PATIENCE, "the connection is still open");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        took = took.min(revoked.elapsed());
        drop(client);
        if took < Duration::from_secs(1) {
            return;
        }
    }
    panic!("the connection ended after {took:?}");
}
