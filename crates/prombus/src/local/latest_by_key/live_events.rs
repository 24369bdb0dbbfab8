//! Decides which events are live, for the engine's cleaning.

use super::SharedMap;
use crate::engine::{Engine, LiveCount, Liveness, TopicId};
use std::collections::HashMap;
use std::sync::Arc;

/// Decides which events are live, for the engine's cleaning.
pub(in crate::local) struct LiveEvents<'a> {
    pub(in crate::local) engine: &'a dyn Engine,
    /// The maps of compacted topics, which were just brought up to date.
    pub(in crate::local) compacted: HashMap<TopicId, Arc<SharedMap>>,
}

impl Liveness for LiveEvents<'_> {
    fn first_live(&self, topic: TopicId) -> u64 {
        self.engine.retained_from(topic)
    }

    fn is_sparse(&self, topic: TopicId) -> bool {
        self.compacted.contains_key(&topic)
    }

    fn live_in(&self, topic: TopicId, first_seq: u64, last_seq: u64) -> Option<LiveCount> {
        let state = self.compacted.get(&topic)?.state.lock();
        if last_seq >= state.next_seq {
            return None;
        }
        let (events, bytes) = state.map.live_in(first_seq, last_seq);
        Some(LiveCount { events, bytes })
    }

    fn is_live(&self, topic: TopicId, seq: u64) -> bool {
        let Some(state) = self.compacted.get(&topic) else { return true };
        let state = state.state.lock();
        seq >= state.next_seq || state.map.is_live(seq)
    }
}
