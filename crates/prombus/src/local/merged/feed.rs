//! Feeds. A feed tells a reader of a pattern which of its topics have new events, and which matching topics were
//! created.

use crate::deferred_wakes::wake;
use crate::engine::TopicId;
use parking_lot::Mutex;
use prombus_protocol::{Pattern, Topic};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

/// The changes that one reader has not seen yet.
pub(in crate::local) struct Feed {
    pattern: Pattern,
    state: Mutex<FeedState>,
}

#[derive(Default)]
struct FeedState {
    /// The topics whose changes the feed receives.
    followed: HashSet<TopicId>,
    /// Whether `followed` contains all topics that match the pattern. Until it does, the feed receives the changes of
    /// every topic.
    is_complete: bool,
    /// Changes that the reader has not taken yet.
    changes: TopicChanges,
    waker: Option<Waker>,
}

/// Changes since the last call of `take`.
#[derive(Default)]
pub(in crate::local) struct TopicChanges {
    /// Topics with new events.
    pub(in crate::local) topics: HashSet<TopicId>,
    /// Topics that were created.
    pub(in crate::local) created: Vec<(TopicId, Topic)>,
}

/// All feeds.
#[derive(Default)]
pub(in crate::local) struct Feeds {
    all: Mutex<Vec<Weak<Feed>>>,
    /// The number of feeds. Commits skip the lock while it is zero.
    count: AtomicUsize,
}

impl Feeds {
    fn each(&self, mut visit: impl FnMut(&Feed)) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut all = self.all.lock();
        all.retain(|feed| {
            feed.upgrade().is_some_and(|feed| {
                visit(&feed);
                true
            })
        });
        self.count.store(all.len(), Ordering::SeqCst);
    }

    /// Called when a topic has new durable events: notes this in the feeds that follow the topic, and adds the wakers
    /// of their readers to `woken`.
    pub(in crate::local) fn committed(&self, topic: TopicId, woken: &mut Vec<Waker>) {
        self.each(|feed| {
            let mut state = feed.state.lock();
            if !state.is_complete || state.followed.contains(&topic) {
                state.changes.topics.insert(topic);
                woken.extend(state.waker.take());
            }
        });
    }

    /// Notes a topic that is about to be created in the feeds whose patterns match it.
    pub(in crate::local) fn created(&self, id: TopicId, topic: &Topic) {
        let mut woken = Vec::new();
        self.each(|feed| {
            if feed.pattern.matches(topic.as_str()) {
                let mut state = feed.state.lock();
                state.followed.insert(id);
                state.changes.created.push((id, topic.clone()));
                woken.extend(state.waker.take());
            }
        });
        woken.into_iter().for_each(wake);
    }

    /// Wakes all readers to check again: the bus failed or closed, or a topic was deleted.
    pub(in crate::local) fn wake_all(&self) {
        let mut woken = Vec::new();
        self.each(|feed| woken.extend(feed.state.lock().waker.take()));
        woken.into_iter().for_each(wake);
    }
}

impl Feeds {
    /// Creates a feed for the topics of a pattern. The reader then adds the topics that already exist.
    pub(in crate::local) fn feed(&self, pattern: Pattern) -> Arc<Feed> {
        let feed = Arc::new(Feed { pattern, state: Mutex::default() });
        let mut all = self.all.lock();
        all.push(Arc::downgrade(&feed));
        self.count.store(all.len(), Ordering::SeqCst);
        feed
    }
}

impl Feed {
    pub(in crate::local) fn add_topic(&self, topic: TopicId) {
        self.state.lock().followed.insert(topic);
    }

    /// Ends the setup: from now on the feed receives only changes of the topics that were added, and of new topics
    /// that match the pattern.
    pub(in crate::local) fn follow_only_added(&self) {
        self.state.lock().is_complete = true;
    }

    pub(in crate::local) fn take(&self) -> TopicChanges {
        std::mem::take(&mut self.state.lock().changes)
    }

    /// Ready when there are changes to take.
    pub(in crate::local) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if !state.changes.topics.is_empty() || !state.changes.created.is_empty() {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
