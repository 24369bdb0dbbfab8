//! The interface that the bus and the server use for topics and groups. A *group* delivers the events of topics to its members:
//! it leases each event to one member, until that member settles it (acks it or gives it up) or the lease expires. The group's
//! *floor* is the seq up to which all events are settled.
//!
//! [`LocalBackend`](crate::LocalBackend) implements it for every [`Engine`](crate::engine::Engine): the engine stores events, and
//! this process decides which member gets which event. A system that manages groups and leases itself would implement [`Backend`]
//! directly.
//!
//! Publishes, pulls and settlements are batches, even for a single event. The files in `backend/` contain the types of the
//! interface and depend neither on [`Backend`] nor on [`Membership`].

mod dead_letter_states;
mod durable_ticket;
mod event_chunk;
mod event_view;
mod group_spec;
mod latest;
mod problem;
mod seek_preview;
mod topic_details;
mod verdict;

pub use crate::batch::{DeliveryBatch, DeliveryItem, EventBatch, PullLimit};
pub use crate::box_future::BoxFuture;
pub(crate) use crate::event_id::{event_id_of, uuid_of};
pub use dead_letter_states::{ClosedCount, DeadLetterStates};
pub use durable_ticket::{Durability, DurableTicket};
pub use event_chunk::EventChunk;
pub use event_view::{EventFilter, EventView};
pub use group_spec::{GroupSpec, MemberOptions};
pub use latest::{EventPosition, Keys, LatestPage, LatestQuery};
pub use problem::{Problem, UnreadableRange};
pub use seek_preview::SeekPreview;
pub use topic_details::TopicDetails;
pub use verdict::{SettleOutcome, Verdict};

use crate::delivery::{Millis, Position};
use crate::engine::LetterClosing;
use crate::error::{BackupError, GroupError, ReadError, StoreError, TopicAdminError, Unavailable};
use crate::info::{GroupInfo, TopicInfo};
use crate::merged::{BusPosition, MergedQuery, MergedReader};
use crate::metrics::{Figures, GroupAge};
use crate::publish::PublishBatch;
use crate::publishing::Publishing;
use crate::settings::{PublishRate, TopicOptions, TopicRule, TopicSettings};
use prombus_protocol::{CursorPosition, Pattern, Start, Topic, Uuid};
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A member that has joined.
pub struct Joined {
    /// The member.
    pub membership: Arc<dyn Membership>,
    /// Whether the join created the group.
    pub created: bool,
}

/// One member of a group. A member that is dropped without [`leave`](Self::leave) counts as lost.
pub trait Membership: Send + Sync + 'static {
    /// Leases events to this member: waits until at least one is available, then puts as many as are available within the limits
    /// into `into`. Empties `into` first, even if the result is pending. If the caller stops polling, no event is lost. Only one
    /// task may pull for a member at a time.
    fn poll_pull(
        &self,
        limit: PullLimit,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), GroupError>>;

    /// Reports that the caller of [`poll_pull`](Self::poll_pull) stops waiting for now. Events that are still being read for it
    /// may then go to other members.
    fn stop_waiting(&self) {}

    /// Applies verdicts (acks, nacks, extensions) immediately, and appends the outcome of each to `outcomes`. The ticket resolves
    /// when they are durable.
    fn settle(
        &self,
        verdicts: &[(Position, Verdict<'_>)],
        outcomes: &mut Vec<SettleOutcome>,
    ) -> DurableTicket;

    /// Counts, for metrics, an ack or nack of an event that is not leased to this member. Usually the client has reconnected, and
    /// the event was leased to the member of its previous connection.
    fn count_stale(&self);

    /// The current time of the steady clock.
    fn now_ms(&self) -> Millis;

    /// Whether this member still holds the lease of a delivery that was pulled and not handed out yet.
    fn is_live(&self, item: &DeliveryItem, batch: &DeliveryBatch) -> bool;

    /// The event at the group's floor; `None` if the group's state cannot be read.
    fn cursor(&self) -> BoxFuture<'_, Option<CursorPosition>>;

    /// Stops or restarts deliveries to this member. While it is paused, the leases that it holds still expire.
    fn pause(&self, is_paused: bool);

    /// Reports whether this process has stopped reading from the member's connection. While it has, the member's leases do not
    /// expire.
    fn hold(&self, is_held: bool);

    /// Makes this member the only one of its group: all others are removed and get [`GroupError::TakenOver`], all leases become
    /// void, and every event above the floor is delivered again, in order. Resolves when that is durable.
    fn take_over(&self) -> BoxFuture<'_, Result<(), GroupError>>;

    /// Leaves the group: unsettled events go to other members at once, and the attempt does not count.
    fn leave(&self) -> DurableTicket;

    /// Removes the member as lost: unsettled events go to other members at once, and the attempt counts.
    fn lose(&self);
}

/// Receives the progress of a backup: bytes copied and bytes in total.
pub type BackupProgress = Box<dyn FnMut(u64, u64) + Send>;

/// The capabilities of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Acknowledged writes survive a restart.
    pub is_durable: bool,
    /// [`Backend::backup`] works.
    pub can_backup: bool,
}

