//! Runs the examples of `docs/protocol.md`: each transcript against a server of its own, and the `curl` lines against a shared
//! one.

use crate::placeholders::{Placeholders, parse};
use crate::rig::{Client, Rig, Seen, options};
use crate::transcript::{Block, Step, blocks};
use prombus_protocol::ErrorCode;
use prombus_server::{Rate, ServerOptions, TokenHash, TokenOptions};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::Stdio;
use std::time::Duration;

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    std::fs::read_to_string(path).expect("the document is there")
}

/// Codes that only HTTP has, and those that need a failing or full disk.
const NOT_PLAYED: [ErrorCode; 7] = [
    ErrorCode::NotFound,
    ErrorCode::MethodNotAllowed,
    ErrorCode::StorageFull,
    ErrorCode::Unavailable,
    ErrorCode::PublishFailed,
    ErrorCode::AckFailed,
    ErrorCode::Internal,
];

/// The ops of clients.
const OPS: [&str; 11] = [
    "AUTH",
    "PUBLISH",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "ACK",
    "NACK",
    "MODACK",
    "PAUSE",
    "RESUME",
    "CURSOR",
    "SEEK",
];

/// The options of a server. `name` is the text after the language of a block.
fn set_up(name: &str) -> ServerOptions {
    let mut options = options();
    match name {
        "" => {}
        "auth" | "auth, short of time" => {
            let token = |name: &str, secret: &str, scopes: &[&str]| TokenOptions {
                name: name.to_owned(),
                secret: TokenHash::of(secret),
                scopes: scopes.iter().map(|scope| scope.parse().expect("a scope")).collect(),
            };
            options.auth.tokens = vec![
                token("billing", "billing-token", &["publish:invoices.**", "subscribe:orders.**"]),
                token(
                    "operator",
                    "operator-token",
                    &["publish:**", "subscribe:**", "subscribe:dlq.**", "admin"],
                ),
            ];
            if name != "auth" {
                options.connections.auth_timeout = Duration::from_millis(200);
            }
        }
        "at most 1 subscription" => options.connections.max_subscriptions = 1,
        "at most 1 publish per second" => {
            options.rates.connection_publish = Some(Rate { per_second: 1.0, burst: 1.0 });
        }
        other => panic!("no setup is called {other:?}"),
    }
    options
}

