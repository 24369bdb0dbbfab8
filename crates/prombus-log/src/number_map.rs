//! A hash map with a cheap hash for number keys.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Hashes numbers that publishers cannot choose (internal ids) or that are hashes already.
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
        // The lower bits are the id itself, so that consecutive ids are adjacent in the map. Topics that are written
        // together were often created together, so a batch of a thousand topics walks memory in order. The upper 7 bits,
        // with which the map tells the keys of a group apart, are hashed.
        const UPPER: u64 = !(u64::MAX >> 7);
        let value = u64::from(value);
        self.state = value.wrapping_mul(0x9e37_79b9_7f4a_7c15) & UPPER | value;
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.state ^ value ^ 0x2545_f491_4f6c_dd1d) * 0x9e37_79b9_7f4a_7c15;
        self.state = product as u64 ^ (product >> 64) as u64;
    }
}
