//! What the bus and the gateway use. Memory, log and any other [`Store`](crate::store::Store) come with
//! [`LocalBackend`](crate::LocalBackend), which runs the group machine in this process; a system with leases of its own
//! implements [`Backend`] itself.
//!
//! Nothing here is per message: publishes, pulls and settlements are batches, and one that holds one event is still one.

use crate::delivery::{MemberSettings, Millis, Position};
use crate::error::{BackupError, GroupError, ReadError, StoreError, TopicAdminError, Unavailable};
use crate::info::{GroupInfo, TopicInfo};
use crate::merged::{BusPosition, MergedQuery, MergedReader};
use crate::metrics::Figures;
use crate::publish::{PublishBatch, Publishing};
use crate::settings::{PublishRate, TopicOptions, TopicRule, TopicSettings};
use crate::store::{EventId, StoredEvent};
use prombus_protocol::{
    Body, CursorPosition, Filter, GroupName, Pattern, RedeliveryReason, Start, Topic, Uuid,
};
use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A future that can be kept and sent.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A group as a subscription asks for it.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    /// The subscription as written: a topic or a pattern. With `group` it names the group.
    pub subscription: Pattern,
    /// The group's name.
    pub group: GroupName,
    /// More topics and patterns.
    pub topics: Vec<Pattern>,
    /// What all members want of the topics.
    pub filter: Option<Filter>,
    /// Where a new group starts.
    pub from: Start,
    /// A group that this creates is deleted after this many milliseconds without members. For an existing group it has no
    /// effect.
    pub expire_ms: Option<u64>,
}

/// Looks at an event before it is delivered: false settles it.
pub type EventFilter = Arc<dyn Fn(&EventView<'_>) -> bool + Send + Sync>;

/// A member as it joins.
#[derive(Clone, Default)]
pub struct MemberOptions {
    /// Window, lease, attempts.
    pub settings: MemberSettings,
    /// This member's own filter.
    pub filter: Option<EventFilter>,
    /// What to call it in lists, metrics and logs.
    pub name: Option<String>,
    /// Where it is, if it is outside of this process.
    pub label: Option<String>,
}

/// A member that has joined.
pub struct Joined {
    /// The member.
    pub membership: Arc<dyn Membership>,
    /// Whether the group was made by this.
    pub created: bool,
}

/// An event in the store, not copied yet.
#[derive(Clone, Copy, Debug)]
pub struct EventView<'a> {
    pub(crate) topic: &'a Topic,
    pub(crate) event: &'a StoredEvent<'a>,
}

impl<'a> EventView<'a> {
    /// Its topic.
    pub fn topic(&self) -> &'a Topic {
        self.topic
    }

    /// Its id.
    pub fn id(&self) -> Uuid {
        uuid_of(self.event.id)
    }

    /// Its place in its topic.
    pub fn seq(&self) -> u64 {
        self.event.seq
    }

    /// The publisher's time.
    pub fn ts(&self) -> i64 {
        self.event.ts
    }

    /// Its key.
    pub fn key(&self) -> Option<&'a str> {
        self.event.key.and_then(|key| std::str::from_utf8(key).ok())
    }

    /// The rest: headers, tags, payload.
    pub fn body(&self) -> Body<'a> {
        Body::new(self.event.body)
    }
}

pub(crate) fn uuid_of(id: EventId) -> Uuid {
    Uuid::from_u128(id.as_u128())
}

pub(crate) fn event_id_of(id: Uuid) -> EventId {
    EventId::from_u128(id.as_u128())
}

/// How much a pull takes at most; a member's own window and batch size are a limit too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullLimit {
    /// The most deliveries.
    pub events: u32,
    /// The most bytes of events; one event comes whatever its size.
    pub bytes: usize,
}

impl Default for PullLimit {
    fn default() -> Self {
        Self { events: u32::MAX, bytes: 1 << 20 }
    }
}

/// One delivery of a [`DeliveryBatch`].
#[derive(Clone, Copy, Debug)]
pub struct DeliveryItem {
    /// What to settle it by.
    pub position: Position,
    /// The event's id.
    pub id: EventId,
    /// The publisher's time.
    pub ts: i64,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Why it is delivered again.
    pub reason: Option<RedeliveryReason>,
    /// How long the lease runs from the pull on.
    pub lease_ms: Millis,
    deadline: Millis,
    topic: u32,
    start: usize,
    key_length: Option<u16>,
    end: usize,
}

