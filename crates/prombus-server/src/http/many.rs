//! The topics of a pattern as one sequence, for answers that are streams.

use super::pages::{Outlet, StreamError};
use prombus::{MergedChunk, MergedReader, More, PullLimit, ReadError, Unavailable};
use std::future::poll_fn;
use std::time::Duration;
use tokio::time::sleep;

/// How long to wait for events that are not complete yet.
const SOON: Duration = Duration::from_millis(1);

/// A place in the sequence that goes forward.
pub(super) struct Many {
    pub(super) outlet: Outlet,
    /// Elsewhere only while a thread reads with it.
    reader: Option<Box<dyn MergedReader>>,
    more: More,
}

impl Many {
    pub(super) fn new(outlet: Outlet, reader: Box<dyn MergedReader>) -> Self {
        Self { outlet, reader: Some(reader), more: More::Now }
    }

    /// The place, as clients keep it.
    pub(super) fn position(&self) -> String {
        self.reader.as_ref().map_or_else(String::new, |reader| reader.position().to_string())
    }

    /// Reads on, on a thread that may wait for the disk.
    pub(super) async fn read(&mut self, limit: PullLimit) -> Result<MergedChunk, StreamError> {
        self.outlet.check_token()?;
        let limit = self.outlet.within_budget(limit);
        let lost = || ReadError::Failed("reading panicked".to_owned());
        let mut reader = self.reader.take().ok_or_else(lost)?;
        let read = tokio::task::spawn_blocking(move || (reader.read(limit), reader));
        let (read, reader) = read.await.map_err(|_| lost())?;
        self.reader = Some(reader);
        let chunk = read?;
        self.more = chunk.more;
        Ok(chunk)
    }

    /// Like [`read`](Self::read), but waits for events that are there and not complete: for readers with an end.
    pub(super) async fn read_complete(&mut self, limit: PullLimit) -> Result<MergedChunk, StreamError> {
        loop {
            let chunk = self.read(limit).await?;
            if chunk.more != More::Soon || !chunk.places.is_empty() {
                return Ok(chunk);
            }
            if self.outlet.gateway.stopping.is_stopping() {
                return Err(ReadError::Unavailable(Unavailable::Closed).into());
            }
            sleep(SOON).await;
        }
    }

    /// Resolves when there may be more.
    pub(super) async fn arrival(&mut self) {
        match (self.more, &mut self.reader) {
            (More::Now, _) | (_, None) => {}
            (More::Soon, _) => sleep(SOON).await,
            (More::Later, Some(reader)) => poll_fn(|context| reader.poll_more(context)).await,
        }
    }
}
