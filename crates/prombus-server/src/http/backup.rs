//! `POST /backup`: a copy of everything in a new folder on this machine, while everything goes on. The answer tells how it goes,
//! line by line, and ends with how it went.

use super::admin::{body_of, options_of};
use super::call::Call;
use super::fields::Shape;
use super::{Answered, ApiError, answer};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::unfold;
use prombus::BackupError;
use prombus_protocol::ErrorCode;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, channel};

/// How often the answer says how far it is.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// A line of the answer, or the error that ends it.
type Told = Result<String, ApiError>;

/// One at a time: two would only share the disk.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const OPTIONS: Shape = Shape::flat(&["folder"]);

#[derive(Deserialize)]
struct BackupOptions {
    folder: PathBuf,
}

impl From<BackupError> for ApiError {
    fn from(error: BackupError) -> Self {
        let code = match error {
            BackupError::NotDurable | BackupError::Folder(_) => ErrorCode::BadRequest,
            BackupError::Full(_) => ErrorCode::StorageFull,
            _ => ErrorCode::Unavailable,
        };
        Self::new(code, error)
    }
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
    let progress = {
        let (lines, mut told_at) = (lines.clone(), None::<Instant>);
        Box::new(move |done: u64, total: u64| {
            if told_at.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
                told_at = Some(Instant::now());
                // Whoever does not read is told less.
                let _ = lines.try_send(Ok(format!("{{\"bytes_done\":{done},\"bytes_total\":{total}}}\n")));
            }
        })
    };
    let (backend, ignored) = (Arc::clone(&call.gateway.backend), call.ignored);
    // It goes on when the caller goes away: half a backup is of no use to anyone.
    tokio::spawn(async move {
        let _turn = turn;
        let folder = options.folder.display().to_string();
        let line = match backend.backup(options.folder, progress).await {
            Ok(()) => {
                tracing::info!("a backup is in {folder}");
                let mut line = serde_json::json!({ "done": true, "folder": folder });
                if !ignored.is_empty() {
                    line["ignored"] = serde_json::json!(ignored.names());
                }
                line
            }
            Err(error) => {
                tracing::error!("no backup in {folder}: {error}");
                let _ = lines.send(Err(error.into())).await;
                return;
            }
        };
        let _ = lines.send(Ok(format!("{line}\n"))).await;
    });
    // The first line comes when the folder has been checked and there is room.
    let first = match told.recv().await {
        Some(first) => first?,
        None => return Err(ApiError::internal("the backup ended without a result")),
    };
    let lines = unfold((Some(first), told), async |(first, mut told): (Option<String>, Receiver<Told>)| {
        let line = match first {
            Some(line) => line,
            None => told.recv().await?.unwrap_or_else(|error| {
                let line = serde_json::json!({ "error": error.message, "code": error.code });
                format!("{line}\n")
            }),
        };
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(line)), (None, told)))
    });
    Ok(answer::typed("application/x-ndjson", Body::from_stream(lines)))
}
