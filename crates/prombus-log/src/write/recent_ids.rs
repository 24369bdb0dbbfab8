//! Publishers' ids (event ids that publishers chose) that are not in an index file yet: those of the growing segment,
//! and of sealed segments whose index file is not written yet.
//!
//! Every publish with an id looks it up here under the append lock, so a new id must cost only one cache miss. A slot
//! contains 32 bits of the id's hash and the place of the whole id, which is compared only if those bits match.

use crate::event_id::EventId;
use std::collections::VecDeque;

/// The minimum number of slots in a table.
const SLOTS_MIN: usize = 1024;

/// A publisher's id and its event.
#[derive(Clone, Copy)]
struct RecentId {
    id: EventId,
    topic: u32,
    seq: u64,
}

/// The ids of one segment.
#[derive(Default)]
pub(crate) struct IdTable {
    ids: Vec<RecentId>,
    /// The hashes of `ids`.
    hashes: Vec<u64>,
    /// The upper 32 bits are bits of the hash. The lower 32 bits are the place in `ids`, counted from 1. Zero is an empty
    /// slot. At most half of the slots are used.
    slots: Vec<u64>,
    /// The highest UUIDv7 in the table. `get` need not search for a higher UUIDv7.
    last_ordered: EventId,
}

impl IdTable {
    fn get(&self, topic: u32, id: EventId, hash: u64) -> Option<u64> {
        if self.slots.is_empty() || (id.is_time_ordered() && id > self.last_ordered) {
            return None;
        }
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            if slot >> 32 == hash >> 32 {
                let candidate = &self.ids[(slot as u32 - 1) as usize];
                if candidate.id == id && candidate.topic == topic {
                    return Some(candidate.seq);
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// Inserts an id that is not in the table.
    fn insert(&mut self, topic: u32, id: EventId, hash: u64, seq: u64) {
        if (self.ids.len() + 1) * 2 > self.slots.len() {
            self.grow();
        }
        if id.is_time_ordered() {
            self.last_ordered = self.last_ordered.max(id);
        }
        self.ids.push(RecentId { id, topic, seq });
        self.hashes.push(hash);
        self.place(self.ids.len() as u64, hash);
    }

    fn place(&mut self, number: u64, hash: u64) {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while self.slots[at] != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = (hash >> 32) << 32 | number;
    }

    fn grow(&mut self) {
        self.slots = vec![0; (self.slots.len() * 2).max(SLOTS_MIN)];
        for at in 0..self.hashes.len() {
            self.place(at as u64 + 1, self.hashes[at]);
        }
    }

    /// Empties the table but keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.ids.clear();
        self.hashes.clear();
        self.slots.fill(0);
        self.last_ordered = EventId::default();
    }
}

/// The ids of all segments that have no index file yet.
#[derive(Default)]
pub(crate) struct RecentIds {
    /// The ids of the growing segment.
    current: IdTable,
    /// The ids of earlier segments, by segment number, the oldest first.
    previous: VecDeque<(u64, IdTable)>,
    /// An empty table that has already grown, for the next segment.
    spare: Option<IdTable>,
    /// The number of calls of [`forget`](Self::forget).
    forgotten: u64,
}

impl RecentIds {
    /// Prefetches the slots of ids that are about to be inserted. Loads without other work between them overlap, so the
    /// processor waits for all cache misses at once instead of one after another.
    pub(crate) fn warm(&self, hashes: impl Iterator<Item = u64>) {
        let slots = &self.current.slots;
        if !slots.is_empty() {
            let mask = slots.len() - 1;
            std::hint::black_box(hashes.fold(0, |all, hash| all ^ slots[hash as usize & mask]));
        }
    }

    /// Inserts an id, or returns the seq of the event that already has it.
    pub(crate) fn insert(&mut self, topic: u32, id: EventId, hash: u64, seq: u64) -> Option<u64> {
        let existing = self.get(topic, id, hash);
        if existing.is_none() {
            self.current.insert(topic, id, hash, seq);
        }
        existing
    }

    pub(crate) fn get(&self, topic: u32, id: EventId, hash: u64) -> Option<u64> {
        let previous = || self.previous.iter().find_map(|(_, ids)| ids.get(topic, id, hash));
        self.current.get(topic, id, hash).or_else(previous)
    }

    /// Ends the current table, whose ids belong to `segment`, and starts the table of the next segment.
    pub(crate) fn roll(&mut self, segment: u64) {
        let next = self.spare.take().unwrap_or_default();
        let done = std::mem::replace(&mut self.current, next);
        self.previous.push_back((segment, done));
    }

    /// Removes the table of a segment, whose ids are in its index file or not needed any more. The caller empties the
    /// table outside the lock.
    pub(crate) fn forget(&mut self, segment: u64) -> Option<IdTable> {
        self.forgotten += 1;
        let at = self.previous.iter().position(|(number, _)| *number == segment)?;
        self.previous.remove(at).map(|(_, table)| table)
    }

    /// Takes back an emptied table for reuse.
    pub(crate) fn reuse(&mut self, table: IdTable) {
        self.spare = Some(table);
    }

    /// The number of calls of [`forget`](Self::forget). If it has changed since ids were looked up in the index files, other
    /// ids may have moved there from memory, and the lookup must be repeated.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed_hash::KeyedHash;
    use crate::server_ids::SmallRandom;
    use std::collections::HashMap;

    #[test]
    fn ids_are_found_across_rolls_until_they_are_forgotten() {
        let hasher = KeyedHash::new([3, 9]);
        let mut random = SmallRandom::new(1);
        let mut ids = RecentIds::default();
        let mut model: HashMap<(u32, EventId), u64> = HashMap::new();
        for seq in 1..20_000_u64 {
            let id = EventId::from_u128(u128::from(random.next() % 9_000));
            let topic = (random.next() % 3) as u32;
            let hash = hasher.of_id(topic, id);
            let there = model.get(&(topic, id)).copied();
            assert_eq!(ids.insert(topic, id, hash, seq), there);
            model.entry((topic, id)).or_insert(seq);
            if seq % 4_000 == 0 {
                ids.roll(seq);
            }
        }
        let mut table = ids.forget(4_000).unwrap();
        table.clear();
        ids.reuse(table);
        ids.roll(20_000);
        for (&(topic, id), &seq) in &model {
            let found = ids.get(topic, id, hasher.of_id(topic, id));
            assert_eq!(found, (seq > 4_000).then_some(seq));
        }
    }

    #[test]
    fn ids_with_the_same_hash_are_distinguished() {
        let mut ids = RecentIds::default();
        for number in 0..100 {
            assert_eq!(ids.insert(1, EventId::from_u128(number), 77, number as u64 + 1), None);
        }
        assert_eq!(ids.insert(1, EventId::from_u128(40), 77, 999), Some(41));
        assert_eq!(ids.get(2, EventId::from_u128(40), 77), None);
    }
}
