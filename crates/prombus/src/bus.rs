//! [`Bus`], the API of the library: publish, subscribe, read, load state, and administer topics and groups.

mod builder;
mod publish_event;

pub use builder::BusBuilder;
pub use publish_event::{Publish, PublishOne};

use crate::backend::{Backend, Keys, LatestQuery, SeekPreview, SettleOutcome, Verdict};
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

/// A handle of an event bus; clones share the bus. The bus closes with [`close`](Self::close), or when all its handles,
/// subscriptions, deliveries and handlers are gone. A handler runs until it is unsubscribed or the bus is closed.
#[derive(Clone)]
pub struct Bus {
    backend: Arc<dyn Backend>,
}

impl Bus {
    /// A bus over any backend.
    pub fn with_backend(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }

    /// The backend, for servers that need more than this API.
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

    /// Publishes an event whose payload is already JSON text. The text is checked and then stored unchanged, except that
    /// whitespace around it is removed and line breaks between its tokens become spaces.
    pub fn publish_json(&self, topic: impl AsRef<str>, json: impl Into<Vec<u8>>) -> Publish {
        let payload = Topic::new(topic).map_err(PublishError::from).map(|topic| (topic, json.into()));
        Publish::new(&self.backend, payload)
    }

    /// An empty batch for [`publish_batch`](Self::publish_batch).
    pub fn batch(&self) -> PublishBatch {
        self.backend.batch()
    }

    /// Publishes events together, all or nothing. When this returns, the batch is queued in the order of calls; the returned
    /// future resolves when the batch is durable. So a publisher can have many batches in flight. See [`Publishing`] for
    /// what happens when the queue is full.
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

    /// Subscribes to a topic or a pattern (`orders.*`, `orders.**`) as a member of a group. The group is created if it does
    /// not exist.
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

