//! A hash map for numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Hashes numbers that publishers do not choose (internal ids), or that are hashes already.
#[derive(Default)]
pub(crate) struct NumberHasher {
    state: u64,
}

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        // Neighbours stay neighbours: topics that are written together were often made together, and a batch of a thousand then
        // goes through memory in order. The upper bits, by which a map tells the keys of a group apart, differ all the same.
        const UPPER: u64 = !(u64::MAX >> 7);
        let value = u64::from(value);
        self.state = value.wrapping_mul(0x9e37_79b9_7f4a_7c15) & UPPER | value;
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.state ^ value ^ 0x2545_f491_4f6c_dd1d) * 0x9e37_79b9_7f4a_7c15;
        self.state = product as u64 ^ (product >> 64) as u64;
    }
}
