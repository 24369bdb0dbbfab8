//! Publishes the events of dead letters in chunks and marks the letters as redriven, after the events are on the server's disk. After
//! a crash in between, the letter is still open; the next redrive finds that its event is a duplicate and marks it.

use super::letters::{LetterState, close};
use crate::cmd::rate_limiter::RateLimiter;
use crate::messages::{counted, print_error};
use anyhow::anyhow;
use indicatif::ProgressBar;
use prombus_client::{Client, ClientError, ErrorCode, PublishError, Publisher, Record, Setback, Uuid};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Maximum number of events in a chunk.
const CHUNK_EVENTS: usize = 500;
/// A chunk is full when it has this many bytes.
const CHUNK_BYTES: usize = 2 << 20;

pub struct Redriver {
    client: Client,
    publisher: Publisher,
    rate: RateLimiter,
    /// The dead-letter topic.
    topic: String,
    /// Maximum number of new events.
    limit: Option<u64>,
    /// Events that are not published yet, and the ids of their letters.
    records: Vec<Record>,
    letters: Vec<Uuid>,
    /// The approximate size of `records`.
    chunk_bytes: usize,
    /// Events that were added to their topic.
    pub published: u64,
    /// Events that the topic already had.
    pub duplicates: u64,
    /// The number of letters whose events were permanently refused, by the server's message.
    refused: BTreeMap<String, u64>,
    /// Letters that could not be marked because the token lacks a scope, and the server's message.
    unmarked: (u64, String),
}

impl Redriver {
    pub fn new(client: Client, topic: String, rate: f64, limit: Option<u64>, bar: &ProgressBar) -> Self {
        let bar = bar.clone();
        let publisher = Publisher::new(client.clone()).on_setback(move |setback| match setback {
            Setback::RateLimited => bar.set_message("waiting for a rate limit, "),
            Setback::Unavailable(why) => bar.suspend(|| print_error(&format!("{why}; retrying"))),
        });
        Self {
            client,
            publisher,
            rate: RateLimiter::new(Some(rate)),
            topic,
            limit,
            records: Vec::new(),
            letters: Vec::new(),
            chunk_bytes: 0,
            published: 0,
            duplicates: 0,
            refused: BTreeMap::new(),
            unmarked: (0, String::new()),
        }
    }

    /// Adds the event of a letter to the chunk, and publishes the chunk when it is full.
    pub async fn add(&mut self, letter: Uuid, record: Record) -> anyhow::Result<()> {
        self.chunk_bytes += record.byte_count();
        self.records.push(record);
        self.letters.push(letter);
        // Duplicates do not count towards the limit, and are known only from the responses. So a chunk never has more events than
        // the limit still allows.
        let room = self.limit.map_or(u64::MAX, |limit| limit - self.published);
        let full = self.rate.chunk_size(CHUNK_EVENTS).min(usize::try_from(room).unwrap_or(usize::MAX));
        if self.records.len() >= full || self.chunk_bytes >= CHUNK_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// Whether the limit is reached.
    pub fn is_done(&self) -> bool {
        self.limit.is_some_and(|limit| self.published >= limit)
    }

    /// Publishes the chunk, waits until it is on the server's disk, and marks its letters.
    pub async fn flush(&mut self) -> anyhow::Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        let (mut records, letters) = (std::mem::take(&mut self.records), std::mem::take(&mut self.letters));
        self.chunk_bytes = 0;
        self.rate.wait(records.len()).await;
        let outcomes = self.publisher.publish(&mut records).await?;
        let (mut redriven, mut stopped) = (Vec::new(), None);
        for ((record, letter), outcome) in records.iter().zip(letters).zip(outcomes) {
            match outcome {
                Ok(published) => {
                    redriven.push(letter);
                    if published.duplicate {
                        self.duplicates += 1;
                    } else {
                        self.published += 1;
                    }
                }
                Err(PublishError::Refused { code, message, .. }) if is_about_the_event(code) => {
                    *self.refused.entry(message).or_default() += 1;
                }
                Err(error) => {
                    stopped.get_or_insert_with(|| {
                        anyhow!("cannot redrive {letter} to {}: {error}", record.topic)
                    });
                }
            }
        }
        self.mark(&redriven).await?;
        stopped.map_or(Ok(()), Err)
    }

    async fn mark(&mut self, letters: &[Uuid]) -> anyhow::Result<()> {
        if letters.is_empty() {
            return Ok(());
        }
        match close(&self.client, &self.topic, letters, LetterState::Redriven).await {
            // With --all-groups, a token without the scope admin may publish, but not mark.
            Err(ClientError::Refused { code: ErrorCode::Forbidden, message, .. }) => {
                self.unmarked = (self.unmarked.0 + letters.len() as u64, message);
                Ok(())
            }
            closed => Ok(closed?),
        }
    }

    /// Whether some letters were not redriven, or not marked.
    pub fn has_problems(&self) -> bool {
        !self.refused.is_empty() || self.unmarked.0 > 0
    }

    /// The result as JSON.
    pub fn as_json(&self) -> Value {
        json!({
            "topic": self.topic,
            "dry_run": false,
            "published": self.published,
            "duplicates": self.duplicates,
            "refused": self.refused.values().sum::<u64>(),
            "unmarked": self.unmarked.0,
        })
    }

    pub fn print_problems(&self) {
        for (message, count) in &self.refused {
            print_error(&format!("{} skipped: {message}", counted(*count, "dead letter")));
        }
        if let (count @ 1.., message) = &self.unmarked {
            print_error(&format!(
                "{} could not be marked as redriven and stay open: {message}",
                counted(*count, "dead letter")
            ));
        }
    }
}

/// Whether a refusal concerns only this event, so that it would be refused again while others succeed: for example, its group does not
/// exist any more, or it is larger than the server accepts today.
fn is_about_the_event(code: ErrorCode) -> bool {
    use ErrorCode::{BadJson, BadRequest, BadTopic, NotFound, TooLarge};
    matches!(code, BadJson | BadRequest | BadTopic | NotFound | TooLarge)
}
