//! The events of one topic in the simulated database, and the queries about them.

use crate::backend::uuid_of;
use crate::engine::network::{EventDocument, FetchLimit, Piece};
use crate::engine::outcomes::Published;
use crate::engine::{EventHead, EventId, TopicUsage};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Ids that publishers chose stay known for this long after their events were removed by a cleaning.
const DEDUPE_MS: i64 = 7 * 24 * 3_600_000;

#[derive(Default)]
pub(super) struct TopicEvents {
    /// The newest seq, even if its event was cleaned.
    pub(super) last_seq: u64,
    /// The events by seq; cleaned events leave gaps.
    events: BTreeMap<u64, Arc<EventDocument>>,
    /// The seqs by id: for kept events, and for removed events whose ids were chosen by publishers.
    ids: HashMap<EventId, u64>,
    /// The publisher-chosen ids of cleaned events, with the times of the cleaning.
    cleaned_ids: VecDeque<(i64, EventId)>,
}

impl TopicEvents {
    pub(super) fn insert(&mut self, event: &Arc<EventDocument>) -> Published {
        let id = uuid_of(event.id);
        if let Some(&seq) = self.ids.get(&event.id) {
            return Published { id, seq, duplicate: true };
        }
        self.last_seq += 1;
        self.ids.insert(event.id, self.last_seq);
        self.events.insert(self.last_seq, Arc::clone(event));
        Published { id, seq: self.last_seq, duplicate: false }
    }

    pub(super) fn remove(&mut self, seqs: &[u64], now_ms: i64) -> u64 {
        let mut bytes = 0;
        for event in seqs.iter().filter_map(|seq| self.events.remove(seq)) {
            bytes += event.bytes() as u64;
            if event.is_client_id {
                self.cleaned_ids.push_back((now_ms, event.id));
            } else {
                self.ids.remove(&event.id);
            }
        }
        self.cleaned_ids.retain(|(cleaned_ms, id)| {
            let is_known = cleaned_ms.saturating_add(DEDUPE_MS) > now_ms;
            if !is_known {
                self.ids.remove(id);
            }
            is_known
        });
        bytes
    }

    pub(super) fn find(&self, id: EventId) -> Option<u64> {
        self.ids.get(&id).copied()
    }

    pub(super) fn seqs(&self) -> Vec<u64> {
        self.events.keys().copied().collect()
    }

    pub(super) fn head_in(&self, first_seq: u64, last_seq: u64) -> Option<EventHead> {
        if first_seq > last_seq {
            return None;
        }
        let (&seq, event) = self.events.range(first_seq..=last_seq).next()?;
        Some(EventHead::from(&event.at(seq)))
    }

    pub(super) fn fetch(&self, first_seq: u64, limit: FetchLimit) -> Piece {
        let mut piece = Piece { first_seq, last_seq: limit.last_seq, ..Piece::default() };
        let mut bytes = 0;
        for (&seq, event) in self.events.range(first_seq..) {
            if seq > limit.last_seq {
                break;
            }
            bytes += event.bytes();
            let is_full = piece.events.len() >= limit.events || bytes > limit.bytes;
            if is_full && !piece.events.is_empty() {
                piece.last_seq = seq - 1;
                break;
            }
            piece.events.push_back((seq, Arc::clone(event)));
        }
        piece
    }

    pub(super) fn first_at_or_after(&self, ts: i64, first_seq: u64, last_seq: u64) -> Option<u64> {
        let kept = self.events.range(first_seq..).take_while(|(seq, _)| **seq <= last_seq);
        kept.filter(|(_, event)| event.ts >= ts).map(|(&seq, _)| seq).next()
    }

    /// For each seq and key: whether an event with this key and a lower seq is kept. Makes one pass for all keys.
    pub(super) fn have_keys_before(&self, keys: &[(u64, Vec<u8>)]) -> Vec<bool> {
        let mut first_seqs: HashMap<&[u8], u64> =
            keys.iter().map(|(_, key)| (key.as_slice(), u64::MAX)).collect();
        for (&seq, event) in &self.events {
            if let Some(first) = event.key.as_deref().and_then(|key| first_seqs.get_mut(key)) {
                *first = (*first).min(seq);
            }
        }
        keys.iter().map(|(seq, key)| first_seqs[key.as_slice()] < *seq).collect()
    }

    pub(super) fn first_within_bytes(&self, bytes: u64) -> u64 {
        let mut left = bytes;
        let mut first_seq = self.last_seq.max(1);
        for (&seq, event) in self.events.iter().rev() {
            match left.checked_sub(event.bytes() as u64) {
                Some(rest) => left = rest,
                // The newest event is always included, whatever its size.
                None => return first_seq,
            }
            first_seq = seq;
        }
        1
    }

    /// The storage that the events from a seq on use.
    pub(super) fn usage(&self, first_seq: u64) -> TopicUsage {
        let kept = self.events.range(first_seq..);
        kept.fold(TopicUsage::default(), |sum, (_, event)| TopicUsage {
            events: sum.events + 1,
            bytes: sum.bytes + event.bytes() as u64,
        })
    }
}
