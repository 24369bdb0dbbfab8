//! The settled seqs of a topic: all seqs up to the floor, and ranges above it. If one event is unsettled and the next million
//! are acked, these acks take only one range.

use std::collections::BTreeMap;

/// A set of settled seqs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettledSeqs {
    /// This seq and all lower ones are settled.
    floor: u64,
    /// The settled ranges above the floor: first seq to last seq. Disjoint, not adjacent, and all above `floor + 1`.
    above: BTreeMap<u64, u64>,
    /// The number of seqs in `above`.
    above_count: u64,
}

impl SettledSeqs {
    /// Everything up to `floor` is settled, nothing above.
    pub fn up_to(floor: u64) -> Self {
        Self { floor, ..Self::default() }
    }

    /// The highest seq such that it and all below it are settled.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The settled ranges above the floor, in order.
    pub fn above(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.above.iter().map(|(&first, &last)| (first, last))
    }

    /// How many seqs above the floor are settled.
    pub fn above_count(&self) -> u64 {
        self.above_count
    }

    /// Whether a seq is settled.
    pub fn contains(&self, seq: u64) -> bool {
        seq <= self.floor || self.above.range(..=seq).next_back().is_some_and(|(_, &last)| last >= seq)
    }

    /// Settles a range, both ends included; parts of it may be settled already.
    pub fn insert(&mut self, first: u64, last: u64) {
        let first = first.max(self.floor + 1);
        if last < first {
            return;
        }
        if first == self.floor + 1 {
            self.floor = last;
            self.absorb();
            return;
        }
        let (mut start, mut end) = (first, last);
        if let Some((&before, &before_last)) = self.above.range(..=first).next_back() {
            if before_last >= last {
                return;
            }
            if before_last + 1 >= first {
                start = before;
            }
        }
        while let Some((&next, &next_last)) = self.above.range(start..=end.saturating_add(1)).next() {
            self.above.remove(&next);
            self.above_count -= next_last - next + 1;
            end = end.max(next_last);
        }
        self.above.insert(start, end);
        self.above_count += end - start + 1;
    }

    /// Moves the floor up over the ranges that it has reached, and removes them.
    fn absorb(&mut self) {
        while let Some(range) = self.above.first_entry() {
            let (&first, &last) = (range.key(), range.get());
            if first > self.floor + 1 {
                return;
            }
            range.remove();
            self.above_count -= last - first + 1;
            self.floor = self.floor.max(last);
        }
    }

    /// Calls `each` with every range in `first..=last` that is not settled.
    pub fn unsettled(&self, first: u64, last: u64, mut each: impl FnMut(u64, u64)) {
        let mut from = first.max(self.floor + 1);
        let around = self.above.range(..=from).next_back();
        let later = self.above.range(from.saturating_add(1)..);
        for (&start, &end) in around.into_iter().chain(later) {
            if start > last {
                break;
            }
            if end < from {
                continue;
            }
            if start > from {
                each(from, start - 1);
            }
            from = end + 1;
        }
        if from <= last {
            each(from, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn unsettled(settled: &SettledSeqs, first: u64, last: u64) -> Vec<(u64, u64)> {
        let mut ranges = Vec::new();
        settled.unsettled(first, last, |first, last| ranges.push((first, last)));
        ranges
    }

    #[test]
    fn a_million_acks_after_one_unsettled_event_are_one_range() {
        let mut settled = SettledSeqs::default();
        for seq in 2..=1_000_000 {
            settled.insert(seq, seq);
        }
        assert_eq!(settled.floor(), 0);
        assert_eq!(settled.above().collect::<Vec<_>>(), [(2, 1_000_000)]);
        settled.insert(1, 1);
        assert_eq!((settled.floor(), settled.above_count()), (1_000_000, 0));
    }

    #[test]
    fn agrees_with_a_set_of_numbers_over_random_inserts() {
        let mut random = 42u64;
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        for _ in 0..300 {
            let start = next(5);
            let mut settled = SettledSeqs::up_to(start);
            let mut naive: BTreeSet<u64> = (1..=start).collect();
            for _ in 0..60 {
                let first = 1 + next(80);
                let last = first + next(6);
                settled.insert(first, last);
                naive.extend(first..=last);
                let floor = (1..).take_while(|seq| naive.contains(seq)).last().unwrap_or(0);
                assert_eq!(settled.floor(), floor);
                assert_eq!(settled.above_count() as usize, naive.range(floor + 1..).count());
                assert!((1..100).all(|seq| settled.contains(seq) == naive.contains(&seq)));
                let (from, to) = (1 + next(50), 40 + next(60));
                let listed: Vec<u64> = unsettled(&settled, from, to)
                    .into_iter()
                    .flat_map(|(first, last)| first..=last)
                    .collect();
                let expected: Vec<u64> = (from..=to).filter(|seq| !naive.contains(seq)).collect();
                assert_eq!(listed, expected);
            }
        }
    }
}
