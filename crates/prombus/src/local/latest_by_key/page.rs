//! Builds a page of a query for the newest events of keys: selects the events with the map, and reads them.

use super::{Fold, LatestByKey, TopicState};
use crate::backend::{EventBatch, EventPosition, Keys, LatestPage, LatestQuery, PullLimit};
use crate::engine::{EventScanner, TopicId, Visit};
use crate::error::ReadError;
use crate::local::run_reads::run_reads;
use prombus_protocol::Topic;
use std::future::poll_fn;
use std::sync::Arc;

/// Seqs that are at most this far apart are read in one scan.
const GAP_MAX: u64 = 64;
/// If a page has at most this many events, and all are in memory, they are read on the calling thread.
const QUICK_EVENTS_MAX: usize = 64;

impl LatestByKey {
    /// Returns the newest events of keys. Usually, as for a query of one key, only a few events are read and they are in
    /// memory: then they are read on the calling thread. Files are read on threads that may be blocked.
    pub(in crate::local) async fn latest(
        self: &Arc<Self>,
        id: TopicId,
        topic: &Topic,
        query: LatestQuery,
    ) -> Result<LatestPage, ReadError> {
        let turn = match query.at_ts {
            // Cannot fail, because the semaphore is never closed.
            Some(_) => Arc::clone(&self.turns).acquire_owned().await.ok(),
            None => None,
        };
        let map = if query.at_ts.is_some() { self.new_map() } else { self.get(id) };
        let fold = Fold::begin(self, &map, id, topic, query.at_ts.unwrap_or(i64::MAX)).await;
        // A historical state is built from the whole topic, which is never quick.
        if query.at_ts.is_none() && fold.is_quick() {
            let page = PageRead::after(fold, &query).await?;
            if page.is_quick() {
                return page.run().await;
            }
            return run_reads(&*self.engine, page.run()).await;
        }
        run_reads(&*self.engine, async move {
            let page = PageRead::after(fold, &query).await?;
            // The map of a historical state is not needed any more.
            drop((map, turn));
            page.run().await
        })
        .await
    }
}

/// The events that a page will contain.
struct Picked {
    seqs: Vec<u64>,
    /// More events follow the last of `seqs`.
    has_more: bool,
    /// The newest event that the map covers.
    position: Option<EventPosition>,
    key_count: u64,
}

impl Picked {
    fn new(state: &TopicState, query: &LatestQuery) -> Self {
        let limit = (query.limit.events as usize).max(1);
        let newest = state.next_seq - 1;
        let to = query.to_seq.unwrap_or(newest).min(newest);
        let mut seqs: Vec<u64> = match &query.keys {
            Keys::All => state.map.seqs(query.after_seq, to, query.with_deleted).take(limit + 1).collect(),
            Keys::These(keys) => {
                let seqs = keys.iter().filter_map(|key| state.map.get(key.as_bytes()));
                let mut seqs: Vec<u64> = seqs.filter(|&seq| seq > query.after_seq && seq <= to).collect();
                seqs.sort_unstable();
                seqs.dedup();
                seqs.truncate(limit + 1);
                seqs
            }
        };
        let has_more = seqs.len() > limit;
        seqs.truncate(limit);
        Self { seqs, has_more, position: state.position(), key_count: state.map.key_count() as u64 }
    }
}

/// Reads the events of a page, without the map's lock.
struct PageRead {
    id: TopicId,
    topic: Topic,
    limit: PullLimit,
    picked: Picked,
    scanner: Box<dyn EventScanner>,
    events: EventBatch,
    /// The seq of the last event in `events`.
    last: Option<u64>,
    /// The limit is reached.
    is_full: bool,
}

impl PageRead {
    /// Runs the fold, which brings the map up to date, and selects the events of the page.
    async fn after(fold: Fold, query: &LatestQuery) -> Result<Self, ReadError> {
        fold.run().await?;
        let picked = Picked::new(&fold.map.state.lock(), query);
        Ok(Self {
            id: fold.id,
            scanner: fold.latest.engine.scanner(),
            topic: fold.topic,
            limit: query.limit,
            picked,
            events: EventBatch::default(),
            last: None,
            is_full: false,
        })
    }

    /// Whether [`run`](Self::run) may run on any thread: it reads few events, and they are in memory.
    fn is_quick(&self) -> bool {
        let seqs = &self.picked.seqs;
        // If an event is in memory, so are all later ones.
        let is_in_memory = |&seq: &u64| self.scanner.is_in_memory(self.id, seq);
        seqs.len() <= QUICK_EVENTS_MAX && seqs.first().is_none_or(is_in_memory)
    }

    async fn run(mut self) -> Result<LatestPage, ReadError> {
        let seqs = std::mem::take(&mut self.picked.seqs);
        let mut at = 0;
        while at < seqs.len() && !self.is_full {
            let gap = seqs[at..].windows(2).position(|pair| pair[1] - pair[0] > GAP_MAX);
            let end = at + gap.unwrap_or(seqs.len() - at - 1);
            self.read_cluster(&seqs[at..=end]).await?;
            at = end + 1;
        }
        let next_after = match (self.is_full, self.picked.has_more) {
            (true, _) => self.last,
            (false, true) => seqs.last().copied(),
            (false, false) => None,
        };
        let Picked { position, key_count, .. } = self.picked;
        Ok(LatestPage { events: self.events, position, key_count, next_after })
    }

    /// Reads events whose seqs are close to each other.
    async fn read_cluster(&mut self, seqs: &[u64]) -> Result<(), ReadError> {
        let (Some(&first), Some(&end)) = (seqs.first(), seqs.last()) else { return Ok(()) };
        let (mut wanted, mut from) = (seqs, first);
        while from <= end && !self.is_full {
            let Self { id, topic, limit, scanner, events, last, is_full, .. } = self;
            let scanned = poll_fn(|context| {
                scanner.poll_scan(*id, from, end, context, &mut |event| {
                    while wanted.first().is_some_and(|&seq| seq < event.seq) {
                        wanted = &wanted[1..];
                    }
                    if wanted.first() == Some(&event.seq) {
                        let size = events.byte_count() + event.body.len();
                        *is_full = !events.is_empty() && size > limit.bytes;
                        if *is_full {
                            return Visit::Stop;
                        }
                        events.push(topic, event);
                        *last = Some(event.seq);
                    }
                    Visit::Next
                })
            });
            let scanned = scanned.await?;
            if scanned.next_seq <= from {
                break;
            }
            from = scanned.next_seq;
        }
        Ok(())
    }
}
