//! All topics and groups, and which groups read which topics. Topics and groups are created and deleted under one lock, so that
//! a group with a pattern cannot miss a topic that is created at the same time.

mod group_table;
mod topic_table;

use super::groups::act::GroupRuntime;
use super::groups::cell::GroupCell;
use super::lock_order::{CREATION, RankedGuard, RankedMutex};
use super::maintenance::schedule::MaintenanceSchedule;
use super::topic_settings::TopicSettingsTable;
use super::waiting_readers::WaitingReaders;
use crate::deferred_wakes::DeferredWakes;
use crate::delivery::{Restored, SourceId};
use crate::engine::{Engine, NewEvent, TopicId};
use crate::error::{GroupError, StoreError};
use crate::publish::PublishBatch;
use group_table::GroupTable;
use parking_lot::RwLock;
use prombus_protocol::{Pattern, Topic};
use std::collections::BTreeSet;
use std::sync::Arc;
use topic_table::{TopicLimitReached, TopicReader, TopicTable};

/// All topics and groups.
pub(super) struct Registry {
    engine: Arc<dyn Engine>,
    runtime: Arc<GroupRuntime>,
    waiting_readers: Arc<WaitingReaders>,
    settings: Arc<TopicSettingsTable>,
    schedule: Arc<MaintenanceSchedule>,
    topics: RwLock<TopicTable>,
    groups: RwLock<GroupTable>,
    /// Held while a topic or a group is created or deleted.
    creation: RankedMutex<CREATION, Creation>,
}

/// The state that the creation lock guards. Functions take a reference to it as the proof that the caller holds the lock, and
/// may create and delete topics and groups.
pub(super) struct Creation {
    /// The number of the next group.
    pub(super) next_group: u32,
}

/// Why a topic was not created.
#[derive(Debug)]
pub(super) enum TopicRefused {
    TooMany(usize),
    Engine(StoreError),
}

impl From<TopicLimitReached> for TopicRefused {
    fn from(TopicLimitReached(limit): TopicLimitReached) -> Self {
        Self::TooMany(limit)
    }
}

impl From<StoreError> for TopicRefused {
    fn from(error: StoreError) -> Self {
        Self::Engine(error)
    }
}

impl From<TopicRefused> for GroupError {
    fn from(refused: TopicRefused) -> Self {
        match refused {
            TopicRefused::TooMany(limit) => Self::TooManyTopics(limit),
            TopicRefused::Engine(error) => error.into(),
        }
    }
}

impl Registry {
    pub(super) fn new(
        engine: Arc<dyn Engine>,
        runtime: Arc<GroupRuntime>,
        waiting_readers: Arc<WaitingReaders>,
        settings: Arc<TopicSettingsTable>,
        schedule: Arc<MaintenanceSchedule>,
        max_topics: usize,
    ) -> Self {
        let mut topics = TopicTable::new(max_topics);
        for topic in engine.topics() {
            topics.add(topic.name, topic.id, Vec::new());
        }
        Self {
            engine,
            runtime,
            waiting_readers,
            settings,
            schedule,
            topics: RwLock::new(topics),
            groups: RwLock::default(),
            creation: RankedMutex::new(Creation { next_group: 1 }),
        }
    }

