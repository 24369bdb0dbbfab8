//! Kills a real process under load with `kill -9`, on a real disk, 20 times in a row.

use crate::support::{Random, event, read_all, setting};
use prombus_log::{Append, Log, NewEvent, Options, Outcomes, verify};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const FOLDER: &str = "PROMBUS_KILL_FOLDER";
const TOPICS: [&str; 3] = ["a", "b", "c"];

fn options() -> Options {
    Options {
        segment_bytes: 1 << 20,
        reserve_bytes: 64 * 1024,
        checkpoint_bytes: 512 * 1024,
        ..Options::default()
    }
}

fn body(topic: &str, thread: u64, number: u64) -> String {
    format!(
        "{{\"topic\":\"{topic}\",\"thread\":{thread},\"number\":{number},\"pad\":\"{}\"}}",
        "x".repeat(200)
    )
}

/// Not a test itself: the process that is killed. It prints the acknowledged events.
#[test]
fn the_process_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let log = Log::open(Path::new(&folder), options()).unwrap();
    let topics = TOPICS.map(|name| log.ensure_topic(name).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let log = log.clone();
            scope.spawn(move || {
                let mut outcomes = Outcomes::default();
                let mut number = 0;
                loop {
                    let bodies: Vec<(usize, String)> = (0..1 + number % 7)
                        .map(|at| (at as usize % 3, body(TOPICS[at as usize % 3], thread, number + at)))
                        .collect();
                    let events: Vec<NewEvent<'_>> =
                        bodies.iter().map(|(topic, body)| event(topics[*topic], body.as_bytes())).collect();
                    number += events.len() as u64;
                    let append = Append { events: &events, ..Append::default() };
                    let ticket = log.append(&append, &mut outcomes).unwrap();
                    log.wait(ticket).unwrap();
                    let mut line = String::new();
                    for ((topic, body), outcome) in bodies.iter().zip(outcomes.iter()) {
                        line += &format!(
                            "ACK {} {} {}\n",
                            TOPICS[*topic],
                            outcome.seq,
                            crc32c::crc32c(body.as_bytes())
                        );
                    }
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

#[test]
fn kill_9_twenty_times_in_a_row_loses_no_acknowledged_event() {
    let seed = setting("PROMBUS_SEED", 1);
    println!("PROMBUS_SEED={seed}");
    let mut random = Random::new(seed);
    let folder: PathBuf = std::env::temp_dir().join(format!("prombus-log-kill-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let mut acknowledged: HashMap<(String, u64), u32> = HashMap::new();
    for round in 0..20 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::the_process_that_is_killed", "--nocapture"])
            .env(FOLDER, &folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            let mut lines = Vec::new();
            for line in output.lines() {
                let Ok(line) = line else { break };
                let words: Vec<&str> = line.split(' ').collect();
                // The kill may cut off the last line, so only complete lines count.
                if let ["ACK", topic, seq, crc] = words[..]
                    && let (Ok(seq), Ok(crc)) = (seq.parse::<u64>(), crc.parse::<u32>())
                {
                    lines.push(((topic.to_owned(), seq), crc));
                }
            }
            // A line without its end is not an acknowledgement.
            lines.pop();
            lines
        });
        std::thread::sleep(Duration::from_millis(random.between(60, 300)));
        child.kill().unwrap();
        child.wait().unwrap();
        let before = acknowledged.len();
        acknowledged.extend(reader.join().unwrap());
        let new = acknowledged.len() - before;

        let log = Log::open(&folder, options()).unwrap();
        let mut there = 0;
        for name in TOPICS {
            let Some(topic) = log.topic(name) else { continue };
            let events = read_all(&log, topic);
            there += events.len();
            for (at, read) in events.iter().enumerate() {
                assert_eq!(read.seq, at as u64 + 1, "round {round}: {name} has a gap");
                if let Some(&crc) = acknowledged.get(&(name.to_owned(), read.seq)) {
                    assert_eq!(
                        crc32c::crc32c(&read.body),
                        crc,
                        "round {round}: {name} {} is another event",
                        read.seq
                    );
                }
            }
            let newest = acknowledged.keys().filter(|(topic, _)| topic == name).map(|(_, seq)| *seq).max();
            assert!(
                events.len() as u64 >= newest.unwrap_or(0),
                "round {round}: {name} lost acknowledged events"
            );
        }
        println!("round {round}: {new} acknowledged, {there} there");
        log.close().unwrap();
    }
    assert!(acknowledged.len() > 1_000, "only {} events were acknowledged", acknowledged.len());
    assert_eq!(verify(&folder, |_| {}).unwrap().faults, []);
    std::fs::remove_dir_all(&folder).unwrap();
}
