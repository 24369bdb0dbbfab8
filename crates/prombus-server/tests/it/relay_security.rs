//! Security of the relay: which prefaces a leader accepts, which leaders a follower trusts, and that the relay does not bypass
//! the origin guard.

use crate::shared_rig::{
    Certificate, Pair, SECRET, SharedRig, exchange, json_of, read_all, shared_options, status_of,
};
use parking_lot::Mutex;
use prombus_server::test_util::TestPreface;
use prombus_server::{Scope, ServeError, Server, ServerOptions, ServerRole, TokenHash, TokenOptions};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

const REQUEST: &[u8] = b"GET /topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn preface(counter: u64) -> TestPreface {
    let client = SocketAddr::from(([203, 0, 113, 9], 4711));
    TestPreface { secret: SECRET, term: 7, hops: 1, counter, client }
}

/// Sends a preface and a request. Returns the response of the leader.
async fn offer(leader: &SharedRig, preface: TestPreface) -> Vec<u8> {
    let mut socket = TcpStream::connect(leader.address).await.expect("it connects");
    let (bytes, _) = preface.encode();
    let _ = socket.write_all(&[&bytes, REQUEST].concat()).await;
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_accepts_a_preface_with_the_secret_once() {
    let pair = Pair::start().await;
    let (_, confirmation) = preface(1).encode();
    let answer = offer(&pair.leader, preface(1)).await;
    assert!(answer.starts_with(&confirmation), "the leader proves that it knows the secret too");
    assert!(answer[confirmation.len()..].starts_with(b"HTTP/1.1 200"));
    assert_eq!(offer(&pair.leader, preface(1)).await, b"", "a replay gets nothing");
    assert!(!offer(&pair.leader, preface(2)).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_leads_the_same_term_again_remembers_its_prefaces() {
    let pair = Pair::start().await;
    assert!(!offer(&pair.leader, preface(1)).await.is_empty());
    // The leader cannot renew its lease for a while.
    pair.leader.follow(None);
    pair.leader.wait_ready(503).await;
    pair.leader.lead(&pair.bus, 7);
    pair.leader.wait_ready(200).await;
    assert_eq!(offer(&pair.leader, preface(1)).await, b"", "a replay gets nothing");
    assert!(!offer(&pair.leader, preface(2)).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_and_misdirected_prefaces_get_nothing() {
    let pair = Pair::start().await;
    let before = pair.leader.metric("prombus_relay_prefaces_refused_total").await;
    for wrong in [
        TestPreface { secret: [0; 32], ..preface(1) },
        TestPreface { term: 6, ..preface(2) },
        TestPreface { term: 8, ..preface(3) },
        TestPreface { hops: 2, ..preface(4) },
        TestPreface { hops: 0, ..preface(5) },
    ] {
        assert_eq!(offer(&pair.leader, wrong).await, b"", "{wrong:?}");
    }
    let (mut bytes, _) = preface(6).encode();
    // The client's address is modified in transit.
    bytes[46] ^= 1;
    assert_eq!(exchange(pair.leader.address, &[&bytes, REQUEST].concat()).await, "");
    assert_eq!(pair.leader.metric("prombus_relay_prefaces_refused_total").await, before + 6);
    assert!(!offer(&pair.leader, preface(7)).await.is_empty(), "a valid preface is still accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_does_not_relay_a_relayed_connection() {
    let pair = Pair::start().await;
    assert_eq!(offer(&pair.follower, preface(1)).await, b"");
    // A server that does not share its store does not know prefaces: for it they are invalid HTTP.
    let rig = crate::rig::Rig::memory().await;
    let answer = exchange(rig.address, &[&preface(1).encode().0, REQUEST].concat()).await;
    assert!(answer.is_empty() || status_of(&answer) == 400, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_on_the_leaders_port_gets_no_byte_of_a_client() {
    let impostor = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = impostor.local_addr().expect("an address");
    let follower = SharedRig::start(shared_options()).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&seen);
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = impostor.accept().await.expect("a connection");
            let mut preface = vec![0; 113];
            socket.read_exact(&mut preface).await.expect("a preface");
            // A wrong confirmation of the right length.
            let _ = socket.write_all(&[7; 32]).await;
            let mut more = Vec::new();
            let _ = socket.read_to_end(&mut more).await;
            all.lock().extend_from_slice(&more);
        }
    });
    let endpoint = prombus_server::LeaderEndpoint {
        term: 1,
        address: address.to_string(),
        cert_hash: None,
        secret: SECRET,
    };
    follower.follow(Some(endpoint));
    let answer = follower.ask("POST /publish/t\nAuthorization: Bearer my-token\n\n1").await;
    assert_eq!(status_of(&answer), 503);
    assert!(json_of(&answer)["error"].as_str().expect("a text").contains("is not the leader"), "{answer}");
    assert_eq!(String::from_utf8_lossy(&seen.lock()), "", "the follower sends nothing after its preface");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_ends_at_the_follower_and_the_hop_is_pinned_to_the_leaders_certificate() {
    let (of_leader, of_follower) = (Certificate::make(), Certificate::make());
    let pair = Pair::with(of_leader.options(), of_follower.options()).await;
    assert!(pair.leader.cert_hash.is_some() && pair.leader.cert_hash != pair.follower.cert_hash);
    let ask = async |follower: &SharedRig| {
        let connector = TlsConnector::from(Arc::clone(&of_follower.client_config));
        let socket = TcpStream::connect(follower.address).await.expect("it connects");
        let name = ServerName::try_from("localhost").expect("a name");
        let mut socket = connector.connect(name, socket).await.expect("the follower's certificate");
        socket.write_all(REQUEST).await.expect("sent");
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    let answer = ask(&pair.follower).await;
    assert_eq!(status_of(&answer), 200, "{answer}");
    // The leader has a certificate other than the one in the lease record.
    let mut other = pair.leader.endpoint(7);
    other.cert_hash = pair.follower.cert_hash;
    let following = ServerRole::Following { leader: Some(other) };
    let follower = SharedRig::start_as(following, of_follower.options()).await;
    let answer = ask(&follower).await;
    assert_eq!(status_of(&answer), 503, "{answer}");
    assert!(answer.contains("certificate"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_tcp_to_another_machine_must_be_allowed() {
    let follower = SharedRig::start(shared_options()).await;
    let mut elsewhere = follower.endpoint(1);
    // An address reserved for documentation.
    elsewhere.address = "192.0.2.1:8090".to_owned();
    follower.follow(Some(elsewhere.clone()));
    let begun = std::time::Instant::now();
    let answer = follower.ask("GET /topics").await;
    assert_eq!(status_of(&answer), 503);
    assert!(answer.contains("--relay-insecure"), "{answer}");
    assert!(begun.elapsed() < shared_options().engine_wait, "it fails without waiting");
    assert!(follower.wait_ready(503).await.contains("--relay-insecure"));
    let insecure = SharedRig::start(ServerOptions { relay_insecure: true, ..shared_options() }).await;
    insecure.follow(Some(elsewhere));
    let answer = insecure.ask("GET /topics").await;
    assert_eq!(status_of(&answer), 503);
    assert!(!answer.contains("--relay-insecure"), "plain TCP was tried: {answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_origins_are_refused_at_the_follower_and_at_the_leader() {
    let pair = Pair::start().await;
    let evil = pair.follower.ask("GET /topics\nOrigin: https://evil.example").await;
    assert_eq!(status_of(&evil), 403);
    assert_eq!(pair.follower.metric("prombus_relayed_connections_total").await, 0, "it was not relayed");
    let foreign =
        exchange(pair.follower.address, b"GET /topics HTTP/1.1\r\nHost: evil.example\r\n\r\n").await;
    assert_eq!(status_of(&foreign), 403);
    // A later request on a connection that is already relayed.
    let mut socket = TcpStream::connect(pair.follower.address).await.expect("it connects");
    let host = pair.follower.address;
    socket.write_all(format!("GET /topics HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.expect("sent");
    let mut answer = vec![0; 4096];
    let count = socket.read(&mut answer).await.expect("an answer");
    assert_eq!(status_of(&String::from_utf8_lossy(&answer[..count])), 200);
    let second = format!(
        "GET /topics HTTP/1.1\r\nHost: {host}\r\nOrigin: https://evil.example\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(second.as_bytes()).await.expect("sent");
    assert_eq!(status_of(&read_all(&mut socket).await), 403);
    // An origin that matches the follower's address is accepted: the leader compares with the address that the client connected
    // to.
    let same = pair.follower.ask(&format!("GET /topics\nOrigin: http://{host}")).await;
    assert_eq!(status_of(&same), 200);
}

fn with_token(mut options: ServerOptions) -> ServerOptions {
    let scopes = vec!["publish:**".parse::<Scope>().expect("a scope")];
    options.auth.tokens.push(TokenOptions { name: "p".to_owned(), secret: TokenHash::of("secret"), scopes });
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_pass_through_and_a_followers_metrics_need_admin() {
    let pair = Pair::with(with_token(shared_options()), with_token(shared_options())).await;
    let publish = |token: &str| format!("POST /publish/t\nAuthorization: Bearer {token}\n\n1");
    assert_eq!(status_of(&pair.follower.ask(&publish("secret")).await), 200);
    assert_eq!(status_of(&pair.follower.ask(&publish("wrong")).await), 401);
    assert_eq!(status_of(&pair.follower.ask("GET /metrics").await), 401);
    assert_eq!(status_of(&pair.follower.ask("GET /metrics\nAuthorization: Bearer secret").await), 403);
    assert_eq!(status_of(&pair.follower.ask("GET /healthz").await), 200);
}

#[tokio::test]
async fn without_auth_a_shared_gateway_listens_on_loopback_only() {
    let (_roles, receiver) = watch::channel(ServerRole::Following { leader: None });
    let open = ServerOptions { listen: vec![SocketAddr::from(([0, 0, 0, 0], 0))], ..shared_options() };
    let refused = Server::bind_shared(receiver, open).await;
    assert!(matches!(refused.err(), Some(ServeError::Exposed(_))));
}