/// Deliveries that were pulled together, their events' bytes in one piece. Reuse one for many pulls: it keeps its memory.
#[derive(Clone, Debug, Default)]
pub struct DeliveryBatch {
    bytes: Vec<u8>,
    items: Vec<DeliveryItem>,
    topics: Vec<Topic>,
    /// What the attempts before said, of the events that have it.
    last_errors: HashMap<Position, Arc<str>>,
    /// Leases of other epochs than the group's are void.
    epoch: u64,
}

impl DeliveryItem {
    /// When the lease ends, by the backend's own clock, if nobody extends it.
    pub(crate) fn deadline(&self) -> Millis {
        self.deadline
    }
}

impl DeliveryBatch {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The deliveries, in order.
    pub fn items(&self) -> &[DeliveryItem] {
        &self.items
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The topic of an event.
    pub fn topic(&self, item: &DeliveryItem) -> &Topic {
        &self.topics[item.topic as usize]
    }

    /// The key of an event.
    pub fn key(&self, item: &DeliveryItem) -> Option<&str> {
        let length = usize::from(item.key_length?);
        std::str::from_utf8(&self.bytes[item.start..item.start + length]).ok()
    }

    /// An event as it is kept: its JSON without id and seq.
    pub fn body(&self, item: &DeliveryItem) -> &[u8] {
        &self.bytes[item.start + usize::from(item.key_length.unwrap_or(0))..item.end]
    }

    /// Whether the attempt before of any of its events said something.
    pub fn has_last_errors(&self) -> bool {
        !self.last_errors.is_empty()
    }

    /// The reason of the nack of the attempt before, if it is known.
    pub fn last_error(&self, item: &DeliveryItem) -> Option<&str> {
        self.last_errors.get(&item.position).map(|error| &**error)
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
        self.topics.clear();
        if !self.last_errors.is_empty() {
            self.last_errors.clear();
        }
    }

    pub(crate) fn byte_count(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn push(&mut self, topic: &Topic, position: Position, event: &StoredEvent<'_>) {
        if self.topics.last() != Some(topic) {
            self.topics.push(topic.clone());
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(event.key.unwrap_or(&[]));
        self.bytes.extend_from_slice(event.body);
        self.items.push(DeliveryItem {
            position,
            id: event.id,
            ts: event.ts,
            attempt: 1,
            reason: None,
            lease_ms: 0,
            deadline: 0,
            topic: self.topics.len() as u32 - 1,
            start,
            key_length: event.key.map(|key| key.len() as u16),
            end: self.bytes.len(),
        });
    }

    /// Says about the items how they were leased, and drops those that were not. `leases` is in the same order.
    pub(crate) fn lease(
        &mut self,
        leases: &[crate::delivery::Leased],
        last_errors: Vec<(Position, Arc<str>)>,
        now: Millis,
        epoch: u64,
    ) {
        self.epoch = epoch;
        let mut leases = leases.iter().peekable();
        self.last_errors.extend(last_errors);
        self.items.retain_mut(|item| {
            let Some(lease) = leases.next_if(|lease| lease.position == item.position) else { return false };
            item.attempt = lease.attempt;
            item.reason = lease.reason;
            item.lease_ms = lease.deadline.saturating_sub(now);
            item.deadline = lease.deadline;
            true
        });
    }
}

/// What a member says about a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Done.
    Ack,
    /// Failed: again after the delay, or after a backoff.
    Nack {
        /// How long to wait at least.
        delay_ms: Option<u64>,
        /// What went wrong.
        reason: Option<&'a str>,
    },
    /// Failed for good: it becomes a dead letter at once.
    GiveUp {
        /// What went wrong.
        reason: Option<&'a str>,
    },
    /// Not looked at: others may have it at once, and the attempt does not count.
    Release,
    /// Not done yet: the lease runs this long from now.
    Extend {
        /// How long; a second at least.
        extend_ms: u64,
    },
}

/// What became of a [`Verdict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleOutcome {
    /// It counted.
    Counted,
    /// Somebody newer has the event, or nobody has it; nothing changed.
    Stale,
    /// The lease now ends so many milliseconds from now.
    Extended(Millis),
}

/// Resolves when what a member said is durable. What it said counts at once, also if this is dropped; then it becomes durable
/// with the next commit, within 10 ms.
#[must_use = "awaiting it waits until this is durable"]
pub struct DurableTicket {
    source: Option<(Arc<dyn Durability>, u64)>,
    failed: Option<Unavailable>,
}

/// Knows what of a group's records is durable.
pub trait Durability: Send + Sync + 'static {
    /// Ready when a generation of records is durable, or never will be. Asking makes it a matter of urgency.
    fn poll_generation(&self, generation: u64, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>>;
}

impl DurableTicket {
    /// A ticket for a generation of a group's records.
    pub fn new(source: Arc<dyn Durability>, generation: u64) -> Self {
        Self { source: Some((source, generation)), failed: None }
    }