    /// Acks an event by its id, for a subscription with `manual_ack`; resolves when the ack is durable. If the result is
    /// `stale`, the ack changed nothing.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn ack(&self, topic: &str, group: &str, id: Uuid) -> Result<Ack, GroupError> {
        let outcome = self.backend.settle(topic, group, id, Verdict::Ack).await?;
        Ok(Ack { id, ok: true, err: None, stale: outcome == SettleOutcome::Stale })
    }

    /// Nacks an event by its id; resolves when the nack is durable. The event is delivered again after a backoff.
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

    /// The cursor of a group: the event at its floor, up to which all events are settled. `None` if the group does not exist.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn get_cursor(&self, topic: &str, group: &str) -> Result<Option<CursorPosition>, GroupError> {
        self.backend.cursor(topic, group).await
    }

    /// Moves a group to just after an event (`last_id`), to the first event at or after a time (`last_ts`), or to the oldest
    /// event if the cursor has neither.
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

    /// Moves a group to another position and voids all its leases. Resolves when the move is durable.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn seek(&self, topic: &str, group: &str, to: Start) -> Result<(), GroupError> {
        self.backend.seek(topic, group, to).await
    }

    /// Resolves when all groups of this name are idle at the same time, whatever they subscribe to: every event that their
    /// topics have is settled (acked, filtered out or a dead letter), including events that were published during the wait, and
    /// no delivery is in flight or waits for redelivery, and all of that is durable. So the effects of their handlers are there,
    /// and dead letters can be read.
    ///
    /// It is meant for tests. A group without members does not become idle while it has unsettled events, so use a time limit:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokio::time::timeout;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bus = prombus::Bus::memory();
    /// let billing = bus.subscribe("orders", "billing").handler(|_, _| async { Ok::<(), String>(()) }).await?;
    /// bus.publish("orders", &7).await?;
    /// timeout(Duration::from_secs(5), bus.wait_idle("billing")).await??;
    /// assert_eq!(bus.group("orders", "billing").await?.map(|group| group.lag), Some(0));
    /// # billing.unsubscribe().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`GroupError::NoSuchGroup`]; [`GroupError::Deleted`] if a group is deleted during the wait; see [`GroupError`].
    pub async fn wait_idle(&self, group: &str) -> Result<(), GroupError> {
        self.backend.wait_idle(None, group).await
    }

    /// Like [`wait_idle`](Self::wait_idle), for the group of one topic or pattern, as it was written in the subscription.
    ///
    /// # Errors
    /// [`GroupError::UnknownGroup`]; [`GroupError::Deleted`] if the group is deleted during the wait; see [`GroupError`].
    pub async fn wait_idle_on(&self, topic: &str, group: &str) -> Result<(), GroupError> {
        self.backend.wait_idle(Some(topic), group).await
    }

    /// What a [`seek`](Self::seek) would do now: how many events would be delivered again, and how many skipped. Changes
    /// nothing.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn preview_seek(&self, topic: &str, group: &str, to: Start) -> Result<SeekPreview, GroupError> {
        self.backend.preview_seek(topic, group, to).await
    }

    /// Pauses a whole group, until [`resume_group`](Self::resume_group), also after a restart. Its members stay in the group
    /// and get no events; their leases keep running and can be settled. Resolves when the pause is durable.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn pause_group(&self, topic: &str, group: &str) -> Result<(), GroupError> {
        self.backend.pause_group(topic, group, true).await
    }

    /// Resumes a paused group. Resolves when that is durable.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn resume_group(&self, topic: &str, group: &str) -> Result<(), GroupError> {
        self.backend.pause_group(topic, group, false).await
    }

    /// Deletes a group. Resolves when the deletion is durable.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn delete_group(&self, topic: &str, group: &str) -> Result<(), GroupError> {
        self.backend.delete_group(topic, group).await
    }

    /// Reads durable events of a topic from a start position, without a group.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, topic: &Topic, from: Start, limit: PullLimit) -> Result<Page, ReadError> {
        let from = self.backend.locate(topic, from).await?;
        self.read_from(topic, from, limit).await
    }

    /// Reads durable events of a topic, beginning at a seq.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read_from(&self, topic: &Topic, from: u64, limit: PullLimit) -> Result<Page, ReadError> {
        let chunk = self.backend.read(topic, from, limit).await?;
        Ok(Page { events: Event::all_read(chunk.events).collect(), next_seq: chunk.next_seq })
    }

    /// All topics, sorted by name.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn topics(&self) -> Result<Vec<TopicInfo>, ReadError> {
        self.backend.topics().await
    }

    /// One group; `None` if it does not exist.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn group(&self, topic: &str, group: &str) -> Result<Option<GroupInfo>, ReadError> {
        self.backend.group(topic, group).await
    }

    /// All groups, the oldest first, with their lag, deliveries in flight, oldest unacked event and leases.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn groups(&self) -> Result<Vec<GroupInfo>, ReadError> {
        self.backend.groups().await
    }

    /// The newest event of each of these keys of a topic. Unknown and deleted keys are left out.
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
    /// let moods = bus.latest_by_key("mood", ["ada", "bob"]).await?;
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

    /// Loads the state of a topic: the newest event of every key that is not deleted, and the position in the topic up to
    /// which events are included. A topic that does not exist has no keys.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn load_state(&self, topic: &str) -> Result<State, ReadError> {
        State::load(&*self.backend, &topic_of(topic)?).await
    }

    /// Loads the state of a topic, then follows the topic from the position of that state: no event is missed, none is seen
    /// twice.
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

    /// The settings that apply to topics of this name.
    pub fn topic_settings(&self, topic: &str) -> TopicSettings {
        self.backend.topic_settings(topic)
    }

    /// Sets the options of one topic, which take precedence over the builder's rules. They replace the options set before,
    /// and are stored with the events. Creates the topic if it does not exist. Returns whether the topic was created.
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

    /// Copies everything that is durable now to a new folder, while the bus keeps running. The copy can be opened like any
    /// other folder.
    ///
    /// # Errors
    /// See [`BackupError`].
    pub async fn backup(&self, folder: impl Into<PathBuf>) -> Result<(), BackupError> {
        self.backend.backup(folder.into(), Box::new(|_, _| {})).await
    }

    /// Resolves when the bus permanently stops writing, with the reason: another process leads the store, the engine failed, or
    /// the bus was closed.
    pub async fn stopped(&self) -> Unavailable {
        self.backend.stopped().await
    }

    /// Closes the bus: members leave, all accepted publishes and acks become durable, the files are closed. Streams end.
    ///
    /// # Errors
    /// [`Unavailable`] if writing had stopped before the close.
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
