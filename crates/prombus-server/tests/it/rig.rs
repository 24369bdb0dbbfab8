//! A server in this process, and a client that speaks JSON over a WebSocket.

use crate::test_bus;
use futures_util::{SinkExt, StreamExt};
use prombus::Bus;
use prombus_server::{ReloadHandle, Server, ServerOptions};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// Nothing takes longer than this, even on a slow and busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Rig {
    pub address: SocketAddr,
    pub bus: Bus,
    pub reload: ReloadHandle,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
    folder: Option<PathBuf>,
}

pub fn options() -> ServerOptions {
    ServerOptions { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..ServerOptions::default() }
}

impl Rig {
    /// A server over a log on disk.
    pub async fn start(options: ServerOptions) -> Self {
        let name = format!("prombus-server-test-{}-{}", std::process::id(), uuid::Uuid::now_v7());
        let folder = std::env::temp_dir().join(name);
        let bus = test_bus::durable(&folder).await;
        let mut rig = Self::over(bus, options).await;
        rig.folder = Some(folder);
        rig
    }

    /// A server over a fresh bus, with defaults.
    pub async fn memory() -> Self {
        Self::with(options()).await
    }

    /// A server over a fresh bus.
    pub async fn with(options: ServerOptions) -> Self {
        Self::over(test_bus::fresh().await, options).await
    }

    pub async fn over(bus: Bus, options: ServerOptions) -> Self {
        let server = Server::bind(bus.backend().clone(), options).await.expect("a server binds");
        let (address, reload) = (server.local_addrs()[0], server.reload_handle());
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            let shutdown = async move { drop(stopped.await) };
            server.run(shutdown).await.expect("a server runs");
        });
        Self { address, bus, reload, stop: Some(stop), served: Some(served), folder: None }
    }

    /// The folder of a log on disk.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.as_deref().expect("a log on disk")
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Shuts the server down and waits for it.
    pub async fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(served) = self.served.take() {
            tokio::time::timeout(PATIENCE, served).await.expect("it stops in time").expect("no panic");
        }
    }

    /// Begins to shut down.
    pub fn begin_stop(&mut self) {
        drop(self.stop.take());
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// What a client can receive.
#[derive(Debug, PartialEq)]
pub enum Seen {
    Frame(Value),
    Close(Option<u16>),
    Gone,
}

pub struct Client {
    pub socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    next_corr: u32,
    /// Frames that arrived while the test waited for another one.
    kept: Vec<Value>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let url = format!("ws://{address}/ws");
        let connected = tokio_tungstenite::connect_async_with_config(url, None, true).await;
        Self::over(connected.expect("it connects").0)
    }

    /// A client over an open socket.
    pub fn over(socket: WebSocketStream<MaybeTlsStream<TcpStream>>) -> Self {
        Self { socket, next_corr: 0, kept: Vec::new() }
    }

    /// Connects with additional headers.
    pub async fn connect_with(address: SocketAddr, headers: &[(&'static str, &str)]) -> Result<Self, String> {
        let mut request = format!("ws://{address}/ws").into_client_request().expect("a request");
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().expect("a header"));
        }
        let connected = tokio_tungstenite::connect_async_with_config(request, None, true).await;
        Ok(Self::over(connected.map_err(|error| error.to_string())?.0))
    }

    pub async fn send(&mut self, frame: Value) {
        self.send_text(&frame.to_string()).await;
    }

    pub async fn send_text(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.expect("it sends");
    }

    /// The next thing that arrives on the socket.
    pub async fn see(&mut self) -> Seen {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.socket.next()).await;
            match next.expect("something comes in time") {
                None | Some(Err(_)) => return Seen::Gone,
                Some(Ok(Message::Text(text))) => {
                    return Seen::Frame(serde_json::from_str(&text).expect("a frame is JSON"));
                }
                Some(Ok(Message::Close(frame))) => {
                    return Seen::Close(frame.map(|CloseFrame { code, .. }| code.into()));
                }
                Some(Ok(_)) => {}
            }
        }
    }

    /// The next frame.
    pub async fn frame(&mut self) -> Value {
        if !self.kept.is_empty() {
            return self.kept.remove(0);
        }
        match self.see().await {
            Seen::Frame(frame) => frame,
            other => panic!("expected a frame, got {other:?}"),
        }
    }

    /// The next EVENT; other frames are kept.
    pub async fn event(&mut self) -> Value {
        if let Some(at) = self.kept.iter().position(|frame| frame["op"] == "EVENT") {
            return self.kept.remove(at);
        }
        loop {
            match self.see().await {
                Seen::Frame(frame) if frame["op"] == "EVENT" => return frame,
                Seen::Frame(frame) => self.kept.push(frame),
                other => panic!("expected an EVENT, got {other:?}"),
            }
        }
    }

    /// The next frame that is not an EVENT; EVENTs are kept.
    pub async fn answer(&mut self) -> Value {
        if let Some(at) = self.kept.iter().position(|frame| frame["op"] != "EVENT") {
            return self.kept.remove(at);
        }
        loop {
            match self.see().await {
                Seen::Frame(frame) if frame["op"] != "EVENT" => return frame,
                Seen::Frame(frame) => self.kept.push(frame),
                other => panic!("expected an answer, got {other:?}"),
            }
        }
    }

    /// Frames that arrived while the test waited for others.
    pub fn kept(&self) -> &[Value] {
        &self.kept
    }

    /// Sends a frame with a corr and waits for its answer; other frames are kept.
    pub async fn ask(&mut self, mut frame: Value) -> Value {
        self.next_corr += 1;
        let corr = format!("c{}", self.next_corr);
        frame["corr"] = json!(corr);
        self.send(frame).await;
        loop {
            match self.see().await {
                Seen::Frame(answer) if answer["corr"] == json!(corr) => return answer,
                Seen::Frame(other) => self.kept.push(other),
                other => panic!("expected an answer, got {other:?}"),
            }
        }
    }

    /// Like `ask`; the answer must be OK.
    pub async fn ok(&mut self, frame: Value) -> Value {
        let answer = self.ask(frame.clone()).await;
        assert_eq!(answer["op"], "OK", "{frame} was answered {answer}");
        answer
    }

    /// Like `ask`; the answer must be ERR with this code.
    pub async fn err(&mut self, frame: Value, code: &str) -> Value {
        let answer = self.ask(frame.clone()).await;
        assert_eq!(
            (&answer["op"], &answer["code"]),
            (&json!("ERR"), &json!(code)),
            "{frame} was answered {answer}"
        );
        answer
    }

    pub async fn publish(&mut self, topic: &str, payload: Value) -> Value {
        self.ok(json!({"op": "PUBLISH", "topic": topic, "payload": payload})).await
    }

    pub async fn subscribe(&mut self, topic: &str, group: &str, opts: Value) -> Value {
        self.ok(json!({"op": "SUBSCRIBE", "topic": topic, "group": group, "opts": opts})).await
    }

    /// Whether no frame arrives for this long.
    pub async fn is_quiet(&mut self, millis: u64) -> bool {
        if !self.kept.is_empty() {
            return false;
        }
        tokio::time::timeout(Duration::from_millis(millis), self.socket.next()).await.is_err()
    }
}
