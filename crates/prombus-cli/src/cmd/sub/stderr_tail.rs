//! Copies the standard error of a command to that of prombus, and keeps its end.

use super::stderr_writer::StderrWriter;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How many bytes are kept.
const KEPT_BYTES: usize = 8 << 10;

/// The end of a command's standard error.
pub struct StderrTail {
    kept: Arc<Mutex<Vec<u8>>>,
    /// Dropped when the command is over. From then on, text is dropped if standard error of prombus does not take it: otherwise each
    /// command would leave a task and a pipe behind.
    _running: watch::Sender<()>,
    copying: JoinHandle<()>,
}

impl StderrTail {
    /// Starts to copy, in a task of its own that ends with the stream.
    pub fn forward(stream: Option<ChildStderr>, writer: StderrWriter) -> Self {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (running, over) = watch::channel(());
        let copying = tokio::spawn(copy(stream, writer, over, Arc::clone(&kept)));
        Self { kept, _running: running, copying }
    }

    /// The end of the text. Waits for the end of the stream, but not longer than `most`.
    pub async fn text(mut self, most: Duration) -> String {
        let _ = tokio::time::timeout(most, &mut self.copying).await;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).into_owned()
    }
}

async fn copy(
    stream: Option<ChildStderr>,
    writer: StderrWriter,
    mut over: watch::Receiver<()>,
    kept: Arc<Mutex<Vec<u8>>>,
) {
    let Some(mut stream) = stream else { return };
    let mut piece = vec![0; 8 << 10];
    while let Ok(count @ 1..) = stream.read(&mut piece).await {
        let piece = &piece[..count];
        // Kept first: the copy waits while standard error of prombus does not take text.
        keep(&kept, piece);
        tokio::select! {
            biased;
            () = writer.copy(piece) => {}
            _ = over.changed() => {}
        }
    }
}

fn keep(kept: &Mutex<Vec<u8>>, piece: &[u8]) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    kept.extend_from_slice(piece);
    let surplus = kept.len().saturating_sub(KEPT_BYTES);
    kept.drain(..surplus);
}