async fn play(block: &Block) {
    let rig = Rig::with(set_up(&block.setup)).await;
    let mut clients: BTreeMap<u32, Client> = BTreeMap::new();
    let mut placeholders = Placeholders::default();
    for step in block.steps() {
        let place = format!("docs/protocol.md, block of line {}: {step:?}", block.line);
        let (Step::Send { client, .. } | Step::Receive { client, .. } | Step::Closed { client, .. }) = step;
        if let std::collections::btree_map::Entry::Vacant(entry) = clients.entry(client) {
            entry.insert(rig.client().await);
        }
        let socket = clients.get_mut(&client).expect("just connected");
        match &step {
            // Text that is not JSON is sent unchanged.
            Step::Send { text, .. } => match parse(text) {
                Some(frame) => socket.send(placeholders.fill(&frame)).await,
                None => socket.send_text(text).await,
            },
            Step::Receive { text, .. } => {
                let expected = parse(text).unwrap_or_else(|| panic!("{place}: not JSON"));
                // Answers come in order, and so do events, but the order between the two is not fixed.
                let is_event = expected["op"] == "EVENT";
                let got = if is_event { socket.event().await } else { socket.answer().await };
                if let Err(error) = placeholders.check(&expected, &got) {
                    panic!("{place}: {error}\n{got}");
                }
            }
            Step::Closed { code, .. } => {
                assert_eq!(socket.see().await, Seen::Close(Some(*code)), "{place}");
                clients.remove(&client);
            }
        }
    }
    for (number, client) in &clients {
        let left = client.kept();
        assert!(left.is_empty(), "block of line {}: client {number} was also sent {left:?}", block.line);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transcript_of_the_protocol_matches_the_server() {
    for block in blocks(&document()).iter().filter(|block| block.is_transcript()) {
        play(block).await;
    }
}

#[test]
fn every_frame_and_every_code_is_in_a_transcript() {
    let document = document();
    let (mut ops, mut answers, mut codes) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let text_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for block in blocks(&document).iter().filter(|block| block.is_transcript()) {
        for step in block.steps() {
            match step {
                Step::Send { text, .. } => ops.extend(parse(&text).map(|frame| text_of(&frame["op"]))),
                Step::Receive { text, .. } => {
                    let frame = parse(&text).expect("JSON");
                    answers.insert(text_of(&frame["op"]));
                    codes.insert(text_of(&frame["code"]));
                }
                Step::Closed { .. } => {}
            }
        }
    }
    for op in OPS {
        assert!(ops.contains(op), "{op} is not shown");
    }
    for answer in ["OK", "ERR", "EVENT"] {
        assert!(answers.contains(answer), "{answer} is not shown");
    }
    for code in ErrorCode::ALL {
        assert!(document.contains(&format!("| `{code}` |")), "{code} is in no table");
        let is_shown = codes.contains(code.as_str());
        assert!(is_shown || NOT_PLAYED.contains(&code), "{code} is not shown");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_curl_line_of_the_protocol_is_answered_as_documented() {
    let blocks = blocks(&document());
    let mut servers: HashMap<&str, (Rig, Placeholders)> = HashMap::new();
    let mut count = 0;
    for (block, answer) in blocks.iter().zip(&blocks[1..]).filter(|(block, _)| block.language == "sh") {
        if !servers.contains_key(block.setup.as_str()) {
            let rig = Rig::with(set_up(&block.setup)).await;
            servers.insert(&block.setup, (rig, Placeholders::default()));
        }
        let (rig, placeholders) = servers.get_mut(block.setup.as_str()).expect("just started");
        let Some(output) = run(rig, &placeholders.fill_text(&block.text)).await else { return };
        let place = format!("docs/protocol.md, block of line {}", block.line);
        assert!(!answer.text.trim().is_empty(), "{place}: no answer is documented");
        // One JSON value, or lines of a stream.
        let (expected, got) = match (parse(&answer.text), serde_json::from_str(&output)) {
            (Some(expected), Ok(got)) => (vec![expected], vec![got]),
            _ => (lines_of(&answer.text), lines_of(&output)),
        };
        if let Err(error) = placeholders.check(&expected.into(), &got.into()) {
            panic!("{place}: {error}\n{output}");
        }
        count += 1;
    }
    assert!(count >= 10, "{count} lines were run");
}

/// The values of the lines: JSON where a line contains it.
fn lines_of(text: &str) -> Vec<Value> {
    let line = |line: &str| {
        let json = line.strip_prefix("data: ").unwrap_or(line);
        match line.strip_prefix("id: ") {
            Some(id) => Value::from(id),
            None => parse(json).unwrap_or_else(|| Value::from(line)),
        }
    };
    text.lines().filter(|line| !line.is_empty()).map(line).collect()
}

/// Runs a line with the port of the rig. `None`: curl is not installed.
async fn run(rig: &Rig, line: &str) -> Option<String> {
    assert!(line.starts_with("curl "), "only curl is run: {line}");
    let mut line = line.replace("127.0.0.1:8090", &rig.address.to_string());
    if line.contains(" -N ") {
        line = line.replacen("curl ", "curl --max-time 1 ", 1); // a tail has no end
    }
    let mut shell = tokio::process::Command::new("sh");
    shell.args(["-c", &line]).env("TOKEN", "operator-token").env("no_proxy", "*").stdin(Stdio::null());
    let output = shell.output().await.expect("a shell runs");
    if output.status.code() == Some(127) {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "curl is not installed");
        return None;
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 28)), "{line}: {stderr}");
    Some(String::from_utf8(output.stdout).expect("UTF-8"))
}
