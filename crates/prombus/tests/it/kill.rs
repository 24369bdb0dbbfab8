//! Kills (kill -9) a real process that publishes and consumes, on a real disk, 20 times in a row.

use crate::support::{Random, setting};
use prombus::{Bus, PublishOptions, PullLimit, Topic};
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const FOLDER: &str = "PROMBUS_KILL_FOLDER";
const TOPIC: &str = "orders";
const GROUP: &str = "billing";

fn payload(publisher: u64, number: u64) -> String {
    format!("{{\"publisher\":{publisher},\"number\":{number},\"pad\":\"{}\"}}", "x".repeat(200))
}

fn say(line: &str) {
    std::io::stdout().lock().write_all(line.as_bytes()).expect("the parent listens");
}

/// Not a test: the process that the test kills. It prints which events were confirmed, delivered and durably acked.
#[test]
fn the_process_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let bus = Bus::open(PathBuf::from(folder)).await.expect("it opens");
        for publisher in 0..3_u64 {
            let bus = bus.clone();
            tokio::spawn(async move {
                let topic = Topic::new(TOPIC).expect("a topic");
                for number in (0_u64..).step_by(8) {
                    let mut batch = bus.batch();
                    let payloads: Vec<String> =
                        (0..1 + number % 7).map(|at| payload(publisher, number + at)).collect();
                    for payload in &payloads {
                        let options = PublishOptions::default();
                        batch.push_json(topic.clone(), payload.as_bytes(), &options).expect("it is JSON");
                    }
                    let published = bus.publish_batch(batch).await.expect("it publishes");
                    let lines: String = published
                        .iter()
                        .zip(&payloads)
                        .map(|(one, payload)| format!("PUB {} {}\n", one.seq, checksum(payload)))
                        .collect();
                    say(&lines);
                }
            });
        }
        let members = (0..2).map(|member: u64| {
            let bus = bus.clone();
            tokio::spawn(async move {
                let subscription = bus.subscribe(TOPIC, GROUP).from_earliest().batch_size(20);
                let mut subscription = subscription.await.expect("it subscribes");
                for round in 0_u64.. {
                    let deliveries = subscription.next_batch().await.expect("it reads");
                    let seqs: Vec<u64> = deliveries.events().map(|event| event.seq()).collect();
                    say(&seqs.iter().map(|seq| format!("GOT {seq}\n")).collect::<String>());
                    if (round + member) % 5 == 0 {
                        // Nack some of them: they are redelivered.
                        for (delivery, seq) in deliveries.iter().zip(&seqs) {
                            if seq % 3 == 0 && delivery.attempt() < 3 {
                                drop(delivery.nack("not yet"));
                            } else {
                                delivery.ack().await.expect("it acks");
                                say(&format!("ACK {seq}\n"));
                            }
                        }
                    } else {
                        deliveries.ack().await.expect("it acks");
                        say(&seqs.iter().map(|seq| format!("ACK {seq}\n")).collect::<String>());
                    }
                }
            })
        });
        for member in members.collect::<Vec<_>>() {
            member.await.expect("a member never ends");
        }
    });
}

fn checksum(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[derive(Default)]
struct Reported {
    published: HashMap<u64, u64>,
    got: HashSet<u64>,
    acked: HashSet<u64>,
}

impl Reported {
    fn add(&mut self, lines: &[String]) {
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
            match (words[0], number(1), number(2)) {
                ("PUB", Some(seq), Some(sum)) => drop(self.published.insert(seq, sum)),
                ("GOT", Some(seq), None) => drop(self.got.insert(seq)),
                ("ACK", Some(seq), None) => drop(self.acked.insert(seq)),
                _ => {}
            }
        }
    }
}

/// Lets the process work for a while, kills it, and returns the complete lines of its output.
fn run_and_kill(folder: &PathBuf, for_ms: u64) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "kill::the_process_that_is_killed", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut output = child.stdout.take().expect("it has an output");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).expect("it was read");
        // A line without its end was cut off by the kill.
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        text.lines().map(str::to_owned).collect()
    });
    std::thread::sleep(Duration::from_millis(for_ms));
    child.kill().expect("it is killed");
    child.wait().expect("it is gone");
    reader.join().expect("it was read")
}

#[test]
fn kill_9_twenty_times_under_load_loses_no_confirmed_event_and_redelivers_no_acked_one() {
    let seed = setting("PROMBUS_SEED", 1);
    println!("PROMBUS_SEED={seed}");
    let mut random = Random::new(seed);
    let folder = std::env::temp_dir().join(format!("prombus-kill-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut reported = Reported::default();
    for round in 0..20 {
        reported.add(&run_and_kill(&folder, random.between(100, 350)));
        runtime.block_on(check(&folder, &reported, round));
    }
    let (published, acked) = (reported.published.len(), reported.acked.len());
    println!("{published} confirmed, {acked} durably acked");
    assert!(published > 2_000 && acked > 1_000, "only {published} confirmed, {acked} acked");
    std::fs::remove_dir_all(&folder).expect("it is removed");
}

async fn check(folder: &PathBuf, reported: &Reported, round: u32) {
    let bus = Bus::open(folder).await.expect("it opens after a kill");
    let topic = Topic::new(TOPIC).expect("a topic");
    let mut there = HashSet::new();
    let mut from = 1;
    while !reported.published.is_empty() {
        let page = bus.read_from(&topic, from, PullLimit::default()).await.expect("it reads");
        for event in &page.events {
            assert_eq!(event.seq(), there.len() as u64 + 1, "round {round}: a gap");
            there.insert(event.seq());
            if let Some(&sum) = reported.published.get(&event.seq()) {
                assert_eq!(
                    checksum(event.payload()),
                    sum,
                    "round {round}: {} has another payload",
                    event.seq()
                );
            }
        }
        if page.next_seq == from {
            break;
        }
        from = page.next_seq;
    }
    for seq in reported.published.keys().chain(&reported.got) {
        assert!(there.contains(seq), "round {round}: seq {seq} was confirmed or delivered and is lost");
    }
    if !reported.got.is_empty() {
        let subscription = bus.subscribe(TOPIC, GROUP).max_in_flight(100_000).batch_size(10_000);
        let mut subscription = subscription.await.expect("it subscribes");
        assert!(!subscription.created(), "round {round}: the group is lost");
        let mut left = HashSet::new();
        // All unsettled events are delivered, nacked ones after their backoff, and no others.
        while let Ok(Ok(deliveries)) =
            tokio::time::timeout(Duration::from_millis(400), subscription.next_batch()).await
        {
            for event in deliveries.events() {
                let seq = event.seq();
                assert!(
                    !reported.acked.contains(&seq),
                    "round {round}: {seq} was durably acked and is redelivered"
                );
                left.insert(seq);
            }
        }
        for seq in &there {
            let is_accounted_for = left.contains(seq) || reported.got.contains(seq);
            assert!(is_accounted_for, "round {round}: {seq} is not delivered, and was not delivered before");
        }
        // Leave cleanly, so that the next process gets these events as if this member had not existed.
        subscription.unsubscribe().await.expect("it leaves");
    }
    bus.close().await.expect("it closes");
}
