//! Tests of SIGHUP on the real binary: what is reloaded, and that a mistake changes nothing.

mod certificate;
mod revoked;

use crate::remote::{Server, lines};
use crate::serving::{Serving, serve};
use crate::support::TempFolder;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Generous: maintenance applies retention every 5 s.
const PATIENCE: Duration = Duration::from_secs(30);

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A `[[auth.token]]` for each name, which is also its secret.
fn tokens(names: &[&str]) -> String {
    let mut text = String::new();
    for name in names {
        let hash = prombus_server::TokenHash::of(name);
        let scopes = "[\"publish:**\", \"subscribe:**\", \"admin\"]";
        writeln!(text, "[[auth.token]]\nname = \"{name}\"\nhash = \"{hash}\"\nscopes = {scopes}").unwrap();
    }
    text
}

/// A server with a config file that the test rewrites.
struct Reloading {
    serving: Serving,
    folder: TempFolder,
    config: String,
}

impl Reloading {
    fn start(text: &str, more: &[&str]) -> Self {
        let folder = TempFolder::new();
        let config = folder.file("prombus.toml", text);
        let mut arguments = vec!["--config", &config];
        arguments.extend(more);
        Self { serving: Serving::start(serve(&folder, &arguments)), folder, config }
    }

    /// Writes the file, sends SIGHUP, and waits for the end of the reload. Returns its log lines.
    fn reload(&self, text: &str) -> String {
        std::fs::write(&self.config, text).unwrap();
        self.hang_up()
    }

    fn hang_up(&self) -> String {
        let before = self.serving.log().len();
        self.serving.signal(Signal::HUP);
        let new = || self.serving.log()[before..].to_owned();
        until("the reload is logged", || new().contains("in effect: "));
        new()
    }

    /// The number of sockets when it has not changed for a while: the server closes the connections of earlier requests a moment after
    /// their clients.
    fn settled_socket_count(&self) -> usize {
        let (mut count, mut changed_at) = (self.serving.socket_count(), Instant::now());
        while changed_at.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.serving.socket_count();
            if now != count {
                (count, changed_at) = (now, Instant::now());
            }
        }
        count
    }

    /// Sends a request with a token; returns the status and the body.
    fn request(&self, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
        let header = format!("authorization: Bearer {token}");
        request(&self.serving.address().to_string(), method, path, &[&header], body)
    }

    fn status(&self, token: &str) -> u16 {
        self.request("GET", "/topics", token, "").0
    }
}

fn request(address: &str, method: &str, path: &str, headers: &[&str], body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}");
    write!(stream, "{head}content-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), format!("{head}\n{body}"))
}

#[test]
fn sighup_reloads_topic_settings_and_a_mistake_changes_nothing() {
    let folder = TempFolder::new();
    let config = folder.path().join("prombus.toml");
    std::fs::write(&config, "[[topic]]\nname = \"orders\"\nmax_attempts = 7\n").unwrap();
    let serving = Serving::start(serve(&folder, &["--config", config.to_str().unwrap()]));
    let server = Server { serving, folder };
    server.import(&lines("orders", 0..50));
    server.import(&lines("kept", 0..50));
    let shows =
        |what: &str| server.ok(&["topic", "show", "orders", "--json"]).replace(' ', "").contains(what);
    assert!(shows("\"max_attempts\":7"), "the file applies from the start");

    std::fs::write(&config, "[[topic]]\nname = \"orders\"\nmax_atempts = 9\n").unwrap();
    server.serving.signal(Signal::HUP);
    let unchanged =
        "nothing was changed; in effect: 0 tokens, 0 JWT keys, 0 rules, 0 origins, 0 rates, 1 topic rule\n";
    until("the mistake is logged", || server.serving.log().contains(unchanged));
    assert!(shows("\"max_attempts\":7"), "a mistake changes nothing");
    std::fs::write(&config, "[[topic]]\nname = \"orders\"\nretention_ms = 1\n").unwrap();
    server.serving.signal(Signal::HUP);
    until("retention applies", || server.count("orders") == 0);
    assert_eq!(server.count("kept"), 50);
    assert!(shows("\"max_attempts\":null"), "the new rule replaces the old one completely");

    server.serving.signal(Signal::TERM);
    let (code, log) = server.serving.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("max_atempts: unknown key; did you mean topic.max_attempts?"), "{log}");
    assert!(log.contains("configuration reloaded: topic rules changed; in effect: "), "{log}");
}

