//! The number and size of the events per topic. A topic is counted on the first query; then commits and cleaning keep the numbers current.

use crate::engine::catalog::Catalog;
use crate::engine::fence::Fence;
use parking_lot::Mutex;
use prombus::engine::network::Removed;
use prombus::engine::{TopicId, TopicUsage};
use std::collections::HashMap;

#[derive(Debug, Default)]
pub(crate) struct UsageTable {
    topics: Mutex<HashMap<TopicId, Entry>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    tail: Tail,
    /// `None` if the topic was not counted yet.
    usage: Option<TopicUsage>,
}

/// The seq of a topic's newest event, and the size of all events that the topic ever got.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tail {
    pub(crate) last_seq: u64,
    /// The bytes of all events of the topic up to `last_seq`, including removed events.
    topic_bytes: u64,
}

impl UsageTable {
    pub(crate) fn new(catalog: &Catalog) -> Self {
        let entry = |last_seq, topic_bytes| Entry { tail: Tail { last_seq, topic_bytes }, usage: None };
        let topics = catalog.topics.iter();
        let topics = topics.map(|(&topic, it)| (topic, entry(it.last_seq, it.topic_bytes))).collect();
        Self { topics: Mutex::new(topics) }
    }

    /// Records that a commit added events.
    pub(crate) fn added(&self, fence: &Fence) {
        let mut topics = self.topics.lock();
        for it in &fence.topics {
            let entry = topics.entry(it.topic).or_default();
            if let Some(usage) = &mut entry.usage {
                usage.events += it.to + 1 - it.from;
                usage.bytes += it.topic_bytes.saturating_sub(entry.tail.topic_bytes);
            }
            entry.tail = Tail { last_seq: it.to, topic_bytes: it.topic_bytes };
        }
    }

    /// Records that cleaning removed events.
    pub(crate) fn removed(&self, topic: TopicId, removed: Removed) {
        if let Some(usage) = self.topics.lock().get_mut(&topic).and_then(|entry| entry.usage.as_mut()) {
            usage.events = usage.events.saturating_sub(removed.events);
            usage.bytes = usage.bytes.saturating_sub(removed.bytes);
        }
    }

    pub(crate) fn forget(&self, topic: TopicId) {
        self.topics.lock().remove(&topic);
    }

    /// The usage of a topic. If the topic was not counted yet, the error is its newest event, up to which it must be counted first.
    pub(crate) fn get(&self, topic: TopicId) -> Result<TopicUsage, Tail> {
        let entry = self.topics.lock().get(&topic).copied().unwrap_or_default();
        entry.usage.ok_or(entry.tail)
    }

    /// Records that the events of a topic up to `upto`, its newest event when counting began, were counted. Adds the events after it.
    pub(crate) fn counted(&self, topic: TopicId, upto: Tail, counted: TopicUsage) -> TopicUsage {
        let mut topics = self.topics.lock();
        let entry = topics.entry(topic).or_default();
        *entry.usage.get_or_insert(TopicUsage {
            events: counted.events + entry.tail.last_seq.saturating_sub(upto.last_seq),
            bytes: counted.bytes + entry.tail.topic_bytes.saturating_sub(upto.topic_bytes),
        })
    }

    /// The average size of all events that a topic ever got; `None` if it never got one.
    pub(crate) fn average_bytes(&self, topic: TopicId) -> Option<u64> {
        let tail = self.topics.lock().get(&topic)?.tail;
        tail.topic_bytes.checked_div(tail.last_seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fence::FencedTopic;

    #[test]
    fn events_that_are_added_while_a_topic_is_counted_are_counted_once() {
        let topic = TopicId::from_number(2);
        let table = UsageTable::default();
        let fence = |from, to, topic_bytes| Fence {
            topics: vec![FencedTopic { topic, from, to, max_ts: 0, topic_bytes }],
            ..Fence::default()
        };
        table.added(&fence(1, 10, 1_000));
        let upto = table.get(topic).expect_err("it was not counted");
        table.added(&fence(11, 15, 1_500));
        let usage = table.counted(topic, upto, TopicUsage { events: 8, bytes: 800 });
        assert_eq!(usage, TopicUsage { events: 13, bytes: 1_300 });
        table.added(&fence(16, 16, 1_600));
        table.removed(topic, Removed { events: 4, bytes: 400 });
        assert_eq!(table.get(topic).ok(), Some(TopicUsage { events: 10, bytes: 1_000 }));
        assert_eq!(table.average_bytes(topic), Some(100));
    }
}