    /// A ticket for nothing.
    pub fn done() -> Self {
        Self { source: None, failed: None }
    }

    /// A ticket that will never be good.
    pub fn failed(reason: Unavailable) -> Self {
        Self { source: None, failed: Some(reason) }
    }
}

impl Future for DurableTicket {
    type Output = Result<(), Unavailable>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(reason) = self.failed.take() {
            return Poll::Ready(Err(reason));
        }
        match &self.source {
            None => Poll::Ready(Ok(())),
            Some((source, generation)) => source.poll_generation(*generation, context),
        }
    }
}

impl std::fmt::Debug for DurableTicket {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "DurableTicket({:?})", self.source.as_ref().map(|(_, generation)| generation))
    }
}

/// One member of a group. Dropped without [`leave`](Self::leave) it counts as lost.
pub trait Membership: Send + Sync + 'static {
    /// Waits for at least one lease and takes as many as there are within the limits. Nothing is lost when the caller stops
    /// waiting. There is one puller at a time.
    fn poll_pull(
        &self,
        limit: PullLimit,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), GroupError>>;

    /// Acks, nacks and extensions: applied at once, one outcome each.
    fn settle(
        &self,
        verdicts: &[(Position, Verdict<'_>)],
        outcomes: &mut Vec<SettleOutcome>,
    ) -> DurableTicket;

    /// Counts an ack or nack of an event that this member does not have: after a reconnect it is usually one of the member
    /// before.
    fn count_stale(&self);

    /// What the steady clock says.
    fn now_ms(&self) -> Millis;

    /// Whether a delivery that was pulled and not handed out yet is still this member's.
    fn is_live(&self, item: &DeliveryItem, batch: &DeliveryBatch) -> bool;

    /// The group's cursor, as far as it can be read.
    fn cursor(&self) -> Option<CursorPosition>;

    /// Stops or starts deliveries to this member; its leases go on running.
    fn pause(&self, is_paused: bool);

    /// Says that this process reads (or not) what the member sends. While it does not, leases do not run out.
    fn hold(&self, is_held: bool);

    /// Makes this the only member: all others are removed and get [`GroupError::TakenOver`], all leases are void, and every
    /// event above the floor is delivered again, in order. Resolves when that is durable.
    fn take_over(&self) -> BoxFuture<'_, Result<(), GroupError>>;

    /// Leaves: what is unsettled goes to others at once, and the attempt does not count.
    fn leave(&self) -> DurableTicket;

    /// Is lost: what is unsettled goes to others at once, and the attempt counts.
    fn lose(&self);
}

/// A part of a topic that was read.
#[derive(Clone, Debug, Default)]
pub struct EventChunk {
    /// The events; attempts and leases mean nothing here.
    pub events: DeliveryBatch,
    /// Where to go on.
    pub next_seq: u64,
}

/// Which keys of a topic are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keys {
    /// All that are not deleted.
    #[default]
    All,
    /// These, as far as they are there.
    These(Vec<String>),
}

/// What is asked about the newest events by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatestQuery {
    /// Which keys.
    pub keys: Keys,
    /// As of this time, by the events' `ts`, from what is kept; else as of now.
    pub at_ts: Option<i64>,
    /// Only events behind this seq, to go on where a page ended.
    pub after_seq: u64,
    /// Only events up to this seq: the position of the first page, to go on with. Keys that have newer events are left out
    /// then: who reads on behind the position gets those.
    pub to_seq: Option<u64>,
    /// Also the deletions of keys that are deleted.
    pub with_deleted: bool,
    /// How much at most.
    pub limit: PullLimit,
}

/// A place in a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPosition {
    /// The id of the event there.
    pub id: Uuid,
    /// Its seq.
    pub seq: u64,
}

/// The newest events of keys, in the order of their seqs.
#[derive(Clone, Debug, Default)]
pub struct LatestPage {
    /// The events; attempts and leases mean nothing here.
    pub events: DeliveryBatch,
    /// What the answer is true for: the newest event that it takes into account. `None` when the topic never had one.
    pub position: Option<EventPosition>,
    /// How many keys the topic has that are not deleted.
    pub key_count: u64,
    /// Behind which seq to go on; `None` when this was all.
    pub next_after: Option<u64>,
}

