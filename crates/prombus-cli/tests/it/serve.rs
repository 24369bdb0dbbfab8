//! Tests of `prombus serve`: its output, its refusals, and how it stops.

use crate::http_client::post;
use crate::serving::{Serving, serve};
use crate::support::{Ran, TempFolder, prombus, run};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn the_banner_is_printed_and_either_signal_stops_the_server_cleanly() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = TempFolder::new();
        let serving = Serving::in_folder(&folder, &[]);
        assert_eq!(serving.banner[0], concat!("prombus ", env!("CARGO_PKG_VERSION")));
        assert!(serving.line("data:").ends_with("/data"), "{:?}", serving.banner);
        assert_eq!(serving.line("auth:"), "auth:   off: this machine only");
        let address = serving.addresses().remove(0);
        assert!(!address.ends_with(":0"), "the real port is printed: {address}");
        assert!(serving.line("try:").contains(&format!("http://{address}/publish/greetings")));
        serving.signal(signal);
        let (code, log) = serving.end();
        assert_eq!(code, Some(0), "{log}");
        let stopping = log.find("stopping: received SIG").unwrap();
        let stopped = log.find(" stopped").unwrap();
        assert!(stopping < stopped, "{log}");
        assert!(!log.contains('\u{1b}'), "colours without a terminal: {log:?}");
    }
}

#[test]
fn an_acknowledged_event_survives_a_stop() {
    let folder = TempFolder::new();
    let serving = Serving::in_folder(&folder, &[]);
    let answer = post(&serving.addresses()[0], "/publish/greetings", "{\"hello\":\"world\"}");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"seq\":1"), "{answer}");
    serving.signal(Signal::TERM);
    assert_eq!(serving.end().0, Some(0));
    let data = folder.path().join("data");
    let ran = run(&["verify", "--data", data.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("1 event,"), "{}", ran.stdout);
    let serving = Serving::in_folder(&folder, &[]);
    let answer = post(&serving.addresses()[0], "/publish/greetings", "2");
    assert!(answer.contains("\"seq\":2"), "{answer}");
}

#[test]
fn a_second_signal_ends_a_server_that_waits_for_clients() {
    let folder = TempFolder::new();
    let serving = Serving::in_folder(&folder, &[]);
    // An incomplete request keeps the server waiting.
    let mut stream = TcpStream::connect(&serving.addresses()[0]).unwrap();
    write!(stream, "POST /publish/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n1").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    serving.signal(Signal::TERM);
    std::thread::sleep(Duration::from_secs(1));
    let started = Instant::now();
    serving.signal(Signal::INT);
    let (code, log) = serving.end();
    assert_eq!(code, Some(130), "{log}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn two_signals_in_quick_succession_count_as_one() {
    let folder = TempFolder::new();
    let serving = Serving::in_folder(&folder, &[]);
    let mut stream = TcpStream::connect(&serving.addresses()[0]).unwrap();
    write!(stream, "POST /publish/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n1").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    serving.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(2));
    serving.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(200));
    // The request in flight is completed.
    stream.write_all(b"1").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (code, log) = serving.end();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn a_client_that_does_not_disconnect_is_dropped_after_the_drain_timeout() {
    let folder = TempFolder::new();
    let mut command = serve(&folder, &[]);
    command.env("PROMBUS_LIMITS_DRAIN_TIMEOUT_MS", "500");
    let serving = Serving::start(command);
    let mut stream = TcpStream::connect(&serving.addresses()[0]).unwrap();
    write!(stream, "POST /publish/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n1").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let started = Instant::now();
    serving.signal(Signal::TERM);
    let (code, log) = serving.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(started.elapsed() < Duration::from_secs(5), "{log}");
}

#[test]
fn a_folder_in_use_is_refused_with_one_line_that_says_what_to_do() {
    let folder = TempFolder::new();
    let serving = Serving::in_folder(&folder, &[]);
    let second: Ran = serve(&folder, &[]).output().unwrap().into();
    assert_eq!(second.code, Some(1));
    assert!(second.stdout.is_empty());
    let last = second.stderr.lines().last().unwrap();
    assert!(
        last.starts_with("prombus: ") && last.contains("is in use by another prombus"),
        "{}",
        second.stderr
    );
    assert!(last.contains("--data"), "{last}");
    drop(serving);
}

#[test]
fn a_port_in_use_is_refused_with_one_line_that_names_it() {
    let folder = TempFolder::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = run(&["serve", "--store", "memory:", "--listen", &address]);
    assert_eq!(ran.code, Some(1));
    let last = ran.stderr.lines().last().unwrap();
    assert!(
        last.starts_with("prombus: ") && last.contains(&address) && last.contains("--listen"),
        "{}",
        ran.stderr
    );
    drop(folder);
}

#[test]
fn a_folder_that_cannot_be_created_is_refused_with_one_line() {
    let folder = TempFolder::new();
    let file = folder.file("file", "");
    let ran = run(&["serve", "--listen", "127.0.0.1:0", "--data", &format!("{file}/data")]);
    assert_eq!(ran.code, Some(1));
    let last = ran.stderr.lines().last().unwrap();
    assert!(last.starts_with("prombus: cannot use ") && last.contains("--data"), "{}", ran.stderr);
}

#[test]
fn other_machines_have_access_only_with_auth_or_insecure() {
    let folder = TempFolder::new();
    let refused: Ran = serve(&folder, &["--listen", "0.0.0.0:0"]).output().unwrap().into();
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("--insecure") && refused.stderr.contains("WS_TOKEN"),
        "{}",
        refused.stderr
    );
    let serving = Serving::in_folder(&folder, &["--listen", "0.0.0.0:0", "--insecure"]);
    assert_eq!(serving.addresses().len(), 2);
    assert!(serving.line("auth:").contains("--insecure"));
}

#[test]
fn the_environment_adds_a_listener_and_a_token_that_is_never_shown() {
    let folder = TempFolder::new();
    let mut command = serve(&folder, &["--log", "trace", "--log-format", "json"]);
    command.env("WS_TOKEN", "hunter2hunter2").env("HTTP_PORT", "0").env("PROMBUS_LIMIT_MAX_TOPICS", "5");
    let serving = Serving::start(command);
    assert_eq!(serving.addresses().len(), 2);
    assert_eq!(serving.line("auth:"), "auth:   1 token");
    assert!(serving.line("try:").contains("Bearer $WS_TOKEN"));
    assert!(post(&serving.addresses()[1], "/publish/a", "1").starts_with("HTTP/1.1 401"));
    let banner = serving.banner.join("\n");
    serving.signal(Signal::TERM);
    let (code, log) = serving.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("did you mean PROMBUS_LIMITS_MAX_TOPICS?"), "{log}");
    for line in log.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
    assert!(!log.contains("hunter2") && !banner.contains("hunter2"));
}

#[test]
fn a_config_file_is_read_only_if_it_is_named() {
    let folder = TempFolder::new();
    folder.file("prombus.toml", "store = \"nonsense\"\n");
    let mut command = prombus(&["serve", "--listen", "127.0.0.1:0"]);
    command.current_dir(folder.path());
    let serving = Serving::start(command);
    assert!(serving.line("data:").ends_with("/prombus-data"));
    drop(serving);
    let mut command = prombus(&["serve"]);
    let named: Ran =
        command.current_dir(folder.path()).env("PROMBUS_CONFIG", "prombus.toml").output().unwrap().into();
    assert_eq!(named.code, Some(1));
    assert!(named.stderr.starts_with("prombus: prombus.toml:1: store: unknown store"), "{}", named.stderr);
}
