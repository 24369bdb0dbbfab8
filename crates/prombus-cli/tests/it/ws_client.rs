//! A WebSocket client for tests, and the frames that the server sends.

use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// How long to wait for something that must happen, on a slow and busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A frame of the server; missing fields are empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Frame {
    pub op: String,
    pub corr: Option<u64>,
    pub id: String,
    pub seq: u64,
    pub duplicate: bool,
    pub stale: bool,
    pub code: String,
    pub msg: String,
    pub event: Option<Event>,
}

#[derive(Debug, Deserialize)]
pub struct Event {
    pub id: String,
    pub seq: u64,
    pub payload: Box<RawValue>,
}

impl Frame {
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    pub fn is_ok(&self) -> bool {
        self.op == "OK"
    }
}

/// Opens a WebSocket with TCP_NODELAY.
pub async fn open(address: SocketAddr) -> Result<Socket, tungstenite::Error> {
    let url = format!("ws://{address}/ws");
    Ok(tokio_tungstenite::connect_async_with_config(url, None, true).await?.0)
}

/// Something that a client receives.
#[derive(Debug)]
pub enum Seen {
    Frame(Frame),
    Close(Option<u16>),
    Gone,
}

pub struct Client {
    pub socket: Socket,
    next_corr: u64,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self { socket: open(address).await.unwrap(), next_corr: 0 }
    }

    pub async fn send(&mut self, frame: &Value) {
        self.socket.send(Message::text(frame.to_string())).await.unwrap();
    }

    /// Waits for the next frame, close, or end of the connection.
    pub async fn see(&mut self) -> Seen {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.socket.next()).await;
            match next.expect("the server sends something in time") {
                None | Some(Err(_)) => return Seen::Gone,
                Some(Ok(Message::Text(text))) => return Seen::Frame(Frame::parse(&text)),
                Some(Ok(Message::Close(frame))) => return Seen::Close(frame.map(|it| it.code.into())),
                Some(Ok(_)) => {}
            }
        }
    }

    /// The next frame.
    pub async fn frame(&mut self) -> Frame {
        match self.see().await {
            Seen::Frame(frame) => frame,
            other => panic!("a frame was expected: {other:?}"),
        }
    }

    /// Sends a frame with a corr and waits for its answer. EVENTs that arrive before it are discarded.
    pub async fn ask(&mut self, mut frame: Value) -> Frame {
        self.next_corr += 1;
        frame["corr"] = json!(self.next_corr);
        self.send(&frame).await;
        loop {
            let answer = self.frame().await;
            if answer.corr == Some(self.next_corr) {
                return answer;
            }
        }
    }

    pub async fn ok(&mut self, frame: Value) -> Frame {
        let answer = self.ask(frame).await;
        assert!(answer.is_ok(), "{answer:?}");
        answer
    }

    pub async fn publish(&mut self, topic: &str, payload: Value) -> Frame {
        self.ok(json!({"op": "PUBLISH", "topic": topic, "payload": payload})).await
    }

    pub async fn subscribe(&mut self, topic: &str, group: &str, opts: Value) -> Frame {
        self.ok(json!({"op": "SUBSCRIBE", "topic": topic, "group": group, "opts": opts})).await
    }
}

/// The text of a PUBLISH frame. Formatted directly, because load tests send many.
pub fn publish_text(topic: &str, corr: u64, id: Option<&str>, payload: &str) -> String {
    let opts = id.map(|id| format!(",\"opts\":{{\"id\":\"{id}\"}}")).unwrap_or_default();
    format!("{{\"op\":\"PUBLISH\",\"topic\":\"{topic}\",\"corr\":{corr},\"payload\":{payload}{opts}}}")
}

/// The text of an ACK frame; with a corr, the server answers it.
pub fn ack_text(topic: &str, group: &str, id: &str, corr: Option<u64>) -> String {
    let corr = corr.map(|corr| format!(",\"corr\":{corr}")).unwrap_or_default();
    format!("{{\"op\":\"ACK\",\"topic\":\"{topic}\",\"group\":\"{group}\",\"id\":\"{id}\"{corr}}}")
}
