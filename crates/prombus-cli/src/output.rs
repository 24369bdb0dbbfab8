//! Standard output: its errors, and whether its reader is gone.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::Duration;

/// How often a command that waits checks whether its output is still read.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Writes to standard output. Its errors name it: "No space left on device" alone reads like an error of the server.
#[derive(Debug)]
pub struct Named<W>(W);

/// Standard output.
pub type Stdout = Named<io::Stdout>;

/// Standard output.
pub fn stdout() -> Stdout {
    Named(io::stdout())
}

impl Stdout {
    /// Whether standard output is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.0.is_terminal()
    }

    /// Locks it for several writes.
    pub fn lock(&self) -> Named<io::StdoutLock<'static>> {
        Named(self.0.lock())
    }
}

impl<W: Write> Write for Named<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// The error with its kind, by which callers recognize a closed pipe, and without its number.
fn named(error: io::Error) -> io::Error {
    let text = error.to_string();
    let why = text.split(" (os error").next().unwrap_or_default();
    io::Error::new(error.kind(), format!("cannot write to standard output: {why}"))
}

/// Whether standard output is a pipe or socket whose reader is gone.
pub fn is_closed() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    // An error, or a system without poll for this kind of file, is not a closed pipe.
    poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// The error of a command that ends because the reader of its output is gone: the same as that of a write to a closed pipe.
pub fn nobody_reads() -> anyhow::Error {
    io::Error::from(ErrorKind::BrokenPipe).into()
}

/// Waits until the reader of standard output is gone.
pub async fn closed() {
    while !is_closed() {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Runs a command that prints as events arrive. It ends with an error when the reader of its output is gone, also while no event arrives.
///
/// # Errors
/// The error of the command, or that of a closed pipe.
pub async fn while_read<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::select! {
        biased;
        result = work => result,
        () = closed() => Err(nobody_reads()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{is_broken_pipe, one_line};

    /// Every write fails.
    struct Full(ErrorKind);

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            match self.0 {
                ErrorKind::StorageFull => Err(io::Error::from_raw_os_error(28)),
                kind => Err(kind.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_failed_write_names_standard_output() {
        let failed = |kind| anyhow::Error::from(writeln!(Named(Full(kind)), "text").unwrap_err());
        let full = failed(ErrorKind::StorageFull);
        assert_eq!(one_line(&full), "cannot write to standard output: No space left on device");
        assert!(!is_broken_pipe(&full) && is_broken_pipe(&failed(ErrorKind::BrokenPipe)));
    }
}
