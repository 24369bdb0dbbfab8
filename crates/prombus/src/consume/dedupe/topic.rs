//! Stores marks (records that a group has processed an event) as events of a topic. They are as durable as the bus and need no
//! other store.
//!
//! A mark is an event with its own key and an id derived from topic, group and event, so that publishing it again adds
//! nothing. An expired mark gets a tombstone (`null` with its key), after which compaction of the topic can remove both.
//! All live marks are in memory: they are read from the topic when the store is opened. If a mark is not in memory, the
//! store reads the events that other writers have added to the topic since.

use super::memory::Marks;
use super::{DedupeError, DedupeStore, expires_ms, mark_id};
use crate::batch::PullLimit;
use crate::box_future::BoxFuture;
use crate::bus::Bus;
use crate::clock::{Clock, SystemClock};
use crate::error::ReadError;
use parking_lot::Mutex;
use prombus_protocol::{PublishOptions, Topic, Uuid};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The most tombstones per batch.
const TOMBSTONES: usize = 1_000;

/// Marks in a topic of the bus.
///
/// ```
/// use prombus::Bus;
/// use prombus::consume::dedupe::TopicDedupe;
/// use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bus = Bus::memory();
/// let marks = Arc::new(TopicDedupe::open(&bus, "dedupe.billing").await?);
/// let subscribe = bus.subscribe("orders", "billing").from_earliest();
/// subscribe.exactly_once(marks).handler(|event, _| async move {
///     println!("{}", event.payload());
///     Ok::<(), String>(())
/// }).await?;
/// # Ok(()) }
/// ```
pub struct TopicDedupe {
    bus: Bus,
    topic: Topic,
    clock: Arc<dyn Clock>,
    /// The live marks, and expired marks without a tombstone.
    marks: Mutex<Marks>,
    /// The first seq that was not read. A reader holds this lock while it reads.
    next_seq: tokio::sync::Mutex<u64>,
}

#[derive(Serialize, Deserialize)]
struct Payload<'a> {
    topic: &'a str,
    group: &'a str,
    id: Uuid,
    expires_ms: i64,
}

/// The part of a mark's payload that is read back.
#[derive(Deserialize)]
struct Kept {
    expires_ms: i64,
}

impl TopicDedupe {
    /// Reads the marks of a topic. A topic that does not exist has none.
    ///
    /// # Errors
    /// See [`DedupeError`].
    pub async fn open(bus: &Bus, topic: impl AsRef<str>) -> Result<Self, DedupeError> {
        Self::open_with(bus, topic, Arc::new(SystemClock::default())).await
    }

    /// Like [`open`](Self::open), with a clock for tests.
    ///
    /// # Errors
    /// See [`DedupeError`].
    pub async fn open_with(
        bus: &Bus,
        topic: impl AsRef<str>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, DedupeError> {
        let marks = Self {
            bus: bus.clone(),
            topic: Topic::new(topic)?,
            clock,
            marks: Mutex::default(),
            next_seq: tokio::sync::Mutex::new(1),
        };
        marks.read_new_marks().await?;
        marks.sweep().await?;
        Ok(marks)
    }

    /// How many marks are in memory.
    pub fn len(&self) -> usize {
        self.marks.lock().len()
    }

    /// Whether no marks are in memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes expired marks, publishes their tombstones, and returns how many were removed. Adding a mark does this too.
    ///
    /// # Errors
    /// See [`DedupeError`]. Marks that got no tombstone get one when the store is opened again.
    pub async fn sweep(&self) -> Result<usize, DedupeError> {
        let mut count = 0;
        loop {
            let now = self.clock.wall_ms();
            let expired: Vec<(Uuid, i64)> = {
                let mut marks = self.marks.lock();
                std::iter::from_fn(|| marks.take_expired(now)).take(TOMBSTONES).collect()
            };
            if expired.is_empty() {
                return Ok(count);
            }
            count += expired.len();
            let mut batch = self.bus.batch();
            for (mark, expires) in expired {
                let id = Uuid::new_v5(&mark, format!("expired {expires}").as_bytes());
                let options = PublishOptions { id: Some(id), ..keyed(mark) };
                batch.push_json(self.topic.clone(), b"null", &options)?;
            }
            self.bus.publish_batch(batch).await?;
        }
    }

    /// Reads marks that this or another store has written since the last read.
    async fn read_new_marks(&self) -> Result<(), DedupeError> {
        let mut next_seq = self.next_seq.lock().await;
        loop {
            let page = match self.bus.read_from(&self.topic, *next_seq, PullLimit::default()).await {
                Ok(page) => page,
                Err(ReadError::UnknownTopic(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let mut marks = self.marks.lock();
            for event in &page.events {
                // The key of a mark is a UUID. Other events are not marks; ignore them.
                let Some(mark) = event.key().and_then(|key| Uuid::try_parse(key).ok()) else { continue };
                match event.json::<Option<Kept>>() {
                    Ok(Some(kept)) => {
                        marks.remove(mark);
                        marks.insert(mark, kept.expires_ms);
                    }
                    Ok(None) => marks.remove(mark),
                    Err(error) => tracing::warn!("{} seq {} is not a mark: {error}", self.topic, event.seq()),
                }
            }
            if page.next_seq <= *next_seq {
                return Ok(());
            }
            *next_seq = page.next_seq;
        }
    }

    async fn publish(&self, mark: Uuid, id: Uuid, payload: &Payload<'_>) -> Result<bool, DedupeError> {
        let options = PublishOptions { id: Some(id), ..keyed(mark) };
        let published = self.bus.publish(self.topic.as_str(), payload).options(options).await?;
        Ok(!published.duplicate)
    }
}

/// The publish options of a mark and of its tombstone.
fn keyed(mark: Uuid) -> PublishOptions {
    PublishOptions { key: Some(mark.to_string()), ..PublishOptions::default() }
}

impl DedupeStore for TopicDedupe {
    fn seen<'a>(
        &'a self,
        topic: &'a str,
        group: &'a str,
        id: Uuid,
    ) -> BoxFuture<'a, Result<bool, DedupeError>> {
        Box::pin(async move {
            let mark = mark_id(topic, group, id);
            if self.marks.lock().is_live(mark, self.clock.wall_ms()) {
                return Ok(true);
            }
            self.read_new_marks().await?;
            Ok(self.marks.lock().is_live(mark, self.clock.wall_ms()))
        })
    }

    fn mark<'a>(
        &'a self,
        topic: &'a str,
        group: &'a str,
        id: Uuid,
        ttl_ms: u64,
    ) -> BoxFuture<'a, Result<(), DedupeError>> {
        Box::pin(async move {
            self.sweep().await?;
            let mark = mark_id(topic, group, id);
            let now = self.clock.wall_ms();
            if self.marks.lock().is_live(mark, now) {
                return Ok(());
            }
            let payload = Payload { topic, group, id, expires_ms: expires_ms(now, ttl_ms) };
            if !self.publish(mark, mark, &payload).await? {
                // The topic has this mark already: another store wrote it, or it is an older mark that has expired.
                self.read_new_marks().await?;
                if !self.marks.lock().is_live(mark, now) {
                    let id = Uuid::new_v5(&mark, format!("again {}", payload.expires_ms).as_bytes());
                    self.publish(mark, id, &payload).await?;
                }
            }
            self.marks.lock().insert(mark, payload.expires_ms);
            Ok(())
        })
    }
}

impl std::fmt::Debug for TopicDedupe {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "TopicDedupe({}, {} marks)", self.topic, self.len())
    }
}
