//! The first seqs of topics: events below them were removed by retention and are not served.

use crate::engine::TopicId;
use foldhash::fast::RandomState;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(super) struct FirstSeqs {
    /// The first seqs. Topics from which retention removed nothing are not in the map.
    by_topic: RwLock<HashMap<TopicId, u64, RandomState>>,
    /// Whether the map has entries. While it has none, readers skip the lock.
    is_any: AtomicBool,
}

impl FirstSeqs {
    /// The first seq of a topic; zero if retention has removed nothing from it.
    pub(super) fn get(&self, topic: TopicId) -> u64 {
        if !self.is_any.load(Ordering::Acquire) {
            return 0;
        }
        self.by_topic.read().get(&topic).copied().unwrap_or(0)
    }

    /// Raises first seqs. A value below the present one is ignored.
    pub(super) fn raise(&self, firsts: impl IntoIterator<Item = (TopicId, u64)>) {
        let mut by_topic = self.by_topic.write();
        for (topic, seq) in firsts {
            let first = by_topic.entry(topic).or_default();
            *first = seq.max(*first);
            self.is_any.store(true, Ordering::Release);
        }
    }
}
