//! Gateways of a shared store in this process. The test sets their roles.

use crate::rig::{Client, PATIENCE, options};
use prombus::Bus;
use prombus_server::{LeaderEndpoint, ReloadHandle, Server, ServerOptions, ServerRole, TlsOptions};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

pub const SECRET: [u8; 32] = [0x5e; 32];

/// A gateway whose role the test sets.
pub struct SharedRig {
    pub address: SocketAddr,
    pub cert_hash: Option<[u8; 32]>,
    pub reload: ReloadHandle,
    roles: watch::Sender<ServerRole>,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
}

/// Short waits, and any free port.
pub fn shared_options() -> ServerOptions {
    ServerOptions { engine_wait: Duration::from_millis(500), ..options() }
}

impl SharedRig {
    /// A follower without a leader.
    pub async fn start(options: ServerOptions) -> Self {
        Self::start_as(ServerRole::Following { leader: None }, options).await
    }

    /// A gateway that has this role before its first connection.
    pub async fn start_as(role: ServerRole, options: ServerOptions) -> Self {
        let (roles, receiver) = watch::channel(role);
        let server = Server::bind_shared(receiver, options).await.expect("a server binds");
        let (address, cert_hash) = (server.local_addrs()[0], server.cert_hash());
        let reload = server.reload_handle();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            server.run(async move { drop(stopped.await) }).await.expect("a server runs");
        });
        Self { address, cert_hash, reload, roles, stop: Some(stop), served: Some(served) }
    }

    pub fn lead(&self, bus: &Bus, term: u64) {
        self.set(ServerRole::Leading { backend: bus.backend().clone(), term, secret: SECRET });
    }

    pub fn follow(&self, leader: Option<LeaderEndpoint>) {
        self.set(ServerRole::Following { leader });
    }

    fn set(&self, role: ServerRole) {
        self.roles.send_replace(role);
    }

    /// The endpoint of this gateway as leader.
    pub fn endpoint(&self, term: u64) -> LeaderEndpoint {
        LeaderEndpoint { term, address: self.address.to_string(), cert_hash: self.cert_hash, secret: SECRET }
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Sends a request with `Connection: close`, and returns the whole response.
    pub async fn ask(&self, request: &str) -> String {
        let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
        let (line, head) = head.split_once('\n').unwrap_or((head, ""));
        let head: String = head.lines().map(|line| format!("{line}\r\n")).collect();
        let text = format!(
            "{line} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n{head}\r\n{body}",
            self.address,
            body.len()
        );
        exchange(self.address, text.as_bytes()).await
    }

    /// Waits until `/readyz` has this status.
    pub async fn wait_ready(&self, status: u16) -> String {
        let begun = std::time::Instant::now();
        loop {
            let answer = self.ask("GET /readyz").await;
            if status_of(&answer) == status {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{answer}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a value in `/metrics` is this one: a role applies shortly after it is set.
    pub async fn wait_metric(&self, name: &str, value: u64) {
        let begun = std::time::Instant::now();
        while self.metric(name).await != value {
            assert!(begun.elapsed() < PATIENCE, "{name} is not {value}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A value in `/metrics`.
    pub async fn metric(&self, name: &str) -> u64 {
        let text = self.ask("GET /metrics").await;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).trim().parse().expect("a number")
    }

    pub fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Shuts the server down and waits for it.
    pub async fn stop(&mut self) {
        self.begin_stop();
        if let Some(served) = self.served.take() {
            tokio::time::timeout(PATIENCE, served).await.expect("it stops in time").expect("no panic");
        }
    }
}

/// A leader and a follower over a bus in memory.
pub struct Pair {
    pub bus: Bus,
    pub leader: SharedRig,
    pub follower: SharedRig,
}

impl Pair {
    pub async fn start() -> Self {
        Self::with(shared_options(), shared_options()).await
    }

    pub async fn with(leader: ServerOptions, follower: ServerOptions) -> Self {
        let bus = Bus::memory();
        let leading = ServerRole::Leading { backend: bus.backend().clone(), term: 7, secret: SECRET };
        let leader = SharedRig::start_as(leading, leader).await;
        let following = ServerRole::Following { leader: Some(leader.endpoint(7)) };
        let follower = SharedRig::start_as(following, follower).await;
        Self { bus, leader, follower }
    }
}

/// Sends bytes and reads until the end of the connection.
pub async fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(address).await.expect("it connects");
    let _ = socket.write_all(bytes).await;
    read_all(&mut socket).await
}

/// Reads until the end of the connection.
pub async fn read_all(socket: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await;
    let _ = read.expect("it ends in time");
    String::from_utf8_lossy(&answer).into_owned()
}

#[track_caller]
pub fn status_of(answer: &str) -> u16 {
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    status.unwrap_or_else(|| panic!("not an HTTP response: {answer:?}"))
}

/// The body of a response, as JSON.
#[track_caller]
pub fn json_of(answer: &str) -> serde_json::Value {
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    serde_json::from_str(body).unwrap_or_else(|_| panic!("not JSON: {answer}"))
}

/// A self-signed certificate in a temporary folder.
pub struct Certificate {
    pub tls: TlsOptions,
    pub client_config: Arc<ClientConfig>,
    folder: PathBuf,
}

impl Certificate {
    pub fn make() -> Self {
        let folder = std::env::temp_dir().join(format!("prombus-relay-tls-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        let tls = TlsOptions { cert: folder.join("cert.pem"), key: folder.join("key.pem") };
        std::fs::write(&tls.cert, made.cert.pem()).expect("written");
        std::fs::write(&tls.key, made.signing_key.serialize_pem()).expect("written");
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).expect("a root");
        let config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { tls, client_config: Arc::new(config), folder }
    }

    pub fn options(&self) -> ServerOptions {
        ServerOptions { tls: Some(self.tls.clone()), ..shared_options() }
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
