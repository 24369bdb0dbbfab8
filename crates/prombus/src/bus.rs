//! The bus: what a program embeds.

use crate::backend::{Backend, Keys, LatestQuery, PullLimit, SettleOutcome, Verdict};
use crate::clock::{Clock, SystemClock};
use crate::config::Limits;
use crate::error::{
    BackupError, GroupError, OpenError, PublishError, ReadError, TopicAdminError, Unavailable,
};
use crate::event::{Event, Page};
use crate::info::{GroupInfo, TopicInfo};
use crate::local::LocalBackend;
use crate::publish::{PublishBatch, Published, Publishing};
use crate::settings::{TopicOptions, TopicRule, TopicSettings};
use crate::state::{State, StateFollower};
use crate::store::{LogStore, LogStoreOptions, MemoryStore, Store};
use crate::subscribe::Subscribe;
use prombus_protocol::{Ack, CursorPosition, PublishOptions, Start, Topic, TopicFor, Uuid};
use serde::Serialize;
use std::collections::HashMap;
use std::future::IntoFuture;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// An event bus. A handle: clones share the bus. It closes with [`close`](Self::close), or when the last handle, the last
/// subscription and the last handler are gone; a handler goes on until it is unsubscribed or the bus is closed.
#[derive(Clone)]
pub struct Bus {
    backend: Arc<dyn Backend>,
}

impl Bus {
    /// Opens the bus in a folder, or makes one there.
    ///
    /// # Errors
    /// See [`OpenError`]; the folder is left as it was.
    ///
    /// # Panics
    /// Outside of a tokio runtime; [`BusBuilder::open_blocking`] needs none.
    pub async fn open(folder: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::builder().open(folder).await
    }

    /// A bus in memory: everything but surviving the process.
    pub fn memory() -> Self {
        Self::builder().memory().expect("the defaults are allowed")
    }

    /// Everything that can be set.
    pub fn builder() -> BusBuilder {
        BusBuilder::default()
    }

    /// A bus over any backend.
    pub fn with_backend(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }

    /// What is underneath, for gateways.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Publishes an event: resolves when it is durable.
    ///
    /// ```
    /// # use prombus::Bus;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let bus = Bus::memory();
    /// let published = bus.publish("orders", &serde_json::json!({"item": 7})).key("customer-1").await?;
    /// assert_eq!(published.seq, 1);
    /// # Ok(()) }
    /// ```
    pub fn publish<T: Serialize + ?Sized>(&self, topic: impl TopicFor<T>, payload: &T) -> Publish {
        let payload = topic.topic().map_err(PublishError::from).and_then(|topic| {
            let json = serde_json::to_vec(payload);
            Ok((topic, json.map_err(|error| PublishError::Serialize(error.to_string()))?))
        });
        Publish { backend: Arc::clone(&self.backend), payload, options: PublishOptions::default() }
    }

    /// Publishes an event whose payload is JSON text already. It is checked once and kept as it is.
    pub fn publish_json(&self, topic: impl AsRef<str>, json: impl Into<Vec<u8>>) -> Publish {
        let payload = Topic::new(topic).map_err(PublishError::from).map(|topic| (topic, json.into()));
        Publish { backend: Arc::clone(&self.backend), payload, options: PublishOptions::default() }
    }

    /// An empty batch for [`publish_batch`](Self::publish_batch).
    pub fn batch(&self) -> PublishBatch {
        self.backend.batch()
    }

    /// Publishes events together, all or nothing. They are in line when this returns, in the order of calls, and the answer
    /// resolves when they are durable: so a publisher can have many batches under way. See [`Publishing`] for the case that far
    /// too much is under way.
    ///
    /// ```
    /// # use prombus::{Bus, PublishOptions};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let bus = Bus::memory();
    /// let mut batch = bus.batch();
    /// for item in 1..=3 {
    ///     batch.push("orders", &item, &PublishOptions::default())?;
    /// }
    /// let published = bus.publish_batch(batch).await?;
    /// assert_eq!(published[2].seq, 3);
    /// # Ok(()) }
    /// ```
    pub fn publish_batch(&self, batch: PublishBatch) -> Publishing {
        self.backend.publish(batch)
    }

