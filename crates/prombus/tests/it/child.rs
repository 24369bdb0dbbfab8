//! Runs a test of this program as a child process that can be killed.

use prombus::Bus;
use prombus::engine::LogEngineOptions;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

/// A bus in a folder, with small files, because a short-lived process should not spend its time on filling them.
pub async fn open_bus(folder: &Path) -> Bus {
    let mut options = LogEngineOptions::default();
    options.log.segment_bytes = 1 << 20;
    options.log.reserve_bytes = 1 << 16;
    options.log.checkpoint_bytes = 1 << 18;
    Bus::builder().log(options).open(folder).await.expect("the bus opens")
}

/// Prints a line for the parent process.
pub fn say(line: &str) {
    std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).expect("the parent listens");
}

/// A process, and its output.
pub struct Child {
    process: std::process::Child,
    reader: JoinHandle<Vec<String>>,
}

impl Child {
    /// Runs the test of this name with these environment variables.
    pub fn start(test: &str, variables: &[(&str, &Path)]) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", test, "--nocapture"])
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut output = process.stdout.take().expect("it has an output");
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).expect("it was read");
            // A line without its end was cut off by the kill.
            text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
            text.lines().map(str::to_owned).collect()
        });
        Self { process, reader }
    }

    /// Kills it with SIGKILL, and returns its output.
    pub fn kill(mut self) -> Vec<String> {
        assert!(self.process.try_wait().expect("it can be asked").is_none(), "the process ended by itself");
        self.process.kill().expect("it is killed");
        self.process.wait().expect("it is gone");
        self.reader.join().expect("it was read")
    }
}

/// The sum of the numbers in lines that begin with a word.
pub fn sum_of(lines: &[String], word: &str) -> u64 {
    let numbers = lines.iter().filter_map(|line| line.strip_prefix(word)?.trim().parse::<u64>().ok());
    numbers.sum()
}
