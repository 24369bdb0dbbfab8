//! A publisher that does not give up at once: it waits out rate limits, connects again, and sends again what was not answered.
//!
//! Every record has an id before it is first sent, so what arrived and was not answered is a duplicate the second time.
//! Records keep their order within a topic, but for one case: a server that refuses a record because of a rate may take the
//! ones behind it. From the first such refusal on records go one by one.

use crate::client::Client;
use crate::error::{ClientError, PublishError};
use crate::record::{Published, Record};
use prombus_protocol::ErrorCode;
use std::time::{Duration, Instant};

/// The first wait before connecting again, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long nothing may be answered, unless said otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a publisher waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setback {
    /// Too fast for the server.
    RateLimited,
    /// The server is not there, or does not write at present; with what it said.
    Unavailable(String),
}

/// A publisher.
pub struct Publisher {
    client: Client,
    patience: Duration,
    told: Box<dyn FnMut(&Setback) + Send>,
    /// A rate was met: one by one from here on.
    is_gentle: bool,
}

impl Publisher {
    /// A publisher over a client.
    pub fn new(client: Client) -> Self {
        Self { client, patience: PATIENCE, told: Box::new(|_| {}), is_gentle: false }
    }

    /// How long it goes on trying while nothing is answered. Default: 60 s.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Who is told when it has to wait.
    #[must_use]
    pub fn on_setback(mut self, told: impl FnMut(&Setback) + Send + 'static) -> Self {
        self.told = Box::new(told);
        self
    }

    /// Publishes records in their order; one result each. Those without an id get one. What was published is on the server's
    /// disk.
    ///
    /// # Errors
    /// [`ClientError::Lost`] when nothing was answered for as long as its patience lasts: some of the records may be there,
    /// and sending them again is safe. A record that the server refuses is no error of this call.
    pub async fn publish(
        &mut self,
        records: &mut [Record],
    ) -> Result<Vec<Result<Published, PublishError>>, ClientError> {
        for record in &mut *records {
            record.ensure_id();
        }
        let mut outcomes: Vec<Option<Result<Published, PublishError>>> =
            records.iter().map(|_| None).collect();
        let mut answered_at = Instant::now();
        let mut backoff = BACKOFF.0;
        loop {
            let mut left: Vec<usize> =
                (0..records.len()).filter(|index| outcomes[*index].is_none()).collect();
            if left.is_empty() {
                return Ok(outcomes.into_iter().flatten().collect());
            }
            if self.is_gentle {
                left.truncate(1);
            }
            let results = if left.len() == records.len() {
                self.client.publish_batch(records).await
            } else {
                let some: Vec<Record> = left.iter().map(|index| records[*index].clone()).collect();
                self.client.publish_batch(&some).await
            };
            let mut wait = None::<Duration>;
            let mut setback = None;
            for (index, result) in left.into_iter().zip(results) {
                match why_again(&result) {
                    None => {
                        outcomes[index] = Some(result);
                        (answered_at, backoff) = (Instant::now(), BACKOFF.0);
                    }
                    Some(Again::At(after)) => {
                        answered_at = Instant::now();
                        wait = Some(wait.unwrap_or_default().max(after));
                        self.is_gentle = true;
                        setback.get_or_insert(Setback::RateLimited);
                    }
                    Some(Again::Later(why)) => setback = Some(Setback::Unavailable(why)),
                }
            }
            let Some(setback) = setback else { continue };
            (self.told)(&setback);
            if let Setback::Unavailable(why) = setback {
                if answered_at.elapsed() >= self.patience {
                    return Err(ClientError::Lost { address: self.client.address().to_string(), why });
                }
                wait = Some(wait.unwrap_or_default().max(backoff));
                backoff = (backoff * 2).min(BACKOFF.1);
            }
            tokio::time::sleep(wait.unwrap_or_default()).await;
        }
    }
}

enum Again {
    At(Duration),
    Later(String),
}

/// Whether a record must be sent again, and when.
fn why_again(result: &Result<Published, PublishError>) -> Option<Again> {
    match result.as_ref().err()? {
        PublishError::Lost(why) => Some(Again::Later(why.clone())),
        PublishError::Refused { code: ErrorCode::RateLimited, retry_after_ms, .. } => {
            Some(Again::At(Duration::from_millis(retry_after_ms.unwrap_or(100).max(1))))
        }
        PublishError::Refused { code: ErrorCode::Unavailable, message, .. } => {
            Some(Again::Later(message.clone()))
        }
        PublishError::Refused { .. } => None,
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Publisher({:?})", self.client)
    }
}