    /// Takes the creation lock, which is needed to create and delete topics and groups.
    pub(super) fn creation(&self) -> RankedGuard<'_, CREATION, Creation> {
        self.creation.lock()
    }

    pub(super) fn topic_id(&self, topic: &Topic) -> Option<TopicId> {
        self.topics.read().id(topic)
    }

    /// Calls `look` with the topics.
    pub(super) fn topics<T>(&self, look: impl FnOnce(&TopicTable) -> T) -> T {
        look(&self.topics.read())
    }

    /// Calls `look` with the groups.
    pub(super) fn groups<T>(&self, look: impl FnOnce(&GroupTable) -> T) -> T {
        look(&self.groups.read())
    }

    pub(super) fn topic_count(&self) -> usize {
        self.topics.read().len()
    }

    pub(super) fn group_count(&self) -> usize {
        self.groups.read().len()
    }

    /// All groups, in the order of their names.
    pub(super) fn all_groups(&self) -> Vec<Arc<GroupCell>> {
        self.groups.read().all()
    }

    /// All groups, in the order of their creation.
    pub(super) fn groups_by_number(&self) -> Vec<Arc<GroupCell>> {
        let mut cells = self.groups.read().all();
        cells.sort_unstable_by_key(|cell| cell.number);
        cells
    }

    pub(super) fn find_group(&self, subscription: &str, group: &str) -> Result<Arc<GroupCell>, GroupError> {
        self.groups.read().get(subscription, group).ok_or_else(|| GroupError::UnknownGroup {
            topic: subscription.to_owned(),
            group: group.to_owned(),
        })
    }

    /// Calls `visit` with the groups that read each of these topics. Called after each commit.
    #[inline]
    pub(super) fn each_reader(
        &self,
        topics: &mut dyn Iterator<Item = (TopicId, u64)>,
        mut visit: impl FnMut(TopicId, u64, &[TopicReader]),
    ) {
        let table = self.topics.read();
        for (topic, newest_seq) in topics {
            visit(topic, newest_seq, table.readers(topic));
        }
    }

    pub(super) fn readers(&self, topic: TopicId) -> Vec<TopicReader> {
        self.topics.read().readers(topic).to_vec()
    }

    /// The topics that match a pattern, with their names.
    pub(super) fn topics_matching(&self, pattern: &Pattern) -> Vec<(TopicId, Topic)> {
        self.topics.read().matching(std::iter::once(pattern))
    }

    /// Converts the events of a batch to the form that the engine takes. Returns false if one of their topics does not exist
    /// yet.
    pub(super) fn resolve<'a>(&self, batch: &'a PublishBatch, into: &mut Vec<NewEvent<'a>>) -> bool {
        into.clear();
        let topics = self.topics.read();
        let mut last: Option<(usize, TopicId)> = None;
        for (at, place) in batch.topic_places().enumerate() {
            let id = match last {
                Some((known, id)) if known == place => id,
                _ => match topics.id(&batch.topics()[place]) {
                    Some(id) => id,
                    None => return false,
                },
            };
            last = Some((place, id));
            into.push(batch.event(at, id));
        }
        true
    }

    /// Creates the topics of a batch that do not exist. If they would exceed `max_topics`, none is created.
    pub(super) fn ensure_topics(&self, batch: &PublishBatch) -> Result<(), TopicRefused> {
        let _deferred = DeferredWakes::enter();
        let creation = self.creation();
        let is_new = |topic: &&Topic| self.topic_id(topic).is_none();
        let new: BTreeSet<&Topic> = batch.topics().iter().filter(is_new).collect();
        self.topics.read().check_room(new.iter().copied())?;
        for topic in new {
            self.create_topic(topic, &creation)?;
        }
        Ok(())
    }

    /// The number of a topic, which is created if it does not exist and `max_topics` allows it.
    pub(super) fn ensure_topic(&self, topic: &Topic, creation: &Creation) -> Result<TopicId, TopicRefused> {
        if let Some(id) = self.topic_id(topic) {
            return Ok(id);
        }
        self.topics.read().check_not_full()?;
        self.create_topic(topic, creation)
    }

    /// The number of a dead-letter topic, which is created if it does not exist. `max_topics` does not apply to it.
    pub(super) fn ensure_dead_letter_topic(&self, topic: &Topic) -> Result<TopicId, StoreError> {
        if let Some(id) = self.topic_id(topic) {
            return Ok(id);
        }
        let _deferred = DeferredWakes::enter();
        let creation = self.creation();
        self.create_topic(topic, &creation).map_err(|refused| match refused {
            TopicRefused::Engine(error) => error,
            TopicRefused::TooMany(limit) => StoreError::Other(format!("more than {limit} topics")),
        })
    }

    fn create_topic(&self, topic: &Topic, _creation: &Creation) -> Result<TopicId, TopicRefused> {
        if let Some(id) = self.topic_id(topic) {
            return Ok(id);
        }
        let id = self.engine.ensure_topic(topic)?;
        let cells = self.groups.read().readers_of(topic);
        let readers = cells.into_iter().map(|cell| {
            let source = cell.add_topic(id, topic, Restored::default());
            // Prepares the first lease mark (the seq up to which events may be leased) in the new topic. It becomes durable
            // with the topic's first event, so no pull has to wait for it.
            self.runtime.act(&cell, |core, _| core.machine.prepare_mark(source));
            (cell, source)
        });
        let readers = readers.collect();
        // Readers of patterns are told first: as soon as the table contains the topic, events may be published to it.
        self.waiting_readers.announce_to_feeds(id, topic);
        self.topics.write().add(topic.clone(), id, readers);
        self.waiting_readers.created(topic);
        if self.settings.of(topic.as_str()).has_snapshots() {
            self.schedule.topic_created(id, self.runtime.clock.steady_ms());
        }
        Ok(id)
    }

    /// Removes a topic from the table. Returns its readers.
    pub(super) fn remove_topic(&self, topic: &Topic, _creation: &Creation) -> Vec<TopicReader> {
        self.topics.write().remove(topic)
    }

    /// Adds a topic again, after its deletion failed.
    pub(super) fn restore_topic(
        &self,
        topic: &Topic,
        id: TopicId,
        readers: Vec<TopicReader>,
        _creation: &Creation,
    ) {
        self.topics.write().add(topic.clone(), id, readers);
    }

    /// Adds a group that reads these topics.
    pub(super) fn add_group(
        &self,
        cell: &Arc<GroupCell>,
        topics: &[(TopicId, Topic)],
        restored: impl Iterator<Item = Restored>,
        _creation: &Creation,
    ) {
        let sources: Vec<SourceId> = topics
            .iter()
            .zip(restored)
            .map(|((id, name), restored)| cell.add_topic(*id, name, restored))
            .collect();
        let mut table = self.topics.write();
        for ((id, _), &source) in topics.iter().zip(&sources) {
            table.add_reader(*id, (Arc::clone(cell), source));
        }
        drop(table);
        // From here on the group is told of new commits. Tells it of events that were durable before.
        for ((id, _), source) in topics.iter().zip(sources) {
            let (woken, _) = cell.waiters.notice(source, self.engine.last_seq(*id));
            debug_assert!(woken.is_none(), "a group that was just created has no members");
        }
        self.groups.write().insert(cell);
    }

    /// Removes a group that read these topics.
    pub(super) fn remove_group(&self, cell: &Arc<GroupCell>, topics: &[TopicId], _creation: &Creation) {
        self.groups.write().remove(cell);
        self.topics.write().remove_reader(topics, cell);
    }
}
