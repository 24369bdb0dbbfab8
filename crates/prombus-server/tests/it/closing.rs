//! How connections end: close frames and their codes, the answers before them, and the end of the socket.

use crate::raw_client::Raw;
use crate::rig::{Rig, Seen, options};
use crate::tls_rig::TlsRig;
use prombus_server::ServerOptions;
use prombus_server::test_util::put_masked;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::MaybeTlsStream;

/// Codes that are allowed in a close frame.
fn is_legal(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_is_answered_with_a_legal_code() {
    let rig = Rig::memory().await;
    for code in [0u16, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535] {
        let mut raw = Raw::connect(rig.address).await;
        raw.send(0x88, &code.to_be_bytes()).await;
        let (opcode, payload) = raw.frame().await.expect("a close frame");
        assert_eq!(opcode, 8);
        let answered = u16::from_be_bytes([payload[0], payload[1]]);
        assert!(is_legal(answered), "{code} was answered with {answered}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_after_the_close_frame() {
    let rig = Rig::memory().await;
    let mut raw = Raw::connect(rig.address).await;
    raw.text(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "corr": "s"})).await;
    assert_eq!(raw.json().await["op"], "OK");
    // Reserved bits are a protocol violation.
    raw.send(0xf1, b"{}").await;
    loop {
        if raw.frame().await.expect("a close frame").0 == 8 {
            break;
        }
    }
    rig.bus.publish("t", &1).await.expect("published");
    let next = raw.frame().await;
    assert!(
        next.is_none(),
        "after the close frame: {:?}",
        next.map(|it| String::from_utf8_lossy(&it.1).into_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn publishes_before_a_close_frame_are_answered() {
    let rig = Rig::start(options()).await;
    let mut raw = Raw::connect(rig.address).await;
    let mut bytes = Vec::new();
    for n in 0..500 {
        put_masked(
            &mut bytes,
            0x81,
            json!({"op": "PUBLISH", "topic": "t", "payload": n, "corr": n}).to_string().as_bytes(),
        );
    }
    put_masked(&mut bytes, 0x88, &3001u16.to_be_bytes());
    put_masked(
        &mut bytes,
        0x81,
        json!({"op": "PUBLISH", "topic": "t", "payload": "late", "corr": "late"}).to_string().as_bytes(),
    );
    raw.socket.write_all(&bytes).await.expect("sent");
    let mut oks = 0;
    loop {
        match raw.frame().await {
            Some((1, text)) => {
                let answer: Value = serde_json::from_slice(&text).expect("JSON");
                assert_eq!((&answer["op"], &answer["corr"]), (&json!("OK"), &json!(oks)));
                oks += 1;
            }
            Some((8, code)) => {
                assert_eq!(code, 3001u16.to_be_bytes());
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(oks, 500);
    assert_eq!(rig.bus.topics().await.expect("topics")[0].last_seq, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reason_that_is_not_utf8_is_not_a_clean_close() {
    let rig = Rig::memory().await;
    let mut raw = Raw::connect(rig.address).await;
    raw.send(0x88, &[0x03, 0xe8, 0xff, 0xfe]).await;
    let (opcode, payload) = raw.frame().await.expect("a close frame");
    assert_eq!(opcode, 8);
    let code = u16::from_be_bytes([payload[0], payload[1]]);
    assert!([1002, 1007].contains(&code), "{code}");
}

/// RFC 6455, section 7.1.1: after both close frames the server closes the TCP connection immediately. Clients wait for that.
#[tokio::test(flavor = "multi_thread")]
async fn the_socket_ends_with_the_answer_to_a_close_frame() {
    let rig = Rig::memory().await;
    for leave_unread in [false, true] {
        let mut client = rig.client().await;
        client.subscribe("t", "g", json!({"maxInFlight": 10})).await;
        if leave_unread {
            client.publish("t", json!(1)).await;
        }
        let began = std::time::Instant::now();
        client.socket.close(None).await.expect("it closes");
        while !matches!(client.see().await, Seen::Gone) {}
        // Below the 2 s that the server waits for a close frame, with time to spare for a slow machine.
        assert!(began.elapsed() < Duration::from_millis(1_500), "{:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_utf8_closes_with_1007_and_earlier_frames_are_answered() {
    let rig = Rig::memory().await;
    let mut frames = Vec::new();
    put_masked(&mut frames, 0x81, br#"{"op":"PUBLISH","topic":"t","payload":1,"corr":1}"#);
    put_masked(&mut frames, 0x81, b"{\"op\":\"PUBLISH\",\"topic\":\"t\",\"payload\":\"\xff\",\"corr\":2}");
    put_masked(&mut frames, 0x81, br#"{"op":"PUBLISH","topic":"t","payload":3,"corr":3}"#);
    let mut client = rig.client().await;
    let MaybeTlsStream::Plain(socket) = client.socket.get_mut() else { panic!("no TLS here") };
    socket.write_all(&frames).await.expect("it sends");
    assert_eq!(client.answer().await["corr"], 1);
    assert_eq!(client.see().await, Seen::Close(Some(1007)));
    assert_eq!(rig.bus.topics().await.expect("topics")[0].last_seq, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_only_sends_is_closed_with_1013() {
    let mut quick: ServerOptions = options();
    quick.connections.stall_timeout = Duration::from_secs(1);
    let rig = Rig::with(quick).await;
    let mut raw = Raw::connect(rig.address).await;
    let mut bytes = Vec::new();
    put_masked(
        &mut bytes,
        0x81,
        json!({"op": "CURSOR", "topic": "t", "group": "g", "corr": "c".repeat(200)}).to_string().as_bytes(),
    );
    let bytes = bytes.repeat(200);
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let _ = timeout(Duration::from_millis(200), raw.socket.write_all(&bytes)).await;
    }
    // The timeouts may have cut a frame of this client. Only the frames of the server matter.
    let mut last = None;
    while let Some(frame) = raw.frame().await {
        let is_close = frame.0 == 8;
        last = Some(frame);
        if is_close {
            break;
        }
    }
    let (opcode, payload) = last.expect("frames");
    assert_eq!((opcode, payload.get(..2)), (8, Some(&1013u16.to_be_bytes()[..])));
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_ends_with_a_close_notify_and_loses_nothing() {
    let tls = TlsRig::start().await;
    let rig = &tls.rig;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(16 * 1024).expect("a small buffer");
    let socket = socket.connect(rig.address).await.expect("it connects");
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::clone(&tls.client_config));
    let name = tokio_rustls::rustls::pki_types::ServerName::try_from("localhost").expect("a name");
    let mut socket = connector.connect(name, socket).await.expect("TLS");
    let head = format!(
        "GET /ws HTTP/1.1\r\nHost: localhost:{}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        rig.address.port()
    );
    socket.write_all(head.as_bytes()).await.expect("sent");
    let mut bytes = vec![0; 4096];
    let count = socket.read(&mut bytes).await.expect("an answer");
    assert!(bytes[..count].starts_with(b"HTTP/1.1 101"));
    // Many answers, which are not read before the close frame is sent.
    let count = 40_000;
    let mut bytes = Vec::new();
    for n in 0..count {
        let frame = json!({"op": "ACK", "topic": "t", "group": "g", "corr": n, "id": uuid::Uuid::nil()});
        put_masked(&mut bytes, 0x81, frame.to_string().as_bytes());
    }
    put_masked(&mut bytes, 0x88, &1000u16.to_be_bytes());
    let (mut reading, mut writing) = tokio::io::split(socket);
    let sending = tokio::spawn(async move {
        writing.write_all(&bytes).await.expect("sent");
        writing.flush().await.expect("sent");
        writing
    });
    sleep(Duration::from_millis(500)).await;
    let mut read = Vec::new();
    let mut piece = vec![0; 16 * 1024];
    let ended = loop {
        // The client reads slowly.
        sleep(Duration::from_millis(2)).await;
        match timeout(Duration::from_secs(20), reading.read(&mut piece)).await.expect("in time") {
            Ok(0) => break Ok(()),
            Ok(count) => read.extend_from_slice(&piece[..count]),
            Err(error) => break Err(error),
        }
    };
    let _writing = sending.await;
    let (mut at, mut texts, mut closed) = (0, 0, false);
    while at + 2 <= read.len() {
        let length = match read[at + 1] {
            126 => 2 + usize::from(u16::from_be_bytes([read[at + 2], read[at + 3]])),
            short => usize::from(short),
        };
        texts += usize::from(read[at] & 0x0f == 1);
        closed |= read[at] & 0x0f == 8;
        at += 2 + length;
    }
    assert!(texts == count && closed, "{texts} of {count} answers, close frame: {closed}, end: {ended:?}");
    assert!(ended.is_ok(), "{ended:?}");
}
