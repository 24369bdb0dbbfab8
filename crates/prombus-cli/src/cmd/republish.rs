//! Publishes copies of events for `replay` and `dlq redrive`: in chunks, at most at a given rate, up to a limit. Counts what
//! became of them.

use super::rate_limiter::RateLimiter;
use crate::messages::print_error;
use anyhow::anyhow;
use indicatif::ProgressBar;
use prombus_client::{Client, Publisher, Record, Setback};

/// Copies and bytes that go together at most.
const CHUNK_EVENTS: usize = 500;
const CHUNK_BYTES: usize = 2 << 20;

/// A copies.
pub struct Republisher {
    publisher: Publisher,
    rate: RateLimiter,
    /// New events at most.
    limit: Option<u64>,
    chunk: Vec<Record>,
    chunk_bytes: usize,
    /// Events that were added.
    pub published: u64,
    /// Copies that were there already.
    pub duplicates: u64,
}

impl Republisher {
    pub fn new(client: Client, per_second: Option<f64>, limit: Option<u64>, bar: &ProgressBar) -> Self {
        let bar = bar.clone();
        let publisher = Publisher::new(client).on_setback(move |setback| match setback {
            Setback::RateLimited => bar.set_message("waiting for a rate limit, "),
            Setback::Unavailable(why) => bar.suspend(|| print_error(&format!("{why}; trying again"))),
        });
        let rate = RateLimiter::new(per_second);
        Self { publisher, rate, limit, chunk: Vec::new(), chunk_bytes: 0, published: 0, duplicates: 0 }
    }

    /// Adds a copy; it goes with others when there are enough.
    pub async fn add(&mut self, record: Record) -> anyhow::Result<()> {
        self.chunk_bytes += record.byte_count();
        self.chunk.push(record);
        // A copy counts towards the limit once it is answered and not a duplicate: never more are under way than are left.
        let room = self.limit.map_or(u64::MAX, |limit| limit - self.published);
        let together = self.rate.together(CHUNK_EVENTS).min(usize::try_from(room).unwrap_or(usize::MAX));
        if self.chunk.len() >= together || self.chunk_bytes >= CHUNK_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// Whether as many were added as are allowed.
    pub fn is_done(&self) -> bool {
        self.limit.is_some_and(|limit| self.published >= limit)
    }

    /// Publishes what has gathered and waits until it is on the server's disk.
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
                Err(error) => {
                    let of = record.options.caused_by.first().map(ToString::to_string).unwrap_or_default();
                    refused.get_or_insert_with(|| anyhow!("the copy of {of} to {}: {error}", record.topic));
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }
}
