//! A WebSocket client without a WebSocket library, and a reader of metrics.

use prombus_server::test_util::put_masked;
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// A client that reads and writes raw frames.
pub struct Raw {
    pub socket: TcpStream,
    pub read: Vec<u8>,
}

impl Raw {
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        // A small buffer, so that little data fits between server and client.
        socket.set_recv_buffer_size(16 * 1024).expect("a small buffer");
        let socket = socket.connect(address).await.expect("it connects");
        let mut raw = Self { socket, read: Vec::new() };
        let head = format!(
            "GET /ws HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        raw.socket.write_all(head.as_bytes()).await.expect("sent");
        loop {
            raw.more().await;
            if let Some(at) = raw.read.windows(4).position(|it| it == b"\r\n\r\n") {
                assert!(raw.read.starts_with(b"HTTP/1.1 101"), "{:?}", String::from_utf8_lossy(&raw.read));
                raw.read.drain(..at + 4);
                return raw;
            }
        }
    }

    /// Reads more bytes. Returns false at the end.
    pub async fn more(&mut self) -> bool {
        let mut piece = [0; 16 * 1024];
        let read = timeout(Duration::from_secs(10), self.socket.read(&mut piece)).await;
        match read.expect("something in time") {
            Ok(count) => {
                self.read.extend_from_slice(&piece[..count]);
                count > 0
            }
            Err(_) => false,
        }
    }

    pub async fn send(&mut self, first: u8, payload: &[u8]) {
        let mut bytes = Vec::new();
        put_masked(&mut bytes, first, payload);
        self.socket.write_all(&bytes).await.expect("sent");
    }

    pub async fn text(&mut self, frame: Value) {
        self.send(0x81, frame.to_string().as_bytes()).await;
    }

    /// The next frame: its opcode and payload; `None` at the end.
    pub async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let [first, second, rest @ ..] = self.read.as_slice() {
                let number = |bytes: &[u8]| bytes.iter().fold(0, |all, &byte| all << 8 | usize::from(byte));
                let (skipped, length) = match second {
                    126 if rest.len() >= 2 => (2, number(&rest[..2])),
                    127 if rest.len() >= 8 => (8, number(&rest[..8])),
                    126 | 127 => (0, usize::MAX / 2),
                    short => (0, usize::from(*short)),
                };
                if rest.len() >= skipped + length {
                    let frame = (first & 0x0f, rest[skipped..skipped + length].to_vec());
                    self.read.drain(..2 + skipped + length);
                    return Some(frame);
                }
            }
            if !self.more().await {
                return None;
            }
        }
    }

    pub async fn json(&mut self) -> Value {
        loop {
            let (opcode, payload) = self.frame().await.expect("a frame");
            if opcode == 1 {
                return serde_json::from_slice(&payload).expect("JSON");
            }
            assert_eq!(opcode, 9, "{payload:?}");
        }
    }
}

pub async fn metric(address: SocketAddr, name: &str) -> f64 {
    let url = format!("http://{address}/metrics");
    let output = tokio::process::Command::new("curl").args(["-sS", &url]).output().await.expect("curl runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
    line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok()).expect("a number")
}
