//! Runs `prombus-growth` with small sizes on the real binary: every file is written, every message is accounted for.

use prombus_compare::growth::results::Growth;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The server's binary: `PROMBUS_BIN`, or the one that `cargo test --workspace` builds if both workspaces share a target folder.
fn prombus() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_BIN_EXE_prombus-growth")).with_file_name("prombus");
    let path = std::env::var_os("PROMBUS_BIN").map_or(beside, PathBuf::from);
    if path.is_file() {
        return Some(path);
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{} does not exist", path.display());
    // Written to stderr directly: the test harness hides printed output of tests that pass.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {} does not exist", path.display());
    None
}

fn grow(prombus: &Path, folder: &Path, only: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_prombus-growth"))
        .args(["--only", only, "--runs", "1", "--seconds", "0.05", "--backlog", "2000", "--at-most", "10"])
        .args(["--prombus".as_ref(), prombus, "--data".as_ref(), folder, "--out".as_ref(), folder])
        .output()
        .expect("it is there");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn every_size_is_measured_and_nothing_is_left_behind() {
    let Some(prombus) = prombus() else { return };
    let folder = super::folder("growth");
    std::fs::create_dir_all(&folder).expect("there is room");
    let said = grow(&prombus, &folder, "groups,backlog");
    assert!(said.contains("groups 10, run 1: ") && said.contains("backlog 2,000: opens in "), "{said}");
    // A later measurement is added to the earlier results.
    grow(&prombus, &folder, "topics");

    let raw = std::fs::read(folder.join("growth.json")).expect("raw results are written");
    let growth: Growth = serde_json::from_slice(&raw).expect("raw results are valid");
    assert!(growth.is_clean(), "{said}");
    let steps: Vec<(&str, usize)> =
        growth.dimensions.iter().map(|measured| (measured.name.as_str(), measured.rows.len())).collect();
    assert_eq!(steps, [("topics", 1), ("groups", 2), ("backlog", 3)]);
    let both = &growth.dimensions[2].rows[2];
    assert_eq!((both.size, both.topics, both.with_group.len()), (2_000, 10, 1));
    assert!(both.opening.is_some_and(|opening| opening.after_stop_ms > 0.0 && opening.after_kill_ms > 0.0));

    let page = std::fs::read_to_string(folder.join("growth.md")).expect("the page is written");
    assert!(page.contains("10 topics and a backlog of 2,000 events cost live publishing"), "{page}");
    let left: Vec<_> = std::fs::read_dir(&folder).expect("it is there").flatten().collect();
    assert_eq!(left.len(), 3, "the data is deleted: {left:?}");
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

#[test]
fn a_backlog_too_large_for_the_disk_is_refused_before_anything_is_written() {
    let Some(prombus) = prombus() else { return };
    let folder = super::folder("growth-no-room");
    std::fs::create_dir_all(&folder).expect("there is room");
    let output = Command::new(env!("CARGO_BIN_EXE_prombus-growth"))
        .args(["--only", "backlog", "--backlog", "1000000000000"])
        .args([
            "--prombus".as_ref(),
            prombus.as_path(),
            "--data".as_ref(),
            &folder,
            "--out".as_ref(),
            &folder,
        ])
        .output()
        .expect("it is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("GB are free and a backlog of 1,000,000,000,000 events may need"), "{said}");
    assert_eq!(std::fs::read_dir(&folder).expect("it is there").count(), 0);
    std::fs::remove_dir_all(&folder).expect("it is ours");
}
