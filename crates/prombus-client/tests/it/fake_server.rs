//! A WebSocket server whose frames the test sends, for behaviour that the real server never shows.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, accept_async};

/// The topic and group of [`FakeServer::accept_member`].
pub const TOPIC: &str = "orders";
pub const GROUP: &str = "billing";

/// The server.
pub struct FakeServer {
    pub url: String,
    listener: TcpListener,
}

/// One connection of a client. When it is dropped, the connection breaks without a close frame.
pub struct Peer {
    socket: WebSocketStream<TcpStream>,
}

impl FakeServer {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { url: format!("http://{}", listener.local_addr().unwrap()), listener }
    }

    /// Accepts a connection and its AUTH, with which the client finds out whether a token is required.
    pub async fn accept(&self) -> Peer {
        let (stream, _) = self.listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut peer = Peer { socket: accept_async(stream).await.unwrap() };
        peer.expect_and_ok("AUTH").await;
        peer
    }

    /// Accepts a connection and its SUBSCRIBE.
    pub async fn accept_member(&self) -> Peer {
        let mut peer = self.accept().await;
        let frame = peer.expect_and_ok("SUBSCRIBE").await;
        assert_eq!((&frame["topic"], &frame["group"]), (&json!(TOPIC), &json!(GROUP)));
        peer
    }
}

impl Peer {
    /// The next message, including pings and close frames.
    pub async fn message(&mut self) -> Option<Message> {
        self.socket.next().await.map(Result::unwrap)
    }

    /// The next frame, which must be of this kind.
    pub async fn expect(&mut self, op: &str) -> Value {
        loop {
            match self.message().await {
                Some(Message::Text(text)) => {
                    let frame: Value = serde_json::from_str(&text).unwrap();
                    assert_eq!(frame["op"], op, "{frame}");
                    return frame;
                }
                Some(Message::Ping(_) | Message::Pong(_)) => {}
                other => panic!("{op} expected, not {other:?}"),
            }
        }
    }

    pub async fn expect_and_ok(&mut self, op: &str) -> Value {
        let frame = self.expect(op).await;
        self.ok(&frame, json!({})).await;
        frame
    }

    /// Responds OK with these fields.
    pub async fn ok(&mut self, frame: &Value, mut fields: Value) {
        fields["op"] = json!("OK");
        fields["corr"] = frame["corr"].clone();
        self.send(fields).await;
    }

    /// Responds ERR.
    pub async fn err(&mut self, frame: &Value, code: &str) {
        self.send(json!({"op": "ERR", "corr": frame["corr"], "code": code, "msg": "no"})).await;
    }

    pub async fn send(&mut self, frame: Value) {
        self.socket.send(Message::text(frame.to_string())).await.unwrap();
    }

    /// Delivers an event with a lease of 30 s; its payload is its number. From the second attempt on, the reason is that its member was
    /// lost.
    pub async fn deliver(&mut self, number: u32, attempt: u32) {
        let reason = (attempt > 1).then_some("member_lost");
        self.send(json!({
            "op": "EVENT", "topic": TOPIC, "group": GROUP,
            "event": {"id": event_id(number), "seq": number, "ts": 5, "topic": TOPIC, "payload": number},
            "ctx": {"attempt": attempt, "ack_deadline_ms": 30_000, "max_attempts": 5, "reason": reason},
        }))
        .await;
    }
}

pub fn event_id(number: u32) -> String {
    format!("0196f1d0-0000-7000-8000-{number:012}")
}
