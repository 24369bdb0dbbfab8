//! The newest event of each key: a fold over a topic's events in the order of their seqs. Pure: no clock, no I/O.
//!
//! It answers two questions: what the state of a key is, and which events of a compacted topic are *live*, so that compaction
//! must keep them. Events without a key are never superseded, so they are always live; the map holds them as ranges.

use foldhash::fast::RandomState;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// The properties of an event that the map needs.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The event's seq; events are applied in rising order.
    pub seq: u64,
    /// The event's key.
    pub key: Option<&'a [u8]>,
    /// Whether the event deletes its key.
    pub is_tombstone: bool,
    /// When the event was committed, in ms since 1970; never decreases from one event to the next.
    pub commit_ms: i64,
    /// The event's size in the store.
    pub bytes: u32,
}

/// The newest events by key.
#[derive(Debug, Default)]
pub struct LatestMap {
    /// The seq of the newest event of each key.
    by_key: HashMap<Arc<[u8]>, u64, RandomState>,
    /// The newest events of all keys, by seq.
    by_seq: BTreeMap<u64, Newest>,
    /// Ranges of events without a key: first seq to last seq and bytes.
    keyless: BTreeMap<u64, (u64, u64)>,
    /// Seq and commit time of tombstones, in order; may contain some that are not the newest of their key any more.
    tombstones: VecDeque<(u64, i64)>,
    /// How many keys have a tombstone as their newest event.
    live_tombstones: usize,
    /// Bytes of live events.
    live_bytes: u64,
    /// Bytes of events that became dead since `take_dead_bytes` was last called.
    dead_bytes: u64,
    /// Bytes of all keys.
    key_bytes: usize,
}

#[derive(Debug)]
struct Newest {
    key: Arc<[u8]>,
    /// The size of the event in the store.
    bytes: u32,
    is_tombstone: bool,
}

/// The memory of a key in the two maps, without its own bytes.
const KEY_OVERHEAD_BYTES: usize = 120;

impl LatestMap {
    /// Applies an event. Seqs must rise.
    pub fn apply(&mut self, event: &Seen<'_>) {
        let bytes = u64::from(event.bytes);
        self.live_bytes += bytes;
        let Some(key) = event.key else {
            match self.keyless.last_entry() {
                Some(mut range) if range.get().0 + 1 == event.seq => {
                    let (last, total) = range.get_mut();
                    *last = event.seq;
                    *total += bytes;
                }
                _ => {
                    self.keyless.insert(event.seq, (event.seq, bytes));
                }
            }
            return;
        };
        let key: Arc<[u8]> = match self.by_key.get_key_value(key) {
            Some((known, &before)) => {
                let known = Arc::clone(known);
                self.mark_dead(before);
                known
            }
            None => {
                self.key_bytes += key.len();
                key.into()
            }
        };
        if event.is_tombstone {
            self.prune_tombstones();
            self.tombstones.push_back((event.seq, event.commit_ms));
            self.live_tombstones += 1;
        }
        self.by_key.insert(Arc::clone(&key), event.seq);
        let newest = Newest { key, bytes: event.bytes, is_tombstone: event.is_tombstone };
        self.by_seq.insert(event.seq, newest);
    }

    /// Removes an event that is not the newest of its key any more: its bytes are dead.
    fn mark_dead(&mut self, seq: u64) -> Option<Newest> {
        let newest = self.by_seq.remove(&seq)?;
        self.live_tombstones -= usize::from(newest.is_tombstone);
        self.live_bytes -= u64::from(newest.bytes);
        self.dead_bytes += u64::from(newest.bytes);
        Some(newest)
    }

    /// Removes an event together with its key.
    fn forget(&mut self, seq: u64) {
        if let Some(newest) = self.mark_dead(seq) {
            self.key_bytes -= newest.key.len();
            self.by_key.remove(&newest.key);
        }
    }

    /// Removes all events below `first_seq`.
    pub fn cut(&mut self, first_seq: u64) {
        while let Some((&seq, _)) = self.by_seq.first_key_value()
            && seq < first_seq
        {
            self.forget(seq);
        }
        while let Some(range) = self.keyless.first_entry() {
            let (&first, &(last, bytes)) = (range.key(), range.get());
            if first >= first_seq {
                break;
            }
            range.remove();
            let gone = last.min(first_seq - 1) - first + 1;
            let gone_bytes = share(bytes, gone, last - first + 1);
            self.live_bytes -= gone_bytes;
            self.dead_bytes += gone_bytes;
            if last >= first_seq {
                self.keyless.insert(first_seq, (last, bytes - gone_bytes));
            }
        }
    }

