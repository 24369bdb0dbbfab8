//! Runs the commands of README.md as printed with a real server. Only the port differs.

use crate::serving::Serving;
use crate::support::{TempFolder, prombus, run};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

fn readme() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    std::fs::read_to_string(path).unwrap()
}

/// The lines of the `sh` blocks of a section.
fn commands(readme: &str, section: &str) -> Vec<String> {
    let after = readme.split(&format!("\n## {section}\n")).nth(1).unwrap_or_else(|| panic!("no {section:?}"));
    let text = after.split("\n## ").next().unwrap();
    let blocks = text.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    blocks.flat_map(str::lines).map(str::to_owned).collect()
}

/// Whether curl is installed. It must be in CI, where no test may be skipped.
fn has_curl() -> bool {
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    assert!(has_curl || std::env::var("CI").as_deref() != Ok("true"), "curl is not installed");
    has_curl
}

fn shell(line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("no_proxy", "*").stdin(Stdio::null());
    command
}

/// A `curl -N` that runs until it is dropped.
struct Tail {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Tail {
    fn start(line: &str) -> Self {
        let mut child =
            shell(&format!("exec {line}")).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    fn wait_for(&self, start: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no line with {start:?}"));
            if line.starts_with(start) {
                return line;
            }
        }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_section_run_it_has_its_two_commands() {
    assert_eq!(commands(&readme(), "Run it"), ["cargo run --release -- serve", "scripts/test"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test");
    assert!(std::path::Path::new(script).exists());
}

#[test]
fn the_curl_lines_work_as_printed() {
    if !has_curl() {
        return;
    }
    let folder = TempFolder::new();
    let serving = Serving::in_folder(&folder, &[]);
    let address = &serving.addresses()[0];
    let lines = commands(&readme(), "Publish and subscribe");
    assert!(
        lines.iter().all(|line| line.starts_with("curl ") && line.contains("127.0.0.1:8090")),
        "{lines:?}"
    );
    let mut lines = lines.iter().map(|line| line.replace("127.0.0.1:8090", address));
    let tail = Tail::start(&lines.next().unwrap());
    tail.wait_for(": connected");
    let answers: Vec<String> = lines
        .map(|line| {
            let output = shell(&line).output().unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        })
        .collect();
    let [published, exported] = answers.as_slice() else { panic!("{answers:?}") };
    let published: serde_json::Value = serde_json::from_str(published).unwrap();
    assert_eq!(published["seq"], 1, "{published}");
    for record in [tail.wait_for("data: ").trim_start_matches("data: "), exported.trim_end()] {
        let record: serde_json::Value = serde_json::from_str(record).unwrap();
        assert_eq!((&record["id"], &record["topic"]), (&published["id"], &"greetings".into()));
        assert_eq!(record["payload"], serde_json::json!({"hello": "world"}));
    }
}

#[test]
fn the_commands_for_operators_work_as_printed() {
    let folder = TempFolder::new();
    // Creates the default data folder, which one of the commands verifies.
    let mut serve = prombus(&["serve", "--listen", "127.0.0.1:0"]);
    serve.current_dir(folder.path());
    drop(Serving::start(serve));
    let lines = commands(&readme(), "Operating it");
    assert_eq!(lines.len(), 4, "{lines:?}");
    let binary = env!("CARGO_BIN_EXE_prombus");
    for line in lines {
        let line = line.replacen("prombus", binary, 1);
        let output = shell(&line).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let config = folder.path().join("prombus.toml");
    assert_eq!(run(&["config", "check", config.to_str().unwrap()]).code, Some(0));
}

#[test]
fn the_lines_about_state_work_as_printed() {
    if !has_curl() {
        return;
    }
    let folder = TempFolder::new();
    let serving = Serving::in_folder(&folder, &[]);
    let address = &serving.addresses()[0];
    let answers: Vec<String> = commands(&readme(), "State")
        .iter()
        .map(|line| {
            let line = line.replace("127.0.0.1:8090", address);
            let output = shell(&format!("{line} -s")).output().unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        })
        .collect();
    let [_, _, all, one] = answers.as_slice() else { panic!("{answers:?}") };
    let all: serde_json::Value = serde_json::from_str(all).unwrap();
    assert_eq!((&all["position"]["seq"], &all["count"]), (&2.into(), &1.into()), "{all}");
    assert_eq!(all["events"][0]["payload"], serde_json::json!({"mood": "merry"}));
    assert!(one.starts_with("HTTP/1.1 200") && one.contains("etag: ") && one.contains("merry"), "{one}");
}

#[test]
fn the_tools_work_as_printed() {
    let folder = TempFolder::new();
    let serving = Serving::in_folder(&folder, &[]);
    let url = format!("http://{}", serving.addresses()[0]);
    let work = TempFolder::new();
    let binary = env!("CARGO_BIN_EXE_prombus");
    let records = work.path().join("seed.ndjson");
    std::fs::write(&records, "{\"topic\":\"orders.new\",\"key\":\"customer-7\",\"payload\":1}\n").unwrap();
    let lines = commands(&readme(), "Tools");
    assert_eq!(lines.len(), 5, "{lines:?}");
    let seed = format!("prombus import {}", records.display());
    for line in std::iter::once(&seed).chain(&lines) {
        let line = line.replacen("prombus", binary, 1);
        let line = line.replace("/tmp/prombus-backup", &work.path().join("backup").display().to_string());
        let output = shell(&line).current_dir(work.path()).env("PROMBUS_URL", &url).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let backup = work.path().join("backup");
    assert_eq!(run(&["verify", "--data", backup.to_str().unwrap()]).code, Some(0));
}
