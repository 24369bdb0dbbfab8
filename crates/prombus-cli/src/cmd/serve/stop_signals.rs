//! The signals that stop a command: SIGTERM and SIGINT (Ctrl-C), and SIGHUP unless it has another meaning.

use std::fmt;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives stop signals. From `install` on, these signals do not kill the process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// `None` if SIGHUP does not stop the command.
    hang_up: Option<Signal>,
}

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGTERM
    Terminate,
    /// SIGINT
    Interrupt,
    /// SIGHUP
    HangUp,
}

impl Signals {
    /// Starts watching.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install() -> std::io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, hang_up: None })
    }

    /// Starts watching; SIGHUP is a stop signal too, unless it is ignored, as under nohup.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install_with_hang_up() -> std::io::Result<Self> {
        let hang_up = match ignores_hang_up() {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        Ok(Self { hang_up, ..Self::install()? })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.interrupt.recv() => Stop::Interrupt,
            () = received(&mut self.hang_up) => Stop::HangUp,
        }
    }
}

/// Waits for a signal; indefinitely without one.
async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether the process was started with SIGHUP ignored, or this is not known: only Linux says so.
fn ignores_hang_up() -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return true };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Bit 0 is signal 1, SIGHUP.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

impl Stop {
    /// The exit code that shells report for a process that the signal killed.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::HangUp => 129,
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
            Self::HangUp => "SIGHUP",
        })
    }
}