    /// Subscribes to a topic or a pattern (`orders.*`, `orders.**`) as a member of a group, which is made if it is not there.
    ///
    /// ```
    /// # use prombus::Bus;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let bus = Bus::memory();
    /// # bus.publish("orders.new", &1).await?;
    /// let mut orders = bus.subscribe("orders.*", "billing").from_earliest().await?;
    /// while let Some(delivery) = orders.next().await {
    ///     let delivery = delivery?;
    ///     println!("{} {}", delivery.topic(), delivery.payload());
    ///     delivery.ack().await?;
    /// #   break;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn subscribe(&self, topic: impl Into<String>, group: impl Into<String>) -> Subscribe {
        Subscribe::new(Arc::clone(&self.backend), topic.into(), group.into())
    }

    /// Acks an event by its id, for a subscription with `manual_ack`; resolves when that is durable. `stale` says that it
    /// changed nothing.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn ack(&self, topic: &str, group: &str, id: Uuid) -> Result<Ack, GroupError> {
        let outcome = self.backend.settle(topic, group, id, Verdict::Ack).await?;
        Ok(Ack { id, ok: true, err: None, stale: outcome == SettleOutcome::Stale })
    }

    /// Nacks an event by its id; resolves when that is durable. It is delivered again after a backoff.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn nack(
        &self,
        topic: &str,
        group: &str,
        id: Uuid,
        reason: Option<&str>,
    ) -> Result<Ack, GroupError> {
        let outcome = self.backend.settle(topic, group, id, Verdict::Nack { delay_ms: None, reason }).await?;
        let err = reason.map(str::to_owned);
        Ok(Ack { id, ok: true, err, stale: outcome == SettleOutcome::Stale })
    }

    /// Where a group is: the event at its floor. `None` when there is no such group.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn get_cursor(&self, topic: &str, group: &str) -> Result<Option<CursorPosition>, GroupError> {
        self.backend.cursor(topic, group).await
    }

    /// Moves a group behind an event (`last_id`), to a time (`last_ts`), or to the start when neither is given.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn set_cursor(
        &self,
        topic: &str,
        group: &str,
        cursor: &CursorPosition,
    ) -> Result<(), GroupError> {
        if cursor.topic != topic {
            let (topic, other) = (topic.to_owned(), cursor.topic.clone());
            return Err(GroupError::OtherTopic { topic, other });
        }
        let to = match (cursor.last_id, cursor.last_ts) {
            (Some(id), _) => Start::AfterId(id),
            (None, Some(ts)) => Start::Ts(ts),
            (None, None) => Start::Earliest,
        };
        self.seek(topic, group, to).await
    }

    /// Moves a group; all its leases are void. Resolves when that is durable.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn seek(&self, topic: &str, group: &str, to: Start) -> Result<(), GroupError> {
        self.backend.seek(topic, group, to).await
    }

    /// Deletes a group. Resolves when that is durable.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn delete_group(&self, topic: &str, group: &str) -> Result<(), GroupError> {
        self.backend.delete_group(topic, group).await
    }

    /// Reads durable events of a topic from a place on, without a group.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, topic: &Topic, from: Start, limit: PullLimit) -> Result<Page, ReadError> {
        let from = self.backend.locate(topic, from).await?;
        self.read_from(topic, from, limit).await
    }

    /// Reads durable events of a topic from a seq on.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read_from(&self, topic: &Topic, from: u64, limit: PullLimit) -> Result<Page, ReadError> {
        let chunk = self.backend.read(topic, from, limit).await?;
        let batch = Arc::new(chunk.events);
        let events = (0..batch.items().len()).map(|at| Event::new(Arc::clone(&batch), at)).collect();
        Ok(Page { events, next_seq: chunk.next_seq })
    }

    /// All topics, by name.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn topics(&self) -> Result<Vec<TopicInfo>, ReadError> {
        self.backend.topics().await
    }

    /// All groups, the oldest first: lag, what is in flight, the oldest unacked event, every lease.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn groups(&self) -> Result<Vec<GroupInfo>, ReadError> {
        self.backend.groups().await
    }

    /// The newest event of each of these keys of a topic, as far as they are there and not deleted.
    ///
    /// # Errors
    /// See [`ReadError`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bus = prombus::Bus::memory();
    /// for mood in ["calm", "merry"] {
    ///     bus.publish("mood", mood).key("ada").await?;
    /// }
    /// let moods = bus.latest_by_key("mood", ["ada", "nobody"]).await?;
    /// assert_eq!((moods.len(), moods["ada"].payload()), (1, "\"merry\""));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn latest_by_key<K: Into<String>>(
        &self,
        topic: &str,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<HashMap<String, Event>, ReadError> {
        let topic = topic_of(topic)?;
        let keys = Keys::These(keys.into_iter().map(Into::into).collect());
        let mut query = LatestQuery { keys, ..LatestQuery::default() };
        let mut latest = HashMap::new();
        loop {
            let page = self.backend.latest(&topic, query.clone()).await?;
            let events = Arc::new(page.events);
            for at in 0..events.items().len() {
                let event = Event::new(Arc::clone(&events), at);
                latest.extend(event.key().map(|key| (key.to_owned(), event.clone())));
            }
            match page.next_after {
                Some(next) => query.after_seq = next,
                None => return Ok(latest),
            }
        }
    }

    /// The newest event of every key of a topic that is not deleted, with the position that this is true for. A topic that is
    /// not there has no keys.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn load_state(&self, topic: &str) -> Result<State, ReadError> {
        State::load(&*self.backend, &topic_of(topic)?).await
    }

    /// Loads the state of a topic and follows it from there: no gap, no event twice.
    ///
    /// # Errors
    /// See [`ReadError`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bus = prombus::Bus::memory();
    /// bus.publish("mood", "calm").key("ada").await?;
    /// let mut moods = bus.follow_state("mood").await?;
    /// assert_eq!(moods.state().get("ada").map(|event| event.seq()), Some(1));
    /// bus.publish("mood", "merry").key("ada").await?;
    /// moods.next().await?;
    /// assert_eq!(moods.state().get("ada").map(|event| event.seq()), Some(2));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn follow_state(&self, topic: &str) -> Result<StateFollower, ReadError> {
        StateFollower::load(Arc::clone(&self.backend), topic_of(topic)?).await
    }

    /// What counts for topics of this name.
    pub fn topic_settings(&self, topic: &str) -> TopicSettings {
        self.backend.topic_settings(topic)
    }

    /// Sets something about one topic, above the rules of the builder, in place of what was set before. It is kept with the
    /// events. A topic that does not exist is made; the answer is whether it was.
    ///
    /// # Errors
    /// See [`TopicAdminError`].
    pub async fn set_topic(&self, topic: &Topic, options: TopicOptions) -> Result<bool, TopicAdminError> {
        self.backend.set_topic(topic, options).await
    }

    /// Deletes a topic, its events, and the groups that read nothing else.
    ///
    /// # Errors
    /// See [`TopicAdminError`].
    pub async fn delete_topic(&self, topic: &Topic) -> Result<(), TopicAdminError> {
        self.backend.delete_topic(topic).await
    }

    /// Copies everything that is durable now to a new folder, while the bus goes on. The copy opens like any other.
    ///
    /// # Errors
    /// See [`BackupError`].
    pub async fn backup(&self, folder: impl Into<PathBuf>) -> Result<(), BackupError> {
        self.backend.backup(folder.into(), Box::new(|_, _| {})).await
    }

    /// Closes the bus: members leave, everything that was answered or acked becomes durable, the files are closed. Streams end.
    ///
    /// # Errors
    /// [`Unavailable`] when writing had stopped before.
    pub async fn close(&self) -> Result<(), Unavailable> {
        self.backend.close().await
    }
}