/// A topic in full.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicDetails {
    /// What lists say of it.
    pub info: TopicInfo,
    /// What counts for it.
    pub settings: TopicSettings,
    /// What was set about it alone, while the bus ran.
    pub own: TopicOptions,
}

/// A problem that does not stop the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The disk is full.
    StorageFull,
    /// Some files cannot be read; readers and groups wait.
    Unreadable(String),
}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::StorageFull => write!(formatter, "storage_full: the disk is full, publishes are refused"),
            Self::Unreadable(error) => write!(formatter, "read_errors: {error}"),
        }
    }
}

/// A range of unreadable events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRange {
    /// The topic.
    pub topic: String,
    /// The first seq.
    pub first_seq: u64,
    /// The last one.
    pub last_seq: u64,
    /// The file they are in.
    pub file: String,
    /// The bytes of the file that cannot be read; none where the whole file cannot be opened.
    pub bytes: Vec<std::ops::Range<u64>>,
    /// When that was noticed first, in milliseconds since 1970.
    pub since_ms: i64,
    /// What the system said.
    pub error: String,
}

/// Hears how a backup goes: bytes done, bytes in all.
pub type BackupProgress = Box<dyn FnMut(u64, u64) + Send>;

/// What a backend can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What was answered survives a restart.
    pub is_durable: bool,
}

