//! Tests of `prombus verify`.

use crate::support::{Ran, TempFolder, run};
use prombus::Bus;
use std::path::PathBuf;

const EVENTS: u64 = 50;

async fn filled(folder: &TempFolder) -> Bus {
    let bus = Bus::open(folder.path()).await.unwrap();
    for number in 0..EVENTS {
        bus.publish("orders", &format!("order number {number} for a customer")).await.unwrap();
    }
    bus
}

fn closed_folder() -> TempFolder {
    let folder = TempFolder::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { filled(&folder).await.close().await.unwrap() });
    folder
}

fn verify(folder: &TempFolder, more: &[&str]) -> Ran {
    let mut arguments = vec!["verify", "--data", folder.path().to_str().unwrap()];
    arguments.extend(more);
    run(&arguments)
}

/// Flips a bit inside an event; returns the name of the file.
fn flip_a_byte(folder: &TempFolder) -> String {
    let segments = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let segments: Vec<PathBuf> =
        segments.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).collect();
    for path in segments {
        let mut bytes = std::fs::read(&path).unwrap();
        let wanted = b"order number 7 for";
        if let Some(at) = bytes.windows(wanted.len()).position(|window| window == wanted) {
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            return path.file_name().unwrap().to_str().unwrap().to_owned();
        }
    }
    panic!("the event is in no segment");
}

#[test]
fn an_undamaged_folder_has_no_faults() {
    let folder = closed_folder();
    let ran = verify(&folder, &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("50 events") && ran.stdout.ends_with(": no faults\n"), "{}", ran.stdout);
    assert!(ran.stderr.is_empty(), "no progress bar without a terminal: {}", ran.stderr);
    let json: serde_json::Value = serde_json::from_str(&verify(&folder, &["--json"]).stdout).unwrap();
    assert_eq!(json["events"], EVENTS);
    assert_eq!(json["faults"], serde_json::json!([]));
}

#[test]
fn a_damaged_event_is_reported_with_file_position_topic_and_seq() {
    let folder = closed_folder();
    let file = flip_a_byte(&folder);
    let ran = verify(&folder, &[]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let fault = ran.stdout.lines().find(|line| line.starts_with(&file)).unwrap();
    assert!(fault.contains("damaged event at position "), "{fault}");
    assert!(fault.contains("topic \"orders\", seq 8"), "{fault}");
    let json = verify(&folder, &["--json"]);
    assert_eq!(json.code, Some(1));
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let faults = json["faults"].as_array().unwrap();
    assert!(faults.iter().any(|fault| fault["file"] == file.as_str() && fault["seq"] == 8), "{json}");
}

#[test]
fn a_folder_that_cannot_be_checked_exits_with_2() {
    let ran = run(&["verify", "--data", "/no/such/folder"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.starts_with("prombus: no folder /no/such/folder"), "{}", ran.stderr);
    let empty = TempFolder::new();
    let ran = verify(&empty, &[]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("is not a prombus data folder"), "{}", ran.stderr);
    assert!(std::fs::read_dir(empty.path()).unwrap().next().is_none(), "verify left something behind");
}

#[tokio::test]
async fn a_folder_in_use_is_refused() {
    let folder = TempFolder::new();
    let bus = filled(&folder).await;
    let ran = verify(&folder, &[]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("is in use by a running server"), "{}", ran.stderr);
    bus.close().await.unwrap();
}
