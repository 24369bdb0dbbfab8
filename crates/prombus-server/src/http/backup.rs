//! `POST /backup`: copies everything that is durable to a new or empty folder on this machine while the bus runs. The response
//! reports the progress line by line; its last line is the result.

use super::ApiError;
use super::answer::{self, Answered};
use super::call::Call;
use super::fields::{IgnoredNames, Shape, in_order};
use super::json_body::{body_of, options_of};
use crate::live::Standing;
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::unfold;
use prombus::{Backend, BackupProgress};
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Mutex, MutexGuard};

/// How often the response reports progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// A line of the response, or the error that ends it.
type Line = Result<String, ApiError>;

/// Held by the running backup. Two at a time would only compete for the disk.
static RUNNING: Mutex<()> = Mutex::const_new(());

const OPTIONS: Shape = Shape::flat(&["folder"]);

#[derive(Deserialize)]
struct BackupOptions {
    folder: PathBuf,
}

pub(super) async fn backup(mut call: Call) -> Answered {
    let body = body_of(&mut call).await?;
    let options: BackupOptions = options_of(&body, &OPTIONS, &mut call.ignored)?;
    if !options.folder.is_absolute() {
        return Err(ApiError::bad_request("\"folder\" must be an absolute path on the server's machine"));
    }
    let Ok(running) = RUNNING.try_lock() else {
        let busy = ApiError::bad_request("another backup is running");
        return Err(busy.with_status(axum::http::StatusCode::CONFLICT));
    };
    let (sender, mut lines) = channel(16);
    // The backup continues when the client disconnects: half a backup would be useless.
    tokio::spawn(run(running, Arc::clone(&call.gateway.backend), options.folder, call.ignored, sender));
    // The first line comes after the checks of the folder and of the free space, so their errors have a status of their own.
    let first = match lines.recv().await {
        Some(first) => first?,
        None => return Err(ApiError::internal("the backup ended without a result")),
    };
    let progress = ProgressStream { first: Some(first), lines, standing: call.standing, is_ended: false };
    let lines = unfold(progress, async |mut progress| {
        let line = progress.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(line)), progress))
    });
    Ok(answer::typed("application/x-ndjson", Body::from_stream(lines)))
}

/// The lines of the response.
struct ProgressStream {
    first: Option<String>,
    lines: Receiver<Line>,
    /// Ends the response, but not the backup, when a reload takes the token's permissions.
    standing: Standing,
    is_ended: bool,
}

impl ProgressStream {
    async fn next(&mut self) -> Option<String> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.is_ended {
            return None;
        }
        let line = tokio::select! {
            biased;
            withdrawn = self.standing.withdrawn() => {
                self.is_ended = true;
                Err(withdrawn.into())
            }
            line = self.lines.recv() => line?,
        };
        Some(line.unwrap_or_else(|error| error.last_line() + "\n"))
    }
}

/// Makes the copy. Sends progress lines, and the result as the last line.
async fn run(
    _running: MutexGuard<'static, ()>,
    backend: Arc<dyn Backend>,
    folder: PathBuf,
    ignored: IgnoredNames,
    lines: Sender<Line>,
) {
    let name = folder.display().to_string();
    let result = match backend.backup(folder, progress(lines.clone())).await {
        Ok(()) => {
            tracing::info!("backup completed: {name}");
            let mut line = serde_json::json!({ "done": true, "folder": name });
            if !ignored.is_empty() {
                line["ignored"] = serde_json::json!(in_order(&ignored));
            }
            Ok(format!("{line}\n"))
        }
        Err(error) => {
            tracing::error!("the backup to {name} failed: {error}");
            Err(error.into())
        }
    };
    let _ = lines.send(result).await;
}

/// Sends progress lines. A client that does not read misses some of them.
fn progress(lines: Sender<Line>) -> BackupProgress {
    let mut sent_at = None::<Instant>;
    Box::new(move |done, total| {
        if sent_at.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL) {
            sent_at = Some(Instant::now());
            let _ = lines.try_send(Ok(format!("{{\"bytes_done\":{done},\"bytes_total\":{total}}}\n")));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::token_options;
    use crate::live::{Live, LiveOptions};

    #[tokio::test]
    async fn the_progress_ends_with_an_error_when_the_token_is_revoked() {
        let with =
            |name: &str| LiveOptions::new(&token_options(&[(name, &["admin"])]), None).expect("a token");
        let live = Arc::new(Live::new(with("gone")));
        let principal = live.current().auth.authenticate(Some("gone"), 0).expect("the token");
        let standing = Standing::new(&live, &principal, live.version());
        let (sender, lines) = channel(16);
        let first = Some("first".to_owned());
        let mut progress = ProgressStream { first, lines, standing, is_ended: false };
        sender.send(Ok("second".to_owned())).await.expect("sent");
        assert_eq!(progress.next().await.as_deref(), Some("first"));
        assert_eq!(progress.next().await.as_deref(), Some("second"));
        live.replace(with("keep"));
        let last = progress.next().await.expect("an error");
        assert!(last.contains("the token was revoked") && last.ends_with('\n'), "{last}");
        assert_eq!(progress.next().await, None);
    }
}
