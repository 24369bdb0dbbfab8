//! Topics: their internal ids, their names, and their durable state as readers see it.

use std::collections::HashMap;
use std::sync::Arc;

/// The internal id of a topic in this log. It is never reused, not even after the topic is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub(crate) u32);

impl TopicId {
    /// The id with this number, for callers that stored the number in a record of their own. The topic need not exist.
    #[inline]
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// The number itself, for records and messages.
    #[inline]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The durable state of a topic, as readers see it.
#[derive(Clone, Debug)]
pub(crate) struct TopicView {
    pub(crate) name: Arc<str>,
    pub(crate) last_seq: u64,
    pub(crate) is_deleted: bool,
}

/// A topic that a batch creates or deletes.
pub(crate) enum TopicChange {
    Created { topic: u32, name: Arc<str> },
    Deleted { topic: u32 },
}

/// The names of topics, including topics that are not durable yet. The name of a deleted topic can still be looked up
/// by its id, but not its id by the name.
#[derive(Default)]
pub(crate) struct TopicTable {
    by_name: HashMap<Arc<str>, TopicId>,
    names: HashMap<TopicId, Arc<str>>,
}

impl TopicTable {
    pub(crate) fn add(&mut self, id: TopicId, name: Arc<str>) {
        self.by_name.insert(Arc::clone(&name), id);
        self.names.insert(id, name);
    }

    pub(crate) fn id(&self, name: &str) -> Option<TopicId> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn name(&self, topic: u32) -> Option<String> {
        self.names.get(&TopicId(topic)).map(ToString::to_string)
    }

    pub(crate) fn is_alive(&self, id: TopicId) -> bool {
        self.names.get(&id).is_some_and(|name| self.by_name.get(name) == Some(&id))
    }

    pub(crate) fn remove(&mut self, id: TopicId) {
        if let Some(name) = self.names.get(&id) {
            self.by_name.remove(name);
        }
    }
}
