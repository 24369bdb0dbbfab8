//! Publishes outbox rows to a server.

use prombus::BoxFuture;
use prombus::outbox::{OutboxPublisher, OutboxRecord, PublishFailure};
use prombus_client::{Client, ErrorCode, PublishError, Publisher, Record};
use std::time::Duration;
use tokio::sync::Mutex;

/// How long a failed batch is retried before the drainer releases its rows and backs off.
const PATIENCE: Duration = Duration::from_secs(2);

/// The server that receives the rows.
pub(super) struct Remote {
    publisher: Mutex<Publisher>,
}

impl Remote {
    pub(super) fn new(client: Client) -> Self {
        Self { publisher: Mutex::new(Publisher::new(client).patience(PATIENCE)) }
    }
}

impl OutboxPublisher for Remote {
    fn publish<'a>(
        &'a self,
        records: &'a [OutboxRecord],
    ) -> BoxFuture<'a, Vec<Result<prombus::Published, PublishFailure>>> {
        Box::pin(async move {
            let mut copies: Vec<Record> = records
                .iter()
                .map(|record| Record {
                    topic: record.topic.clone(),
                    payload: record.payload.clone(),
                    options: record.options(),
                })
                .collect();
            match self.publisher.lock().await.publish(&mut copies).await {
                Ok(outcomes) => outcomes.into_iter().map(outcome).collect(),
                Err(error) => {
                    let failure = PublishFailure::Unavailable(error.to_string());
                    records.iter().map(|_| Err(failure.clone())).collect()
                }
            }
        })
    }
}

fn outcome(
    outcome: Result<prombus_client::Published, PublishError>,
) -> Result<prombus::Published, PublishFailure> {
    use ErrorCode::{BadJson, BadRequest, BadToken, BadTopic, StorageFull, TooLarge, Unauthorized};
    let error = match outcome {
        Ok(prombus_client::Published { id, seq, duplicate }) => {
            return Ok(prombus::Published { id, seq, duplicate });
        }
        Err(error) => error,
    };
    let text = error.to_string();
    Err(match error.code() {
        Some(BadJson | BadRequest | BadTopic | TooLarge) => PublishFailure::Permanent(text),
        Some(Unauthorized | BadToken | StorageFull) | None => PublishFailure::Unavailable(text),
        Some(_) => PublishFailure::Retry(text),
    })
}
