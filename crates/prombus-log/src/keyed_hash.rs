//! The hash of ids and keys, keyed with the hash seed of the log.

use crate::event_id::EventId;

/// A fast hash, keyed with the log's secret seed so that publishers cannot construct colliding ids or keys. It must not
/// change, because tables on disk are sorted by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyedHash {
    seed: [u64; 2],
}

const MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;

impl KeyedHash {
    pub(crate) fn new(seed: [u64; 2]) -> Self {
        Self { seed }
    }

    pub(crate) fn of_numbers(self, first: u64, second: u64) -> u64 {
        let mixed = fold(first ^ self.seed[0], second ^ self.seed[1]);
        fold(mixed ^ self.seed[0], MULTIPLIER)
    }

    pub(crate) fn of_id(self, topic: u32, id: EventId) -> u64 {
        let value = id.as_u128();
        let first = self.of_numbers(value as u64, (value >> 64) as u64);
        fold(first ^ u64::from(topic), self.seed[1] | 1)
    }

    pub(crate) fn of_key(self, topic: u32, key: &[u8]) -> u64 {
        let mut hash = self.of_numbers(u64::from(topic), key.len() as u64);
        let mut chunks = key.chunks_exact(8);
        for chunk in &mut chunks {
            hash = fold(hash ^ crate::fields::u64_at(chunk, 0), self.seed[1] | 1);
        }
        let mut last = [0; 8];
        let rest = chunks.remainder();
        last[..rest.len()].copy_from_slice(rest);
        fold(hash ^ u64::from_le_bytes(last), MULTIPLIER)
    }
}

fn fold(first: u64, second: u64) -> u64 {
    let product = u128::from(first) * u128::from(second);
    product as u64 ^ (product >> 64) as u64
}
