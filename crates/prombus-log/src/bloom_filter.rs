//! A blocked Bloom filter: one cache line per lookup, about 10 bits per item, about 1 false positive in 80 lookups. The
//! filters of every sealed segment stay in memory, so that looking up a publisher's id reads only the segments that may
//! have it.

use crate::fields::u64_at;

const BLOCK_WORDS: usize = 8;
const BITS_PER_ITEM: usize = 10;
const PROBES: u32 = 6;

/// A blocked Bloom filter over 64-bit hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    blocks: Vec<[u64; BLOCK_WORDS]>,
}

impl Filter {
    pub(crate) fn build(hashes: impl ExactSizeIterator<Item = u64>) -> Self {
        let bits = hashes.len() * BITS_PER_ITEM;
        let mut filter = Self { blocks: vec![[0; BLOCK_WORDS]; bits.div_ceil(BLOCK_WORDS * 64)] };
        for hash in hashes {
            let block = filter.block_of(hash);
            let words = &mut filter.blocks[block];
            for_each_probe(hash, |word, mask| {
                words[word] |= mask;
                true
            });
        }
        filter
    }

    /// False only if no item with this hash was added.
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        if self.blocks.is_empty() {
            return false;
        }
        let words = &self.blocks[self.block_of(hash)];
        for_each_probe(hash, |word, mask| words[word] & mask != 0)
    }

    fn block_of(&self, hash: u64) -> usize {
        (((hash >> 32) * self.blocks.len() as u64) >> 32) as usize
    }

    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        for word in self.blocks.iter().flatten() {
            into.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Reads the bytes that [`put`](Self::put) wrote; `None` if their length is not a multiple of the block size.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        if !bytes.len().is_multiple_of(BLOCK_WORDS * 8) {
            return None;
        }
        let blocks = bytes
            .chunks_exact(BLOCK_WORDS * 8)
            .map(|block| std::array::from_fn(|word| u64_at(block, word * 8)))
            .collect();
        Some(Self { blocks })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.blocks.len() * BLOCK_WORDS * 8
    }
}

/// Calls `probe` with the word and mask of each probe until it returns false. Returns whether all returned true.
fn for_each_probe(hash: u64, mut probe: impl FnMut(usize, u64) -> bool) -> bool {
    let mut bits = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..PROBES {
        let bit = (bits >> 55) as usize;
        if !probe(bit / 64, 1 << (bit % 64)) {
            return false;
        }
        bits <<= 9;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server_ids::SmallRandom;

    #[test]
    fn added_items_are_found_and_few_others_are() {
        let mut random = SmallRandom::new(3);
        let inside: Vec<u64> = (0..20_000).map(|_| random.next()).collect();
        let filter = Filter::build(inside.iter().copied());
        assert!(inside.iter().all(|&hash| filter.may_contain(hash)));
        let wrong = (0..100_000).filter(|_| filter.may_contain(random.next())).count();
        assert!(wrong < 3_000, "{wrong} false positives in 100,000");
        let mut bytes = Vec::new();
        filter.put(&mut bytes);
        assert_eq!(Filter::read(&bytes), Some(filter));
    }

    #[test]
    fn an_empty_filter_contains_nothing() {
        assert!(!Filter::build([].into_iter()).may_contain(7));
    }
}
