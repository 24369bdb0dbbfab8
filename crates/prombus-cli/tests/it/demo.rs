//! Tests of `prombus serve --demo`.

use crate::http_client::get_json;
use crate::serving::Serving;
use crate::support::TempFolder;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Waits until the topic of states has `count` events, and returns them.
fn states(address: &str, count: usize) -> Vec<serde_json::Value> {
    let started = Instant::now();
    loop {
        let topics = get_json(address, "/topics");
        if topics.to_string().contains("process.state") {
            let answer = get_json(address, "/replay?topic=process.state&from=earliest&limit=1000");
            let events = answer["events"].as_array().unwrap().clone();
            if events.len() >= count {
                return events;
            }
        }
        assert!(started.elapsed() < Duration::from_secs(30), "no states were published");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_demo_publishes_process_states_and_continues_after_a_restart() {
    let folder = TempFolder::new();
    let mut seqs = Vec::new();
    for _ in 0..2 {
        let serving = Serving::in_folder(&folder, &["--demo"]);
        let address = serving.addresses().remove(0);
        let demo_lines = serving.banner.iter().filter(|line| line.starts_with("demo:")).count();
        assert!(demo_lines >= 3, "{:?}", serving.banner);
        let events = states(&address, seqs.len() + 8);
        for key in ["demo:web:101", "demo:worker:102", "demo:stt:103"] {
            let state = events.iter().rfind(|event| event["key"] == key).unwrap();
            assert_eq!(state["payload"]["processId"], key);
            assert_eq!(state["payload"]["status"], "alive", "{state}");
        }
        let own = events.iter().rfind(|event| event["payload"]["name"] == "prombus").unwrap();
        assert!(own["payload"]["mem_mb"].as_f64().unwrap() > 1.0, "{own}");
        let now: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
        assert!(now.starts_with(&seqs), "states from before the restart are gone");
        seqs = now;
        serving.signal(Signal::TERM);
        let (code, log) = serving.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(!log.contains("ERROR"), "{log}");
    }
}
