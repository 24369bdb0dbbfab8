//! A raw socket that can send any bytes, valid or not.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Raw {
    pub(super) stream: TcpStream,
}

impl Raw {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream }
    }

    /// Upgrades to a WebSocket; the test encodes the frames itself.
    pub(super) async fn upgraded(address: SocketAddr) -> Self {
        let mut raw = Self::connect(address).await;
        let request = format!(
            "GET /ws HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        raw.send(request.as_bytes()).await;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(raw.stream.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        raw
    }

    /// Sends bytes. Ignores errors: the server may have closed the connection already.
    pub(super) async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// Reads until the server closes the connection, which it must do.
    pub(super) async fn until_closed(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let reading = self.stream.read_to_end(&mut bytes);
        // A reset is also an end.
        let _ = tokio::time::timeout(PATIENCE, reading).await.expect("the server closes it in time");
        bytes
    }

    /// The next frame: its first byte and its payload.
    pub(super) async fn frame(&mut self) -> (u8, Vec<u8>) {
        let reading = async {
            let first = self.stream.read_u8().await.unwrap();
            let length = match self.stream.read_u8().await.unwrap() {
                126 => usize::from(self.stream.read_u16().await.unwrap()),
                127 => usize::try_from(self.stream.read_u64().await.unwrap()).unwrap(),
                short => usize::from(short),
            };
            let mut payload = vec![0; length];
            self.stream.read_exact(&mut payload).await.unwrap();
            (first, payload)
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("a frame arrives in time")
    }

    /// The code of the close frame. Only text and ping frames may come before it.
    pub(super) async fn close_code(&mut self) -> u16 {
        loop {
            let (first, payload) = self.frame().await;
            match first {
                0x88 => return u16::from_be_bytes([payload[0], payload[1]]),
                0x81 | 0x89 => {}
                other => panic!("not a frame: {other:#x}"),
            }
        }
    }

    /// The next frame, which must be a text.
    pub(super) async fn text(&mut self) -> String {
        let (first, payload) = self.frame().await;
        assert_eq!(first, 0x81, "{payload:?}");
        String::from_utf8(payload).unwrap()
    }
}

/// A masked frame with this first byte; the mask is zero.
pub(super) fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length @ 126..65_536 => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}
