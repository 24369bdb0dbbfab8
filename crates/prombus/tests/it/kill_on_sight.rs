//! Kills (kill -9) a real process whenever it receives an event: the attempts still rise, and the event is given up in the
//! end.

use crate::child::{open_bus, say};
use crate::folder::Folder;
use futures_util::future;
use prombus::DeadLetter;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::time::Duration;

const FOLDER: &str = "PROMBUS_KILL_ON_SIGHT_FOLDER";
const DELAY_MS: &str = "PROMBUS_KILL_ON_SIGHT_DELAY_MS";

/// Not a test: the process that the test kills. It nacks the first attempt, and prints the later attempts.
#[test]
fn the_process_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let delay_ms = std::env::var(DELAY_MS).ok().and_then(|text| text.parse().ok()).expect("a number");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let bus = open_bus(&PathBuf::from(folder)).await;
        if bus.topics().await.expect("topics").is_empty() {
            bus.publish("orders", "deadly").await.expect("publishes");
        }
        let mut orders = bus.subscribe("orders", "billing").from_earliest().await.expect("joins");
        let mut letters = bus.subscribe("dlq.orders", "watch").from_earliest().await.expect("joins");
        loop {
            match future::select(pin!(orders.next()), pin!(letters.next())).await {
                future::Either::Left((delivery, _)) => {
                    let delivery = delivery.expect("the stream continues").expect("reads");
                    if delivery.attempt() > 1 {
                        let reason = delivery.reason().map_or("none", prombus::RedeliveryReason::as_str);
                        say(&format!("ATTEMPT {} {reason}", delivery.attempt()));
                    } else {
                        drop(delivery.nack_after(Duration::from_millis(delay_ms), "boom"));
                    }
                }
                future::Either::Right((letter, _)) => {
                    let letter = letter.expect("the stream continues").expect("reads");
                    let letter: DeadLetter = letter.json().expect("a dead letter");
                    say(&format!("LETTER {} {}", letter.attempts, letter.err));
                }
            }
        }
    });
}

/// Starts the process, and kills it when it prints its first line.
fn run_until_first_delivery(folder: &Path, delay_ms: u64) -> String {
    let mut process = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "kill_on_sight::the_process_that_is_killed", "--nocapture"])
        .env(FOLDER, folder)
        .env(DELAY_MS, delay_ms.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let output = BufReader::new(process.stdout.take().expect("it has an output"));
    let mut lines = output.lines().map(|line| line.expect("it is read"));
    let line_seen = lines.find(|line| line.starts_with("ATTEMPT ") || line.starts_with("LETTER "));
    process.kill().expect("it is killed");
    process.wait().expect("it is gone");
    line_seen.expect("it prints a line before it ends")
}

#[test]
fn kill_9_during_each_attempt_raises_the_attempt_until_the_event_is_given_up() {
    for delay_ms in [0, 20] {
        let folder = Folder::new();
        let seen: Vec<String> = (0..5).map(|_| run_until_first_delivery(folder.path(), delay_ms)).collect();
        let expected = [
            "ATTEMPT 2 nacked",
            "ATTEMPT 3 server_restarted",
            "ATTEMPT 4 server_restarted",
            "ATTEMPT 5 server_restarted",
            "LETTER 5 server_restarted",
        ];
        assert_eq!(seen, expected, "delay {delay_ms} ms");
    }
}
