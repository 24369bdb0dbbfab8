//! Starts, suspends, stops and kills the server process, and reads its memory.

use crate::http;
use crate::timeline::{End, EndKind};
use crate::world::World;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A start replays at most a few checkpoints of log.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// The server gives clients 8 s to leave.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    world: Arc<World>,
    binary: PathBuf,
    folder: PathBuf,
    child: Option<Child>,
    is_stopped: bool,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The command, without the `PROMBUS_` and `WS_` variables of this process.
pub(crate) fn command(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars_os() {
        let is_setting = name.to_str().is_some_and(|it| it.starts_with("PROMBUS_") || it.starts_with("WS_"));
        if is_setting || name == "HTTP_PORT" {
            command.env_remove(&name);
        }
    }
    command
}

impl Server {
    pub(crate) fn new(world: Arc<World>, binary: PathBuf, folder: PathBuf) -> Self {
        Self { world, binary, folder, child: None, is_stopped: false }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts the process and waits until it is ready.
    pub(crate) async fn start(&mut self) -> io::Result<()> {
        let log = File::options().create(true).append(true).open(self.folder.join("server.log"))?;
        let mut command = command(&self.binary);
        command.arg("serve").arg("--config").arg(self.folder.join("prombus.toml"));
        command.arg("--data").arg(self.data()).arg("--listen").arg(self.world.address.to_string());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn()?);
        let started = Instant::now();
        loop {
            if let Some(status) = self.exited()? {
                return Err(io::Error::other(format!("the server ended during its start: {status}")));
            }
            if is_ready(self.world.address).await {
                let took_ms = started.elapsed().as_millis() as u64;
                let longest = self.world.figure("longest start in ms");
                self.world.add("longest start in ms", took_ms.saturating_sub(longest));
                return Ok(());
            }
            if started.elapsed() > START_PATIENCE {
                return Err(io::Error::other("the server is not ready after 60 s"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The exit status, if the process has ended.
    pub(crate) fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.as_mut().map_or(Ok(None), Child::try_wait)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = self.child.as_ref().and_then(|child| Pid::from_raw(i32::try_from(child.id()).ok()?));
        Ok(kill_process(pid.ok_or_else(|| io::Error::other("no process"))?, signal)?)
    }

    /// Kills the process with SIGKILL, even while it is suspended.
    pub(crate) async fn kill(&mut self) -> io::Result<()> {
        let now_ms = self.world.now_ms();
        self.world.timeline().end_life(End { at_ms: now_ms, kind: EndKind::Killed });
        self.signal(Signal::KILL)?;
        self.wait().await?;
        if std::mem::take(&mut self.is_stopped) {
            self.world.timeline().end_pause(self.world.now_ms());
        }
        self.world.begin_next_life();
        Ok(())
    }

    /// Stops the process with SIGTERM. A stop that takes too long or fails is a violation.
    pub(crate) async fn terminate(&mut self) -> io::Result<()> {
        let now_ms = self.world.now_ms();
        self.world.timeline().end_life(End { at_ms: now_ms, kind: EndKind::Terminated });
        self.signal(Signal::TERM)?;
        let status = self.wait().await?;
        if status.is_none_or(|status| status.code() != Some(0)) {
            self.world.violation("bad_stop", &format!("SIGTERM: exit status {status:?}"));
        }
        self.world.begin_next_life();
        Ok(())
    }

    /// Waits for the end of the process. Returns its exit status, or `None` if it had to be killed.
    async fn wait(&mut self) -> io::Result<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.exited()? {
                self.child = None;
                return Ok(Some(status));
            }
            if started.elapsed() > STOP_PATIENCE {
                self.signal(Signal::KILL)?;
                if let Some(child) = &mut self.child {
                    child.wait()?;
                }
                self.child = None;
                return Ok(None);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn stop(&mut self) -> io::Result<()> {
        self.world.timeline().begin_pause(self.world.now_ms());
        self.is_stopped = true;
        self.signal(Signal::STOP)
    }

    pub(crate) fn resume(&mut self) -> io::Result<()> {
        self.signal(Signal::CONT)?;
        self.is_stopped = false;
        self.world.timeline().end_pause(self.world.now_ms());
        Ok(())
    }

    /// Resident memory in bytes; `None` while no process runs.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        resident_bytes(&self.child.as_ref()?.id().to_string())
    }
}

/// Resident memory of a process, by its id or `self`.
pub(crate) fn resident_bytes(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

async fn is_ready(address: SocketAddr) -> bool {
    let asking = tokio::task::spawn_blocking(move || http::get(address, "/readyz"));
    matches!(asking.await, Ok(Ok(answer)) if answer.status == 200)
}
