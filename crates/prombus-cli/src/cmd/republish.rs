//! Publishes copies of events for `replay`: in chunks and at a limited rate. Counts the results.

use super::rate_limiter::RateLimiter;
use crate::messages::print_error;
use anyhow::anyhow;
use indicatif::ProgressBar;
use prombus_client::{Client, ErrorCode, PublishError, Publisher, Record, Setback};
use std::collections::BTreeMap;

/// Maximum number of copies in a chunk.
const CHUNK_EVENTS: usize = 500;
/// A chunk is full when it has this many bytes.
const CHUNK_BYTES: usize = 2 << 20;

/// Publishes copies in chunks.
pub struct Republisher {
    publisher: Publisher,
    rate: RateLimiter,
    /// Copies that are not published yet.
    chunk: Vec<Record>,
    /// The approximate size of `chunk`.
    chunk_bytes: usize,
    /// Events that were added to their topic.
    pub published: u64,
    /// Copies that the topic already had.
    pub duplicates: u64,
    /// Copies of events for one group that the server refused because of that, by its message.
    pub refused: BTreeMap<String, u64>,
}

impl Republisher {
    pub fn new(client: Client, per_second: Option<f64>, bar: &ProgressBar) -> Self {
        let bar = bar.clone();
        let publisher = Publisher::new(client).on_setback(move |setback| match setback {
            Setback::RateLimited => bar.set_message("waiting for a rate limit, "),
            Setback::Unavailable(why) => bar.suspend(|| print_error(&format!("{why}; retrying"))),
        });
        let rate = RateLimiter::new(per_second);
        let refused = BTreeMap::new();
        Self { publisher, rate, chunk: Vec::new(), chunk_bytes: 0, published: 0, duplicates: 0, refused }
    }

    /// Adds a copy to the chunk, and publishes the chunk when it is full.
    pub async fn add(&mut self, record: Record) -> anyhow::Result<()> {
        self.chunk_bytes += record.byte_count();
        self.chunk.push(record);
        if self.chunk.len() >= self.rate.chunk_size(CHUNK_EVENTS) || self.chunk_bytes >= CHUNK_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// Publishes the chunk and waits until it is on the server's disk.
    pub async fn flush(&mut self) -> anyhow::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let mut chunk = std::mem::take(&mut self.chunk);
        self.chunk_bytes = 0;
        self.rate.wait(chunk.len()).await;
        let outcomes = self.publisher.publish(&mut chunk).await?;
        let mut refused = None;
        for (record, outcome) in chunk.iter().zip(outcomes) {
            match outcome {
                Ok(published) if published.duplicate => self.duplicates += 1,
                Ok(_) => self.published += 1,
                // The group does not exist any more, or the token lacks the scope admin. Other events can be copied all the same.
                Err(PublishError::Refused { code, message, .. })
                    if record.options.addressee.is_some()
                        && matches!(code, ErrorCode::NotFound | ErrorCode::Forbidden) =>
                {
                    *self.refused.entry(message).or_default() += 1;
                }
                Err(error) => {
                    let of = record.options.caused_by.first().map(ToString::to_string).unwrap_or_default();
                    refused.get_or_insert_with(|| anyhow!("cannot copy {of} to {}: {error}", record.topic));
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }
}
