//! Tests of files that cannot be read, temporarily or permanently: the real server waits, reports it, and loses nothing.

mod at_open;
mod at_work;
mod shim;

use crate::http_client::{Poster, get, get_json};
use crate::serving::{Serving, serve};
use crate::support::TempFolder;
use crate::ws_client::{Client, Event, Frame, ack_text};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use shim::Shim;
use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio_tungstenite::tungstenite::Message;

/// Enough for several segments.
const EVENTS: u64 = 3_000;
const KEYS: u64 = 400;
const ALL: u64 = u64::MAX;
const SEGMENT_DATA_START: u64 = 4096;

const CONFIG: &str = "[[topic]]\nname = \"prices\"\ncompaction = true\n";

struct Rig {
    folder: TempFolder,
    shim: Shim,
    runtime: Runtime,
}

fn payload(number: u64) -> String {
    format!("event {number} {}", "x".repeat(1_500))
}

impl Rig {
    fn new() -> Self {
        let folder = TempFolder::new();
        folder.file("prombus.toml", CONFIG);
        let shim = Shim::new(&folder);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { folder, shim, runtime }
    }

    /// A running server that has stored the events of one topic and the keys of another.
    fn filled() -> (Self, Serving) {
        let rig = Self::new();
        let serving = rig.start();
        let mut poster = Poster::connect(&serving.addresses()[0]);
        let numbers: Vec<u64> = (1..=EVENTS).collect();
        for part in numbers.chunks(250) {
            let lines: String =
                part.iter().map(|number| format!("{}\n", json!({ "payload": payload(*number) }))).collect();
            let (status, text) = poster.publish_lines("orders?envelope=1", lines.as_bytes());
            assert_eq!(status, 200, "{text}");
        }
        for round in 0..4 {
            let lines: String = (0..KEYS)
                .map(|key| format!("{}\n", json!({ "payload": payload(round), "key": format!("key-{key}") })))
                .collect();
            let (status, text) = poster.publish_lines("prices?envelope=1", lines.as_bytes());
            assert_eq!(status, 200, "{text}");
        }
        (rig, serving)
    }

    fn command(&self) -> Command {
        let config = self.folder.path().join("prombus.toml");
        let mut command = serve(&self.folder, &["--config", config.to_str().unwrap()]);
        command.env("PROMBUS_STORAGE_SEGMENT_BYTES", (2 << 20).to_string());
        self.shim.preload(&mut command);
        command
    }

    fn start(&self) -> Serving {
        Serving::start(self.command())
    }

    /// Runs a `prombus` command on the data folder.
    fn run(&self, name: &str, more: &[&str]) -> crate::support::Ran {
        let data = self.folder.path().join("data");
        let mut command = crate::support::prombus(&[name, "--data", data.to_str().unwrap()]);
        command.args(more);
        self.shim.preload(&mut command);
        command.output().unwrap().into()
    }

    /// The names of the files with this extension, oldest first.
    fn files(&self, ending: &str) -> Vec<String> {
        let files = std::fs::read_dir(self.folder.path().join("data")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(ending)).collect();
        names.sort();
        names
    }

    /// The names of full segments, oldest first.
    fn sealed_segments(&self) -> Vec<String> {
        self.files(".idx").iter().map(|name| name.replace(".idx", ".seg")).collect()
    }

    /// A new group receives every event once, in order, and acks it.
    fn consume(&self, serving: &Serving, group: &str) {
        self.runtime.block_on(async {
            let mut consumer = Consumer::join(serving, group).await;
            consumer.take_to(EVENTS).await;
        });
        wait_for("everything is settled", || {
            let info = get_json(&serving.addresses()[0], &format!("/groups/orders/{group}"));
            info["lag"] == 0
        });
    }

    /// Checks that all acknowledged events and keys are present and undamaged.
    fn check_everything(&self, serving: &Serving, group: &str) {
        self.consume(serving, group);
        let address = &serving.addresses()[0];
        let mut answer = get(address, "/export?topic=orders", "");
        let mut text = String::new();
        answer.body.read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().count() as u64, EVENTS);
        let state = get_json(address, "/state/prices?limit=1000");
        assert_eq!(
            state["count"].as_u64().or(state["events"].as_array().map(|it| it.len() as u64)),
            Some(KEYS)
        );
        assert_eq!(metric(serving, "prombus_events_corrupt_total"), 0);
    }
}

struct Consumer {
    client: Client,
    group: String,
    next_seq: u64,
}

impl Consumer {
    async fn connect(serving: &Serving, group: &str) -> Self {
        let client = Client::connect(serving.address()).await;
        Self { client, group: group.to_owned(), next_seq: 1 }
    }

    async fn subscribe(&mut self) {
        let opts = json!({"from": "earliest"});
        let frame = json!({"op": "SUBSCRIBE", "topic": "orders", "group": self.group, "opts": opts});
        self.client.send(&frame).await;
    }

    async fn join(serving: &Serving, group: &str) -> Self {
        let mut consumer = Self::connect(serving, group).await;
        consumer.subscribe().await;
        consumer
    }

    async fn take(&mut self, event: Event) {
        assert_eq!(event.seq, self.next_seq, "in order, without a gap");
        let expected = json!(payload(event.seq)).to_string();
        let is_right = event.payload.get() == expected;
        assert!(is_right, "event {} has another payload", event.seq);
        let ack = ack_text("orders", &self.group, &event.id, None);
        self.client.socket.send(Message::text(ack)).await.unwrap();
        self.next_seq += 1;
    }

    /// Receives and acks events up to this seq; they must arrive.
    async fn take_to(&mut self, seq: u64) {
        while self.next_seq <= seq {
            let frame = self.client.frame().await;
            assert_ne!(frame.op, "ERR", "{frame:?}");
            if let Some(event) = frame.event {
                self.take(event).await;
            }
        }
    }

    /// Receives and acks events for a time; returns the last seq.
    async fn take_for(&mut self, time: Duration) -> u64 {
        let end = tokio::time::Instant::now() + time;
        while let Ok(next) = tokio::time::timeout_at(end, self.client.socket.next()).await {
            let Some(Ok(Message::Text(text))) = next else { panic!("the connection stays open: {next:?}") };
            let frame = Frame::parse(&text);
            assert_ne!(frame.op, "ERR", "{frame:?}");
            if let Some(event) = frame.event {
                self.take(event).await;
            }
        }
        self.next_seq - 1
    }
}

fn metric(serving: &Serving, name: &str) -> u64 {
    let mut text = String::new();
    get(&serving.addresses()[0], "/metrics", "").body.read_to_string(&mut text).unwrap();
    let line = text.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
    line.unwrap_or_else(|| panic!("no {name}")).rsplit(' ').next().unwrap().parse().unwrap()
}

fn health(serving: &Serving) -> Value {
    get_json(&serving.addresses()[0], "/healthz")
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
