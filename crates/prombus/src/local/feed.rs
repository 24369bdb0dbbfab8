//! Tells a reader of a pattern which of its topics have more events, and which topics were made.

use super::arrival::Arrivals;
use super::quiet::wake;
use crate::store::TopicId;
use parking_lot::Mutex;
use prombus_protocol::{Pattern, Topic};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

/// What a reader hears.
pub(super) struct Feed {
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
pub(super) struct News {
    /// Topics with more events.
    pub(super) topics: HashSet<TopicId>,
    /// New topics.
    pub(super) made: Vec<(TopicId, Topic)>,
}

/// All feeds.
#[derive(Default)]
pub(super) struct Feeds {
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
    pub(super) fn committed(&self, topic: TopicId, called: &mut Vec<Waker>) {
        self.each(|feed| {
            let mut state = feed.state.lock();
            if !state.is_narrow || state.wanted.contains(&topic) {
                state.news.topics.insert(topic);
                called.extend(state.waker.take());
            }
        });
    }

    /// A topic was made.
    fn made(&self, id: TopicId, topic: &Topic) {
        let mut called = Vec::new();
        self.each(|feed| {
            if feed.pattern.matches(topic.as_str()) {
                let mut state = feed.state.lock();
                state.wanted.insert(id);
                state.news.made.push((id, topic.clone()));
                called.extend(state.waker.take());
            }
        });
        called.into_iter().for_each(wake);
    }

    /// Everything is different now.
    pub(super) fn wake_all(&self) {
        let mut called = Vec::new();
        self.each(|feed| called.extend(feed.state.lock().waker.take()));
        called.into_iter().for_each(wake);
    }
}

impl Arrivals {
    /// A topic is about to be there.
    pub(super) fn tell_feeds(&self, id: TopicId, topic: &Topic) {
        self.feeds.made(id, topic);
    }

    /// A feed for the topics of a pattern. Those that are there already are named by the reader.
    pub(super) fn feed(&self, pattern: Pattern) -> Arc<Feed> {
        let feed = Arc::new(Feed { pattern, state: Mutex::default() });
        let mut all = self.feeds.all.lock();
        all.push(Arc::downgrade(&feed));
        self.feeds.count.store(all.len(), Ordering::SeqCst);
        feed
    }
}

impl Feed {
    pub(super) fn want(&self, topic: TopicId) {
        self.state.lock().wanted.insert(topic);
    }

    /// From now on it is told only about topics that were named, and new ones.
    pub(super) fn narrow(&self) {
        self.state.lock().is_narrow = true;
    }

    pub(super) fn take(&self) -> News {
        std::mem::take(&mut self.state.lock().news)
    }

    /// Ready when there is something to take.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if !state.news.topics.is_empty() || !state.news.made.is_empty() {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