fn topic_of(name: &str) -> Result<Topic, ReadError> {
    Topic::new(name).map_err(|_| ReadError::UnknownTopic(name.to_owned()))
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Bus")
    }
}

/// An event to publish; await it.
#[must_use = "an event is published when this is awaited"]
pub struct Publish {
    backend: Arc<dyn Backend>,
    payload: Result<(Topic, Vec<u8>), PublishError>,
    options: PublishOptions,
}

impl Publish {
    /// All options at once.
    pub fn options(mut self, options: PublishOptions) -> Self {
        self.options = options;
        self
    }

    /// The event's id. A second publish with the same id to the same topic adds nothing.
    pub fn id(mut self, id: Uuid) -> Self {
        self.options.id = Some(id);
        self
    }

    /// When it happened, in milliseconds since 1970. Default: now.
    pub fn ts(mut self, ts: i64) -> Self {
        self.options.ts = Some(ts);
        self
    }

    /// What it is about, for compaction and latest by key.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.options.key = Some(key.into());
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.headers.insert(name.into(), value.into());
        self
    }

    /// Adds a tag.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.options.tags.push(tag.into());
        self
    }

    /// Adds an event that caused it.
    pub fn caused_by(mut self, id: Uuid) -> Self {
        self.options.caused_by.push(id);
        self
    }

    /// The session or boot that it comes from.
    pub fn sid(mut self, sid: Uuid) -> Self {
        self.options.sid = Some(sid);
        self
    }

    /// Puts it in line now, without waiting.
    pub fn send(self) -> PublishOne {
        let mut batch = self.backend.batch();
        let pushed = self.payload.and_then(|(topic, json)| batch.push_json(topic, &json, &self.options));
        PublishOne(match pushed {
            Ok(()) => self.backend.publish(batch),
            Err(error) => Publishing::done(Err(error)),
        })
    }
}

