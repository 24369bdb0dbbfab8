//! Marks in memory, lost with the process. For consumers whose effects are lost with it too, and for tests.

use super::{DedupeError, DedupeStore, expires_ms, mark_id};
use crate::box_future::BoxFuture;
use crate::clock::{Clock, SystemClock};
use parking_lot::Mutex;
use prombus_protocol::Uuid;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The default capacity, in marks. A mark takes less than a hundred bytes.
const CAPACITY: usize = 1_000_000;

/// A bounded number of marks in memory. When the store is full, the mark that would expire first is evicted and counted.
///
/// ```
/// use prombus::consume::dedupe::{DEDUPE_TTL_MS, DedupeStore, MemoryDedupe};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let id = prombus::Uuid::from_u128(7);
/// let marks = MemoryDedupe::new();
/// marks.mark("orders", "billing", id, DEDUPE_TTL_MS).await?;
/// assert!(marks.seen("orders", "billing", id).await?);
/// assert!(!marks.seen("orders", "shipping", id).await?);
/// # Ok(()) }
/// ```
pub struct MemoryDedupe {
    marks: Mutex<Marks>,
    clock: Arc<dyn Clock>,
}

impl MemoryDedupe {
    /// An empty store with room for a million marks.
    pub fn new() -> Self {
        Self::with_capacity(CAPACITY)
    }

    /// An empty store with room for `marks` marks, at least one.
    pub fn with_capacity(marks: usize) -> Self {
        let marks = Mutex::new(Marks { capacity: marks.max(1), ..Marks::default() });
        Self { marks, clock: Arc::new(SystemClock::default()) }
    }

    /// The source of time, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// How many marks it holds, including expired ones that were not removed yet.
    pub fn len(&self) -> usize {
        self.marks.lock().by_id.len()
    }

    /// Whether it holds no marks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many marks were evicted before they expired.
    pub fn evicted(&self) -> u64 {
        self.marks.lock().evicted
    }
}

impl Default for MemoryDedupe {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for MemoryDedupe {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "MemoryDedupe({} marks)", self.len())
    }
}

impl DedupeStore for MemoryDedupe {
    fn seen<'a>(
        &'a self,
        topic: &'a str,
        group: &'a str,
        id: Uuid,
    ) -> BoxFuture<'a, Result<bool, DedupeError>> {
        let is_seen = self.marks.lock().is_live(mark_id(topic, group, id), self.clock.wall_ms());
        Box::pin(async move { Ok(is_seen) })
    }

    fn mark<'a>(
        &'a self,
        topic: &'a str,
        group: &'a str,
        id: Uuid,
        ttl_ms: u64,
    ) -> BoxFuture<'a, Result<(), DedupeError>> {
        let now = self.clock.wall_ms();
        let mut marks = self.marks.lock();
        while marks.take_expired(now).is_some() {}
        marks.insert(mark_id(topic, group, id), expires_ms(now, ttl_ms));
        Box::pin(async { Ok(()) })
    }
}

/// Marks and when they expire.
#[derive(Debug)]
pub(super) struct Marks {
    /// When each mark expires.
    by_id: HashMap<Uuid, i64>,
    /// The same marks, in the order in which they expire.
    by_time: BTreeSet<(i64, Uuid)>,
    /// Maximum number of marks.
    capacity: usize,
    /// How many marks were evicted before they expired.
    evicted: u64,
}

impl Default for Marks {
    fn default() -> Self {
        Self { by_id: HashMap::new(), by_time: BTreeSet::new(), capacity: usize::MAX, evicted: 0 }
    }
}

impl Marks {
    pub(super) fn is_live(&self, mark: Uuid, now_ms: i64) -> bool {
        self.by_id.get(&mark).is_some_and(|expires| *expires > now_ms)
    }

    /// Adds a mark; an existing one is not changed. The caller removes expired marks first.
    pub(super) fn insert(&mut self, mark: Uuid, expires_ms: i64) {
        if self.by_id.contains_key(&mark) {
            return;
        }
        if self.by_id.len() >= self.capacity
            && let Some((_, first)) = self.by_time.pop_first()
        {
            self.by_id.remove(&first);
            self.evicted += 1;
        }
        self.by_id.insert(mark, expires_ms);
        self.by_time.insert((expires_ms, mark));
    }

    pub(super) fn remove(&mut self, mark: Uuid) {
        if let Some(expires) = self.by_id.remove(&mark) {
            self.by_time.remove(&(expires, mark));
        }
    }

    /// Removes and returns a mark that has expired.
    pub(super) fn take_expired(&mut self, now_ms: i64) -> Option<(Uuid, i64)> {
        let &(expires, mark) = self.by_time.first()?;
        if expires > now_ms {
            return None;
        }
        self.by_time.pop_first();
        self.by_id.remove(&mark);
        Some((mark, expires))
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[tokio::test]
    async fn a_full_store_evicts_the_mark_that_would_expire_first() {
        let marks = MemoryDedupe::with_capacity(2).clock(Arc::new(ManualClock::new(0)));
        for (id, ttl_ms) in [(1, 300), (2, 100), (3, 200)] {
            marks.mark("a", "g", Uuid::from_u128(id), ttl_ms).await.expect("marks");
        }
        for (id, is_seen) in [(1, true), (2, false), (3, true)] {
            assert_eq!(marks.seen("a", "g", Uuid::from_u128(id)).await.expect("reads"), is_seen, "{id}");
        }
        assert_eq!((marks.len(), marks.evicted()), (2, 1));
    }

    #[tokio::test]
    async fn expired_marks_take_no_room() {
        let clock = ManualClock::new(0);
        let marks = MemoryDedupe::with_capacity(100).clock(Arc::new(clock.clone()));
        for id in 0..1_000 {
            clock.advance_ms(10);
            marks.mark("a", "g", Uuid::from_u128(id), 100).await.expect("marks");
        }
        assert!(marks.len() <= 11, "{} marks", marks.len());
        assert_eq!(marks.evicted(), 0);
    }
}
