//! Tests of a WebSocket whose token a reload withdraws, over a socket that takes little at a time.

use super::{Session, WebSocket};
use crate::auth::{Scope, TokenHash, TokenOptions};
use crate::gateway::Gateway;
use crate::live::LiveOptions;
use crate::options::ServerOptions;
use crate::peer::Peer;
use crate::shutdown::Stopping;
use crate::test_util::put_masked;
use prombus::Bus;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

/// More answers than fit into the socket.
const PUBLISHES: usize = 200;

fn options(scopes: &[&str]) -> ServerOptions {
    let scopes: Vec<Scope> = scopes.iter().map(|scope| scope.parse().expect("a scope")).collect();
    let mut options = ServerOptions::default();
    options.auth.tokens.push(TokenOptions { name: "a".to_owned(), secret: TokenHash::of("a"), scopes });
    options
}

/// A client that has published and subscribed and read nothing yet, and the gateway of its connection.
async fn stalled() -> (DuplexStream, Arc<Gateway>, Bus) {
    let bus = Bus::memory();
    let (stop, stopping) = Stopping::new();
    let all = options(&["publish:**", "subscribe:**"]);
    let live = LiveOptions::new(&all, None).expect("valid options");
    let gateway = Arc::new(Gateway::new(Arc::clone(bus.backend()), live, all, stopping));
    let peer = Peer::local(gateway.rates.connection(), &gateway.metrics.connections);
    let session = Session::new(Arc::clone(&gateway), peer, None, 0);
    let (mut client, server) = tokio::io::duplex(1_024);
    let web_socket = WebSocket::new(server, &[], Arc::clone(&gateway), session, None);
    tokio::spawn(async move {
        web_socket.run().await;
        drop(stop);
    });
    let mut frames = vec![
        json!({"op": "AUTH", "token": "a", "corr": "auth"}),
        json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "corr": "subscribe", "opts": {"maxInFlight": 1000}}),
    ];
    frames.extend((0..PUBLISHES).map(|n| json!({"op": "PUBLISH", "topic": "t", "payload": n, "corr": n})));
    for frame in frames {
        let mut bytes = Vec::new();
        put_masked(&mut bytes, 0x81, frame.to_string().as_bytes());
        client.write_all(&bytes).await.expect("sent");
    }
    while bus.topics().await.expect("topics").first().is_none_or(|it| it.last_seq < PUBLISHES as u64) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The answers are queued now.
    tokio::time::sleep(Duration::from_millis(100)).await;
    (client, gateway, bus)
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
    let (mut client, gateway, _bus) = stalled().await;
    let more = options(&["publish:**", "subscribe:**", "admin"]);
    gateway.live.replace(LiveOptions::new(&more, None).expect("valid options"));
    let (texts, code) = read_all(&mut client).await;
    let oks = texts.iter().filter(|frame| frame["op"] == "OK" && frame["seq"].is_u64()).count();
    assert_eq!((oks, code), (PUBLISHES, Some(1012)));
    let last = texts.last().expect("frames");
    assert_eq!(last["msg"], "the permissions of the token have changed: connect again");
}

#[tokio::test]
async fn a_stalled_connection_of_a_revoked_token_ends_within_a_second() {
    let (client, gateway, _bus) = stalled().await;
    let revoked = Instant::now();
    let mut other = options(&["admin"]);
    other.auth.tokens[0].secret = TokenHash::of("other");
    gateway.live.replace(LiveOptions::new(&other, None).expect("valid options"));
    while gateway.metrics.ws_connections.load(std::sync::atomic::Ordering::Relaxed) > 0 {
        // Twice the promise, for a busy machine.
        assert!(revoked.elapsed() < Duration::from_secs(2), "the connection is still open");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(client);
}