impl IntoFuture for Publish {
    type Output = Result<Published, PublishError>;
    type IntoFuture = PublishOne;

    fn into_future(self) -> PublishOne {
        self.send()
    }
}

/// One event on its way; resolves when it is durable.
#[must_use = "awaiting it waits until the event is durable"]
#[derive(Debug)]
pub struct PublishOne(Publishing);

impl Future for PublishOne {
    type Output = Result<Published, PublishError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|published| {
            let one = published?.into_iter().next();
            one.ok_or_else(|| PublishError::Store("the store lost count of events".to_owned()))
        })
    }
}

/// What a memory bus takes at most.
const MEMORY_BYTES: u64 = 4 << 30;

const MEMORY_BYTES_MIN: u64 = 64 * 1024;

/// Everything about a bus that can be set.
#[derive(Clone)]
#[must_use = "a builder builds with open or memory"]
pub struct BusBuilder {
    limits: Limits,
    clock: Option<Arc<dyn Clock>>,
    log: LogStoreOptions,
    memory_bytes: u64,
    topic_rules: Vec<TopicRule>,
}

impl Default for BusBuilder {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            clock: None,
            log: LogStoreOptions::default(),
            memory_bytes: MEMORY_BYTES,
            topic_rules: Vec::new(),
        }
    }
}

impl BusBuilder {
    /// Bounds: payload size, number of topics and groups.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The largest payload of an event, in bytes of JSON. Default: 1 MiB.
    pub fn max_payload_bytes(mut self, bytes: usize) -> Self {
        self.limits.max_payload_bytes = bytes;
        self
    }

    /// The most topics. Default: 100,000.
    pub fn max_topics(mut self, topics: usize) -> Self {
        self.limits.max_topics = topics;
        self
    }

    /// The most groups. Default: 100,000.
    pub fn max_groups(mut self, groups: usize) -> Self {
        self.limits.max_groups = groups;
        self
    }

