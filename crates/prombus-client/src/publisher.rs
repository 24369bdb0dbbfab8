//! A publisher of many records, with its own patience, that reports every wait. `resend.rs` resends the records.

use crate::client::Client;
use crate::error::{ClientError, PublishError};
use crate::record::{Published, Record};
use crate::resend::{Resend, Setback};
use std::time::Duration;

/// Publishes records over a client's connection, and reports when it has to wait.
pub struct Publisher {
    client: Client,
    patience: Duration,
    on_setback: Box<dyn FnMut(&Setback) + Send>,
    /// A rate limit was reached, so records are sent one by one.
    is_one_by_one: bool,
}

impl Publisher {
    /// A publisher that uses the connection and the patience of a client.
    pub fn new(client: Client) -> Self {
        let patience = client.publish_patience();
        Self { client, patience, on_setback: Box::new(|_| {}), is_one_by_one: false }
    }

    /// How long it keeps trying while the server does not respond. Default: the patience of the client.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets a function that is called whenever the publisher has to wait.
    #[must_use]
    pub fn on_setback(mut self, on_setback: impl FnMut(&Setback) + Send + 'static) -> Self {
        self.on_setback = Box::new(on_setback);
        self
    }

    /// Publishes records in order, and returns one result per record. Records without an id get one. A record with an Ok is on the server's
    /// disk.
    ///
    /// # Errors
    /// [`ClientError::Lost`] if the server did not respond within the patience: some of the records may be stored, and publishing them
    /// again is safe. If the server refuses a record, the result of that record is an error, but this call returns `Ok`.
    pub async fn publish(
        &mut self,
        records: &mut [Record],
    ) -> Result<Vec<Result<Published, PublishError>>, ClientError> {
        let outcomes = self.publish_each(records).await;
        let lost = outcomes.iter().find_map(|outcome| match outcome {
            Err(PublishError::Lost(why)) => Some(why.clone()),
            _ => None,
        });
        match lost {
            Some(why) => Err(ClientError::Lost { address: self.client.address().to_string(), why }),
            None => Ok(outcomes),
        }
    }

    /// Publishes records like [`publish`](Self::publish), and returns the results of all records even if the server did not respond within
    /// the patience: the records without a response have the result [`PublishError::Lost`].
    pub async fn publish_each(&mut self, records: &mut [Record]) -> Vec<Result<Published, PublishError>> {
        for record in &mut *records {
            record.ensure_id();
        }
        let resend = Resend {
            patience: self.patience,
            is_one_by_one: &mut self.is_one_by_one,
            on_setback: &mut *self.on_setback,
        };
        resend.publish(self.client.publish_connection(), records).await
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Publisher({:?})", self.client)
    }
}
