//! A future that waits for the next event of a topic, even if the topic does not exist yet.

use super::reading::Reading;
use crate::engine::TopicId;
use crate::error::ReadError;
use prombus_protocol::Topic;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

/// A future that is ready when a topic has a durable event with a given seq or a higher one, or with an error when the bus is
/// closed or has failed. If it waits for the deletion of the topic too, it is also ready after that.
pub(super) struct Arrival {
    reading: Arc<Reading>,
    topic: Topic,
    /// The future is ready when the topic has an event with this seq or a higher one.
    from: u64,
    /// The future is also ready when this topic is deleted.
    until_deleted: Option<TopicId>,
    /// Identifies the waker of this future among those of the topic.
    number: u64,
    /// How the waker is registered: `Some(Some(id))` under the topic's id, `Some(None)` under the topic's name, because the
    /// topic does not exist yet. `None` while it is not registered.
    registered: Option<Option<TopicId>>,
}

impl Arrival {
    pub(super) fn new(reading: Arc<Reading>, topic: Topic, from: u64) -> Self {
        let number = reading.waiting_readers.next.fetch_add(1, Ordering::Relaxed);
        Self { reading, topic, from, until_deleted: None, number, registered: None }
    }

    pub(super) fn or_deletion(mut self, of: TopicId) -> Self {
        self.until_deleted = Some(of);
        self
    }

    fn check(&self, id: Option<TopicId>) -> Option<Result<(), ReadError>> {
        if let Err(closed) = self.reading.commits.check_open() {
            return Some(Err(closed.into()));
        }
        if let Some(reason) = self.reading.commits.unavailable() {
            return Some(Err(reason.clone().into()));
        }
        let last_seq = id.map_or(0, |id| self.reading.engine.last_seq(id));
        let is_deleted = self.until_deleted.is_some_and(|topic| id != Some(topic));
        (last_seq >= self.from || is_deleted).then_some(Ok(()))
    }

    fn unregister(&mut self) {
        let Some(registered) = self.registered.take() else { return };
        let waiting_readers = &self.reading.waiting_readers;
        let mut wakers = waiting_readers.wakers.lock();
        let was_there = match registered {
            Some(id) => remove_waker(&mut wakers.by_topic, &id, self.number),
            None => remove_waker(&mut wakers.by_name, &self.topic, self.number),
        };
        waiting_readers.count.fetch_sub(usize::from(was_there), Ordering::SeqCst);
    }
}

fn remove_waker<K: std::hash::Hash + Eq>(
    from: &mut HashMap<K, HashMap<u64, Waker>>,
    key: &K,
    number: u64,
) -> bool {
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
        self.unregister();
        let id = self.reading.registry.topic_id(&self.topic);
        if let Some(seen) = self.check(id) {
            return Poll::Ready(seen);
        }
        let waker = context.waker().clone();
        let waiting_readers = &self.reading.waiting_readers;
        let mut wakers = waiting_readers.wakers.lock();
        match id {
            Some(id) => wakers.by_topic.entry(id).or_default().insert(self.number, waker),
            None => wakers.by_name.entry(self.topic.clone()).or_default().insert(self.number, waker),
        };
        waiting_readers.count.fetch_add(1, Ordering::SeqCst);
        drop(wakers);
        self.registered = Some(id);
        // From here on a commit finds the waker. Checks again, for events that were committed before.
        let id = self.reading.registry.topic_id(&self.topic);
        if self.registered != Some(id) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.check(id) {
            Some(seen) => Poll::Ready(seen),
            None => Poll::Pending,
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.unregister();
    }
}
