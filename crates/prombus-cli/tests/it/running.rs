//! A command that runs in the background of a test: its lines of output, signals, and its end.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long to wait for something that must happen, on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running command. It is killed when it is dropped.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut stream = child.stderr.take().unwrap();
        let stderr = std::thread::spawn(move || {
            let mut text = Vec::new();
            stream.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        Self { child, lines, stderr: Some(stderr) }
    }

    /// The next line of standard output.
    pub fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("another line of output")
    }

    pub fn stdin(&mut self) -> std::process::ChildStdin {
        self.child.stdin.take().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap(), signal).unwrap();
    }

    /// Waits for the end; returns the exit code, the lines that were not read yet, and standard error.
    pub fn end(mut self) -> (Option<i32>, Vec<String>, String) {
        let mut status = None;
        until("the command ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let stderr = self.stderr.take().unwrap().join().unwrap();
        (status.unwrap().code(), self.lines.iter().collect(), stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a condition holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