    /// Old tombstones after the seq `after` that are still the newest of their key, the oldest first, at most `limit`, with
    /// their keys. A tombstone is old if it was committed at `committed_by_ms` or before, or has a seq up to `old_seq`.
    pub fn old_tombstones(
        &mut self,
        after: u64,
        committed_by_ms: i64,
        old_seq: u64,
        limit: usize,
    ) -> Vec<(u64, Vec<u8>)> {
        self.prune_tombstones();
        let start = self.tombstones.partition_point(|&(seq, _)| seq <= after);
        let old = self
            .tombstones
            .range(start..)
            .take_while(|&&(seq, commit_ms)| commit_ms <= committed_by_ms || seq <= old_seq);
        let old = old.filter_map(|&(seq, _)| {
            let newest = self.by_seq.get(&seq).filter(|newest| newest.is_tombstone)?;
            Some((seq, newest.key.to_vec()))
        });
        old.take(limit).collect()
    }

    /// Removes the entries of tombstones that are not the newest of their key any more, if they are most of the list.
    fn prune_tombstones(&mut self) {
        if self.tombstones.len() > 2 * self.live_tombstones + 64 {
            let by_seq = &self.by_seq;
            self.tombstones.retain(|(seq, _)| by_seq.get(seq).is_some_and(|newest| newest.is_tombstone));
        }
    }

    /// Removes a tombstone that is not needed any more: no older event of its key is left.
    pub fn drop_tombstone(&mut self, seq: u64) {
        if self.by_seq.get(&seq).is_some_and(|newest| newest.is_tombstone) {
            self.forget(seq);
        }
    }

    /// The seq of the newest event of a key; `None` if there is none, or if it is a tombstone.
    pub fn get(&self, key: &[u8]) -> Option<u64> {
        let &seq = self.by_key.get(key)?;
        self.by_seq.get(&seq).is_some_and(|newest| !newest.is_tombstone).then_some(seq)
    }

    /// Seqs of the newest events of all keys with `after < seq <= to`, in order. Tombstones are included if `with_deleted`
    /// is true.
    pub fn seqs(&self, after: u64, to: u64, with_deleted: bool) -> impl Iterator<Item = u64> + '_ {
        let range = (after < to).then(|| self.by_seq.range(after + 1..=to));
        let wanted = range.into_iter().flatten();
        wanted.filter(move |(_, newest)| with_deleted || !newest.is_tombstone).map(|(&seq, _)| seq)
    }

    /// How many keys there are that are not deleted.
    pub fn key_count(&self) -> usize {
        self.by_seq.len() - self.live_tombstones
    }

    /// Whether an event is live, i.e. no newer event has its key.
    pub fn is_live(&self, seq: u64) -> bool {
        let in_range = || self.keyless.range(..=seq).next_back().is_some_and(|(_, &(last, _))| last >= seq);
        self.by_seq.contains_key(&seq) || in_range()
    }

    /// The number and the bytes of live events in a range of seqs.
    pub fn live_in(&self, first: u64, last: u64) -> (u64, u64) {
        if first > last {
            return (0, 0);
        }
        let (mut count, mut bytes) = (0, 0);
        for newest in self.by_seq.range(first..=last).map(|(_, newest)| newest) {
            count += 1;
            bytes += u64::from(newest.bytes);
        }
        let before = self.keyless.range(..first).next_back();
        for (&start, &(end, total)) in before.into_iter().chain(self.keyless.range(first..=last)) {
            let (from, to) = (start.max(first), end.min(last));
            if from <= to {
                count += to - from + 1;
                bytes += share(total, to - from + 1, end - start + 1);
            }
        }
        (count, bytes)
    }

    /// Bytes of live events.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes of events that became dead since [`take_dead_bytes`](Self::take_dead_bytes) was last called.
    pub fn dead_bytes(&self) -> u64 {
        self.dead_bytes
    }

    /// Adds back dead bytes that were taken but whose events were not cleaned.
    pub fn put_back_dead_bytes(&mut self, bytes: u64) {
        self.dead_bytes += bytes;
    }

    /// Takes the dead bytes and resets their count.
    pub fn take_dead_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.dead_bytes)
    }

    /// The memory that the map takes, approximately.
    pub fn memory_bytes(&self) -> usize {
        self.key_bytes
            + self.by_seq.len() * KEY_OVERHEAD_BYTES
            + self.keyless.len() * 40
            + self.tombstones.len() * 16
    }
}

