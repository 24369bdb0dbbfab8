//! The tail cache: keeps the newest durable events in memory, so that readers that are up to date need no request to the
//! database.
//!
//! **Invariant:** the cached events of a topic have consecutive seqs, up to the newest durable seq. When the size limit is
//! exceeded, the events that were added first are removed, no matter which topic they belong to.

use super::change::EventDocument;
use super::piece::{FetchLimit, Piece};
use crate::engine::TopicId;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

pub(super) struct Tail {
    /// The limit of `bytes`.
    bytes_max: usize,
    /// The size of all events.
    bytes: usize,
    /// The events of each topic with their seqs, in order.
    topics: HashMap<TopicId, VecDeque<(u64, Arc<EventDocument>)>>,
    /// The topic of each cached event, the oldest event first. It may also contain the topics of events that were removed
    /// in another way, so a newer event of such a topic may be removed too early.
    order: VecDeque<TopicId>,
}

impl Tail {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, topics: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn push(&mut self, seq: u64, event: &Arc<EventDocument>) {
        if event.bytes() > self.bytes_max {
            // The event would evict everything else and still not fit. Readers fetch it from the database.
            return self.remove_topic(event.topic);
        }
        let events = self.topics.entry(event.topic).or_default();
        if events.back().is_some_and(|(last, _)| last + 1 != seq) {
            self.bytes -= events.drain(..).map(|(_, event)| event.bytes()).sum::<usize>();
        }
        events.push_back((seq, Arc::clone(event)));
        self.order.push_back(event.topic);
        self.bytes += event.bytes();
        while self.bytes > self.bytes_max || self.order.len() > 2 * self.count_max() {
            let Some(topic) = self.order.pop_front() else { return };
            let Some(events) = self.topics.get_mut(&topic) else { continue };
            self.bytes -= events.pop_front().map_or(0, |(_, event)| event.bytes());
            if events.is_empty() {
                self.topics.remove(&topic);
            }
        }
    }

    /// The maximum number of events that fit into the cache. `order` is at most about twice as long.
    fn count_max(&self) -> usize {
        self.bytes_max / EventDocument::bytes_of(None, &[]) + 1
    }

    pub(super) fn remove_topic(&mut self, topic: TopicId) {
        let removed = self.topics.remove(&topic).unwrap_or_default();
        self.bytes -= removed.iter().map(|(_, event)| event.bytes()).sum::<usize>();
    }

    /// Whether the cache has all events of a topic from a seq on.
    pub(super) fn contains(&self, topic: TopicId, seq: u64) -> bool {
        let first = self.topics.get(&topic).and_then(|events| events.front());
        first.is_some_and(|(first, _)| *first <= seq)
    }

    /// The events of a topic from a seq on, if the cache has all of them.
    pub(super) fn piece(&self, topic: TopicId, seq: u64, limit: FetchLimit) -> Option<Piece> {
        let events = self.topics.get(&topic)?;
        let (first, _) = events.front().filter(|(first, _)| *first <= seq)?;
        let mut piece = Piece { first_seq: seq, last_seq: limit.last_seq, ..Piece::default() };
        let mut bytes = 0;
        for (at, event) in events.range(((seq - first) as usize).min(events.len())..) {
            if *at > limit.last_seq {
                break;
            }
            bytes += event.bytes();
            if !piece.events.is_empty() && (piece.events.len() >= limit.events || bytes > limit.bytes) {
                piece.last_seq = at - 1;
                break;
            }
            piece.events.push_back((*at, Arc::clone(event)));
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EventId;

    fn event(topic: u32, body: usize) -> Arc<EventDocument> {
        Arc::new(EventDocument {
            topic: TopicId::from_number(topic),
            id: EventId::default(),
            ts: 0,
            commit_ms: 0,
            key: None,
            body: vec![0; body].into(),
            is_tombstone: false,
            is_client_id: false,
        })
    }

    const ALL: FetchLimit = FetchLimit { last_seq: u64::MAX, events: usize::MAX, bytes: usize::MAX };

    #[test]
    fn the_oldest_events_of_all_topics_are_removed_first() {
        let size = event(1, 100).bytes();
        let mut tail = Tail::new(4 * size);
        for seq in 1..=3 {
            tail.push(seq, &event(1, 100));
            tail.push(seq, &event(2, 100));
        }
        for topic in [1, 2].map(TopicId::from_number) {
            assert!(!tail.contains(topic, 1) && tail.contains(topic, 2));
            let piece = tail.piece(topic, 2, ALL).expect("seq 2 is in memory");
            assert_eq!(piece.events.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), [2, 3]);
        }
        tail.remove_topic(TopicId::from_number(1));
        assert_eq!(tail.bytes, 2 * size);
    }

    #[test]
    fn an_event_that_does_not_fit_leaves_no_gap() {
        let mut tail = Tail::new(1_000);
        tail.push(1, &event(1, 10));
        tail.push(2, &event(1, 5_000));
        tail.push(3, &event(1, 10));
        let topic = TopicId::from_number(1);
        assert!(!tail.contains(topic, 1) && !tail.contains(topic, 2) && tail.contains(topic, 3));
    }

    #[test]
    fn a_piece_ends_at_its_limit() {
        let mut tail = Tail::new(1 << 20);
        (1..=10).for_each(|seq| tail.push(seq, &event(1, 100)));
        let topic = TopicId::from_number(1);
        let piece = tail.piece(topic, 3, FetchLimit { events: 2, ..ALL }).expect("it is in memory");
        assert_eq!((piece.events.len(), piece.last_seq), (2, 4));
        let piece = tail.piece(topic, 3, FetchLimit { last_seq: 5, ..ALL }).expect("it is in memory");
        assert_eq!((piece.events.len(), piece.last_seq), (3, 5));
    }
}
