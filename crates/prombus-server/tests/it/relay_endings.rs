//! How connections end when the leader of a shared store changes, or a gateway stops.

use crate::raw_client::Raw;
use crate::rig::{PATIENCE, Seen};
use crate::shared_rig::{Certificate, Pair, SECRET, SharedRig, read_all, shared_options, status_of};
use prombus::Bus;
use prombus_server::test_util::{TestPreface, put_masked};
use prombus_server::{LeaderEndpoint, ServerOptions};
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_leader_closes_its_websockets_with_1012_and_follows() {
    let pair = Pair::start().await;
    let mut direct = pair.leader.client().await;
    let mut relayed = pair.follower.client().await;
    direct.subscribe("t", "g", json!({})).await;
    relayed.subscribe("t", "g", json!({})).await;
    let bus = Bus::memory();
    pair.follower.lead(&bus, 8);
    pair.leader.follow(Some(pair.follower.endpoint(8)));
    assert_eq!(direct.see().await, Seen::Close(Some(1012)));
    assert_eq!(relayed.see().await, Seen::Close(Some(1012)));
    // Both serve the new term.
    for rig in [&pair.leader, &pair.follower] {
        rig.client().await.publish("after", json!(1)).await;
    }
    assert_eq!(bus.topics().await.expect("topics")[0].last_seq, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_end_of_a_term_subscribers_get_only_a_close_with_1012() {
    let pair = Pair::start().await;
    let mut client = pair.leader.client().await;
    client.subscribe("t", "g", json!({})).await;
    pair.bus.close().await.expect("closed");
    // The subscription fails at once; the role changes later.
    sleep(Duration::from_millis(100)).await;
    pair.leader.follow(None);
    assert_eq!(client.see().await, Seen::Close(Some(1012)));
}

#[tokio::test(flavor = "multi_thread")]
async fn relayed_websockets_are_closed_with_1012_when_another_gateway_leads() {
    let pair = Pair::start().await;
    let other = SharedRig::start(shared_options()).await;
    let bus = Bus::memory();
    other.lead(&bus, 8);
    let mut client = pair.follower.client().await;
    client.publish("t", json!(1)).await;
    // Neither a renewal of the lease nor a time without a known leader has an effect.
    pair.follower.follow(Some(pair.leader.endpoint(7)));
    pair.follower.follow(None);
    pair.follower.follow(Some(pair.leader.endpoint(7)));
    client.publish("t", json!(2)).await;
    pair.follower.follow(Some(other.endpoint(8)));
    assert_eq!(client.see().await, Seen::Close(Some(1012)));
    pair.follower.client().await.publish("t", json!(1)).await;
    assert_eq!(bus.topics().await.expect("topics")[0].last_seq, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_connections_of_a_deposed_leader_end_after_the_current_response() {
    let pair = Pair::start().await;
    let mut idle = TcpStream::connect(pair.leader.address).await.expect("it connects");
    let host = pair.leader.address;
    idle.write_all(format!("GET /topics HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.expect("sent");
    let mut answer = vec![0; 4096];
    assert!(idle.read(&mut answer).await.expect("an answer") > 0);
    let mut uploading = TcpStream::connect(pair.leader.address).await.expect("it connects");
    let head = format!("POST /publish/t HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\n\r\n12");
    uploading.write_all(head.as_bytes()).await.expect("sent");
    sleep(Duration::from_millis(100)).await;
    pair.leader.follow(None);
    assert_eq!(read_all(&mut idle).await, "", "an idle connection ends at once");
    uploading.write_all(b"34").await.expect("sent");
    let answer = read_all(&mut uploading).await;
    assert_eq!(status_of(&answer), 200, "{answer}");
}

/// A leader that the test controls byte by byte. It accepts relayed connections and confirms their prefaces.
struct FakeLeader {
    listener: TcpListener,
}

impl FakeLeader {
    async fn start() -> (Self, LeaderEndpoint) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        (Self { listener }, LeaderEndpoint { term: 7, address, cert_hash: None, secret: SECRET })
    }

    /// The next relayed WebSocket, after its upgrade. Probes are closed.
    async fn websocket(&self) -> TcpStream {
        loop {
            let (mut socket, _) = self.listener.accept().await.expect("a connection");
            let mut preface = [0; 113];
            socket.read_exact(&mut preface).await.expect("a preface");
            let confirmation = prombus_server::test_util::confirmation(&SECRET, &preface);
            socket.write_all(&confirmation).await.expect("sent");
            let mut head = vec![0; 4096];
            let count = socket.read(&mut head).await.expect("a request");
            if String::from_utf8_lossy(&head[..count]).starts_with("GET /ws") {
                let answer =
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
                socket.write_all(answer).await.expect("sent");
                return socket;
            }
        }
    }
}

async fn raw_through_fake(follower: &SharedRig, fake: &FakeLeader) -> (Raw, TcpStream) {
    tokio::join!(Raw::connect(follower.address), fake.websocket())
}

/// A text frame of 70,000 bytes.
fn large_frame() -> Vec<u8> {
    let mut frame = vec![0x81, 127];
    frame.extend_from_slice(&70_000u64.to_be_bytes());
    frame.extend_from_slice(&[b'x'; 70_000]);
    frame
}

#[tokio::test(flavor = "multi_thread")]
async fn the_close_frame_comes_after_a_whole_frame() {
    let (fake, endpoint) = FakeLeader::start().await;
    let follower = SharedRig::start(shared_options()).await;
    follower.follow(Some(endpoint));
    let (mut raw, mut leader) = raw_through_fake(&follower, &fake).await;
    let frame = large_frame();
    leader.write_all(&frame[..50_000]).await.expect("sent");
    while raw.read.len() < 50_000 {
        assert!(raw.more().await);
    }
    // The leader changes in the middle of a frame. The rest of the frame is passed on, the frame after it is not.
    let rest = async {
        sleep(Duration::from_millis(200)).await;
        leader.write_all(&[&frame[50_000..], &[0x81, 1, b'y']].concat()).await.expect("sent");
    };
    follower.follow(Some(LeaderEndpoint { term: 8, ..follower.endpoint(8) }));
    let (first, ()) = tokio::join!(raw.frame(), rest);
    assert_eq!(first.map(|(opcode, payload)| (opcode, payload.len())), Some((1, 70_000)));
    let (opcode, payload) = raw.frame().await.expect("a close frame");
    assert_eq!((opcode, &payload[..2]), (8, &1012u16.to_be_bytes()[..]));
    assert_eq!(raw.frame().await, None, "nothing follows the close frame");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_frame_ends_the_connection_without_a_close_frame() {
    let (fake, endpoint) = FakeLeader::start().await;
    let follower = SharedRig::start(shared_options()).await;
    follower.follow(Some(endpoint));
    let (mut raw, mut leader) = raw_through_fake(&follower, &fake).await;
    leader.write_all(&large_frame()[..50_000]).await.expect("sent");
    drop(leader);
    assert_eq!(raw.frame().await, None);
    assert_eq!(raw.read.len(), 50_000, "only the received bytes were passed on");
    // After complete frames only, the loss of the leader closes with 1012 (service restart).
    let (mut raw, mut leader) = raw_through_fake(&follower, &fake).await;
    leader.write_all(&large_frame()).await.expect("sent");
    drop(leader);
    assert_eq!(raw.frame().await.map(|(opcode, _)| opcode), Some(1));
    let (opcode, payload) = raw.frame().await.expect("a close frame");
    assert_eq!((opcode, &payload[..2]), (8, &1012u16.to_be_bytes()[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stops_closes_relayed_websockets_with_1012_and_its_own_with_1001() {
    let mut pair = Pair::start().await;
    let mut relayed = Raw::connect(pair.follower.address).await;
    let mut direct = Raw::connect(pair.leader.address).await;
    pair.leader.begin_stop();
    // For clients of the follower only the leader changes.
    for (raw, code) in [(&mut relayed, 1012u16), (&mut direct, 1001)] {
        let (opcode, payload) = raw.frame().await.expect("a close frame");
        assert_eq!((opcode, &payload[..2]), (8, &code.to_be_bytes()[..]));
        raw.send(0x88, &code.to_be_bytes()).await;
        assert_eq!(raw.frame().await, None, "the follower adds no close frame of its own");
    }
    pair.leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_follower_stops_publishes_are_answered_before_the_close_with_1001() {
    let mut pair = Pair::start().await;
    let mut raw = Raw::connect(pair.follower.address).await;
    raw.text(json!({"op": "SUBSCRIBE", "topic": "held", "group": "g", "corr": "s"})).await;
    assert_eq!(raw.json().await["op"], "OK");
    pair.bus.publish("held", &1).await.expect("published");
    assert_eq!(raw.json().await["op"], "EVENT");
    let mut bytes = Vec::new();
    for n in 0..50 {
        let frame = json!({"op": "PUBLISH", "topic": "t", "payload": n, "corr": n}).to_string();
        put_masked(&mut bytes, 0x81, frame.as_bytes());
    }
    raw.socket.write_all(&bytes).await.expect("sent");
    // Wait until the follower has read them; the leader may not have answered yet.
    sleep(Duration::from_millis(100)).await;
    pair.follower.begin_stop();
    for n in 0..50 {
        assert_eq!(raw.json().await["corr"], n);
    }
    let (opcode, payload) = raw.frame().await.expect("a close frame");
    assert_eq!((opcode, &payload[..2]), (8, &1001u16.to_be_bytes()[..]));
    raw.send(0x88, &1001u16.to_be_bytes()).await;
    assert_eq!(raw.frame().await, None);
    let begun = Instant::now();
    pair.follower.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    // The member has left the group cleanly, so the delivery does not count as an attempt.
    let mut next = pair.leader.client().await;
    next.subscribe("held", "g", json!({})).await;
    let event = next.event().await;
    assert_eq!(event["ctx"]["attempt"], 1, "{event}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_stops_ends_idle_http_connections_and_waits_for_responses() {
    let mut pair = Pair::start().await;
    let host = pair.follower.address;
    let mut idle = TcpStream::connect(host).await.expect("it connects");
    idle.write_all(format!("GET /topics HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.expect("sent");
    let mut answer = vec![0; 4096];
    assert!(idle.read(&mut answer).await.expect("an answer") > 0);
    let mut uploading = TcpStream::connect(host).await.expect("it connects");
    let head = format!("POST /publish/t HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\n\r\n12");
    uploading.write_all(head.as_bytes()).await.expect("sent");
    sleep(Duration::from_millis(100)).await;
    pair.follower.begin_stop();
    assert_eq!(timeout(Duration::from_secs(3), read_all(&mut idle)).await.expect("soon"), "");
    sleep(Duration::from_millis(500)).await;
    uploading.write_all(b"34").await.expect("sent");
    let mut answer = vec![0; 4096];
    let count = uploading.read(&mut answer).await.expect("an answer");
    assert_eq!(status_of(&String::from_utf8_lossy(&answer[..count])), 200);
    drop(uploading);
    timeout(PATIENCE, pair.follower.stop()).await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_complete_request_do_not_delay_a_stop() {
    let certificate = Certificate::make();
    let patient = |mut options: ServerOptions| {
        options.connections.head_timeout = PATIENCE;
        options.connections.drain_timeout = Duration::from_secs(10);
        options
    };
    let mut pair = Pair::with(patient(shared_options()), patient(shared_options())).await;
    let mut secured = SharedRig::start(patient(certificate.options())).await;
    let client = SocketAddr::from(([192, 0, 2, 1], 1));
    let (preface, _) = TestPreface { secret: SECRET, term: 7, hops: 1, counter: 0, client }.encode();
    let begin = async |rig: &SharedRig, bytes: &[u8]| {
        let mut socket = TcpStream::connect(rig.address).await.expect("it connects");
        socket.write_all(bytes).await.expect("sent");
        socket
    };
    let mut unfinished = [
        begin(&secured, b"").await,
        begin(&secured, &[0x16, 3, 1]).await,
        begin(&pair.leader, &preface[..50]).await,
        begin(&pair.follower, b"GET /topics HTTP/1.1\r\nHost: ").await,
    ];
    // Wait until the gateways have read the bytes.
    sleep(Duration::from_millis(200)).await;
    let begun = Instant::now();
    tokio::join!(secured.stop(), pair.follower.stop(), pair.leader.stop());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    for socket in &mut unfinished {
        assert_eq!(read_all(socket).await, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_after_other_requests_is_relayed_too() {
    let pair = Pair::start().await;
    let host = pair.follower.address;
    let mut socket = TcpStream::connect(host).await.expect("it connects");
    socket.write_all(format!("GET /topics HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.expect("sent");
    let mut answer = vec![0; 4096];
    assert!(socket.read(&mut answer).await.expect("an answer") > 0);
    let upgrade = format!(
        "GET /ws HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    socket.write_all(upgrade.as_bytes()).await.expect("sent");
    let count = socket.read(&mut answer).await.expect("an answer");
    assert!(answer[..count].starts_with(b"HTTP/1.1 101"));
    // Its frames are not tracked, so it ends at TCP level.
    pair.follower.follow(Some(LeaderEndpoint { term: 8, ..pair.leader.endpoint(8) }));
    assert_eq!(read_all(&mut socket).await, "");
}
