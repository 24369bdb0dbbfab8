//! Starts gateways of one store, and waits for their roles.

use super::servers::{DropDatabase, fresh_database};
use crate::serving::Serving;
use crate::support::prombus;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub struct Store {
    pub url: String,
    pub database: String,
    _drop: DropDatabase,
}

impl Store {
    pub fn new(url: &str) -> Self {
        let database = fresh_database();
        Self { url: url.to_owned(), _drop: DropDatabase(url.to_owned(), database.clone()), database }
    }

    /// Starts a gateway and waits until it is ready.
    pub fn gateway(&self) -> Serving {
        let mut command = prombus(&["serve", "--store", &self.url, "--listen", "127.0.0.1:0"]);
        command.env("PROMBUS_MONGODB_DATABASE", &self.database);
        let serving = Serving::start(command);
        wait_until_ready(serving.address());
        serving
    }
}

/// The status and body of a GET.
pub fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    request(address, &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"))
}

pub fn post(address: SocketAddr, path: &str, body: &str) -> Option<(u16, String)> {
    let length = body.len();
    request(
        address,
        &format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\ncontent-length: {length}\r\n\r\n{body}"
        ),
    )
}

fn request(address: SocketAddr, text: &str) -> Option<(u16, String)> {
    let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    socket.write_all(text.as_bytes()).ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
}

pub fn wait_until_ready(address: SocketAddr) {
    let started = Instant::now();
    while get(address, "/readyz").is_none_or(|(status, _)| status != 200) {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "{address} is not ready: {:?}",
            get(address, "/readyz")
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `leader` or `follower`.
pub fn role(address: SocketAddr) -> Option<String> {
    let (_, body) = get(address, "/healthz")?;
    let body: Value = serde_json::from_str(body.trim()).ok()?;
    Some(body["role"].as_str()?.to_owned())
}

pub fn wait_for_role(address: SocketAddr, wanted: &str) -> Duration {
    let started = Instant::now();
    while role(address).as_deref() != Some(wanted) {
        assert!(started.elapsed() < Duration::from_secs(30), "{address} did not become {wanted}");
        std::thread::sleep(Duration::from_millis(10));
    }
    started.elapsed()
}