/// What Bus and gateway use.
pub trait Backend: Send + Sync + 'static {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// An empty batch to publish, with this backend's limits and time.
    fn batch(&self) -> PublishBatch;

    /// Whether it can still write.
    ///
    /// # Errors
    /// [`Unavailable`] says why not.
    fn health(&self) -> Result<(), Unavailable>;

    /// Whether the disk is full, so that publishes, or even group records, are refused for now. Two atomic loads.
    fn is_storage_full(&self) -> bool {
        false
    }

    /// Current problems that do not stop the bus. Cheap to call.
    fn problems(&self) -> Vec<Problem> {
        Vec::new()
    }

    /// Events that readers have failed to read and that are still unreadable.
    fn unreadable(&self) -> BoxFuture<'_, Result<Vec<UnreadableRange>, ReadError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Marks the unreadable events as damaged. Resolves with them when the mark is durable.
    fn accept_losses(&self) -> BoxFuture<'_, Result<Vec<UnreadableRange>, ReadError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The topic of this name, if there is one: publishing to it makes none.
    fn topic(&self, name: &str) -> Option<Topic>;

    /// Puts a batch in line, all or nothing, in the order of calls. Resolves when it is durable, with one outcome per event.
    fn publish(&self, batch: PublishBatch) -> Publishing;

    /// The seq of the first event that a group which starts there would get.
    fn locate<'a>(&'a self, topic: &'a Topic, start: Start) -> BoxFuture<'a, Result<u64, ReadError>>;

    /// Reads durable events of a topic.
    fn read<'a>(
        &'a self,
        topic: &'a Topic,
        from: u64,
        limit: PullLimit,
    ) -> BoxFuture<'a, Result<EventChunk, ReadError>>;

    /// Reads the topics of a pattern as one sequence, in the order of commit time.
    ///
    /// # Errors
    /// [`ReadError`] when the bus is closed.
    fn merged(&self, query: MergedQuery) -> Result<Box<dyn MergedReader>, ReadError>;

    /// The place in the sequence that a start means. It may read a lot.
    fn place_of<'a>(
        &'a self,
        pattern: &'a Pattern,
        start: Start,
    ) -> BoxFuture<'a, Result<BusPosition, ReadError>>;

    /// The place in the sequence in front of a seq of a topic, also of a topic that is not there yet.
    fn place_before(&self, topic: &Topic, next_seq: u64) -> BusPosition;

    /// The first seq of a topic after a position.
    fn first_after<'a>(
        &'a self,
        topic: &'a Topic,
        place: BusPosition,
    ) -> BoxFuture<'a, Result<u64, ReadError>>;

    /// The newest events of keys.
    fn latest<'a>(
        &'a self,
        topic: &'a Topic,
        query: LatestQuery,
    ) -> BoxFuture<'a, Result<LatestPage, ReadError>>;

    /// Resolves when a topic has a durable event at or past this seq, also a topic that is not there yet.
    fn arrival<'a>(&'a self, topic: &'a Topic, from: u64) -> BoxFuture<'a, Result<(), ReadError>>;

    /// Joins a group, which is made if it is not there; resolves when that is durable.
    fn join(&self, group: GroupSpec, member: MemberOptions) -> BoxFuture<'_, Result<Joined, GroupError>>;

    /// Settles by id, on behalf of whoever had the event last.
    fn settle<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        id: Uuid,
        verdict: Verdict<'a>,
    ) -> BoxFuture<'a, Result<SettleOutcome, GroupError>>;

    /// The event at the floor of a group; `None` when there is no such group.
    fn cursor<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<CursorPosition>, GroupError>>;

    /// Moves a group; all its leases are void. Resolves when that is durable.
    fn seek<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
        to: Start,
    ) -> BoxFuture<'a, Result<(), GroupError>>;

    /// Deletes a group; its members get an error. Resolves when that is durable.
    fn delete_group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<(), GroupError>>;

    /// Names of topics that begin with `prefix`, past `after`, in order and at most `limit`.
    fn topic_names(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<Topic>;

    /// The topics of these names that are there, in full and in their order.
    fn topics_by_name(&self, names: Vec<Topic>) -> BoxFuture<'_, Result<Vec<TopicDetails>, ReadError>>;

    /// Subscriptions and names of groups whose subscription begins with `prefix`, past `after`, in order and at most `limit`.
    fn group_names(&self, prefix: &str, after: Option<(&str, &str)>, limit: usize) -> Vec<(String, String)>;

    /// The groups of these names that are there, in their order and without their leases.
    fn groups_by_name(
        &self,
        names: Vec<(String, String)>,
    ) -> BoxFuture<'_, Result<Vec<GroupInfo>, ReadError>>;

    /// All topics.
    fn topics(&self) -> BoxFuture<'_, Result<Vec<TopicInfo>, ReadError>>;

    /// One topic in full; `None` when there is no such topic.
    fn topic_details<'a>(
        &'a self,
        topic: &'a Topic,
    ) -> BoxFuture<'a, Result<Option<TopicDetails>, ReadError>>;

    /// What counts for topics of this name, also if there is none yet.
    fn topic_settings(&self, name: &str) -> TopicSettings;

    /// Rules for topics, in place of those before. They count from now on.
    fn set_topic_rules(&self, rules: Vec<TopicRule>);

    /// Rises whenever rules or settings of topics change.
    fn settings_version(&self) -> u64;

    /// How fast each topic may be published to: the first entry that fits a topic counts.
    fn publish_rates(&self) -> Vec<(Pattern, Option<PublishRate>)>;

    /// Sets something about one topic, above the rules, in place of what was set before. A topic that does not exist is made.
    /// Resolves when that is durable, with whether the topic was made.
    fn set_topic<'a>(
        &'a self,
        topic: &'a Topic,
        options: TopicOptions,
    ) -> BoxFuture<'a, Result<bool, TopicAdminError>>;

    /// Deletes a topic, its events, what was set about it, and the groups that read it alone. Resolves when that is durable. A
    /// topic made later under the same name is another one and starts at seq 1.
    fn delete_topic<'a>(&'a self, topic: &'a Topic) -> BoxFuture<'a, Result<(), TopicAdminError>>;

    /// A small value that [`keep_first`](Self::keep_first) has kept under this name.
    fn kept(&self, name: &str) -> Option<Vec<u8>>;

    /// Keeps a small value with the events, unless there is one under this name. Resolves with the one that is kept, when it is
    /// durable.
    fn keep_first<'a>(&'a self, name: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<Vec<u8>, StoreError>>;

    /// Copies everything that is durable now to a new folder, while the bus goes on.
    fn backup(&self, folder: PathBuf, progress: BackupProgress) -> BoxFuture<'_, Result<(), BackupError>>;

    /// All groups, with their leases.
    fn groups(&self) -> BoxFuture<'_, Result<Vec<GroupInfo>, ReadError>>;

    /// One group, with its leases; `None` when there is no such group.
    fn group<'a>(
        &'a self,
        subscription: &'a str,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<GroupInfo>, ReadError>>;

    /// Figures for operators: of the store, and of each topic and group.
    fn figures(&self) -> Figures;

    /// What the store keeps in bytes, all topics together.
    fn stored_bytes(&self) -> u64;

    /// Makes everything durable and ends. Members leave.
    fn close(&self) -> BoxFuture<'_, Result<(), Unavailable>>;
}
