//! Tests of `prombus bench`: every load on each kind of target; no message is lost, duplicated or out of order.

use crate::serving::Serving;
use crate::support::{Ran, TempFolder, prombus, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::time::{Duration, Instant};

const LOADS: [&str; 7] =
    ["publish", "consume", "publish-to-ack", "fan-out", "latency", "topics", "connections"];

fn bench(folder: &TempFolder, more: &[&str]) -> Ran {
    let data = folder.path().to_str().unwrap();
    let small =
        ["--messages", "2000", "--topics", "7", "--groups", "3", "--rate", "20000", "--connections", "5"];
    run(&[&["bench", "--json", "--data", data], &small[..], more].concat())
}

fn results(ran: &Ran) -> Vec<Value> {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    report["results"].as_array().unwrap().clone()
}

fn assert_all_loads_balance(results: &[Value]) {
    let loads: Vec<&str> = results.iter().map(|row| row["load"].as_str().unwrap()).collect();
    assert_eq!(loads, LOADS);
    for row in results {
        let balance = &row["balance"];
        assert_eq!((&balance["sent"], &balance["answered"]), (&2_000.into(), &2_000.into()), "{row}");
        for fault in ["lost", "doubled", "out_of_order"] {
            assert_eq!(balance[fault], 0, "{row}");
        }
        let wanted = if row["load"] == "fan-out" { 6_000 } else { 2_000 };
        assert_eq!(row["count"], wanted, "{row}");
        assert!(
            row["per_second"].as_f64().unwrap() > 0.0 && row["publish"]["p99_ms"].as_f64().unwrap() > 0.0
        );
    }
}

#[test]
fn every_load_runs_on_a_temporary_server_and_leaves_nothing_behind() {
    let folder = TempFolder::new();
    let results = results(&bench(&folder, &[]));
    assert_all_loads_balance(&results);
    assert!(results.iter().all(|row| row["server_cpu_us"].is_number()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn every_load_runs_in_process() {
    let folder = TempFolder::new();
    assert_all_loads_balance(&results(&bench(&folder, &["--in-process"])));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_running_server_is_measured_with_its_token() {
    let folder = TempFolder::new();
    let mut command = prombus(&["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]);
    command.env("WS_TOKEN", "hunter2");
    let serving = Serving::start(command);
    let url = format!("ws://{}/ws", serving.address());
    let ran = bench(&folder, &["--url", &url, "--token", "hunter2", "--client-ids"]);
    assert_all_loads_balance(&results(&ran));

    let refused = bench(&folder, &["publish", "--url", &url, "--token", "wrong"]);
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("the token is not valid") && !refused.stderr.contains("wrong"),
        "{refused:?}"
    );
}

#[test]
fn a_target_or_argument_that_cannot_be_used_is_reported() {
    let gone = run(&["bench", "publish", "--url", "ws://127.0.0.1:1"]);
    assert_eq!(gone.code, Some(1));
    assert!(
        gone.stderr.contains("cannot connect to http://127.0.0.1:1: connection refused; start a server"),
        "{gone:?}"
    );
    for (arguments, word) in [
        (&["bench", "swim"][..], "publish-to-ack"),
        (&["bench", "--size", "3"], "from 37"),
        (&["bench", "--size", "16777217"], "to 16777216"),
        (&["bench", "--seconds", "0"], "above 0"),
        (&["bench", "--seconds", "1e20"], "at most 1e9"),
        (&["bench", "--url", "ws://x", "--in-process"], "--in-process"),
    ] {
        let ran = run(arguments);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(word), "{ran:?}");
    }
    let no_address = run(&["bench", "publish", "--url", "wss://127.0.0.1:1"]);
    assert!(no_address.stderr.contains("TLS is not measured"), "{no_address:?}");
}

#[test]
fn fewer_messages_than_connections_are_all_sent() {
    let folder = TempFolder::new();
    let data = folder.path().to_str().unwrap();
    for more in [&[][..], &["--in-process"]] {
        let few = ["bench", "publish", "--json", "--data", data, "--messages", "7", "--connections", "5"];
        let results = results(&run(&[&few[..], more].concat()));
        assert_eq!(results[0]["balance"]["answered"], 7, "{results:?}");
    }
}

#[test]
fn a_window_may_be_larger_than_what_a_group_may_have_in_flight() {
    let folder = TempFolder::new();
    for more in [
        &["publish-to-ack", "--window", "200000"][..],
        &["publish-to-ack", "--window", "200000", "--in-process"],
    ] {
        results(&bench(&folder, more));
    }
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let folder = TempFolder::new();
    let data = folder.path().to_str().unwrap();
    let mut child = prombus(&["bench", "publish", "--seconds", "60", "--data", data]).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    // The server runs once its data folder has a manifest.
    let has_server = || {
        let mut folders = std::fs::read_dir(folder.path()).unwrap().map_while(Result::ok);
        folders.any(|it| it.path().join("data/MANIFEST").exists())
    };
    while !has_server() {
        assert!(Instant::now() < until, "no server was started");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
