//! The command of `prombus sub --exec`: its process, environment and result.

use super::reason::{EX_DATAERR, of_exit, of_timeout};
use super::stderr_tail::StderrTail;
use super::stderr_writer::StderrWriter;
use anyhow::Context;
use prombus_client::EventRecord;
use rustix::io::Errno;
use rustix::process::{Pid, Rlimit, Signal, kill_process_group, test_kill_process_group};
#[cfg(target_os = "linux")]
use rustix::process::{Resource, prlimit};
use std::io::ErrorKind;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How long a command may take to end after SIGTERM, before it is killed.
const TERMINATE_TIME: Duration = Duration::from_secs(5);
/// How often to check whether the other processes of a command have ended.
const GROUP_POLL: Duration = Duration::from_millis(20);
/// How long the rest of standard error may take after the end of the command. A process that the command started in the background
/// may keep it open.
const STDERR_TIME: Duration = Duration::from_millis(200);

/// A shell command that handles events.
pub struct Command {
    /// The text for `sh -c`.
    pub text: String,
    /// A command that runs longer is stopped.
    pub timeout: Option<Duration>,
    /// Where its standard error is copied to.
    pub stderr: StderrWriter,
    /// Its limit of open files: that of prombus before prombus raised it. Some programs try to close every descriptor up to the limit.
    pub descriptor_limit: Rlimit,
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Finished {
    Verdict(Verdict),
    /// The worker killed it; the event has no result.
    Killed,
}

/// What happens to the event.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Ack,
    Nack {
        reason: String,
    },
    /// The event becomes a dead letter at once.
    GiveUp {
        reason: String,
    },
}

/// Why the wait for a command ended.
enum Waited {
    Ended(ExitStatus),
    TimedOut(Duration),
    Killed,
}

impl Command {
    /// Waits for the command of an event. `spawned` is the result of [`Self::spawn`].
    ///
    /// # Errors
    /// When the process could not be started.
    pub async fn run(
        &self,
        spawned: std::io::Result<Child>,
        event: &EventRecord,
        kill: &mut watch::Receiver<bool>,
    ) -> anyhow::Result<Finished> {
        let mut child = match spawned {
            Ok(child) => child,
            // The event is the cause, so it must not stop the worker.
            Err(error)
                if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::ArgumentListTooLong) =>
            {
                self.check_without_event(event).await.context("cannot start sh with this command")?;
                let reason = format!("the event does not fit into the environment of a command: {error}");
                return Ok(Finished::Verdict(Verdict::GiveUp { reason }));
            }
            Err(error) => return Err(error).context("cannot start sh"),
        };
        let stderr = StderrTail::forward(child.stderr.take(), self.stderr.clone());
        let feeding = tokio::spawn(feed(child.stdin.take(), format!("{}\n", event.payload.get())));
        let group = pid_of(&child);
        let waited = self.wait(&mut child, kill).await.context("cannot wait for a command")?;
        let verdict = match waited {
            Waited::Ended(status) => {
                let stderr = stderr.text(STDERR_TIME).await;
                Finished::Verdict(verdict_of(status, &stderr))
            }
            Waited::TimedOut(limit) => {
                stop(&mut child, group, kill).await;
                let stderr = stderr.text(STDERR_TIME).await;
                let reason = of_timeout(limit, &stderr);
                Finished::Verdict(Verdict::Nack { reason })
            }
            Waited::Killed => {
                signal(group, Signal::KILL);
                let _ = child.wait().await;
                Finished::Killed
            }
        };
        feeding.abort();
        Ok(verdict)
    }

    /// Starts the process. It is the leader of a process group of its own: a Ctrl-C on the terminal stops prombus, which then waits
    /// for the command, and a kill reaches all its processes.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn spawn(&self, event: &EventRecord, attempt: u32) -> std::io::Result<Child> {
        let mut command = tokio::process::Command::new("sh");
        command
            .args(["-c", &self.text])
            .stdin(Stdio::piped())
            .stdout(Stdio::inherit())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .env("EVENT_ID", event.id.to_string())
            .env("EVENT_TOPIC", event.topic.as_str())
            .env("EVENT_SEQ", event.seq.to_string())
            .env("EVENT_ATTEMPT", attempt.to_string())
            .env("EVENT_HEADERS", serde_json::to_string(&event.headers)?);
        match &event.key {
            Some(key) => command.env("EVENT_KEY", key),
            None => command.env_remove("EVENT_KEY"),
        };
        let child = command.spawn()?;
        self.restore_descriptor_limit(&child);
        Ok(child)
    }

    /// Gives a command its own limit of open files. Other systems than Linux cannot set the limit of another process.
    fn restore_descriptor_limit(&self, child: &Child) {
        #[cfg(target_os = "linux")]
        if let Some(pid) = pid_of(child) {
            // An error means that the command has ended.
            let _ = prlimit(Some(pid), Resource::Nofile, self.descriptor_limit);
        }
    }

    /// Fails if the command does not fit into a process even for an event without key and headers. The command does not run: it is only
    /// an argument of a script that does nothing.
    async fn check_without_event(&self, event: &EventRecord) -> std::io::Result<()> {
        let mut command = tokio::process::Command::new("sh");
        command
            .args(["-c", ":", &self.text])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .env("EVENT_ID", event.id.to_string())
            .env("EVENT_TOPIC", event.topic.as_str())
            .env("EVENT_SEQ", event.seq.to_string())
            .env("EVENT_ATTEMPT", u32::MAX.to_string())
            .env("EVENT_HEADERS", "{}")
            .env_remove("EVENT_KEY");
        command.status().await.map(drop)
    }

    async fn wait(&self, child: &mut Child, kill: &mut watch::Receiver<bool>) -> std::io::Result<Waited> {
        let limit = self.timeout;
        let time = async {
            match limit {
                Some(limit) => {
                    sleep(limit).await;
                    limit
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            status = child.wait() => Ok(Waited::Ended(status?)),
            _ = kill.wait_for(|is_killed| *is_killed) => Ok(Waited::Killed),
            limit = time => Ok(Waited::TimedOut(limit)),
        }
    }
}

/// Whether a process could not be started because the system has no resources for it now, such as file descriptors.
pub fn lacks_resources(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM))
}

fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()?).ok()?)
}

/// Ends a command that ran too long, with all processes that it started: SIGTERM, then SIGKILL.
async fn stop(child: &mut Child, group: Option<Pid>, kill: &mut watch::Receiver<bool>) {
    signal(group, Signal::TERM);
    let gone = async {
        let _ = child.wait().await;
        while group.is_some_and(|group| test_kill_process_group(group) != Err(Errno::SRCH)) {
            sleep(GROUP_POLL).await;
        }
    };
    let is_over = tokio::select! {
        ended = timeout(TERMINATE_TIME, gone) => ended.is_ok(),
        _ = kill.wait_for(|is_killed| *is_killed) => false,
    };
    if !is_over {
        signal(group, Signal::KILL);
        let _ = child.wait().await;
    }
}

/// Signals all processes of a command.
fn signal(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // An error means that it has ended.
        let _ = kill_process_group(group, signal);
    }
}

/// Writes the payload. A command need not read it: a closed pipe is not an error.
async fn feed(stdin: Option<ChildStdin>, payload: String) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(payload.as_bytes()).await;
    }
}

fn verdict_of(status: ExitStatus, stderr: &str) -> Verdict {
    match status.code() {
        Some(0) => Verdict::Ack,
        Some(EX_DATAERR) => Verdict::GiveUp { reason: of_exit(status, stderr) },
        _ => Verdict::Nack { reason: of_exit(status, stderr) },
    }
}
