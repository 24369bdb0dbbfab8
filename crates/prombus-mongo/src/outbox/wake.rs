//! Waits for rows: with a change stream if the server supports it, otherwise by polling, less often while no rows arrive.

use crate::errors::reason;
use crate::server_abilities::has_change_streams;
use futures_util::StreamExt as _;
use mongodb::bson::{Document, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::{Collection, Database};
use std::time::Duration;
use tokio::sync::Mutex;

/// The longest wait while a change stream is open.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Without change streams, the polling interval is doubled at most this many times.
const DOUBLINGS_MAX: u32 = 4;

/// How the drainers of one outbox wait.
pub(super) struct Wake {
    rows: Collection<Document>,
    database: Database,
    stream: Mutex<Stream>,
}

enum Stream {
    /// The server was not asked yet.
    Unknown,
    /// The server has no change streams.
    Missing,
    /// No stream is open at the moment.
    Closed,
    Open(Box<ChangeStream<Document>>),
}

impl Wake {
    pub(super) fn new(rows: Collection<Document>, database: Database) -> Self {
        Self { rows, database, stream: Mutex::new(Stream::Unknown) }
    }

    pub(super) async fn wait(&self, interval: Duration, idle_passes: u32) {
        let polling = interval * 2_u32.pow(idle_passes.saturating_sub(1).min(DOUBLINGS_MAX));
        let Ok(mut stream) = tokio::time::timeout(polling, self.stream.lock()).await else { return };
        if let Stream::Unknown = *stream {
            match has_change_streams(&self.database).await {
                Ok(true) => *stream = Stream::Closed,
                Ok(false) => *stream = Stream::Missing,
                Err(error) => {
                    tracing::debug!(
                        "outbox: cannot find out whether the server has change streams: {}",
                        reason(&error)
                    );
                }
            }
        }
        match &mut *stream {
            Stream::Unknown | Stream::Missing => {
                drop(stream);
                tokio::time::sleep(polling).await;
            }
            Stream::Closed => match self.open().await {
                // Rows may have been added before the stream was open, so the caller checks again.
                Ok(opened) => *stream = Stream::Open(Box::new(opened)),
                Err(error) => {
                    tracing::debug!("outbox: cannot open a change stream: {}", reason(&error));
                    drop(stream);
                    tokio::time::sleep(polling).await;
                }
            },
            Stream::Open(open) => {
                let longest = self.next_due().await.unwrap_or(WAIT_MAX).min(WAIT_MAX);
                match tokio::time::timeout(longest, open.next()).await {
                    Ok(Some(Ok(_))) | Err(_) => {}
                    Ok(Some(Err(_)) | None) => *stream = Stream::Closed,
                }
            }
        }
    }

    async fn open(&self) -> mongodb::error::Result<ChangeStream<Document>> {
        let is_due = doc! { "$match": { "$or": [
            { "operationType": "insert" },
            { "operationType": { "$in": ["update", "replace"] }, "updateDescription.updatedFields.status": "pending" },
        ] } };
        let stages = [is_due, doc! { "$project": { "_id": 1 } }];
        let watch = self.rows.watch().pipeline(stages);
        Ok(watch.max_await_time(WAIT_MAX).await?.with_type::<Document>())
    }

    /// The time until the next lease ends or the next failed row must be retried; `None` if it is not known.
    async fn next_due(&self) -> Option<Duration> {
        let mut soonest: Option<Duration> = None;
        for status in ["error", "claimed"] {
            let stages = [
                doc! { "$match": { "status": status, "lease_until": { "$exists": true } } },
                doc! { "$sort": { "lease_until": 1 } },
                doc! { "$limit": 1 },
                doc! { "$project": { "ms": { "$subtract": ["$lease_until", "$$NOW"] } } },
            ];
            let found = self.rows.aggregate(stages).await.ok()?.next().await;
            if let Some(Ok(row)) = found
                && let Ok(ms) = row.get_i64("ms")
            {
                let due = Duration::from_millis(u64::try_from(ms).unwrap_or(0).max(1));
                soonest = Some(soonest.map_or(due, |soonest| soonest.min(due)));
            }
        }
        soonest
    }
}
