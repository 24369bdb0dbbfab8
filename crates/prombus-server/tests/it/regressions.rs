//! Faults that were there once.

use crate::rig::{Rig, Seen, options};
use prombus::Bus;
use prombus_server::ServerOptions;
use prombus_server::test_util::put_masked;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_tungstenite::MaybeTlsStream;

/// A client that sees every byte.
struct Raw {
    socket: TcpStream,
    read: Vec<u8>,
}

impl Raw {
    async fn connect(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        // So that little fits between server and client.
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

    /// False at the end.
    async fn more(&mut self) -> bool {
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

    async fn send(&mut self, first: u8, payload: &[u8]) {
        let mut bytes = Vec::new();
        put_masked(&mut bytes, first, payload);
        self.socket.write_all(&bytes).await.expect("sent");
    }

    async fn text(&mut self, frame: Value) {
        self.send(0x81, frame.to_string().as_bytes()).await;
    }

    /// The next frame: its opcode and payload; `None` at the end.
    async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
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

    async fn json(&mut self) -> Value {
        loop {
            let (opcode, payload) = self.frame().await.expect("a frame");
            if opcode == 1 {
                return serde_json::from_slice(&payload).expect("JSON");
            }
            assert_eq!(opcode, 9, "{payload:?}");
        }
    }
}

async fn metric(address: SocketAddr, name: &str) -> f64 {
    let url = format!("http://{address}/metrics");
    let output = tokio::process::Command::new("curl").args(["-sS", &url]).output().await.expect("curl runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
    line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok()).expect("a number")
}

/// Codes that may stand in a close frame.
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
async fn nothing_comes_behind_the_close_frame() {
    let rig = Rig::memory().await;
    let mut raw = Raw::connect(rig.address).await;
    raw.text(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "corr": "s"})).await;
    assert_eq!(raw.json().await["op"], "OK");
    // Reserved bits: not WebSocket.
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
        "behind the close frame: {:?}",
        next.map(|it| String::from_utf8_lossy(&it.1).into_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn redeliveries_to_a_client_that_does_not_read_are_bounded() {
    let rig = Rig::memory().await;
    let large = "x".repeat(1_000_000);
    let mut first = rig.client().await;
    first.subscribe("t", "g", json!({"from": "earliest"})).await;
    for _ in 0..50 {
        rig.bus.publish("t", &large).await.expect("published");
        first.event().await;
    }
    drop(first);
    let mut deaf = Raw::connect(rig.address).await;
    deaf.text(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "corr": "s"})).await;
    let mut most = 0.0f64;
    for _ in 0..20 {
        sleep(Duration::from_millis(50)).await;
        most = most.max(metric(rig.address, "buffered_bytes").await);
    }
    assert!(most < 8e6, "{most} bytes are queued for one connection; max_queued_bytes is 1 MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_go_on_when_there_is_room_in_the_buffers_again() {
    let mut small: ServerOptions = options();
    small.connections.max_buffered_bytes = 100_000;
    let rig = Rig::over(Bus::memory(), small).await;
    let mut reader = rig.client().await;
    reader.subscribe("t", "g", json!({})).await;
    // What is queued for a client that does not read takes all the room that there is.
    let large = "x".repeat(200_000);
    for _ in 0..100 {
        rig.bus.publish("large", &large).await.expect("published");
    }
    let mut hog = Raw::connect(rig.address).await;
    hog.text(json!({"op": "SUBSCRIBE", "topic": "large", "group": "g", "opts": {"from": "earliest"}})).await;
    sleep(Duration::from_millis(1000)).await;
    let used = metric(rig.address, "buffered_bytes").await;
    assert!(used >= 100_000.0, "{used}");
    rig.bus.publish("t", &1).await.expect("published");
    sleep(Duration::from_millis(200)).await;
    drop(hog);
    let begun = Instant::now();
    let event = timeout(Duration::from_secs(5), reader.event()).await;
    assert!(event.is_ok(), "no event {:?} after there is room again", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn half_messages_of_many_connections_stay_within_the_limit() {
    let mut small: ServerOptions = options();
    small.connections.max_buffered_bytes = 1 << 20;
    let rig = Rig::over(Bus::memory(), small).await;
    let mut bytes = Vec::new();
    put_masked(&mut bytes, 0x81, &vec![b' '; 1_000_000]);
    let mut raws = Vec::new();
    for _ in 0..40 {
        let mut raw = Raw::connect(rig.address).await;
        let _ = timeout(Duration::from_millis(50), raw.socket.write_all(&bytes[..250_000])).await;
        raws.push(raw);
    }
    sleep(Duration::from_millis(300)).await;
    let used = metric(rig.address, "buffered_bytes").await;
    assert!(used < 2.0 * 1_048_576.0, "{used} bytes; max_buffered_bytes is 1 MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_not_read_for_want_of_room_is_not_taken_for_dead() {
    let mut small: ServerOptions = options();
    small.connections.max_buffered_bytes = 600_000;
    small.connections.ping_interval = Duration::from_millis(500);
    small.connections.stall_timeout = Duration::from_secs(10);
    let rig = Rig::over(Bus::memory(), small).await;
    let mut bytes = Vec::new();
    put_masked(&mut bytes, 0x81, &vec![b' '; 1_400_000]);
    let mut victim = Raw::connect(rig.address).await;
    sleep(Duration::from_millis(200)).await;
    let mut hog = Raw::connect(rig.address).await;
    // The victim has sent a piece of a message (a whole frame, so that pongs may follow), then the hog takes the room.
    let mut piece = Vec::new();
    put_masked(&mut piece, 0x01, &vec![b' '; 20_000]);
    victim.socket.write_all(&piece[..5_000]).await.expect("sent");
    sleep(Duration::from_millis(50)).await;
    let _ = timeout(Duration::from_millis(300), hog.socket.write_all(&bytes[..700_000])).await;
    victim.socket.write_all(&piece[5_000..]).await.expect("sent");
    let until = Instant::now() + Duration::from_millis(1300);
    let mut closed = None;
    while Instant::now() < until {
        if let Ok(frame) = timeout(Duration::from_millis(100), victim.frame()).await {
            match frame {
                Some((9, payload)) => victim.send(0x8a, &payload).await,
                other => {
                    closed = Some(other);
                    break;
                }
            }
        }
    }
    assert!(closed.is_none(), "{closed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_longer_in_flight_is_not_counted() {
    let rig = Rig::memory().await;
    let mut first = rig.client().await;
    first.subscribe("t", "g", json!({"ackTimeoutMs": 300, "maxInFlight": 1})).await;
    rig.bus.publish("t", &1).await.expect("published");
    first.event().await;
    first.ok(json!({"op": "PAUSE", "topic": "t", "group": "g"})).await;
    let mut second = rig.client().await;
    second.subscribe("t", "g", json!({})).await;
    let event = second.event().await;
    second.ok(json!({"op": "ACK", "topic": "t", "group": "g", "id": event["event"]["id"]})).await;
    sleep(Duration::from_millis(100)).await;
    let of_group = metric(rig.address, "events_inflight{topic=\"t\",group=\"g\"}").await;
    let of_sockets = metric(rig.address, "ws_inflight{topic=\"t\",group=\"g\"}").await;
    assert_eq!((of_group, of_sockets), (0.0, 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seek_voids_what_is_counted_as_in_flight() {
    let rig = Rig::memory().await;
    let mut first = rig.client().await;
    first.subscribe("t", "g", json!({})).await;
    for n in 0..5 {
        rig.bus.publish("t", &n).await.expect("published");
        first.event().await;
    }
    first.ok(json!({"op": "SEEK", "topic": "t", "group": "g", "to": "latest"})).await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(metric(rig.address, "ws_inflight{topic=\"t\",group=\"g\"}").await, 0.0);
}

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

/// A bus over a simulated disk; with `threads` it commits by itself, without it never.
fn simulated(
    threads: bool,
) -> (Bus, prombus_log::storage::simulated::Disk, std::sync::Arc<prombus::store::LogStore>) {
    simulated_with(prombus_log::Options { threads, ..prombus_log::Options::default() })
}

fn simulated_with(
    log: prombus_log::Options,
) -> (Bus, prombus_log::storage::simulated::Disk, std::sync::Arc<prombus::store::LogStore>) {
    let disk = prombus_log::storage::simulated::Disk::new(1);
    let options = prombus::store::LogStoreOptions { log };
    let clock: std::sync::Arc<dyn prombus::Clock> = std::sync::Arc::new(prombus::SystemClock::default());
    let store = prombus::store::LogStore::open_storage(std::sync::Arc::new(disk.clone()), options, clock)
        .expect("opens");
    let store = std::sync::Arc::new(store);
    let bus =
        Bus::builder().over_store(std::sync::Arc::clone(&store) as std::sync::Arc<dyn prombus::store::Store>);
    (bus.expect("a bus"), disk, store)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_without_corr_that_cannot_be_kept_is_answered() {
    let (bus, disk, _store) = simulated(true);
    let rig = Rig::over(bus, options()).await;
    let mut client = rig.client().await;
    client.subscribe("t", "g", json!({})).await;
    client.publish("t", json!(1)).await;
    client.publish("t", json!(2)).await;
    let ids = [client.event().await["event"]["id"].clone(), client.event().await["event"]["id"].clone()];
    disk.fail_next_sync(prombus_log::storage::SyncPoint::LogData);
    client.err(json!({"op": "PUBLISH", "topic": "t", "payload": 3}), "unavailable").await;
    client.err(json!({"op": "ACK", "topic": "t", "group": "g", "id": ids[0]}), "unavailable").await;
    client.err(json!({"op": "SUBSCRIBE", "topic": "t", "group": "new"}), "unavailable").await;
    client.send(json!({"op": "ACK", "topic": "t", "group": "g", "id": ids[1]})).await;
    let answer = timeout(Duration::from_secs(3), client.frame()).await;
    assert_eq!(answer.expect("answered on error")["code"], "unavailable");
}

#[tokio::test(flavor = "multi_thread")]
async fn acks_that_a_full_disk_cannot_keep_are_answered_storage_full() {
    let (bus, disk, _store) = simulated_with(prombus_log::Options {
        segment_bytes: 16 * 1024,
        reserve_bytes: 8 * 1024,
        batch_bytes: 4 * 1024,
        checkpoint_bytes: 8 * 1024,
        ..prombus_log::Options::default()
    });
    let rig = Rig::over(bus, options()).await;
    let mut client = rig.client().await;
    client.subscribe("t", "g", json!({"maxInFlight": 400})).await;
    for number in 0..400 {
        client.publish("t", json!(number)).await;
    }
    let mut ids = Vec::new();
    for _ in 0..400 {
        ids.push(client.event().await["event"]["id"].clone());
    }
    disk.set_capacity(Some(disk.used_bytes()));
    let filler = "x".repeat(1_000);
    let mut is_full = false;
    for _ in 0..200 {
        let answer = client.ask(json!({"op": "PUBLISH", "topic": "filler", "payload": filler})).await;
        is_full = answer["code"] == "storage_full";
        if is_full {
            break;
        }
    }
    assert!(is_full, "the disk is never full");
    // The reserve takes some; then each is answered all the same.
    let mut acked = 0;
    for id in &ids {
        let ack = json!({"op": "ACK", "topic": "t", "group": "g", "id": id});
        let answer = timeout(Duration::from_secs(3), client.ask(ack)).await.expect("an ack is answered");
        if answer["op"] == "ERR" {
            assert_eq!(answer["code"], "storage_full");
            break;
        }
        acked += 1;
    }
    assert!((10..300).contains(&acked), "{acked} acks before the reserve is used up");
    // Without a corr an ack is answered only on error, and this is one.
    client.send(json!({"op": "ACK", "topic": "t", "group": "g", "id": ids[acked + 1]})).await;
    let answer = timeout(Duration::from_secs(3), client.frame()).await;
    assert_eq!(answer.expect("answered on error")["code"], "storage_full");
    disk.set_capacity(None);
}

#[tokio::test(flavor = "multi_thread")]
async fn publishes_that_wait_for_the_disk_stay_within_the_limit() {
    let (bus, _disk, store) = simulated(false);
    let mut small: ServerOptions = options();
    small.connections.max_buffered_bytes = 1 << 20;
    let rig = Rig::over(bus, small).await;
    let frame = json!({"op": "PUBLISH", "topic": "t", "payload": "x".repeat(1_000)}).to_string();
    let mut raws = Vec::new();
    for _ in 0..20 {
        let mut raw = Raw::connect(rig.address).await;
        let mut bytes = Vec::new();
        (0..3000).for_each(|_| put_masked(&mut bytes, 0x81, frame.as_bytes()));
        let _ = timeout(Duration::from_millis(300), raw.socket.write_all(&bytes)).await;
        raws.push(raw);
    }
    sleep(Duration::from_millis(300)).await;
    let used = metric(rig.address, "buffered_bytes").await;
    while store.log().step_commit() == prombus_log::Step::Worked {}
    // Each may have a little: here 256 KiB, what one read takes.
    assert!(used < 20.0 * 256.0 * 1024.0 + 1_048_576.0, "{used} bytes; max_buffered_bytes is 1 MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn publishes_of_a_connection_keep_their_order_when_the_queue_is_full() {
    let (bus, _disk, store) = simulated(false);
    let rig = Rig::over(bus.clone(), options()).await;
    let mut client = rig.client().await;
    // Fills the committer's queue and the line behind it.
    let large = "x".repeat(1_000_000);
    let topic = prombus::Topic::new("fill").expect("a topic");
    let mut filling = Vec::new();
    for _ in 0..400 {
        let mut batch = bus.backend().batch();
        batch.push(topic.clone(), &large, &prombus::PublishOptions::default()).expect("it fits");
        let publishing = bus.backend().publish(batch);
        let is_outside = format!("{publishing:?}").contains("None") && filling.len() > 250;
        filling.push(publishing);
        if is_outside {
            break;
        }
    }
    // Large ones first: there is no place for them; then small ones, for which there may be.
    for n in 0..3 {
        let text = "y".repeat(900_000);
        client.send(json!({"op": "PUBLISH", "topic": "t", "corr": n, "payload": text})).await;
        sleep(Duration::from_millis(50)).await;
    }
    for n in 3..6 {
        client.send(json!({"op": "PUBLISH", "topic": "t", "corr": n, "payload": n})).await;
        sleep(Duration::from_millis(50)).await;
    }
    let committing = std::thread::spawn(move || {
        let until = Instant::now() + Duration::from_secs(8);
        while Instant::now() < until {
            if store.log().step_commit() != prombus_log::Step::Worked
                && store.log().step_housekeeping() != prombus_log::Step::Worked
            {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let filled = tokio::spawn(async move {
        for publishing in filling {
            let _ = publishing.await;
        }
    });
    let mut answers = Vec::new();
    for _ in 0..6 {
        let answer = client.frame().await;
        answers.push((answer["corr"].as_u64().expect("a corr"), answer["seq"].as_u64().expect("a seq")));
    }
    let _ = filled.await;
    committing.join().expect("no panic");
    let seqs: Vec<u64> = answers.iter().map(|it| it.1).collect();
    assert!(seqs.is_sorted(), "(corr, seq) in the order of the OKs: {answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_ends_with_a_close_notify_and_loses_nothing() {
    let folder = std::env::temp_dir().join(format!("prombus-tls-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let tls = prombus_server::TlsOptions { cert: folder.join("cert.pem"), key: folder.join("key.pem") };
    std::fs::write(&tls.cert, made.cert.pem()).expect("written");
    std::fs::write(&tls.key, made.signing_key.serialize_pem()).expect("written");
    let rig = Rig::over(Bus::memory(), ServerOptions { tls: Some(tls), ..options() }).await;
    let mut roots = tokio_rustls::rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let provider = tokio_rustls::rustls::crypto::aws_lc_rs::default_provider();
    let config = tokio_rustls::rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(16 * 1024).expect("a small buffer");
    let socket = socket.connect(rig.address).await.expect("it connects");
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
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
    // Answers that are not read before the close frame is sent.
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
        // A client that is a little slow.
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

#[tokio::test(flavor = "multi_thread")]
async fn leases_do_not_run_out_while_there_is_no_room_to_read() {
    let mut small: ServerOptions = options();
    small.connections.max_buffered_bytes = 600_000;
    let rig = Rig::over(Bus::memory(), small).await;
    let mut raw = Raw::connect(rig.address).await;
    raw.text(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "opts": {"ackTimeoutMs": 1000}})).await;
    assert_eq!(raw.json().await["op"], "OK");
    rig.bus.publish("t", &1).await.expect("published");
    let id = raw.json().await["event"]["id"].clone();
    let mut bytes = Vec::new();
    put_masked(
        &mut bytes,
        0x81,
        json!({"op": "PUBLISH", "topic": "u", "payload": "x".repeat(20_000)}).to_string().as_bytes(),
    );
    raw.socket.write_all(&bytes[..5_000]).await.expect("sent");
    sleep(Duration::from_millis(50)).await;
    let mut hog = Raw::connect(rig.address).await;
    let mut large = Vec::new();
    put_masked(&mut large, 0x81, &vec![b' '; 1_400_000]);
    let _ = timeout(Duration::from_millis(300), hog.socket.write_all(&large[..700_000])).await;
    println!("buffered: {}", metric(rig.address, "buffered_bytes").await);
    // The ack is sent in time.
    raw.socket.write_all(&bytes[5_000..]).await.expect("sent");
    raw.text(json!({"op": "ACK", "topic": "t", "group": "g", "id": id})).await;
    sleep(Duration::from_millis(1500)).await;
    let group = rig.bus.groups().await.expect("groups").remove(0);
    println!("{group:?}");
    assert_eq!(group.counters.expired, 0, "{group:?}");
    drop(hog);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_in_time_with_a_frame_that_waits_for_the_disk() {
    let (bus, _disk, store) = simulated(false);
    let mut rig = Rig::over(bus, options()).await;
    let mut client = rig.client().await;
    client.send(json!({"op": "PUBLISH", "topic": "t", "payload": 1})).await;
    client.send(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g"})).await;
    client.send(json!({"op": "PUBLISH", "topic": "t", "payload": 2})).await;
    let begun = Instant::now();
    sleep(Duration::from_millis(100)).await;
    rig.begin_stop();
    let seen = client.see().await;
    assert_eq!(seen, crate::rig::Seen::Close(Some(1001)));
    rig.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(store);
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
async fn a_client_that_only_sends_is_closed_with_1013() {
    let mut quick: ServerOptions = options();
    quick.connections.stall_timeout = Duration::from_secs(1);
    let rig = Rig::over(Bus::memory(), quick).await;
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
    // Whatever was torn by the timeouts: what counts is what the server says.
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
async fn a_paused_member_keeps_nothing_from_the_others() {
    let rig = Rig::memory().await;
    let mut paused = rig.client().await;
    paused.subscribe("t", "g", json!({})).await;
    let mut other = rig.client().await;
    other.subscribe("t", "g", json!({})).await;
    paused.ok(json!({"op": "PAUSE", "topic": "t", "group": "g"})).await;
    for n in 0..20 {
        rig.bus.publish("t", &n).await.expect("published");
        let begun = Instant::now();
        let event = other.event().await;
        assert_eq!(event["event"]["payload"], n);
        assert!(begun.elapsed() < Duration::from_millis(500), "{n}: {:?}", begun.elapsed());
        other.ok(json!({"op": "ACK", "topic": "t", "group": "g", "id": event["event"]["id"]})).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twins_are_not_slow() {
    let rig = Rig::memory().await;
    let count = 20_000u128;
    for topic in ["p.a", "p.b"] {
        let mut batch = rig.bus.backend().batch();
        for n in 1..=count {
            let id = Some(uuid::Uuid::from_u128(n << 80 | 0x7000_8000_0000_0000_0000));
            let options = prombus::PublishOptions { id, ..prombus::PublishOptions::default() };
            batch.push(prombus::Topic::new(topic).expect("a topic"), &1, &options).expect("it fits");
        }
        rig.bus.backend().publish(batch).await.expect("published");
    }
    let mut client = rig.client().await;
    let begun = Instant::now();
    client
        .subscribe("p.*", "g", json!({"from": "earliest", "maxInFlight": 100_000, "batchSize": 10_000}))
        .await;
    let mut ids = Vec::new();
    for _ in 0..2 * count {
        ids.push(client.event().await["event"]["id"].clone());
    }
    let delivered = begun.elapsed();
    for id in &ids {
        client.send(json!({"op": "ACK", "topic": "p.*", "group": "g", "id": id})).await;
    }
    client.ok(json!({"op": "AUTH"})).await;
    println!("delivered in {delivered:?}, acked in {:?}", begun.elapsed() - delivered);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?} {:?}", delivered, begun.elapsed());
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

#[tokio::test(flavor = "multi_thread")]
async fn scopes_of_a_new_token_hold_for_what_is_subscribed() {
    let mut with_auth: ServerOptions = options();
    for (secret, scopes) in [("all", prombus_server::Scope::all()), ("none", Vec::new())] {
        with_auth.auth.tokens.push(prombus_server::TokenOptions {
            name: secret.to_owned(),
            secret: prombus_server::TokenHash::of(secret),
            scopes,
        });
    }
    let rig = Rig::over(Bus::memory(), with_auth).await;
    let mut client = rig.client().await;
    client.ok(json!({"op": "AUTH", "token": "all"})).await;
    client.subscribe("t", "g", json!({})).await;
    client.ok(json!({"op": "AUTH", "token": "none"})).await;
    client.err(json!({"op": "CURSOR", "topic": "t", "group": "g"}), "forbidden").await;
    rig.bus.publish("t", &1).await.expect("published");
    assert!(
        timeout(Duration::from_secs(1), client.event()).await.is_err(),
        "an EVENT that this token may not read"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_gets_all_events_when_the_buffers_were_full_for_a_moment() {
    let mut small: ServerOptions = options();
    small.connections.max_buffered_bytes = 100_000;
    let rig = Rig::over(Bus::memory(), small).await;
    let large = "x".repeat(200_000);
    for _ in 0..50 {
        rig.bus.publish("t", &large).await.expect("published");
    }
    let mut reader = rig.client().await;
    reader.subscribe("t", "g", json!({"from": "earliest"})).await;
    for n in 0..50 {
        let event = timeout(Duration::from_secs(5), reader.event()).await;
        let used = metric(rig.address, "buffered_bytes").await;
        assert!(event.is_ok(), "{n} of 50 events, and then none for 5 s with {used} bytes in buffers");
    }
}

/// A batch that was begun for it was kept: the next event had the time of the refused one, and a shutdown waited for its answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_publish_leaves_nothing_behind() {
    let mut rig = Rig::memory().await;
    let mut client = rig.client().await;
    client.publish("t", json!(1)).await;
    client.subscribe("t", "g", json!({"from": "latest"})).await;
    let over_payload = "x".repeat((1 << 20) + 10);
    client.err(json!({"op": "PUBLISH", "topic": "t", "payload": over_payload}), "too_large").await;
    sleep(Duration::from_millis(1_500)).await;
    let before_ms = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64;
    client.publish("t", json!(2)).await;
    let ts = client.event().await["event"]["ts"].as_i64().unwrap();
    assert!(ts >= before_ms - 1_000, "{} ms too early", before_ms - ts);

    client.err(json!({"op": "PUBLISH", "topic": "t", "payload": over_payload}), "too_large").await;
    let stopping = Instant::now();
    rig.begin_stop();
    while !matches!(client.see().await, crate::rig::Seen::Close(_)) {}
    assert!(stopping.elapsed() < Duration::from_secs(2), "{:?}", stopping.elapsed());
    drop(client);
    rig.stop().await;
}

/// RFC 6455, section 7.1.1: after both close frames the server closes the TCP connection, at once. Clients wait for that.
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
        // It was 2 s; a slow machine may take a while for nothing.
        assert!(began.elapsed() < Duration::from_millis(1_500), "{:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_no_utf8_closes_with_1007_and_what_came_before_is_answered() {
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

/// A client without tungstenite, which knows no compression: sends and reads raw frames.
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
async fn compression_is_offered_only_if_it_is_set() {
    let rig = Rig::memory().await;
    assert!(!with_deflate(&rig, "permessage-deflate").await.1.contains("sec-websocket-extensions"));
    let rig = Rig::start(ServerOptions { has_permessage_deflate: true, ..options() }).await;
    let (mut socket, head) = with_deflate(&rig, "permessage-deflate; client_max_window_bits").await;
    let agreed = "sec-websocket-extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n";
    assert!(head.contains(agreed), "{head}");
    // A bomb: a block of 2 MiB of spaces, as stored by no honest client.
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut encoder, &vec![b' '; 8 << 20]).expect("a vector takes it");
    let mut frame = Vec::new();
    put_masked(&mut frame, 0xc1, &encoder.finish().expect("it ends"));
    socket.write_all(&frame).await.expect("it sends");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.expect("it is closed");
    let close = answer.windows(2).position(|two| two == 1009_u16.to_be_bytes());
    assert!(close.is_some(), "{answer:?}");
    assert!(String::from_utf8_lossy(&answer).contains("too_large"), "{answer:?}");
}
