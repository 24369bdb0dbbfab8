//! The upgrade to a WebSocket, and compression.

use crate::raw_client::metric;
use crate::rig::{Rig, options};
use prombus_server::ServerOptions;
use prombus_server::test_util::put_masked;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_of_http_1_0_is_refused() {
    let rig = Rig::memory().await;
    let mut socket = TcpStream::connect(rig.address).await.expect("it connects");
    let head = format!(
        "GET /ws HTTP/1.0\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        rig.address
    );
    socket.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = vec![0; 4096];
    let count =
        timeout(Duration::from_secs(3), socket.read(&mut answer)).await.expect("an answer").expect("read");
    let text = String::from_utf8_lossy(&answer[..count]).into_owned();
    assert!(text.contains(" 400 ") || text.contains(" 426 ") || text.contains(" 505 "), "{text}");
}

/// Connects with an offer of compression and returns the raw socket: tungstenite does not support compression.
async fn with_deflate(rig: &Rig, offer: &str) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(rig.address).await.expect("it connects");
    let request = format!(
        "GET /ws HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: {offer}\r\n\r\n",
        rig.address
    );
    socket.write_all(request.as_bytes()).await.expect("it sends");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.expect("a head"));
    }
    (socket, String::from_utf8(head).expect("text").to_lowercase())
}

#[tokio::test(flavor = "multi_thread")]
async fn compression_is_offered_only_if_configured() {
    let rig = Rig::memory().await;
    assert!(!with_deflate(&rig, "permessage-deflate").await.1.contains("sec-websocket-extensions"));
    let rig = Rig::start(ServerOptions { has_permessage_deflate: true, ..options() }).await;
    let (mut socket, head) = with_deflate(&rig, "permessage-deflate; client_max_window_bits").await;
    let agreed = "sec-websocket-extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n";
    assert!(head.contains(agreed), "{head}");
    // A decompression bomb: 8 MiB of spaces.
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut encoder, &vec![b' '; 8 << 20]).expect("a vector takes it");
    let mut frame = Vec::new();
    put_masked(&mut frame, 0xc1, &encoder.finish().expect("it ends"));
    socket.write_all(&frame).await.expect("it sends");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.expect("it is closed");
    let close = answer.windows(2).position(|two| two == 1009_u16.to_be_bytes());
    assert!(close.is_some(), "{answer:?}");
    // The ERR is compressed if that makes it smaller.
    let payload = &answer[2..2 + usize::from(answer[1])];
    let mut error = String::new();
    if answer[0] == 0xc1 {
        let mut decoder = flate2::read::DeflateDecoder::new(payload);
        // The message lacks the end of a deflate stream.
        let _ = std::io::Read::read_to_string(&mut decoder, &mut error);
    } else {
        error.push_str(std::str::from_utf8(payload).expect("text"));
    }
    assert!(error.contains("too_large"), "{error} {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_are_counted_with_their_route_and_method() {
    let rig = Rig::memory().await;
    for line in ["GET /", "GET /ws", "POST /ws"] {
        let mut socket = TcpStream::connect(rig.address).await.expect("it connects");
        let request = format!(
            "{line} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            rig.address
        );
        socket.write_all(request.as_bytes()).await.expect("it sends");
        socket.read_u8().await.expect("an answer");
    }
    for labels in [
        "route=\"/\",method=\"GET\",code=\"101\"",
        "route=\"/ws\",method=\"GET\",code=\"101\"",
        "route=\"unmatched\",method=\"POST\",code=\"400\"",
    ] {
        let name = format!("prombus_http_requests_total{{{labels}}}");
        assert_eq!(metric(rig.address, &name).await, 1.0, "{labels}");
    }
}
