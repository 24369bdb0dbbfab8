//! For topics from which retention removed events: the first seq that is still served.

use crate::engine::TopicId;
use foldhash::fast::RandomState;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(super) struct FirstSeqs {
    /// The first seqs; topics from which nothing was removed are not in it.
    by_topic: RwLock<HashMap<TopicId, u64, RandomState>>,
    /// Retention has removed events of some topic. Until then readers skip the lock.
    is_any: AtomicBool,
}

impl FirstSeqs {
    /// The first seq of a topic; zero if retention removed nothing.
    pub(super) fn get(&self, topic: TopicId) -> u64 {
        if !self.is_any.load(Ordering::Acquire) {
            return 0;
        }
        self.by_topic.read().get(&topic).copied().unwrap_or(0)
    }

    /// Raises first seqs; they never fall.
    pub(super) fn raise(&self, firsts: impl IntoIterator<Item = (TopicId, u64)>) {
        let mut by_topic = self.by_topic.write();
        for (topic, seq) in firsts {
            let first = by_topic.entry(topic).or_default();
            *first = seq.max(*first);
            self.is_any.store(true, Ordering::Release);
        }
    }
}
