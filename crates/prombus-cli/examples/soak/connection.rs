//! A WebSocket to the server. It records when the socket was last empty, which bounds when a frame was sent.

use crate::world::World;
use futures_util::{FutureExt, SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A frame of the server; absent fields are empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Frame {
    pub(crate) op: String,
    pub(crate) corr: Option<u64>,
    pub(crate) id: String,
    pub(crate) seq: u32,
    pub(crate) duplicate: bool,
    pub(crate) stale: bool,
    pub(crate) code: String,
    pub(crate) msg: String,
    pub(crate) event: Option<Event>,
    pub(crate) ctx: Context,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) seq: u32,
    pub(crate) topic: String,
    #[serde(default)]
    pub(crate) key: Option<String>,
    pub(crate) payload: Box<RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Context {
    pub(crate) attempt: u16,
    pub(crate) max_attempts: u16,
    pub(crate) reason: Option<String>,
}

/// The result of a read.
pub(crate) enum Read {
    Frame(Box<Frame>),
    Nothing,
    /// The server closed the connection, or it broke.
    Gone,
}

pub(crate) struct Connection {
    socket: Socket,
    /// The life of the server in which it was opened.
    pub(crate) life: usize,
    /// When the socket was last empty: frames read later arrived after that.
    pub(crate) empty_ms: u64,
    /// The corr of a frame is its number on the connection.
    frame_number: u64,
}

impl Connection {
    /// Connects, with retries; `None` if `is_over` becomes true first.
    pub(crate) async fn open(world: &World, is_over: impl Fn() -> bool) -> Option<Self> {
        while !is_over() {
            let life = world.life();
            let url = format!("ws://{}/ws", world.address);
            let connecting = tokio_tungstenite::connect_async_with_config(url, None, true);
            if let Ok(Ok((socket, _))) = timeout(Duration::from_secs(10), connecting).await
                && world.life() == life
            {
                return Some(Self { socket, life, empty_ms: world.now_ms(), frame_number: 0 });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        None
    }

    /// The number that the next frame will have.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.frame_number += 1;
        self.frame_number
    }

    pub(crate) async fn feed(&mut self, text: String) -> Result<(), tungstenite::Error> {
        self.socket.feed(Message::text(text)).await
    }

    pub(crate) async fn flush(&mut self) -> Result<(), tungstenite::Error> {
        self.socket.flush().await
    }

    pub(crate) async fn send(&mut self, text: String) -> Result<(), tungstenite::Error> {
        self.socket.send(Message::text(text)).await
    }

    /// Begins the close handshake; reads continue until [`Read::Gone`].
    pub(crate) async fn send_close(&mut self) -> Result<(), tungstenite::Error> {
        self.socket.send(Message::Close(None)).await
    }

    /// Reads what has arrived, without waiting.
    pub(crate) fn try_read(&mut self, world: &World) -> Read {
        loop {
            let before_ms = world.now_ms();
            // Without `unconstrained` tokio may report an empty socket in order to let other tasks run.
            match tokio::task::unconstrained(self.socket.next()).now_or_never() {
                None => {
                    self.empty_ms = before_ms;
                    return Read::Nothing;
                }
                Some(message) => {
                    if let Some(read) = read_message(world, message) {
                        return read;
                    }
                }
            }
        }
    }

    /// Reads the next frame; waits at most `patience`.
    pub(crate) async fn read(&mut self, world: &World, patience: Duration) -> Read {
        match self.try_read(world) {
            Read::Nothing => {}
            read => return read,
        }
        let Ok(message) = timeout(patience, self.socket.next()).await else { return Read::Nothing };
        read_message(world, message).unwrap_or(Read::Nothing)
    }
}

fn read_message(world: &World, message: Option<Result<Message, tungstenite::Error>>) -> Option<Read> {
    match message {
        None | Some(Err(_) | Ok(Message::Close(_))) => Some(Read::Gone),
        Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
            Ok(frame) => Some(Read::Frame(Box::new(frame))),
            Err(error) => {
                world.violation("bad_frame", &format!("{error}: {text:.200}"));
                None
            }
        },
        Some(Ok(_)) => None,
    }
}
