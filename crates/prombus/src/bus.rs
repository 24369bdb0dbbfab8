//! The bus: what a program embeds.

mod builder;
mod publish_event;

pub use builder::BusBuilder;
pub use publish_event::{Publish, PublishOne};

use crate::backend::{Backend, Keys, LatestQuery, SettleOutcome, Verdict};
use crate::batch::PullLimit;
use crate::error::{BackupError, GroupError, PublishError, ReadError, TopicAdminError, Unavailable};
use crate::event::{Event, Page};
use crate::info::{GroupInfo, TopicInfo};
use crate::publish::PublishBatch;
use crate::publishing::Publishing;
use crate::settings::{TopicOptions, TopicSettings};
use crate::state::{State, StateFollower};
use crate::subscribe::Subscribe;
use prombus_protocol::{Ack, CursorPosition, Start, Topic, TopicFor, Uuid};
use serde::Serialize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// An event bus. A handle: clones share the bus. It closes with [`close`](Self::close), or when the last handle, the last
/// subscription and the last handler are gone; a handler goes on until it is unsubscribed or the bus is closed.
#[derive(Clone)]
pub struct Bus {
    backend: Arc<dyn Backend>,
}

impl Bus {
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
        Publish::new(&self.backend, payload)
    }

    /// Publishes an event whose payload is JSON text already. It is checked once and kept as it is.
    pub fn publish_json(&self, topic: impl AsRef<str>, json: impl Into<Vec<u8>>) -> Publish {
        let payload = Topic::new(topic).map_err(PublishError::from).map(|topic| (topic, json.into()));
        Publish::new(&self.backend, payload)
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
        Ok(Page { events: Event::all_read(chunk.events).collect(), next_seq: chunk.next_seq })
    }

    /// All topics, by name.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn topics(&self) -> Result<Vec<TopicInfo>, ReadError> {
        self.backend.topics().await
    }

    /// One group, if it exists.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn group(&self, topic: &str, group: &str) -> Result<Option<GroupInfo>, ReadError> {
        self.backend.group(topic, group).await
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
            for event in Event::all_read(page.events) {
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

    /// Resolves when the bus will write nothing any more, with the reason: another process leads the store, the engine failed,
    /// or the bus was closed.
    pub async fn stopped(&self) -> Unavailable {
        self.backend.stopped().await
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
