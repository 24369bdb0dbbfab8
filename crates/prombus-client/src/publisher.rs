//! A publisher of many records with its own patience, which reports every wait. The resending itself is in `resend.rs`.

use crate::client::Client;
use crate::error::{ClientError, PublishError};
use crate::record::{Published, Record};
use crate::resend::{Resend, Setback};
use std::time::Duration;

/// A publisher.
pub struct Publisher {
    client: Client,
    patience: Duration,
    on_setback: Box<dyn FnMut(&Setback) + Send>,
    /// A rate limit was reached: records go one by one from then on.
    is_one_by_one: bool,
}

impl Publisher {
    /// A publisher that uses the connection and the patience of a client.
    pub fn new(client: Client) -> Self {
        let patience = client.publish_patience();
        Self { client, patience, on_setback: Box::new(|_| {}), is_one_by_one: false }
    }

    /// How long it keeps trying while nothing is answered. Default: that of the client.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Called whenever it has to wait.
    #[must_use]
    pub fn on_setback(mut self, on_setback: impl FnMut(&Setback) + Send + 'static) -> Self {
        self.on_setback = Box::new(on_setback);
        self
    }

    /// Publishes records in order; one result each. Records without an id get one. A record with an Ok is on the server's
    /// disk.
    ///
    /// # Errors
    /// [`ClientError::Lost`] when nothing was answered for as long as the patience lasts: some of the records may be stored,
    /// and publishing them again is safe. A record that the server refuses is not an error of this call.
    pub async fn publish(
        &mut self,
        records: &mut [Record],
    ) -> Result<Vec<Result<Published, PublishError>>, ClientError> {
        for record in &mut *records {
            record.ensure_id();
        }
        let resend = Resend {
            patience: self.patience,
            is_one_by_one: &mut self.is_one_by_one,
            on_setback: &mut *self.on_setback,
        };
        let outcomes = resend.publish(self.client.publish_connection(), records).await;
        let lost = outcomes.iter().find_map(|outcome| match outcome {
            Err(PublishError::Lost(why)) => Some(why.clone()),
            _ => None,
        });
        match lost {
            Some(why) => Err(ClientError::Lost { address: self.client.address().to_string(), why }),
            None => Ok(outcomes),
        }
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Publisher({:?})", self.client)
    }
}