/// How often a backend that cannot notify callers checks whether a group is idle.
const IDLE_POLL: Duration = Duration::from_millis(10);

fn unknown_group(subscription: Option<&str>, group: &str) -> GroupError {
    let group = group.to_owned();
    match subscription {
        Some(topic) => GroupError::UnknownGroup { topic: topic.to_owned(), group },
        None => GroupError::NoSuchGroup { group },
    }
}

/// The interface that the bus and the gateway use.
pub trait Backend: Send + Sync + 'static {
    /// The capabilities of this backend.
    fn capabilities(&self) -> Capabilities;

    /// An empty batch to publish, with this backend's limits and time.
    fn batch(&self) -> PublishBatch;

    /// Returns an error if the backend cannot write.
    ///
    /// # Errors
    /// [`Unavailable`] says why not.
    fn health(&self) -> Result<(), Unavailable>;

    /// Whether the disk is full, so that publishes, or even the records of acks, are refused. The cost is two atomic loads.
    fn is_storage_full(&self) -> bool {
        false
    }

    /// Current problems that do not stop the bus. The call is cheap.
    fn problems(&self) -> Vec<Problem> {
        Vec::new()
    }

    /// The events that could not be read when a reader needed them, and that are still unreadable.
    fn unreadable(&self) -> BoxFuture<'_, Result<Vec<UnreadableRange>, ReadError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Marks the unreadable events as damaged, so that readers and groups skip them. Resolves with their ranges when that is
    /// durable.
    fn accept_losses(&self) -> BoxFuture<'_, Result<Vec<UnreadableRange>, ReadError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The topic of this name, if it exists.
    fn topic(&self, name: &str) -> Option<Topic>;

    /// Publishes a batch: either all of its events or none. Batches are stored in the order of the calls. Resolves when the batch
    /// is durable, with one outcome per event.
    fn publish(&self, batch: PublishBatch) -> Publishing;

    /// The seq of the first event that a group with this start position would receive.
    fn locate<'a>(&'a self, topic: &'a Topic, start: Start) -> BoxFuture<'a, Result<u64, ReadError>>;

    /// Reads durable events of a topic.
    fn read<'a>(
        &'a self,
        topic: &'a Topic,
        from: u64,
        limit: PullLimit,
    ) -> BoxFuture<'a, Result<EventChunk, ReadError>>;

    /// Opens a reader that returns the events of all topics of a pattern as one sequence, in the order of commit time
    /// ([`MergedReader`]). The position at which it starts, and the end if it does not follow new events, are fixed when the
    /// future resolves.
    ///
    /// # Errors
    /// [`ReadError`] if the bus is closed, or if the position in the query is later than all events.
    fn merged(&self, query: MergedQuery) -> BoxFuture<'_, Result<Box<dyn MergedReader>, ReadError>>;

    /// Converts a start position to a position in the sequence that [`merged`](Self::merged) reads. This may read many events.
    fn place_of<'a>(
        &'a self,
        pattern: &'a Pattern,
        start: Start,
    ) -> BoxFuture<'a, Result<BusPosition, ReadError>>;

    /// The position just before a seq of a topic, in the sequence that [`merged`](Self::merged) reads. The topic need not exist
    /// yet.
    fn place_before(&self, topic: &Topic, next_seq: u64) -> BusPosition;

    /// The first seq of a topic that comes after a position of that sequence.
    fn first_after<'a>(
        &'a self,
        topic: &'a Topic,
        place: BusPosition,
    ) -> BoxFuture<'a, Result<u64, ReadError>>;

    /// Reads the newest event of each key of a topic.
    fn latest<'a>(
        &'a self,
        topic: &'a Topic,
        query: LatestQuery,
    ) -> BoxFuture<'a, Result<LatestPage, ReadError>>;

    /// Resolves when a topic has a durable event with this seq or a higher one. The topic need not exist yet.
    fn arrival<'a>(&'a self, topic: &'a Topic, from: u64) -> BoxFuture<'a, Result<(), ReadError>>;

    /// Like [`arrival`](Self::arrival), for a reader of the topic with this number ([`EventChunk::topic_number`]): also resolves
    /// when that topic is deleted, because a topic that is created again under the same name starts at seq 1.
    fn arrival_or_deletion<'a>(
        &'a self,
        topic: &'a Topic,
        _topic_number: u32,
        from: u64,
    ) -> BoxFuture<'a, Result<(), ReadError>> {
        self.arrival(topic, from)
    }

    /// Joins a group, which is created if it does not exist. Resolves when that is durable.
    fn join(&self, group: GroupSpec, member: MemberOptions) -> BoxFuture<'_, Result<Joined, GroupError>>;

    /// Applies a verdict to an event that is identified by its id, as if the member that last held its lease had sent the
    /// verdict.
    fn settle<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        id: Uuid,
        verdict: Verdict<'a>,
    ) -> BoxFuture<'a, Result<SettleOutcome, GroupError>>;

    /// The event at the floor of a group; `None` when the group does not exist.
    fn cursor<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<CursorPosition>, GroupError>>;

    /// Moves a group to a position and voids all its leases. Resolves when that is durable.
    fn seek<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        to: Start,
    ) -> BoxFuture<'a, Result<(), GroupError>>;

    /// Resolves when a group is idle: every durable event of its topics is settled, and none is leased or waits for redelivery.
    /// Without a subscription, resolves when all groups of this name are idle at the same time. The default implementation asks
    /// for the groups every 10 ms.
    fn wait_idle<'a>(
        &'a self,
        subscription: Option<&'a str>,
        group: &'a str,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        Box::pin(async move {
            loop {
                let mut groups = self.groups().await?;
                groups.retain(|info| info.group == group && subscription.is_none_or(|it| it == info.topic));
                if groups.is_empty() {
                    return Err(unknown_group(subscription, group));
                }
                if groups.iter().all(|info| info.lag == 0 && info.in_flight == 0 && info.waiting == 0) {
                    return Ok(());
                }
                tokio::time::sleep(IDLE_POLL).await;
            }
        })
    }

    /// What a [`seek`](Self::seek) would do now. Changes nothing.
    fn preview_seek<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        to: Start,
    ) -> BoxFuture<'a, Result<SeekPreview, GroupError>>;

    /// Pauses or resumes a whole group. While it is paused, its members get no events; they stay in the group, and their leases
    /// keep running and can be settled. Resolves when that is durable.
    fn pause_group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        is_paused: bool,
    ) -> BoxFuture<'a, Result<(), GroupError>>;

    /// Deletes a group; its members get an error. Resolves when that is durable.
    fn delete_group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<(), GroupError>>;

    /// The names of topics that begin with `prefix` and sort after `after`: at most `limit` of them, in order.
    fn topic_names(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<Topic>;

    /// The details of these topics, in the given order. Topics that do not exist are left out.
    fn topics_by_name(&self, names: Vec<Topic>) -> BoxFuture<'_, Result<Vec<TopicDetails>, ReadError>>;

    /// The subscriptions and names of groups whose subscription begins with `prefix` and that sort after `after`: at most `limit`
    /// of them, in order.
    fn group_names(&self, prefix: &str, after: Option<(&str, &str)>, limit: usize) -> Vec<(String, String)>;

    /// Describes these groups, in the given order and without their leases. Groups that do not exist are left out.
    fn groups_by_name(
        &self,
        names: Vec<(String, String)>,
    ) -> BoxFuture<'_, Result<Vec<GroupInfo>, ReadError>>;

    /// All topics.
    fn topics(&self) -> BoxFuture<'_, Result<Vec<TopicInfo>, ReadError>>;

    /// The details of one topic; `None` when the topic does not exist.
    fn topic_details<'a>(
        &'a self,
        topic: &'a Topic,
    ) -> BoxFuture<'a, Result<Option<TopicDetails>, ReadError>>;

    /// The settings that apply to a topic of this name, whether or not it exists.
    fn topic_settings(&self, name: &str) -> TopicSettings;

    /// Replaces the rules for topics. They apply at once.
    fn set_topic_rules(&self, rules: Vec<TopicRule>);

    /// A number that rises whenever rules or settings of topics change.
    fn settings_version(&self) -> u64;

    /// The limits on publish rates. The first entry whose pattern matches a topic applies to it; `None` means no limit.
    fn publish_rates(&self) -> Vec<(Pattern, Option<PublishRate>)>;

    /// Replaces the topic's own settings, which override the rules, and creates the topic if it does not exist. Resolves when
    /// that is durable; the result says whether the topic was created.
    fn set_topic<'a>(
        &'a self,
        topic: &'a Topic,
        options: TopicOptions,
    ) -> BoxFuture<'a, Result<bool, TopicAdminError>>;

    /// Deletes a topic, its events, its settings, and the groups that read only this topic. Resolves when that is durable. A
    /// topic that is created later under the same name is a new topic and starts at seq 1.
    fn delete_topic<'a>(&'a self, topic: &'a Topic) -> BoxFuture<'a, Result<(), TopicAdminError>>;

    /// The states of the letters of a dead-letter topic; `None` if the topic does not exist or is not a dead-letter topic.
    fn dead_letters(&self, _topic: &Topic) -> Option<DeadLetterStates> {
        None
    }

    /// Closes the letters with these ids: they no longer count as open. Letters that are closed already stay as they are.
    /// Resolves when that is durable.
    fn close_dead_letters<'a>(
        &'a self,
        topic: &'a Topic,
        _ids: &'a [Uuid],
        _closing: LetterClosing,
    ) -> BoxFuture<'a, Result<ClosedCount, TopicAdminError>> {
        Box::pin(async move { Err(TopicAdminError::UnknownTopic(topic.to_string())) })
    }

    /// The id for a new dead letter of an event that failed again. `id` is the id of the event's first dead letter; if that letter is
    /// closed, the result is another id, so that the new letter does not count as its duplicate. A repeated call returns the same id until the
    /// new letter is closed too. `topic` is the dead-letter topic.
    fn next_letter_id<'a>(&'a self, _topic: &'a Topic, id: Uuid) -> BoxFuture<'a, Result<Uuid, ReadError>> {
        Box::pin(async move { Ok(id) })
    }

    /// The value that [`keep_first`](Self::keep_first) stored under this name, if any.
    fn kept(&self, name: &str) -> Option<Vec<u8>>;

    /// Stores a small value in the engine under a name, unless the name already has a value. Resolves when the value of the name
    /// is durable, and returns that value.
    fn keep_first<'a>(&'a self, name: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<Vec<u8>, StoreError>>;

    /// Copies everything that is durable at this time to a new folder, while the bus keeps running.
    fn backup(&self, folder: PathBuf, progress: BackupProgress) -> BoxFuture<'_, Result<(), BackupError>>;

    /// All groups, with their leases.
    fn groups(&self) -> BoxFuture<'_, Result<Vec<GroupInfo>, ReadError>>;

    /// One group, with its leases; `None` when the group does not exist.
    fn group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<GroupInfo>, ReadError>>;

    /// Figures for operators, about the store and about each topic and group.
    fn figures(&self) -> Figures;

    /// The age of the oldest unsettled event of each group, in the order of [`Figures::groups`]. Commit times of events are looked
    /// up in the store: a limited number per call, and none for groups whose oldest unsettled event is the same as in the
    /// previous call.
    fn group_ages(&self) -> BoxFuture<'_, Vec<GroupAge>> {
        Box::pin(async { Vec::new() })
    }

    /// The size of the store in bytes, all topics together.
    fn stored_bytes(&self) -> u64;

    /// Resolves when the backend has permanently stopped writing, with the reason: another process leads the store, the engine
    /// failed, or the backend was closed.
    fn stopped(&self) -> BoxFuture<'_, Unavailable> {
        Box::pin(std::future::pending())
    }

    /// Makes everything durable and closes the backend. All members leave their groups.
    fn close(&self) -> BoxFuture<'_, Result<(), Unavailable>>;
}
