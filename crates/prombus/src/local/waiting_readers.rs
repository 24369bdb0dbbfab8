//! The readers without a group that wait for new events.

use super::merged::feed::Feeds;
use crate::deferred_wakes::wake;
use crate::engine::TopicId;
use parking_lot::Mutex;
use prombus_protocol::Topic;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

/// Waiting readers, by the topics that they wait for.
#[derive(Default)]
pub(super) struct WaitingReaders {
    pub(super) wakers: Mutex<ReaderWakers>,
    /// The number of registered wakers. Commits skip the lock while it is zero.
    pub(super) count: AtomicUsize,
    /// The next number of a waker.
    pub(super) next: AtomicU64,
    /// The feeds of readers that read the topics of a pattern.
    pub(super) feeds: Feeds,
}

#[derive(Default)]
pub(super) struct ReaderWakers {
    pub(super) by_topic: HashMap<TopicId, HashMap<u64, Waker>>,
    /// The wakers of readers that wait for a topic which does not exist yet.
    pub(super) by_name: HashMap<Topic, HashMap<u64, Waker>>,
}

impl WaitingReaders {
    /// Tells the readers of patterns of a topic that is about to be created.
    pub(super) fn announce_to_feeds(&self, id: TopicId, topic: &Topic) {
        self.feeds.created(id, topic);
    }

    /// Called when a topic has new durable events. Adds the wakers of the readers that wait for it to `woken`.
    pub(super) fn committed(&self, topic: TopicId, woken: &mut Vec<Waker>) {
        self.feeds.committed(topic, woken);
        if self.count.load(Ordering::SeqCst) > 0
            && let Some(waiting) = self.wakers.lock().by_topic.remove(&topic)
        {
            self.count.fetch_sub(waiting.len(), Ordering::SeqCst);
            woken.extend(waiting.into_values());
        }
    }

    /// Wakes the readers that wait for a topic to be created.
    pub(super) fn created(&self, topic: &Topic) {
        if self.count.load(Ordering::SeqCst) > 0
            && let Some(waiting) = self.wakers.lock().by_name.remove(topic)
        {
            self.count.fetch_sub(waiting.len(), Ordering::SeqCst);
            waiting.into_values().for_each(wake);
        }
    }

    /// Wakes all readers to check again: the bus failed or closed, or a topic was deleted.
    pub(super) fn wake_all(&self) {
        self.feeds.wake_all();
        let waiting = std::mem::take(&mut *self.wakers.lock());
        let all = waiting.by_topic.into_values().chain(waiting.by_name.into_values());
        for waiting in all {
            self.count.fetch_sub(waiting.len(), Ordering::SeqCst);
            waiting.into_values().for_each(wake);
        }
    }
}
