//! The topics by name, and the groups that read them.

use crate::delivery::SourceId;
use crate::engine::TopicId;
use crate::local::groups::cell::GroupCell;
use foldhash::fast::RandomState;
use prombus_protocol::{Pattern, Topic};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// A group that reads a topic, and the id by which the group's machine knows the topic.
pub(in crate::local) type TopicReader = (Arc<GroupCell>, SourceId);

/// All topics. At most `max_topics` of them are not dead-letter topics.
pub(in crate::local) struct TopicTable {
    max_topics: usize,
    /// The topics by name.
    by_name: HashMap<Topic, TopicId, RandomState>,
    /// The same topics in order, for lists and patterns.
    in_order: BTreeMap<Topic, TopicId>,
    /// The number of topics that count against `max_topics`. Dead-letter topics do not count, because the bus creates them
    /// itself.
    counted: usize,
    /// The groups that read each topic. Commits look up readers here, and topics without readers are not in the map.
    readers: HashMap<TopicId, Vec<TopicReader>, RandomState>,
}

/// The error that the limit `max_topics` is reached. Contains the limit.
#[derive(Debug)]
pub(in crate::local) struct TopicLimitReached(pub(in crate::local) usize);

impl TopicTable {
    pub(in crate::local) fn new(max_topics: usize) -> Self {
        Self {
            max_topics,
            by_name: HashMap::default(),
            in_order: BTreeMap::new(),
            counted: 0,
            readers: HashMap::default(),
        }
    }

    pub(in crate::local) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Fails if `max_topics` is reached.
    pub(in crate::local) fn check_not_full(&self) -> Result<(), TopicLimitReached> {
        if self.counted >= self.max_topics {
            return Err(TopicLimitReached(self.max_topics));
        }
        Ok(())
    }

    /// Fails if `max_topics` does not allow these topics to be created.
    pub(in crate::local) fn check_room<'a>(
        &self,
        topics: impl IntoIterator<Item = &'a Topic>,
    ) -> Result<(), TopicLimitReached> {
        let counted = topics.into_iter().filter(|topic| !topic.is_dead_letter()).count();
        if counted > 0 && self.counted + counted > self.max_topics {
            return Err(TopicLimitReached(self.max_topics));
        }
        Ok(())
    }

    #[inline]
    pub(in crate::local) fn id(&self, name: &Topic) -> Option<TopicId> {
        self.by_name.get(name).copied()
    }

    /// The topic of this name, if it exists.
    pub(in crate::local) fn topic(&self, name: &str) -> Option<Topic> {
        self.by_name.get_key_value(name).map(|(topic, _)| topic.clone())
    }

    pub(in crate::local) fn add(&mut self, name: Topic, id: TopicId, readers: Vec<TopicReader>) {
        self.counted += usize::from(!name.is_dead_letter());
        self.in_order.insert(name.clone(), id);
        self.by_name.insert(name, id);
        if !readers.is_empty() {
            self.readers.insert(id, readers);
        }
    }

    /// Removes a topic. Returns its readers.
    pub(in crate::local) fn remove(&mut self, name: &Topic) -> Vec<TopicReader> {
        let Some(id) = self.by_name.remove(name) else { return Vec::new() };
        self.in_order.remove(name);
        self.counted -= usize::from(!name.is_dead_letter());
        self.readers.remove(&id).unwrap_or_default()
    }

    #[inline]
    pub(in crate::local) fn readers(&self, id: TopicId) -> &[TopicReader] {
        self.readers.get(&id).map_or(&[], Vec::as_slice)
    }

    pub(in crate::local) fn add_reader(&mut self, id: TopicId, reader: TopicReader) {
        self.readers.entry(id).or_default().push(reader);
    }

    /// Removes a group from the readers of these topics.
    pub(in crate::local) fn remove_reader(&mut self, ids: &[TopicId], cell: &Arc<GroupCell>) {
        for id in ids {
            if let Some(readers) = self.readers.get_mut(id) {
                readers.retain(|(reader, _)| !Arc::ptr_eq(reader, cell));
                if readers.is_empty() {
                    self.readers.remove(id);
                }
            }
        }
    }

    /// The topics whose names begin with `prefix` and sort after `after`, in order.
    pub(in crate::local) fn named<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&'a Topic, TopicId)> + 'a {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let topics = self.in_order.range::<str, _>((start, Bound::Unbounded));
        topics.take_while(move |(name, _)| name.as_str().starts_with(prefix)).map(|(name, &id)| (name, id))
    }

    /// The topics that match any of these patterns, in the order of their numbers.
    pub(in crate::local) fn matching<'a>(
        &self,
        patterns: impl Iterator<Item = &'a Pattern>,
    ) -> Vec<(TopicId, Topic)> {
        let mut topics: Vec<(TopicId, Topic)> = Vec::new();
        for pattern in patterns {
            if let Some(topic) = pattern.as_topic() {
                topics.extend(self.id(&topic).map(|id| (id, topic)));
                continue;
            }
            // Only topics that begin with the literal part before the first wildcard can match. The trailing dot is
            // removed, because "a.**" matches "a" as well.
            let text = pattern.as_str();
            let literal = text.split('*').next().unwrap_or(text).trim_end_matches('.');
            let matching = self.named(literal, None).filter(|(name, _)| pattern.matches(name.as_str()));
            topics.extend(matching.map(|(name, id)| (id, name.clone())));
        }
        topics.sort_unstable();
        topics.dedup();
        topics
    }
}
