//! A server process that tests start, inspect, and stop or kill.

use crate::support::{TempFolder, prombus};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a start may take on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long a stop may take, as docs/operating.md promises.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// A running server. It is killed when it is dropped.
pub struct Serving {
    child: Child,
    pub banner: Vec<String>,
    /// Reads the log, so that the server never blocks on a full pipe.
    log: Option<JoinHandle<String>>,
    /// The log up to now.
    log_so_far: Arc<Mutex<String>>,
}

impl Serving {
    /// Starts a server on free ports and waits for the last line of its banner.
    pub fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (lines, received) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let log_so_far = Arc::<Mutex<String>>::default();
        let read = Arc::clone(&log_so_far);
        let log = std::thread::spawn(move || {
            let mut line = String::new();
            while stderr.read_line(&mut line).unwrap() > 0 {
                read.lock().unwrap().push_str(&std::mem::take(&mut line));
            }
            read.lock().unwrap().clone()
        });
        let mut serving = Self { child, banner: Vec::new(), log: Some(log), log_so_far };
        while let Ok(line) = received.recv_timeout(START_PATIENCE) {
            let is_last = line.starts_with("try:");
            serving.banner.push(line);
            if is_last {
                return serving;
            }
        }
        let _ = serving.child.kill();
        let log = serving.log.take().unwrap().join().unwrap();
        panic!("the server did not start: {:?} {log}", serving.banner);
    }

    pub fn in_folder(folder: &TempFolder, more: &[&str]) -> Self {
        Self::start(serve(folder, more))
    }

    pub fn line(&self, start: &str) -> &str {
        self.banner.iter().find(|line| line.starts_with(start)).unwrap()
    }

    /// The addresses, as printed.
    pub fn addresses(&self) -> Vec<String> {
        let lines = self.banner.iter().filter(|line| line.starts_with("listen:"));
        lines.map(|line| line.rsplit("//").next().unwrap().to_owned()).collect()
    }

    /// The first address.
    pub fn address(&self) -> SocketAddr {
        self.addresses()[0].parse().unwrap()
    }

    /// The log up to now.
    pub fn log(&self) -> String {
        self.log_so_far.lock().unwrap().clone()
    }

    /// Its current and peak memory.
    pub fn memory(&self) -> Memory {
        Memory::of_process(self.child.id())
    }

    /// The number of open sockets. Files are not counted: the log opens and closes them as needed.
    pub fn socket_count(&self) -> usize {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        // A descriptor that was closed meanwhile has no link to read.
        let targets = descriptors.filter_map(|it| std::fs::read_link(it.ok()?.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    }

    /// The CPU time of all its threads.
    pub fn processor_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The program name may contain spaces, the fields after it do not. utime and stime are fields 14 and 15.
        let after_name = stat.rsplit(')').next().unwrap();
        let ticks = after_name.split_whitespace().skip(11).take(2).map(|it| it.parse::<f64>().unwrap());
        ticks.sum::<f64>() / 100.0
    }

    /// Kills it with SIGKILL, waits until it is gone, and returns its log.
    pub fn kill(mut self) -> String {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
        self.log.take().unwrap().join().unwrap()
    }

    /// Stops it with SIGTERM.
    pub fn stop(self) {
        self.signal(Signal::TERM);
        let (code, log) = self.end();
        assert_eq!(code, Some(0), "{log}");
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until it exits; returns its exit code and its log.
    pub fn end(mut self) -> (Option<i32>, String) {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(started.elapsed() < STOP_PATIENCE, "the server does not stop");
            std::thread::sleep(Duration::from_millis(10));
        };
        (status.code(), self.log.take().unwrap().join().unwrap())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory of a process, as the kernel counts it.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub resident_bytes: u64,
    pub peak_bytes: u64,
}

impl Memory {
    fn of_process(id: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let kilobytes = |name: &str| -> u64 {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        Self { resident_bytes: kilobytes("VmRSS:") * 1024, peak_bytes: kilobytes("VmHWM:") * 1024 }
    }
}

/// Bytes in MiB, for printed measurements.
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// `prombus serve` on a free port, with its data in the folder.
pub fn serve(folder: &TempFolder, more: &[&str]) -> Command {
    let data = folder.path().join("data");
    let mut command = prombus(&["serve", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    command.args(more);
    command
}