/// `total * count / all`, without overflow.
fn share(total: u64, count: u64, all: u64) -> u64 {
    (u128::from(total) * u128::from(count) / u128::from(all.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap as Model;

    fn seen(seq: u64, key: Option<&[u8]>, is_tombstone: bool) -> Seen<'_> {
        Seen { seq, key, is_tombstone, commit_ms: seq as i64 * 10, bytes: 100 + (seq % 7) as u32 }
    }

    #[test]
    fn the_map_agrees_with_a_naive_fold_over_random_histories() {
        let seed = std::env::var("PROMBUS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7u64);
        let mut random = seed;
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for history in 0..200 {
            let mut map = LatestMap::default();
            // All live events: seq to key, whether it is a tombstone, bytes.
            let mut live: Model<u64, (Option<Vec<u8>>, bool, u64)> = Model::new();
            for seq in 1..400u64 {
                match next(40) {
                    0 => {
                        let first = next(seq) + 1;
                        map.cut(first);
                        live = live.split_off(&first);
                    }
                    1 => {
                        let by = next(seq * 10) as i64;
                        for (seq, key) in map.old_tombstones(0, by, 0, 3) {
                            let known = live.remove(&seq);
                            assert_eq!(known.map(|it| (it.0, it.1)), Some((Some(key), true)), "seed {seed}");
                            map.drop_tombstone(seq);
                        }
                    }
                    _ => {}
                }
                let key = (next(5) > 0).then(|| vec![b'a' + next(9) as u8]);
                let is_tombstone = key.is_some() && next(6) == 0;
                let event = seen(seq, key.as_deref(), is_tombstone);
                map.apply(&event);
                if key.is_some() {
                    live.retain(|_, (other, ..)| *other != key);
                }
                let bytes = u64::from(event.bytes);
                live.insert(seq, (key, is_tombstone, bytes));
            }
            let context = format!("history {history}, seed {seed}");
            assert_eq!(
                (1..400).filter(|&seq| map.is_live(seq)).collect::<Vec<_>>(),
                live.keys().copied().collect::<Vec<_>>(),
                "{context}"
            );
            let total: u64 = live.values().map(|it| it.2).sum();
            assert!(map.live_bytes().abs_diff(total) < 400, "{context}: {} {total}", map.live_bytes());
            let keyed = live.iter().filter(|(_, it)| it.0.is_some() && !it.1);
            let seqs: Vec<u64> = keyed.clone().map(|(&seq, _)| seq).collect();
            assert_eq!(map.seqs(0, u64::MAX, false).collect::<Vec<_>>(), seqs, "{context}");
            assert_eq!(map.key_count(), seqs.len(), "{context}");
            for (&seq, (key, ..)) in keyed {
                assert_eq!(map.get(key.as_deref().expect("keyed")), Some(seq), "{context}");
            }
            for _ in 0..20 {
                let first = next(400);
                let last = first + next(200);
                let count = live.range(first..=last).count() as u64;
                assert_eq!(map.live_in(first, last).0, count, "{context}");
            }
        }
    }

    #[test]
    fn a_key_that_is_deleted_repeatedly_takes_no_more_memory() {
        let mut map = LatestMap::default();
        map.apply(&seen(1, Some(b"first"), true));
        for round in 1..10_000 {
            map.apply(&seen(2 * round, Some(b"k"), false));
            map.apply(&seen(2 * round + 1, Some(b"k"), true));
        }
        assert!(map.memory_bytes() < 4_096, "{} bytes for two keys", map.memory_bytes());
        let old = map.old_tombstones(0, i64::MAX, 0, 9);
        assert_eq!(old, [(1, b"first".to_vec()), (19_999, b"k".to_vec())]);
        assert_eq!(map.old_tombstones(1, i64::MAX, 0, 9), [(19_999, b"k".to_vec())]);
        assert!(map.old_tombstones(19_999, i64::MAX, 0, 9).is_empty());
    }

    #[test]
    fn a_deleted_key_is_not_found_until_it_is_set_again() {
        let mut map = LatestMap::default();
        map.apply(&seen(1, Some(b"k"), false));
        map.apply(&seen(2, Some(b"k"), true));
        assert_eq!((map.get(b"k"), map.key_count(), map.is_live(2)), (None, 0, true));
        assert_eq!(map.dead_bytes(), 101);
        map.apply(&seen(3, Some(b"k"), false));
        assert_eq!((map.get(b"k"), map.key_count(), map.is_live(2)), (Some(3), 1, false));
        assert!(map.old_tombstones(0, i64::MIN, u64::MAX, 9).is_empty());
    }
}
