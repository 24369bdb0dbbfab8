//! Publishes copies of events: in chunks, not faster than a pace, up to a limit, and counts what became of them.

use super::pace::Pace;
use crate::complain;
use anyhow::anyhow;
use indicatif::ProgressBar;
use prombus_client::{Client, Publisher, Record, Setback};

/// Copies and bytes that go together at most.
const CHUNK_EVENTS: usize = 500;
const CHUNK_BYTES: usize = 2 << 20;

/// A copier.
pub struct Copier {
    publisher: Publisher,
    pace: Pace,
    /// New events at most.
    limit: Option<u64>,
    chunk: Vec<Record>,
    chunk_bytes: usize,
    /// Events that were added.
    pub published: u64,
    /// Copies that were there already.
    pub duplicates: u64,
}

impl Copier {
    pub fn new(client: Client, per_second: Option<f64>, limit: Option<u64>, bar: &ProgressBar) -> Self {
        let bar = bar.clone();
        let publisher = Publisher::new(client).on_setback(move |setback| match setback {
            Setback::RateLimited => bar.set_message("waiting for a rate limit, "),
            Setback::Unavailable(why) => bar.suspend(|| complain(&format!("{why}; trying again"))),
        });
        let pace = Pace::new(per_second);
        Self { publisher, pace, limit, chunk: Vec::new(), chunk_bytes: 0, published: 0, duplicates: 0 }
    }

    /// Adds a copy; it goes with others when there are enough.
    pub async fn add(&mut self, record: Record) -> anyhow::Result<()> {
        self.chunk_bytes += record.byte_count();
        self.chunk.push(record);
        // What may be a duplicate does not count before it is answered: never more are under way than are allowed.
        let room = self.limit.map_or(u64::MAX, |limit| limit - self.published);
        let together = self.pace.together(CHUNK_EVENTS).min(usize::try_from(room).unwrap_or(usize::MAX));
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
        self.pace.wait(chunk.len()).await;
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
