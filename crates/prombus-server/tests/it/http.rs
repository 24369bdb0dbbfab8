//! The HTTP routes over real sockets, with curl.

use crate::rig::{PATIENCE, Rig, options};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

async fn curl(rig: &Rig, path: &str, arguments: &[&str]) -> String {
    let address = format!("http://{}{path}", rig.address);
    let run = Command::new("curl").args(["-sS", "-i"]).args(arguments).arg(address).output();
    let output = timeout(PATIENCE, run).await.expect("in time").expect("curl runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn body(answer: &str) -> &str {
    answer.rsplit_once("\r\n\r\n").expect("a head").1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_publishes_tails_and_exports() {
    let rig = Rig::start(options()).await;
    let mut tail = Command::new("curl")
        .args(["-sS", "-N"])
        .arg(format!("http://{}/subscribe/orders", rig.address))
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("curl runs");
    let mut lines = BufReader::new(tail.stdout.take().expect("a pipe")).lines();
    let first = timeout(PATIENCE, lines.next_line()).await.expect("in time").expect("a line");
    assert_eq!(first.as_deref(), Some("retry: 1000"));

    let answer = curl(&rig, "/publish/orders", &["-d", r#"{"total":12}"#]).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let published: Value = serde_json::from_str(body(&answer)).expect("JSON");
    let data = loop {
        let line = timeout(PATIENCE, lines.next_line()).await.expect("in time").expect("a line");
        if let Some(data) = line.expect("not the end").strip_prefix("data: ") {
            break serde_json::from_str::<Value>(data).expect("a record");
        }
    };
    assert_eq!((&data["id"], &data["payload"]["total"]), (&published["id"], &12.into()));

    let mut batch = rig.bus.batch();
    for number in 0..50_000 {
        batch.push("orders", &number, &prombus::PublishOptions::default()).expect("an event");
    }
    rig.bus.publish_batch(batch).await.expect("published");
    for encoding in [&[][..], &["--compressed"], &["-H", "accept-encoding: gzip", "--compressed"]] {
        let answer = curl(&rig, "/export?topic=orders", encoding).await;
        assert_eq!(body(&answer).lines().count(), 50_001);
        assert_eq!(answer.contains("content-encoding: "), !encoding.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_too_large_gets_an_error_response() {
    let rig = Rig::memory().await;
    let mut socket = TcpStream::connect(rig.address).await.expect("connected");
    let head = "POST /publish/t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000000\r\n\r\n";
    socket.write_all(head.as_bytes()).await.expect("written");
    let mut answer = vec![0; 12];
    timeout(PATIENCE, socket.read_exact(&mut answer)).await.expect("in time").expect("an answer");
    assert_eq!(answer, b"HTTP/1.1 413");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tails_end_when_the_server_stops() {
    let mut rig = Rig::memory().await;
    let address = format!("http://{}/subscribe/t", rig.address);
    let tail = Command::new("curl").args(["-sS", "-N"]).arg(address).stdout(Stdio::piped()).spawn();
    let mut tail = tail.expect("curl runs");
    let mut lines = BufReader::new(tail.stdout.take().expect("a pipe")).lines();
    timeout(PATIENCE, lines.next_line()).await.expect("in time").expect("a line");
    rig.stop().await;
    assert!(timeout(PATIENCE, tail.wait()).await.expect("in time").expect("it ends").success());
}

/// Writes to a new connection, and returns everything that is received until it is closed.
async fn talk(rig: &Rig, text: &str) -> String {
    let mut socket = TcpStream::connect(rig.address).await.expect("connected");
    socket.write_all(text.as_bytes()).await.expect("written");
    let mut answer = String::new();
    timeout(PATIENCE, socket.read_to_string(&mut answer)).await.expect("it is closed in time").expect("text");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_after_one_with_ambiguous_framing_is_not_served() {
    let rig = Rig::memory().await;
    let hidden = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let chunks = format!("{:x}\r\n{hidden}\r\n0\r\n\r\n", hidden.len());
    for (head, status) in [
        ("transfer-encoding: gzip, chunked\r\nhost: localhost\r\n", "501"),
        ("transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\nhost: localhost\r\n", "501"),
        ("transfer-encoding: chunked, gzip\r\nhost: localhost\r\n", "400"),
        ("transfer-encoding: chunked\r\n", "400"),
        ("transfer-encoding: chunked\r\nhost: localhost\r\nhost: localhost\r\n", "400"),
    ] {
        let text = format!("POST /publish/t HTTP/1.1\r\n{head}\r\n{chunks}{hidden}");
        let answer = talk(&rig, &text).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{head}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{head}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_has_its_own_time_limit() {
    let mut options = options();
    options.connections.head_timeout = Duration::from_millis(100);
    options.connections.keep_alive = Duration::from_millis(700);
    let rig = Rig::with(options).await;
    let head = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n";
    let ask = format!("{head}\r\n");

    // Between two requests the server waits longer than for a head, and then closes the connection.
    let started = std::time::Instant::now();
    let mut socket = TcpStream::connect(rig.address).await.expect("connected");
    let mut buffer = vec![0; 4096];
    for _ in 0..2 {
        socket.write_all(ask.as_bytes()).await.expect("written");
        let count = timeout(PATIENCE, socket.read(&mut buffer)).await.expect("in time").expect("an answer");
        assert!(buffer[..count].starts_with(b"HTTP/1.1 200"));
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let end = timeout(PATIENCE, socket.read(&mut buffer)).await.expect("in time");
    assert_eq!(end.expect("a clean end"), 0);
    assert!(started.elapsed() >= Duration::from_millis(1_000), "{:?}", started.elapsed());

    // A head that has begun must be completed within the head timeout: the first one and a later one.
    for begun in [String::new(), ask.clone()] {
        let answer = talk(&rig, &format!("{begun}{head}")).await;
        assert_eq!(answer.matches("HTTP/1.1 200").count(), usize::from(!begun.is_empty()), "{answer}");
    }
    // A connection is not idle while a response is being sent.
    let mut socket = TcpStream::connect(rig.address).await.expect("connected");
    socket.write_all(b"GET /subscribe/t HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("written");
    let count = timeout(PATIENCE, socket.read(&mut buffer)).await.expect("in time").expect("an answer");
    assert!(buffer[..count].starts_with(b"HTTP/1.1 200"));
    let mut got_event = false;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    rig.bus.publish("t", &1).await.expect("published");
    while !got_event {
        let count = timeout(PATIENCE, socket.read(&mut buffer)).await.expect("in time").expect("more");
        assert_ne!(count, 0, "the stream was closed");
        got_event = String::from_utf8_lossy(&buffer[..count]).contains("data: ");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_folder_is_checked_before_the_response_begins() {
    let rig = Rig::start(options()).await;
    rig.bus.publish("t", &1).await.expect("published");
    let work = std::env::temp_dir().join(format!("prombus-backup-test-{}", uuid::Uuid::now_v7()));
    let (file, full, linked) = (work.join("file"), work.join("full"), work.join("linked"));
    std::fs::create_dir_all(&full).expect("a folder");
    std::fs::write(&file, "x").expect("a file");
    std::fs::write(full.join("x"), "x").expect("a file");
    std::os::unix::fs::symlink(rig.folder(), &linked).expect("a link");
    let data = rig.folder().to_owned();
    let cases = [
        (file.clone(), "cannot be used"),
        (file.join("below"), "cannot be used"),
        (full, "is not empty"),
        ("/proc/prombus".into(), "cannot be used"),
        (data.join("copy"), "inside the folder of the log"),
        (data.join("a/b"), "inside the folder of the log"),
        (linked.join("copy"), "inside the folder of the log"),
        (data, "inside the folder of the log"),
        ("relative".into(), "an absolute path"),
        ("".into(), "an absolute path"),
    ];
    for (folder, why) in cases {
        let body = serde_json::json!({ "folder": folder }).to_string();
        let answer = curl(&rig, "/backup", &["-d", &body]).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{folder:?}: {answer}");
        assert!(answer.contains(why) && answer.contains("\"code\":\"bad_request\""), "{folder:?}: {answer}");
    }
    assert!(!rig.folder().join("a").exists() && !rig.folder().join("copy").exists());
    for folder in ["new", "new/deeper/down", "empty"] {
        let folder = work.join("good").join(folder);
        if folder.ends_with("empty") {
            std::fs::create_dir_all(&folder).expect("a folder");
        }
        let body = serde_json::json!({ "folder": folder }).to_string();
        let answer = curl(&rig, "/backup", &["-d", &body]).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("\"done\":true"), "{answer}");
        if folder.ends_with("new") {
            std::fs::remove_dir_all(&folder).expect("removed");
        }
    }
    let _ = std::fs::remove_dir_all(work);
}
