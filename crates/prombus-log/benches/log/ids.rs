//! Generates event ids as publishers would. An id takes only a few nanoseconds, so that this does not affect the
//! measurement.

use prombus_log::EventId;
use std::time::{SystemTime, UNIX_EPOCH};

/// Who chooses the ids of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    /// The log.
    Server,
    /// The publisher: UUIDv7, a time followed by random bits.
    ClientV7,
    /// The publisher: UUIDv4, all bits random.
    ClientV4,
}

impl IdKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server ids",
            Self::ClientV7 => "v7 ids",
            Self::ClientV4 => "v4 ids",
        }
    }
}

const VARIANT: u128 = 0b10 << 62;
const VARIANT_MASK: u128 = 0b11 << 62;
const VERSION_MASK: u128 = 0xf << 76;

/// Generates ids of one kind.
pub struct IdSource {
    kind: IdKind,
    state: u64,
    now_ms: u64,
}

impl IdSource {
    pub fn new(kind: IdKind, seed: u64) -> Self {
        Self { kind, state: seed, now_ms: 0 }
    }

    /// Reads the clock once for many ids, and returns the time.
    pub fn read_clock(&mut self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.now_ms = now.as_millis() as u64;
        self.now_ms as i64
    }

    pub fn next(&mut self) -> Option<EventId> {
        let (version, front) = match self.kind {
            IdKind::Server => return None,
            IdKind::ClientV7 => (7, Some(u128::from(self.now_ms) << 80)),
            IdKind::ClientV4 => (4, None),
        };
        let random = u128::from(self.random()) << 64 | u128::from(self.random());
        let bits = match front {
            Some(front) => random & ((1 << 80) - 1) | front,
            None => random,
        };
        Some(EventId::from_u128(bits & !VERSION_MASK & !VARIANT_MASK | version << 76 | VARIANT))
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.state;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }
}
