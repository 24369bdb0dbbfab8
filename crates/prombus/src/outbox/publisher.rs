//! Where the rows of an outbox are published: a bus in this process, or a server.

use super::OutboxRecord;
use crate::box_future::BoxFuture;
use crate::bus::Bus;
use crate::engine::Published;
use crate::error::PublishError;
use prombus_protocol::Topic;

/// Why a record was not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishFailure {
    /// The record can never be published, e.g. its topic name is invalid or its payload is too large.
    #[error("{0}")]
    Permanent(String),
    /// A later attempt may succeed.
    #[error("{0}")]
    Retry(String),
    /// Nothing can be published at present. This says nothing about the record and does not count as an attempt.
    #[error("{0}")]
    Unavailable(String),
}

/// Publishes the records of an outbox.
pub trait OutboxPublisher: Send + Sync + 'static {
    /// Publishes records under their ids, in this order. It sends all of them before it waits for the first response, and
    /// resolves when the published records are durable, with one result per record. Topics, options and payloads of the
    /// records have been checked.
    fn publish<'a>(
        &'a self,
        records: &'a [OutboxRecord],
    ) -> BoxFuture<'a, Vec<Result<Published, PublishFailure>>>;
}

impl From<PublishError> for PublishFailure {
    fn from(error: PublishError) -> Self {
        let text = error.to_string();
        match error {
            PublishError::Topic(_)
            | PublishError::Option(_)
            | PublishError::Payload(_)
            | PublishError::Serialize(_)
            | PublishError::TooLarge { .. }
            | PublishError::UnknownGroup { .. }
            | PublishError::NotRead { .. }
            | PublishError::BatchTooLarge(_) => Self::Permanent(text),
            PublishError::StorageFull | PublishError::Unavailable(_) | PublishError::Lookup(_) => {
                Self::Unavailable(text)
            }
            PublishError::TooManyTopics(_) | PublishError::Store(_) => Self::Retry(text),
        }
    }
}

impl OutboxPublisher for Bus {
    fn publish<'a>(
        &'a self,
        records: &'a [OutboxRecord],
    ) -> BoxFuture<'a, Vec<Result<Published, PublishFailure>>> {
        Box::pin(async move {
            let mut batch = self.batch();
            let pushed: Vec<Result<(), PublishError>> = records
                .iter()
                .map(|record| {
                    let topic = Topic::new(&record.topic)?;
                    batch.push_json(topic, record.payload.get().as_bytes(), &record.options())
                })
                .collect();
            if batch.is_empty() {
                return pushed.into_iter().map(|pushed| Err(refused(pushed))).collect();
            }
            match self.publish_batch(batch).await {
                Ok(published) => {
                    let mut published = published.into_iter();
                    let result = |pushed: Result<(), PublishError>| match pushed {
                        Ok(()) => published.next().ok_or_else(|| refused(Ok(()))),
                        failed => Err(refused(failed)),
                    };
                    pushed.into_iter().map(result).collect()
                }
                Err(
                    error @ (PublishError::StorageFull
                    | PublishError::Unavailable(_)
                    | PublishError::Lookup(_)),
                ) => {
                    let failure = PublishFailure::from(error);
                    let result = |pushed: Result<(), PublishError>| match pushed {
                        Ok(()) => Err(failure.clone()),
                        failed => Err(refused(failed)),
                    };
                    pushed.into_iter().map(result).collect()
                }
                // A batch is published as a whole or not at all, so one bad record makes all others fail.
                Err(_) => one_by_one(self, records).await,
            }
        })
    }
}

fn refused(pushed: Result<(), PublishError>) -> PublishFailure {
    match pushed {
        Err(error) => error.into(),
        Ok(()) => PublishFailure::Retry("the engine returned no outcome for the event".to_owned()),
    }
}

async fn one_by_one(bus: &Bus, records: &[OutboxRecord]) -> Vec<Result<Published, PublishFailure>> {
    let mut results = Vec::with_capacity(records.len());
    for record in records {
        let publish = bus.publish_json(&record.topic, record.payload.get()).options(record.options());
        results.push(publish.await.map_err(PublishFailure::from));
    }
    results
}
