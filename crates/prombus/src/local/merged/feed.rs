//! Tells readers of patterns which of their topics have more events, and which topics were created.

use crate::deferred_wakes::wake;
use crate::engine::TopicId;
use parking_lot::Mutex;
use prombus_protocol::{Pattern, Topic};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

/// What one reader is told.
pub(in crate::local) struct Feed {
    pattern: Pattern,
    state: Mutex<FeedState>,
}

#[derive(Default)]
struct FeedState {
    /// Topics of the pattern.
    wanted: HashSet<TopicId>,
    /// All of them are known; before, it is told about every topic.
    is_narrow: bool,
    news: News,
    waker: Option<Waker>,
}

/// News since the last call of `take`.
#[derive(Default)]
pub(in crate::local) struct News {
    /// Topics with more events.
    pub(in crate::local) topics: HashSet<TopicId>,
    /// New topics.
    pub(in crate::local) created: Vec<(TopicId, Topic)>,
}

/// All feeds.
#[derive(Default)]
pub(in crate::local) struct Feeds {
    all: Mutex<Vec<Weak<Feed>>>,
    /// The number of feeds. Commits take no lock while it is zero.
    count: AtomicUsize,
}

impl Feeds {
    fn each(&self, mut tell: impl FnMut(&Feed)) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut all = self.all.lock();
        all.retain(|feed| {
            feed.upgrade().is_some_and(|feed| {
                tell(&feed);
                true
            })
        });
        self.count.store(all.len(), Ordering::SeqCst);
    }

    /// A topic has durable events that it had not before.
    pub(in crate::local) fn committed(&self, topic: TopicId, called: &mut Vec<Waker>) {
        self.each(|feed| {
            let mut state = feed.state.lock();
            if !state.is_narrow || state.wanted.contains(&topic) {
                state.news.topics.insert(topic);
                called.extend(state.waker.take());
            }
        });
    }

    /// A topic is about to exist.
    pub(in crate::local) fn created(&self, id: TopicId, topic: &Topic) {
        let mut called = Vec::new();
        self.each(|feed| {
            if feed.pattern.matches(topic.as_str()) {
                let mut state = feed.state.lock();
                state.wanted.insert(id);
                state.news.created.push((id, topic.clone()));
                called.extend(state.waker.take());
            }
        });
        called.into_iter().for_each(wake);
    }

    /// Everything is different now.
    pub(in crate::local) fn wake_all(&self) {
        let mut called = Vec::new();
        self.each(|feed| called.extend(feed.state.lock().waker.take()));
        called.into_iter().for_each(wake);
    }
}

impl Feeds {
    /// A feed for the topics of a pattern. Those that exist already are named by the reader.
    pub(in crate::local) fn feed(&self, pattern: Pattern) -> Arc<Feed> {
        let feed = Arc::new(Feed { pattern, state: Mutex::default() });
        let mut all = self.all.lock();
        all.push(Arc::downgrade(&feed));
        self.count.store(all.len(), Ordering::SeqCst);
        feed
    }
}

impl Feed {
    pub(in crate::local) fn want(&self, topic: TopicId) {
        self.state.lock().wanted.insert(topic);
    }

    /// From now on it is told only about topics that were named, and new ones.
    pub(in crate::local) fn narrow(&self) {
        self.state.lock().is_narrow = true;
    }

    pub(in crate::local) fn take(&self) -> News {
        std::mem::take(&mut self.state.lock().news)
    }

    /// Ready when there is something to take.
    pub(in crate::local) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if !state.news.topics.is_empty() || !state.news.created.is_empty() {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