#[test]
fn a_sighup_while_the_store_is_opened_does_not_end_the_process() {
    let folder = TempFolder::new();
    // A database that accepts a connection and never answers.
    let database = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("mongodb://{}/bus", database.local_addr().unwrap());
    let mut child = serve(&folder, &["--store", &store]).spawn().unwrap();
    let (_connection, _) = database.accept().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let ended = child.try_wait().unwrap();
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    assert!(ended.is_none(), "{ended:?} {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_mistake_is_logged_with_its_line_and_with_true_counts_and_changes_nothing() {
    let it = Reloading::start(&tokens(&["one", "two"]), &[]);
    let log = it.reload(&(tokens(&["two", "three", "four"]) + "[limits]\nmax_topics = 7\n"));
    let reloaded = "configuration reloaded: 2 tokens added, 1 revoked; in effect: 3 tokens, 0 JWT keys, ";
    assert!(log.contains(reloaded), "{log}");
    assert!(log.contains("applied only after a restart: limits.max_topics\n"), "{log}");
    assert_eq!(["one", "two", "three"].map(|token| it.status(token)), [401, 200, 200]);

    let bad = tokens(&["five"])
        + "[[auth.token]]\nname = \"six\"\nhash = \"no hash\"\nscopes = [\"admin\"]\n\
           [[auth.rule]]\neffect = \"perhaps\"\n[auth.jwt]\njwks_file = \"/nowhere/jwks.json\"\n";
    let log = it.reload(&bad);
    for problem in [
        "prombus.toml:7: auth.token[1].hash: is not the hash of a token",
        "prombus.toml:10: auth.rule[0].effect: \"perhaps\"",
        "prombus.toml:12: auth.jwt.jwks_file: cannot read /nowhere/jwks.json",
        "nothing was changed; in effect: 3 tokens, 0 JWT keys, 0 rules, ",
    ] {
        assert!(log.contains(problem), "{problem}: {log}");
    }
    assert_eq!(["five", "two", "four"].map(|token| it.status(token)), [401, 200, 200]);
}

#[test]
fn a_reload_that_would_leave_no_auth_is_refused() {
    let it = Reloading::start(&tokens(&["one"]), &[]);
    let log = it.reload("");
    assert!(log.contains("the new configuration has no token and no [auth.jwt]"), "{log}");
    assert!(log.contains("nothing was changed; in effect: 1 token, "), "{log}");
    assert_eq!((it.status("one"), it.status("")), (200, 401));
}

#[test]
fn rates_and_origins_are_reloaded_also_for_open_connections() {
    let it = Reloading::start("", &[]);
    let address = it.serving.address().to_string();
    let mut poster = crate::http_client::Poster::connect(&address);
    let preflight = || {
        let headers = ["origin: https://app.example", "access-control-request-method: GET"];
        request(&address, "OPTIONS", "/topics", &headers, "").0
    };
    assert_eq!(poster.publish_lines("a", b"1\n2\n3\n").0, 200);
    assert_eq!(preflight(), 403);
    let log = it.reload(
        "[rate]\nconnection_publish_per_second = 0.001\nconnection_publish_burst = 1\n\
         [http]\ncors_origins = [\"https://app.example\"]\n",
    );
    assert!(log.contains("configuration reloaded: origins changed; rates changed; in effect: "), "{log}");
    assert_eq!(preflight(), 204);
    assert_eq!([poster.publish_lines("a", b"1\n").0, poster.publish_lines("a", b"1\n").0], [200, 429]);
    it.reload("");
    assert_eq!((poster.publish_lines("a", b"1\n").0, preflight()), (200, 403));
}

#[test]
fn a_raised_rate_reaches_a_stream_that_waits() {
    let slow = "[rate]\nconnection_deliver_per_second = 0.01\nconnection_deliver_burst = 1\n";
    let it = Reloading::start(slow, &[]);
    let address = it.serving.address().to_string();
    assert_eq!(request(&address, "POST", "/publish/a", &[], "1").0, 200);
    assert_eq!(request(&address, "POST", "/publish/a", &[], "2").0, 200);
    let mut stream = TcpStream::connect(&address).unwrap();
    write!(stream, "GET /subscribe/a?from=earliest HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
    // Shorter than the interval of keep-alive comments, which end a wait too.
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let (mut text, mut piece) = (String::new(), [0; 4_096]);
    let mut reads_until = |events: usize| {
        while text.matches("data: ").count() < events {
            let count = stream.read(&mut piece).expect("events in time");
            assert!(count > 0, "the stream ended: {text}");
            text.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        }
        text.matches("data: ").count()
    };
    assert_eq!(reads_until(1), 1, "the second event waits");
    it.reload("");
    assert_eq!(reads_until(2), 2);
}
