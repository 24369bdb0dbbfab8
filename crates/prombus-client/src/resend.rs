//! Resends records until the server has responded to them: waits out rate limits, and reconnects.
//!
//! Every record must have an id: if it was stored but its response was lost, the resent record is a duplicate. Records keep their order
//! within a topic, with one exception: a server that refuses a record because of a rate limit may accept the records after it. After the
//! first such refusal, records are sent one by one.

use crate::backoff::{Backoff, FIRST_WAIT};
use crate::error::PublishError;
use crate::patience::Patience;
use crate::publish_connection::PublishConnection;
use crate::record::{Published, Record};
use prombus_protocol::ErrorCode;
use std::time::Duration;

/// How long to keep trying while the server does not respond, unless set otherwise.
pub(crate) const DEFAULT_PATIENCE: Duration = Duration::from_secs(60);

/// Why a publish has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setback {
    /// A rate limit was reached.
    RateLimited,
    /// The server cannot be reached or does not accept writes; the text says why.
    Unavailable(String),
}

/// How records are resent.
pub(crate) struct Resend<'a> {
    /// How long to keep trying while the server does not respond.
    pub(crate) patience: Duration,
    /// Whether records are sent one at a time. Set when a rate limit is reached.
    pub(crate) is_one_by_one: &'a mut bool,
    pub(crate) on_setback: &'a mut (dyn FnMut(&Setback) + Send),
}

impl Resend<'_> {
    /// Publishes records that have ids, in order. A record without a response when the patience ends is
    /// [`PublishError::Lost`].
    pub(crate) async fn publish(
        self,
        connection: &PublishConnection,
        records: &[Record],
    ) -> Vec<Result<Published, PublishError>> {
        let mut outcomes: Vec<Option<Result<Published, PublishError>>> =
            records.iter().map(|_| None).collect();
        let mut patience = Patience::new(self.patience);
        let mut backoff = Backoff::new();
        loop {
            let mut left: Vec<usize> =
                (0..records.len()).filter(|index| outcomes[*index].is_none()).collect();
            if left.is_empty() {
                return outcomes.into_iter().flatten().collect();
            }
            if *self.is_one_by_one {
                left.truncate(1);
            }
            let results = if left.len() == records.len() {
                connection.publish_once(records, &mut patience).await
            } else {
                let some: Vec<Record> = left.iter().map(|index| records[*index].clone()).collect();
                connection.publish_once(&some, &mut patience).await
            };
            let mut wait = Duration::ZERO;
            let mut setback = None;
            for (index, result) in left.into_iter().zip(results) {
                match retry_of(&result) {
                    None => {
                        outcomes[index] = Some(result);
                        backoff.reset();
                    }
                    Some(Retry::After(delay)) => {
                        wait = wait.max(delay);
                        *self.is_one_by_one = true;
                        setback.get_or_insert(Setback::RateLimited);
                    }
                    Some(Retry::WithBackoff(why)) => setback = Some(Setback::Unavailable(why)),
                }
            }
            let Some(setback) = setback else { continue };
            (self.on_setback)(&setback);
            let Setback::Unavailable(why) = setback else {
                tokio::time::sleep(wait).await;
                patience.answered();
                continue;
            };
            // If the patience ends before the next attempt, publishing fails at the end of the patience.
            wait = wait.max(backoff.next_wait());
            let left = patience.left();
            tokio::time::sleep(wait.min(left)).await;
            if wait >= left {
                let lost = || Err(PublishError::Lost(why.clone()));
                return outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect();
            }
        }
    }
}

/// When a record is sent again.
enum Retry {
    /// After the time that the server named, because a rate limit was reached.
    After(Duration),
    /// After the next wait of the backoff, for the reason in the text.
    WithBackoff(String),
}

/// Whether a record must be sent again, and when.
fn retry_of(result: &Result<Published, PublishError>) -> Option<Retry> {
    match result.as_ref().err()? {
        PublishError::Lost(why) => Some(Retry::WithBackoff(why.clone())),
        PublishError::Refused { code: ErrorCode::RateLimited, retry_after_ms, .. } => {
            Some(Retry::After(retry_after_ms.map_or(FIRST_WAIT, |ms| Duration::from_millis(ms.max(1)))))
        }
        error @ PublishError::Refused { message, .. } if error.is_unavailable() => {
            Some(Retry::WithBackoff(message.clone()))
        }
        PublishError::Refused { .. } => None,
    }
}
