//! Describes topics, for operators.

use super::registry::Registry;
use super::topic_settings::TopicSettingsTable;
use crate::backend::{TopicDetails, UnreadableRange};
use crate::engine::{Engine, MayBlock, StoredTopic, TopicId, TopicUsage, UnreadableEvents};
use crate::error::ReadError;
use crate::info::TopicInfo;
use prombus_protocol::Topic;
use std::collections::HashMap;
use std::sync::Arc;

/// Produces the descriptions of topics.
pub(super) struct TopicLists {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) registry: Arc<Registry>,
    pub(super) settings: Arc<TopicSettingsTable>,
}

impl TopicLists {
    /// All topics, in the order of their names.
    pub(super) fn all(&self, may_block: MayBlock) -> Result<Vec<TopicInfo>, ReadError> {
        let topics = self.engine.topics();
        let usage = self.engine.usage(topics.iter().map(|topic| topic.id).collect()).wait(may_block)?;
        // Starts all lookups before waiting for the first.
        let firsts: Vec<_> = topics.iter().map(|topic| self.engine.first_seq(topic.id)).collect();
        let infos = topics.iter().zip(usage).zip(firsts);
        let infos = infos.map(|((topic, usage), first)| self.info(topic, usage, first.wait(may_block)?));
        // Leaves out topics that were deleted since they were listed.
        let infos = infos.filter(|info| !matches!(info, Err(ReadError::UnknownTopic(_))));
        let mut infos: Vec<TopicInfo> = infos.collect::<Result<_, _>>()?;
        infos.sort_unstable_by(|one, other| one.topic.cmp(&other.topic));
        Ok(infos)
    }

    /// The details of these topics. Topics that do not exist are left out.
    pub(super) fn by_name(
        &self,
        names: &[Topic],
        may_block: MayBlock,
    ) -> Result<Vec<TopicDetails>, ReadError> {
        let stored: Vec<StoredTopic> = self.registry.topics(|topics| {
            let stored = names.iter().filter_map(|name| {
                Some(StoredTopic { id: topics.id(name)?, name: name.clone(), last_seq: 0 })
            });
            stored.collect()
        });
        let ids: Vec<TopicId> = stored.iter().map(|topic| topic.id).collect();
        let mut all = Vec::with_capacity(stored.len());
        let firsts: Vec<_> = ids.iter().map(|&id| self.engine.first_seq(id)).collect();
        for ((topic, usage), first) in stored.iter().zip(self.engine.usage(ids).wait(may_block)?).zip(firsts)
        {
            // Leaves out a topic that is not durable yet.
            if usage.is_none() {
                continue;
            }
            let first_seq = match first.wait(may_block) {
                Err(ReadError::UnknownTopic(_)) => continue,
                first_seq => first_seq?,
            };
            let info = self.info(topic, usage, first_seq)?;
            let name = topic.name.as_str();
            all.push(TopicDetails { info, settings: self.settings.of(name), own: self.settings.own(name) });
        }
        Ok(all)
    }

    fn info(
        &self,
        topic: &StoredTopic,
        usage: Option<TopicUsage>,
        first_seq: Option<u64>,
    ) -> Result<TopicInfo, ReadError> {
        let last_seq = self.engine.last_seq(topic.id);
        let most = first_seq.map_or(0, |first| (last_seq + 1).saturating_sub(first));
        let usage = usage.unwrap_or_default();
        Ok(TopicInfo {
            topic: topic.name.clone(),
            first_seq,
            last_seq,
            groups: self.registry.topics(|topics| topics.readers(topic.id).len()),
            // Events that retention has removed may still take space, but they must not be counted.
            events: usage.events.min(most),
            bytes: usage.bytes,
        })
    }

    /// Replaces the topic numbers of unreadable events by the names of the topics.
    pub(super) fn named_ranges(&self, events: Vec<UnreadableEvents>) -> Vec<UnreadableRange> {
        let names: HashMap<TopicId, Topic> =
            self.engine.topics().into_iter().map(|topic| (topic.id, topic.name)).collect();
        let named = events.into_iter().filter_map(|events| {
            let UnreadableEvents { topic, first_seq, last_seq, file, bytes, since_ms, error } = events;
            let topic = names.get(&topic)?.to_string();
            Some(UnreadableRange { topic, first_seq, last_seq, file, bytes, since_ms, error })
        });
        named.collect()
    }
}
