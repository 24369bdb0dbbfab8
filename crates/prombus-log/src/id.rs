//! Event ids: UUIDv7, given by the log in strictly rising order, or chosen by the publisher.
//!
//! The last 16 bits of an id that this log made are a keyed check of the bits before them. So the log tells its own ids
//! from a publisher's without looking anything up (one in 65,536 foreign ids passes and is then looked up for real).
//! Uniqueness and order rest on the bits above.

use std::fmt;

/// A 128-bit event id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EventId(u128);

impl EventId {
    /// An id from its number: the 16 bytes of the UUID, most significant first.
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    /// An id from the 16 bytes of a UUID.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// The id as a number.
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// The id as the 16 bytes of a UUID.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Whether the id has the version field of a UUIDv7, whose first bits are a time.
    pub(crate) const fn is_time_ordered(self) -> bool {
        (self.0 >> 76) & 0xf == 7
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0;
        write!(
            formatter,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            value >> 96,
            (value >> 80) & 0xffff,
            (value >> 64) & 0xffff,
            (value >> 48) & 0xffff,
            value & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

const VERSION: u128 = 7 << 76;
const VARIANT: u128 = 0b10 << 62;
/// The counter that rises within a millisecond: 12 bits behind the version, 46 behind the variant, above the check.
const COUNTER_BITS: u32 = 58;

/// Makes ids that rise strictly, whatever the clock does and over restarts.
#[derive(Clone, Debug)]
pub(crate) struct IdMaker {
    /// Milliseconds of the newest id: the clock's, or ahead of it when the clock went back.
    millis: u64,
    counter: u64,
    random: SmallRandom,
    check: KeyedHash,
}

impl IdMaker {
    /// Starts behind `last`, the newest id that the log ever made.
    pub(crate) fn new(last: EventId, seed: u64, check: KeyedHash) -> Self {
        let value = last.as_u128();
        let counter = (((value >> 64) & 0xfff) << 46 | (value >> 16) & 0x3fff_ffff_ffff) as u64;
        Self { millis: (value >> 80) as u64, counter, random: SmallRandom::new(seed), check }
    }

    /// No id that was made so far is above this one.
    pub(crate) fn newest(&self) -> EventId {
        EventId(self.upper() | 0xffff)
    }

    pub(crate) fn next(&mut self, now_ms: i64) -> EventId {
        let now = u64::try_from(now_ms).unwrap_or(0) & 0xffff_ffff_ffff;
        if now > self.millis {
            self.millis = now;
            // Half the range stays free above the random start, so a millisecond never runs out in practice.
            self.counter = self.random.next() >> (64 - COUNTER_BITS + 1);
        } else {
            self.counter += 1 + (self.random.next() & 0xff);
            if self.counter >> COUNTER_BITS != 0 {
                self.counter = 0;
                self.millis += 1;
            }
        }
        let upper = self.upper();
        EventId(upper | u128::from(check_bits(self.check, upper)))
    }

    /// The newest id without its check.
    fn upper(&self) -> u128 {
        let counter = u128::from(self.counter);
        u128::from(self.millis) << 80
            | VERSION
            | (counter >> 46) << 64
            | VARIANT
            | (counter & 0x3fff_ffff_ffff) << 16
    }
}

/// Whether this log may have made the id.
pub(crate) fn is_own(check: KeyedHash, id: EventId) -> bool {
    let upper = id.as_u128() & !0xffff;
    check_bits(check, upper) == (id.as_u128() & 0xffff) as u16
}

fn check_bits(check: KeyedHash, upper: u128) -> u16 {
    (check.of_numbers(upper as u64, (upper >> 64) as u64) >> 48) as u16
}

/// A small, fast generator for counters' steps; nothing secret hangs on it.
#[derive(Clone, Debug)]
pub(crate) struct SmallRandom {
    state: u64,
}

impl SmallRandom {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.state;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }
}

/// A fast hash keyed with a secret of the log, so that nobody outside can make ids or keys collide. Stable: it orders
/// tables on disk.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hash() -> KeyedHash {
        KeyedHash::new([0x1234_5678_9abc_def1, 0xfeed_face_cafe_beef])
    }

    #[test]
    fn ids_rise_when_the_clock_stands_still_or_goes_back() {
        let mut maker = IdMaker::new(EventId::default(), 1, hash());
        let mut last = EventId::default();
        for now in [1_000, 1_000, 1_000, 999, 5, 1_001, 1_001, 0, -4] {
            for _ in 0..1_000 {
                let id = maker.next(now);
                assert!(id > last, "{id} after {last}");
                last = id;
            }
        }
    }

    #[test]
    fn ids_go_on_behind_the_last_one_after_a_restart() {
        let mut maker = IdMaker::new(EventId::default(), 1, hash());
        let last = (0..100).map(|_| maker.next(77_000)).last().unwrap();
        let mut again = IdMaker::new(last, 2, hash());
        assert!(again.next(10) > last);
    }

    #[test]
    fn ids_are_version_7_with_the_time_in_front() {
        let id = IdMaker::new(EventId::default(), 1, hash()).next(0x0191_aaaa_bbbb);
        let text = id.to_string();
        assert!(text.starts_with("0191aaaa-bbbb-7"), "{text}");
        assert!(matches!(text.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{text}");
        assert!(id.is_time_ordered());
    }

    #[test]
    fn the_log_knows_its_own_ids() {
        let mut maker = IdMaker::new(EventId::default(), 1, hash());
        let own = maker.next(5_000);
        assert!(is_own(hash(), own));
        let mut random = SmallRandom::new(9);
        let foreign = (0..10_000)
            .map(|_| u128::from(random.next()) << 64 | u128::from(random.next()))
            .filter(|&value| is_own(hash(), EventId::from_u128(value)))
            .count();
        assert!(foreign < 10, "{foreign} of 10,000 foreign ids passed the check");
    }
}
