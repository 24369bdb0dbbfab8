//! `POST /backup`: a copy of everything in a new folder on this machine, while the bus runs. The answer reports the progress,
//! line by line, and ends with how it went.

use super::ApiError;
use super::answer::{self, Answered};
use super::call::Call;
use super::fields::{IgnoredNames, Shape, in_order};
use super::json_body::{body_of, options_of};
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

/// How often the answer says how far it is.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// A line of the answer, or the error that ends it.
type Told = Result<String, ApiError>;

/// One at a time: two would only share the disk.
static TURN: Mutex<()> = Mutex::const_new(());

const OPTIONS: Shape = Shape::flat(&["folder"]);

#[derive(Deserialize)]
struct BackupOptions {
    folder: PathBuf,
}

pub(super) async fn backup(mut call: Call) -> Answered {
    let body = body_of(&mut call).await?;
    let options: BackupOptions = options_of(&body, &OPTIONS, &mut call.ignored)?;
    if !options.folder.is_absolute() {
        return Err(ApiError::bad_request(
            "\"folder\": a path from the root on is needed, as the server sees it",
        ));
    }
    let Ok(turn) = TURN.try_lock() else {
        let busy = ApiError::bad_request("another backup is under way");
        return Err(busy.with_status(axum::http::StatusCode::CONFLICT));
    };
    let (lines, mut told) = channel(16);
    // It runs on when the caller goes away: half a backup is of no use to anyone.
    tokio::spawn(run(turn, Arc::clone(&call.gateway.backend), options.folder, call.ignored, lines));
    // The first line comes when the folder has been checked and there is room.
    let first = match told.recv().await {
        Some(first) => first?,
        None => return Err(ApiError::internal("the backup ended without a result")),
    };
    let lines = unfold((Some(first), told), async |(first, mut told): (Option<String>, Receiver<Told>)| {
        let line = match first {
            Some(line) => line,
            None => told.recv().await?.unwrap_or_else(|error| error.last_line() + "\n"),
        };
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(line)), (None, told)))
    });
    Ok(answer::typed("application/x-ndjson", Body::from_stream(lines)))
}

/// Makes the copy, and sends a line now and then, and one at the end.
async fn run(
    _turn: MutexGuard<'static, ()>,
    backend: Arc<dyn Backend>,
    folder: PathBuf,
    ignored: IgnoredNames,
    lines: Sender<Told>,
) {
    let name = folder.display().to_string();
    let told = match backend.backup(folder, progress(lines.clone())).await {
        Ok(()) => {
            tracing::info!("a backup is in {name}");
            let mut line = serde_json::json!({ "done": true, "folder": name });
            if !ignored.is_empty() {
                line["ignored"] = serde_json::json!(in_order(&ignored));
            }
            Ok(format!("{line}\n"))
        }
        Err(error) => {
            tracing::error!("no backup in {name}: {error}");
            Err(error.into())
        }
    };
    let _ = lines.send(told).await;
}

/// Sends a line about how far the copy is; a caller that does not read misses some.
fn progress(lines: Sender<Told>) -> BackupProgress {
    let mut told_at = None::<Instant>;
    Box::new(move |done, total| {
        if told_at.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            told_at = Some(Instant::now());
            let _ = lines.try_send(Ok(format!("{{\"bytes_done\":{done},\"bytes_total\":{total}}}\n")));
        }
    })
}
