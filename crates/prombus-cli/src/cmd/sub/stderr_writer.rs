//! Standard error of `prombus sub`, written by a thread of its own: a terminal that is stopped with Ctrl-S must not stop the tasks that
//! extend leases and handle signals.

use crate::messages::error_line;
use std::io::{Write, stderr};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How many pieces of text wait for the thread.
const QUEUED_MAX: usize = 256;
/// How long the end of the command waits for text that is not written yet.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// Passes text to the thread.
#[derive(Clone, Debug)]
pub struct StderrWriter {
    items: mpsc::Sender<Item>,
}

#[derive(Debug)]
enum Item {
    Text(Vec<u8>),
    /// Is answered when all text before it is written.
    Flush(oneshot::Sender<()>),
}

impl StderrWriter {
    /// Starts the thread. It ends with the last writer.
    pub fn start() -> Self {
        Self::to(stderr())
    }

    fn to(mut out: impl Write + Send + 'static) -> Self {
        let (items, mut queued) = mpsc::channel(QUEUED_MAX);
        std::thread::spawn(move || {
            while let Some(item) = queued.blocking_recv() {
                match item {
                    // A closed standard error leaves nowhere to report the failure.
                    Item::Text(text) => drop(out.write_all(&text)),
                    Item::Flush(written) => drop(written.send(())),
                }
            }
        });
        Self { items }
    }

    /// Prints an error as one line. The line is dropped if standard error does not take text and the queue is full.
    pub fn print_error(&self, message: &str) {
        let _ = self.items.try_send(Item::Text(error_line(message).into_bytes()));
    }

    /// Copies text. Waits while the queue is full.
    pub async fn copy(&self, text: &[u8]) {
        // The thread ends after the last writer.
        let _ = self.items.send(Item::Text(text.to_vec())).await;
    }

    /// Waits until the text so far is written, but not for a standard error that does not take text.
    pub async fn flush(&self) {
        let flushed = async {
            let (written, all_written) = oneshot::channel();
            let _ = self.items.send(Item::Flush(written)).await;
            let _ = all_written.await;
        };
        let _ = timeout(FLUSH_TIME, flushed).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Takes text only after a message.
    struct Blocked(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Blocked {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.recv();
            self.1.send(text.to_vec()).unwrap();
            Ok(text.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_blocked_terminal_blocks_no_task_and_the_order_is_kept() {
        let (unblock, blocked) = channel();
        let (sender, written) = channel();
        let writer = StderrWriter::to(Blocked(blocked, sender));
        writer.copy(b"copied\n").await;
        for _ in 0..2 * QUEUED_MAX {
            writer.print_error("failed");
        }
        drop(unblock);
        writer.flush().await;
        let written: Vec<Vec<u8>> = written.try_iter().collect();
        assert_eq!(written[0], b"copied\n");
        assert_eq!(written[1], b"prombus: failed\n");
    }
}
