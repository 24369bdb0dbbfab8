//! A changefeed publishes the changes of a collection as events of a topic.
//!
//! A feed first publishes a change and then stores its position in the change stream. The id of the event is derived from the change's
//! resume token, so the bus recognises a change that is published again after a crash as a duplicate. Every change becomes exactly one
//! event, unless the map function leaves it out.
//!
//! Changes of one document stay in order: a change is published only after the previous change of the same document is stored.

mod change;
mod feed_place;
mod options;
mod runner;

pub use change::{Change, ChangeKind};
pub use options::{ChangefeedError, ChangefeedFigures, ChangefeedOptions, FullDocument};
pub use runner::ChangefeedHandle;

use crate::errors::{is_outage, reason};
use crate::server_abilities::require_replica_set;
use change::{EventMap, StreamItem, parse_item, seed_record};
use feed_place::FeedPlace;
use futures_util::StreamExt as _;
use mongodb::bson::{Document, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ResumeToken;
use mongodb::{Collection, Database};
use parking_lot::Mutex;
use prombus::outbox::{OutboxPublisher, OutboxRecord, PublishFailure};
use prombus::{AfterFailure, FailureLog, HandlerFailure};
use prombus_protocol::check_topic;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The most changes that are published together.
const BATCH: usize = 500;
/// How long the server waits for a change before it returns an empty batch.
const AWAIT: Duration = Duration::from_secs(1);
/// The pause after the first failure. The pause doubles after each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The error codes for a position that is no longer in the oplog.
const HISTORY_LOST: [i32; 2] = [286, 280];

/// A changefeed: [`run_until`](Self::run_until) or [`spawn`](Self::spawn) it. It needs a replica set.
pub struct Changefeed {
    database: Database,
    collection: Collection<Document>,
    publisher: Arc<dyn OutboxPublisher>,
    options: ChangefeedOptions,
    map: EventMap,
    /// The stored position.
    place: FeedPlace,
    figures: Arc<Mutex<ChangefeedFigures>>,
    failures: Arc<FailureLog>,
}

/// The progress of a run, which decides whether a shutdown waits.
#[derive(Default)]
struct RunState {
    /// The feed was told to stop: it takes no more changes.
    is_stopping: AtomicBool,
    /// Changes were taken from the stream, and the position after them is not stored yet.
    has_batch: AtomicBool,
}

impl Changefeed {
    /// Opens a feed from a collection to a topic. A feed that is opened for the first time begins with the changes from now on. Later it
    /// resumes at its stored position.
    ///
    /// # Errors
    /// See [`ChangefeedError`]. A standalone server has no change streams.
    pub async fn open(
        database: &Database,
        publisher: Arc<dyn OutboxPublisher>,
        options: ChangefeedOptions,
    ) -> Result<Self, ChangefeedError> {
        let options = options.named();
        check_topic(&options.topic)?;
        require_replica_set(database, "a changefeed", "change streams").await?;
        let feed = Self {
            collection: database.collection(&options.collection),
            place: FeedPlace::new(database, &options),
            map: EventMap::new(&options),
            database: database.clone(),
            publisher,
            failures: Arc::new(FailureLog::new(format!("changefeed {}", options.name))),
            options,
            figures: Arc::default(),
        };
        // Storing the position now ensures that no change from here on is missed, even before the feed runs.
        if feed.place.read().await?.is_none() || feed.options.reseed {
            let stream = feed.watch(None).await?;
            let token = stream.resume_token().ok_or_else(|| {
                ChangefeedError::Stream("the server returned no resume token to begin with".to_owned())
            })?;
            feed.place.begin(&token, feed.options.reseed).await?;
        }
        Ok(feed)
    }

    /// Sets a function that may modify the event of each change. If it returns `None`, the change is not published.
    #[must_use]
    pub fn map(
        mut self,
        map: impl Fn(&Change, OutboxRecord) -> Option<OutboxRecord> + Send + Sync + 'static,
    ) -> Self {
        self.map.set(map);
        self
    }

    /// The counters and the current state of the feed.
    pub fn figures(&self) -> ChangefeedFigures {
        self.figures.lock().clone()
    }

    /// Calls a function for each failure: a server or a bus that is unreachable, the end of the feed. Like
    /// [`HandlerHandle::on_error`](prombus::HandlerHandle::on_error).
    pub fn on_error(&self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) {
        self.failures.on_error(callback);
    }

    /// The last failure; `None` if there was none.
    pub fn last_error(&self) -> Option<HandlerFailure> {
        self.failures.last_error()
    }

    async fn watch(&self, after: Option<ResumeToken>) -> Result<ChangeStream<Document>, ChangefeedError> {
        let mut watch = self.collection.watch().pipeline(self.options.filter.clone()).max_await_time(AWAIT);
        if let Some(token) = after {
            watch = watch.resume_after(token);
        }
        if let Some(full_document) = self.options.full_document.driver_type() {
            watch = watch.full_document(full_document);
        }
        match watch.await {
            Ok(stream) => Ok(stream.with_type::<Document>()),
            Err(error) => Err(self.stream_error(error)),
        }
    }

    fn stream_error(&self, error: mongodb::error::Error) -> ChangefeedError {
        let code = match &*error.kind {
            mongodb::error::ErrorKind::Command(command) => command.code,
            _ => 0,
        };
        if HISTORY_LOST.contains(&code) {
            return ChangefeedError::HistoryLost { feed: self.options.name.clone() };
        }
        if is_outage(&error) || error.contains_label("ResumableChangeStreamError") {
            return ChangefeedError::Away(reason(&error));
        }
        ChangefeedError::Stream(reason(&error))
    }

    /// Publishes changes until `shutdown` resolves. The current batch is finished first, unless the server or the bus is unreachable: then it
    /// is abandoned, the next start publishes it again, and the bus recognises the duplicates. A reseed is abandoned too, and begins again
    /// at the next start.
    ///
    /// # Errors
    /// Permanent errors, see [`ChangefeedError`]. While the server or the bus is unreachable, the feed waits.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), ChangefeedError> {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut pause = PAUSE_MIN;
        let run = RunState::default();
        loop {
            let stop = async {
                (&mut shutdown).await;
                run.is_stopping.store(true, Ordering::Relaxed);
                // The current batch may finish, unless it waits for an unreachable server or bus.
                while run.has_batch.load(Ordering::Relaxed) && self.figures.lock().trouble.is_none() {
                    tokio::time::sleep(PAUSE_MIN).await;
                }
            };
            let ran = tokio::select! {
                biased;
                () = stop => return Ok(()),
                ran = self.follow(&mut pause, &run) => ran,
            };
            match ran {
                Ok(()) => return Ok(()),
                Err(ChangefeedError::Away(why)) => self.note_trouble(&why),
                Err(error) => {
                    self.figures.lock().failures += 1;
                    self.figures.lock().trouble = Some(error.to_string());
                    return Err(error);
                }
            }
            if run.is_stopping.load(Ordering::Relaxed) {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn note_trouble(&self, why: &str) {
        let mut figures = self.figures.lock();
        figures.failures += 1;
        let before = figures.trouble.replace(why.to_owned());
        drop(figures);
        if before.as_deref() != Some(why) {
            self.failures.report(&HandlerFailure::general(format!("waiting: {why}"), AfterFailure::Retry));
        }
    }

    fn note_progress(&self) {
        if self.figures.lock().trouble.take().is_some() {
            tracing::info!("changefeed {}: resumed", self.options.name);
        }
    }

    /// Follows the stream until an error occurs, or until a batch is finished after the feed was told to stop.
    async fn follow(&self, pause: &mut Duration, run: &RunState) -> Result<(), ChangefeedError> {
        run.has_batch.store(false, Ordering::Relaxed);
        let Some(place) = self.place.read().await? else {
            return Err(ChangefeedError::Stream(format!(
                "the stored position of {} was removed",
                self.options.name
            )));
        };
        if place.is_seeding {
            self.seed(&place.token).await?;
            self.place.end_seeding().await?;
        }
        let mut stream = self.watch(Some(place.token)).await?;
        while !run.is_stopping.load(Ordering::Relaxed) {
            let batch = self.next_batch(&mut stream).await?;
            self.note_progress();
            *pause = PAUSE_MIN;
            let Some(last) = batch.last().map(|item| item.token.clone()) else { continue };
            run.has_batch.store(true, Ordering::Relaxed);
            let ended = batch.iter().find_map(|item| item.end.clone());
            self.publish_all(batch.into_iter().filter_map(|item| item.record).collect()).await?;
            if let Some(why) = ended {
                return Err(ChangefeedError::Invalidated {
                    collection: self.options.collection.clone(),
                    why,
                });
            }
            self.place.advance(&last).await?;
            run.has_batch.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits for the next change, and returns it with the further changes that are available, at most [`BATCH`] in total.
    async fn next_batch(
        &self,
        stream: &mut ChangeStream<Document>,
    ) -> Result<Vec<StreamItem>, ChangefeedError> {
        let mut items = Vec::new();
        while items.len() < BATCH {
            let next =
                if items.is_empty() { stream.next().await.transpose() } else { stream.next_if_any().await };
            let Some(document) = next.map_err(|error| self.stream_error(error))? else { break };
            let item = parse_item(&document, &self.map).map_err(ChangefeedError::Stream)?;
            let is_end = item.end.is_some();
            items.push(item);
            if is_end {
                break;
            }
        }
        if items.is_empty() {
            return Err(ChangefeedError::Away("the change stream has ended".to_owned()));
        }
        Ok(items)
    }

    /// Publishes all documents of the collection. The stream then delivers the changes since `token`.
    async fn seed(&self, token: &ResumeToken) -> Result<(), ChangefeedError> {
        tracing::info!("changefeed {}: publishing all documents", self.options.name);
        let find = self.collection.find(doc! {}).sort(doc! { "_id": 1 }).batch_size(BATCH as u32);
        let mut documents = find.await.map_err(|error| self.stream_error(error))?.chunks(BATCH);
        while let Some(chunk) = documents.next().await {
            let mut records = Vec::with_capacity(chunk.len());
            for document in chunk {
                let document = document.map_err(|error| self.stream_error(error))?;
                records.extend(seed_record(document, token, &self.map).map_err(ChangefeedError::Stream)?);
            }
            self.figures.lock().seeded += records.len() as u64;
            self.publish_all(records).await?;
        }
        Ok(())
    }

    /// Publishes records so that those of one document are stored in order: each round has at most one record per document.
    async fn publish_all(&self, records: Vec<OutboxRecord>) -> Result<(), ChangefeedError> {
        let mut left = records;
        while !left.is_empty() {
            let mut keys = HashSet::new();
            let (now, later): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|record| keys.insert(record.key.clone()));
            self.publish_round(now).await?;
            left = later;
        }
        Ok(())
    }

    async fn publish_round(&self, mut records: Vec<OutboxRecord>) -> Result<(), ChangefeedError> {
        let mut pause = PAUSE_MIN;
        loop {
            let results = self.publisher.publish(&records).await;
            let mut waiting = Vec::new();
            let mut why = None;
            for (record, result) in records.into_iter().zip(results) {
                match result {
                    Ok(published) => {
                        let mut figures = self.figures.lock();
                        figures.published += u64::from(!published.duplicate);
                        figures.duplicates += u64::from(published.duplicate);
                    }
                    Err(PublishFailure::Permanent(error)) => {
                        let key = record.key.unwrap_or_default();
                        return Err(ChangefeedError::Refused { key, error });
                    }
                    Err(PublishFailure::Retry(error) | PublishFailure::Unavailable(error)) => {
                        why.get_or_insert(error);
                        waiting.push(record);
                    }
                }
            }
            let Some(why) = why else {
                self.note_progress();
                return Ok(());
            };
            self.note_trouble(&why);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            records = waiting;
        }
    }
}

impl std::fmt::Debug for Changefeed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Changefeed({} of {})", self.options.name, self.database.name())
    }
}