    /// Deletes a group that has no members for this long. Default: never.
    pub fn group_expire_ms(mut self, after_ms: u64) -> Self {
        self.limits.group_expire_ms = Some(after_ms);
        self
    }

    /// What counts for a topic, or all topics that a pattern covers. The first rule that fits a topic counts.
    ///
    /// ```
    /// use prombus::{Bus, TopicOptions, TopicRule};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let three_days = TopicOptions { retention_days: Some(3.0), ..TopicOptions::default() };
    /// let newest = TopicOptions { compaction: Some(true), ..TopicOptions::default() };
    /// let bus = Bus::builder()
    ///     .topic(TopicRule::new("heartbeat.received", three_days)?)
    ///     .topic(TopicRule::new("process.*", newest)?)
    ///     .memory()?;
    /// assert!(bus.topic_settings("process.state").compaction);
    /// # Ok(())
    /// # }
    /// ```
    pub fn topic(mut self, rule: TopicRule) -> Self {
        self.topic_rules.push(rule);
        self
    }

    /// Rules for topics, in place of those before.
    pub fn topics(mut self, rules: Vec<TopicRule>) -> Self {
        self.topic_rules = rules;
        self
    }

    /// What the newest events by key may take in memory. Default: 512 MiB.
    pub fn state_memory_bytes(mut self, bytes: usize) -> Self {
        self.limits.state_memory_bytes = bytes;
        self
    }

    /// Sizes and bounds of the log.
    pub fn log(mut self, options: LogStoreOptions) -> Self {
        self.log = options;
        self
    }

    /// What a bus in memory takes at most before it refuses events as a full disk does. Default: 4 GiB.
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Where the time comes from, for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Opens the bus in a folder, or makes one there.
    ///
    /// # Errors
    /// See [`OpenError`]; the folder is left as it was.
    pub async fn open(self, folder: impl AsRef<Path>) -> Result<Bus, OpenError> {
        self.limits.check()?;
        let folder: PathBuf = folder.as_ref().to_owned();
        let opened = tokio::task::spawn_blocking(move || self.open_blocking(&folder)).await;
        opened.unwrap_or_else(|error| Err(OpenError::Groups(format!("opening panicked: {error}"))))
    }

    /// Opens the bus in a folder, without a runtime; waits for the disk.
    ///
    /// # Errors
    /// See [`OpenError`]; the folder is left as it was.
    pub fn open_blocking(self, folder: &Path) -> Result<Bus, OpenError> {
        self.limits.check()?;
        let clock = self.clock_or_system();
        let store = LogStore::open(folder, self.log.clone(), Arc::clone(&clock))?;
        self.over(Arc::new(store), clock)
    }

    /// Makes a bus in memory.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn memory(self) -> Result<Bus, OpenError> {
        self.limits.check()?;
        if self.memory_bytes < MEMORY_BYTES_MIN {
            let (name, value) = ("memory_bytes", self.memory_bytes.to_string());
            return Err(OpenError::BadSetting { name, value, allowed: "65536 and more are allowed" });
        }
        let clock = self.clock_or_system();
        let store = MemoryStore::new(self.memory_bytes, Arc::clone(&clock));
        self.over(Arc::new(store), clock)
    }

    /// Makes a bus over any store.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn over_store(self, store: Arc<dyn Store>) -> Result<Bus, OpenError> {
        self.limits.check()?;
        let clock = self.clock_or_system();
        self.over(store, clock)
    }

    fn clock_or_system(&self) -> Arc<dyn Clock> {
        self.clock.clone().unwrap_or_else(|| Arc::new(SystemClock::default()))
    }

    fn over(self, store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Result<Bus, OpenError> {
        let backend = LocalBackend::open(store, clock, self.limits)?;
        backend.set_topic_rules(self.topic_rules);
        Ok(Bus { backend: Arc::new(backend) })
    }
}

impl std::fmt::Debug for BusBuilder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "BusBuilder({:?})", self.limits)
    }
}
