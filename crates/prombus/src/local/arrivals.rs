//! Readers outside of any group that wait for a topic to have more events.

use super::merged::feed::Feeds;
use crate::deferred_wakes::wake;
use crate::engine::TopicId;
use parking_lot::Mutex;
use prombus_protocol::Topic;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

/// Readers that wait, by what they wait for.
#[derive(Default)]
pub(super) struct Arrivals {
    pub(super) waiting: Mutex<Waiting>,
    /// Spares commits the lock when nobody waits.
    pub(super) count: AtomicUsize,
    pub(super) next: AtomicU64,
    /// Readers of patterns.
    pub(super) feeds: Feeds,
}

#[derive(Default)]
pub(super) struct Waiting {
    pub(super) by_topic: HashMap<TopicId, HashMap<u64, Waker>>,
    /// For topics that are not there yet.
    pub(super) by_name: HashMap<Topic, HashMap<u64, Waker>>,
}

impl Arrivals {
    /// A topic is about to exist.
    pub(super) fn tell_feeds(&self, id: TopicId, topic: &Topic) {
        self.feeds.created(id, topic);
    }

    /// A topic has durable events that it had not before.
    pub(super) fn committed(&self, topic: TopicId, called: &mut Vec<Waker>) {
        self.feeds.committed(topic, called);
        if self.count.load(Ordering::SeqCst) > 0
            && let Some(waiting) = self.waiting.lock().by_topic.remove(&topic)
        {
            self.count.fetch_sub(waiting.len(), Ordering::SeqCst);
            called.extend(waiting.into_values());
        }
    }

    /// A topic was created.
    pub(super) fn created(&self, topic: &Topic) {
        if self.count.load(Ordering::SeqCst) > 0
            && let Some(waiting) = self.waiting.lock().by_name.remove(topic)
        {
            self.count.fetch_sub(waiting.len(), Ordering::SeqCst);
            waiting.into_values().for_each(wake);
        }
    }

    /// Everything is different now.
    pub(super) fn wake_all(&self) {
        self.feeds.wake_all();
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let all = waiting.by_topic.into_values().chain(waiting.by_name.into_values());
        for waiting in all {
            self.count.fetch_sub(waiting.len(), Ordering::SeqCst);
            waiting.into_values().for_each(wake);
        }
    }
}
