//! A server, and the client commands that tests run with it.

use crate::http_client::{get, get_json};
use crate::serving::{Serving, serve};
use crate::support::{Ran, TempFolder, prombus};
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long to wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with its own folder.
pub struct Server {
    pub serving: Serving,
    pub folder: TempFolder,
}

impl Server {
    pub fn start() -> Self {
        let folder = TempFolder::new();
        Self { serving: Serving::in_folder(&folder, &[]), folder }
    }

    pub fn address(&self) -> String {
        self.serving.address().to_string()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Kills the server with SIGKILL and, after a pause, starts one with the same port and data.
    pub fn kill_and_start_again(self, pause: Duration) -> Self {
        let Self { serving, folder } = self;
        let address = serving.address().to_string();
        serving.kill();
        std::thread::sleep(pause);
        let data = folder.path().join("data");
        let command = prombus(&["serve", "--data", data.to_str().unwrap(), "--listen", &address]);
        Self { serving: Serving::start(command), folder }
    }

    /// A command for this server.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = prombus(arguments);
        command.env("PROMBUS_URL", self.url());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.command(arguments).output().unwrap().into()
    }

    /// Runs a command that must succeed; returns its output.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
        ran.stdout
    }

    /// Runs a command with `input` on standard input.
    pub fn feed(&self, arguments: &[&str], input: &str) -> Ran {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        // A command that fails early does not read all of its input.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap().into()
    }

    /// Imports lines, all of which must be new.
    pub fn import(&self, lines: &[String]) {
        let ran = self.feed(&["import", "-"], &(lines.join("\n") + "\n"));
        let plural = if lines.len() == 1 { "" } else { "s" };
        let expected = format!("{} event{plural} imported, 0 were already there\n", lines.len());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), expected.as_str()), "{}", ran.stderr);
    }

    /// Creates a group that starts at the first event of its topic.
    pub fn make_group(&self, topic: &str, group: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut client = crate::ws_client::Client::connect(self.serving.address()).await;
            client.subscribe(topic, group, serde_json::json!({"from": "earliest"})).await;
        });
    }

    /// The payloads that a group still gets, in order. All of them are acked.
    pub fn drain(&self, topic: &str, group: &str, count: usize) -> Vec<Value> {
        use crate::ws_client::Seen;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let payloads = runtime.block_on(async {
            let mut client = crate::ws_client::Client::connect(self.serving.address()).await;
            client.send(&serde_json::json!({"op": "SUBSCRIBE", "topic": topic, "group": group})).await;
            let mut payloads = Vec::new();
            while payloads.len() < count {
                let event = match client.see().await {
                    Seen::Frame(frame) if frame.op == "EVENT" => frame.event.unwrap(),
                    Seen::Frame(_) => continue,
                    other => panic!("{other:?}"),
                };
                payloads.push(serde_json::from_str(event.payload.get()).unwrap());
                let ack = serde_json::json!({"op": "ACK", "topic": topic, "group": group, "id": event.id});
                client.send(&ack).await;
            }
            payloads
        });
        // The group passes over events for other groups and has no lag afterwards.
        let path = format!("/groups/{topic}/{group}");
        let started = Instant::now();
        while get_json(&self.address(), &path)["lag"] != 0 {
            assert!(started.elapsed() < PATIENCE, "{}", get_json(&self.address(), &path));
            std::thread::sleep(Duration::from_millis(5));
        }
        payloads
    }

    /// The response of `/export` for the topic.
    pub fn lines(&self, topic: &str) -> String {
        let mut answer = get(&self.address(), &format!("/export?topic={topic}"), "");
        let mut text = String::new();
        answer.body.read_to_string(&mut text).unwrap();
        assert_eq!(answer.status, 200, "{text}");
        text
    }

    pub fn events(&self, topic: &str) -> Vec<Value> {
        self.lines(topic).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// How many events a topic has; 0 if it does not exist.
    pub fn count(&self, topic: &str) -> u64 {
        let topics = get_json(&self.address(), "/topics");
        let topics = topics["topics"].as_array().unwrap();
        topics.iter().find(|it| it["topic"] == topic).map_or(0, |it| it["count"].as_u64().unwrap())
    }

    /// Kills a command with SIGKILL as soon as a topic has `count` events. Returns false if it ended before.
    pub fn kill_at(&self, child: &mut Child, topic: &str, count: u64) -> bool {
        let started = Instant::now();
        while self.count(topic) < count {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(started.elapsed() < PATIENCE, "{topic} never has {count} events");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap().code().is_none()
    }
}

/// `prombus serve` with a token.
pub fn with_token(folder: &TempFolder, token: &str) -> Serving {
    let mut command = serve(folder, &[]);
    command.env("WS_TOKEN", token);
    Serving::start(command)
}

/// A line of an import. Its id is derived from topic and number.
pub fn line(topic: &str, number: u64) -> String {
    let id = id_of(topic, number);
    format!(
        r#"{{"id":"{id}","ts":{},"topic":"{topic}","key":"k{}","headers":{{"parity":"{}"}},"payload":{{"number": {number}}},"tags":["t{}"]}}"#,
        1_700_000_000_000 + number,
        number % 10,
        number % 2,
        number % 3
    )
}

pub fn id_of(topic: &str, number: u64) -> String {
    let mark: u64 = topic.bytes().fold(7, |mark, byte| (mark * 31 + u64::from(byte)) % 0xffff_ffff);
    format!("{mark:08x}-0000-4000-8000-{number:012x}")
}

pub fn lines(topic: &str, numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers.map(|number| line(topic, number)).collect()
}

/// A dead letter of an event, as a line of an import.
pub fn letter(topic: &str, number: u64, group: &str, err: &str) -> String {
    let id = id_of(&format!("dlq.{topic}"), number);
    format!(
        r#"{{"id":"{id}","ts":{},"topic":"dlq.{topic}","payload":{{"topic":"{topic}","group":"{group}","original":{},"err":"{err}","attempts":5,"ts":1,"subscription":"{topic}"}}}}"#,
        1_700_000_000_000 + number,
        line(topic, number)
    )
}
