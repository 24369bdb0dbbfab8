//! Reads the topics of a pattern as one sequence, for streamed responses.

use super::response_stream::{StreamClient, StreamError};
use prombus::{MergedChunk, MergedReader, More, PullLimit, ReadError, Unavailable};
use std::future::poll_fn;
use std::time::Duration;
use tokio::time::sleep;

/// How long to wait for events that are stored but not returned yet ([`More::Soon`]): other events with the same commit time may
/// still be committed, and events are returned in the order of their commit times.
const SOON: Duration = Duration::from_millis(1);

/// Reads the sequence forward from a position.
pub(super) struct PatternReader {
    pub(super) client: StreamClient,
    /// `None` while a read runs: its future owns the reader.
    reader: Option<Box<dyn MergedReader>>,
    /// When more events are expected, according to the last read.
    more: More,
}

impl PatternReader {
    pub(super) fn new(client: StreamClient, reader: Box<dyn MergedReader>) -> Self {
        Self { client, reader: Some(reader), more: More::Now }
    }

    /// The position, in the form that clients get.
    pub(super) fn position(&self) -> String {
        self.reader.as_ref().map_or_else(String::new, |reader| reader.position().to_string())
    }

    /// Reads the next events.
    pub(super) async fn read(&mut self, limit: PullLimit) -> Result<MergedChunk, StreamError> {
        self.client.check_token()?;
        let limit = self.client.within_budget(limit);
        let lost = || ReadError::Failed("reading panicked".to_owned());
        let reader = self.reader.take().ok_or_else(lost)?;
        let (reader, read) = reader.read(limit).await;
        self.reader = reader;
        let chunk = read?;
        self.more = chunk.more;
        Ok(chunk)
    }

    /// Like [`read`](Self::read), but waits for stored events that are not returned yet ([`More::Soon`]). For responses that have
    /// an end.
    pub(super) async fn read_complete(&mut self, limit: PullLimit) -> Result<MergedChunk, StreamError> {
        loop {
            let chunk = self.read(limit).await?;
            if chunk.more != More::Soon || !chunk.places.is_empty() {
                return Ok(chunk);
            }
            if self.client.gateway.stopping.is_stopping() {
                return Err(ReadError::Unavailable(Unavailable::Closed).into());
            }
            sleep(SOON).await;
        }
    }

    /// Resolves when there may be more events.
    pub(super) async fn arrival(&mut self) {
        match (self.more, &mut self.reader) {
            (More::Now, _) | (_, None) => {}
            (More::Soon, _) => sleep(SOON).await,
            (More::Later, Some(reader)) => poll_fn(|context| reader.poll_more(context)).await,
        }
    }
}
