//! The signals that stop a server: SIGTERM and SIGINT (Ctrl-C).

use std::fmt;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives stop signals. From `install` on, these signals do not kill the process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGTERM
    Terminate,
    /// SIGINT
    Interrupt,
}

impl Signals {
    /// Starts watching.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.interrupt.recv() => Stop::Interrupt,
        }
    }
}

impl Stop {
    /// The exit code that shells report for a process that the signal killed.
    pub fn exit_code(self) -> i32 {
        match self {
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
        })
    }
}
