//! Who waits for a topic to have more events, outside of any group.

use super::Local;
use super::feed::Feeds;
use super::quiet::wake;
use crate::error::ReadError;
use crate::store::TopicId;
use parking_lot::Mutex;
use prombus_protocol::Topic;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

/// Those who wait, by what they wait for.
#[derive(Default)]
pub(crate) struct Arrivals {
    waiting: Mutex<Waiting>,
    /// So that commits need no lock when nobody waits.
    count: AtomicUsize,
    next: AtomicU64,
    /// Those who read patterns.
    pub(super) feeds: Feeds,
}

#[derive(Default)]
struct Waiting {
    by_topic: HashMap<TopicId, HashMap<u64, Waker>>,
    /// For topics that are not there yet.
    by_name: HashMap<Topic, HashMap<u64, Waker>>,
}

impl Arrivals {
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

    /// A topic was made.
    pub(super) fn made(&self, topic: &Topic) {
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

/// Ready when a topic has a durable event at or past a seq.
pub(super) struct Arrival {
    local: Arc<Local>,
    topic: Topic,
    from: u64,
    number: u64,
    /// Whether it stands in the list, and as what.
    place: Option<Option<TopicId>>,
}

impl Arrival {
    pub(super) fn new(local: Arc<Local>, topic: Topic, from: u64) -> Self {
        let number = local.arrivals.next.fetch_add(1, Ordering::Relaxed);
        Self { local, topic, from, number, place: None }
    }

    fn look(&self, id: Option<TopicId>) -> Option<Result<(), ReadError>> {
        if let Err(closed) = self.local.check_open() {
            return Some(Err(closed.into()));
        }
        if let Some(reason) = self.local.watch.unavailable() {
            return Some(Err(reason.clone().into()));
        }
        let last_seq = id.map_or(0, |id| self.local.store.last_seq(id));
        (last_seq >= self.from).then_some(Ok(()))
    }

    fn take_out(&mut self) {
        let Some(place) = self.place.take() else { return };
        let arrivals = &self.local.arrivals;
        let mut waiting = arrivals.waiting.lock();
        let was_there = match place {
            Some(id) => take(&mut waiting.by_topic, &id, self.number),
            None => take(&mut waiting.by_name, &self.topic, self.number),
        };
        arrivals.count.fetch_sub(usize::from(was_there), Ordering::SeqCst);
    }
}

fn take<K: std::hash::Hash + Eq>(from: &mut HashMap<K, HashMap<u64, Waker>>, key: &K, number: u64) -> bool {
    let Some(list) = from.get_mut(key) else { return false };
    let was_there = list.remove(&number).is_some();
    if list.is_empty() {
        from.remove(key);
    }
    was_there
}

impl Future for Arrival {
    type Output = Result<(), ReadError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.take_out();
        let id = self.local.topic_id(&self.topic);
        if let Some(seen) = self.look(id) {
            return Poll::Ready(seen);
        }
        let waker = context.waker().clone();
        let arrivals = &self.local.arrivals;
        let mut waiting = arrivals.waiting.lock();
        match id {
            Some(id) => waiting.by_topic.entry(id).or_default().insert(self.number, waker),
            None => waiting.by_name.entry(self.topic.clone()).or_default().insert(self.number, waker),
        };
        arrivals.count.fetch_add(1, Ordering::SeqCst);
        drop(waiting);
        self.place = Some(id);
        // Again, now that whoever comes will find us.
        let id = self.local.topic_id(&self.topic);
        if self.place != Some(id) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.look(id) {
            Some(seen) => Poll::Ready(seen),
            None => Poll::Pending,
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.take_out();
    }
}
