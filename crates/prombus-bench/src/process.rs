//! Server processes. Each runs in its own folder. A [`Process`] that is dropped stops its server and deletes the folder. A program
//! that is ended by a signal must call [`stop_all`] to do the same.

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// The processes to stop and the folders to delete if this program receives a signal.
static RUNNING: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());

/// How long a server may take to start, and to stop. Servers written in Erlang take long on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running server. Dropping it stops the server and deletes its folder.
#[derive(Debug)]
pub struct Process {
    child: Child,
    folder: PathBuf,
    name: String,
    /// The signal that stops it.
    signal: Signal,
    /// Whether the folder is kept when the server has stopped.
    keeps_folder: bool,
}

impl Process {
    /// Starts a command in its own folder. Its output goes to a file in that folder.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(name: &str, folder: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let log = File::create(folder.join("server.log"))?;
        let mut running = RUNNING.lock().expect("no thread panics while it holds this lock");
        let child = command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        running.push((child.id(), folder.to_owned()));
        Ok(Self {
            child,
            folder: folder.to_owned(),
            name: name.to_owned(),
            signal: Signal::TERM,
            keeps_folder: false,
        })
    }

    /// The process id of the server.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the server accepts connections at the address.
    ///
    /// # Errors
    /// If the server exits, or takes too long.
    pub fn wait_for(&mut self, address: SocketAddr) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at once ({status}): {}", self.name, self.log_tail());
            }
            if Instant::now() > until {
                bail!("{} does not accept connections at {address}: {}", self.name, self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Stops the server with a signal and keeps its folder, so that another server can be started there.
    pub fn end(mut self, signal: Signal) {
        (self.signal, self.keeps_folder) = (signal, true);
    }

    /// Adds the last lines of the server's output to a client's error.
    #[must_use]
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match self.log_tail() {
            tail if tail.is_empty() => error,
            tail => error.context(format!("last output of the server: {tail}")),
        }
    }

    /// The last lines of the server's output.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("server.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let id = self.child.id();
        signal(id, self.signal);
        let until = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        RUNNING
            .lock()
            .expect("no thread panics while it holds this lock")
            .retain(|(running, _)| *running != id);
        if !self.keeps_folder {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Makes [`stop_all`] delete a folder that does not belong to a server.
pub fn remove_if_stopped(folder: &Path) {
    // No process has the id 0.
    RUNNING.lock().expect("no thread panics while it holds this lock").push((0, folder.to_owned()));
}

/// Kills all running servers and deletes their folders. Call it just before the program exits: no server can be started afterwards.
pub fn stop_all() {
    let Ok(running) = RUNNING.lock() else { return };
    for (id, folder) in running.iter() {
        signal(*id, Signal::KILL);
        let _ = std::fs::remove_dir_all(folder);
    }
    // The lock is never released, so that no thread can start another server before the program exits.
    std::mem::forget(running);
}

fn signal(id: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// The command that runs a prombus server at an address, with its data in the working directory. Settings in the environment are
/// removed: they are meant for other servers.
#[must_use]
pub fn prombus_serve(program: &Path, address: SocketAddr) -> Command {
    let mut command = Command::new(program);
    command.args(["serve", "--log", "warn", "--data", "data", "--listen", &address.to_string()]);
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("PROMBUS_") || ["WS_PORT", "HTTP_PORT", "WS_TOKEN"].contains(&name.as_ref()) {
            command.env_remove(&key);
        }
    }
    command
}

/// Ports below the kernel's range of ephemeral ports. An outgoing connection could take an ephemeral port, even the connection that
/// checks whether the server is listening.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

/// A loopback address with a free port.
///
/// # Errors
/// If no port is free.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    // Programs that run at the same time start at different ports.
    let begin = (std::process::id() as u16).wrapping_mul(97);
    for _ in PORTS {
        let turn = NEXT_PORT.fetch_add(1, Ordering::Relaxed).wrapping_add(begin);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORTS.start + turn % PORTS.len() as u16));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no port from {} to {} is free", PORTS.start, PORTS.end)
}

/// Finds a program: in the environment variable `variable`, on the PATH, or in the system's folders for servers.
#[must_use]
pub fn find_program(variable: &str, name: &str) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(variable) {
        return Some(named.into()).filter(|path: &PathBuf| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// The first line that a program prints when it is called with these arguments.
///
/// # Errors
/// If it cannot be run.
pub fn first_line(program: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}
