//! Server ids: the ids that the log generates for events published without one. They are UUIDs of version 7 that increase
//! with each append and end with check bits, by which the log recognizes them.

use crate::event_id::EventId;
use crate::keyed_hash::KeyedHash;

const VERSION: u128 = 7 << 76;
const VARIANT: u128 = 0b10 << 62;
/// Bits of the counter that increases within a millisecond: 12 after the version, 46 between the variant and the check
/// bits.
const COUNTER_BITS: u32 = 58;

/// Generates strictly increasing ids, even if the clock goes back and across restarts.
#[derive(Clone, Debug)]
pub(crate) struct IdMaker {
    /// Milliseconds of the newest id: the clock's time, or later if the clock went back.
    millis: u64,
    counter: u64,
    random: SmallRandom,
    check: KeyedHash,
}

impl IdMaker {
    /// Starts after `last`, the newest id that the log has generated.
    pub(crate) fn new(last: EventId, seed: u64, check: KeyedHash) -> Self {
        let value = last.as_u128();
        let counter = (((value >> 64) & 0xfff) << 46 | (value >> 16) & 0x3fff_ffff_ffff) as u64;
        Self { millis: (value >> 80) as u64, counter, random: SmallRandom::new(seed), check }
    }

    /// An upper bound of all ids generated so far.
    pub(crate) fn newest(&self) -> EventId {
        EventId::from_u128(self.upper() | 0xffff)
    }

    pub(crate) fn next(&mut self, now_ms: i64) -> EventId {
        let now = u64::try_from(now_ms).unwrap_or(0) & 0xffff_ffff_ffff;
        if now > self.millis {
            self.millis = now;
            // The random start leaves half of the range free, so the ids of a millisecond do not run out in practice.
            self.counter = self.random.next() >> (64 - COUNTER_BITS + 1);
        } else {
            self.counter += 1 + (self.random.next() & 0xff);
            if self.counter >> COUNTER_BITS != 0 {
                self.counter = 0;
                self.millis += 1;
            }
        }
        let upper = self.upper();
        EventId::from_u128(upper | u128::from(check_bits(self.check, upper)))
    }

    /// The newest id without its check bits.
    fn upper(&self) -> u128 {
        let counter = u128::from(self.counter);
        u128::from(self.millis) << 80
            | VERSION
            | (counter >> 46) << 64
            | VARIANT
            | (counter & 0x3fff_ffff_ffff) << 16
    }
}

/// Whether this log may have generated the id.
pub(crate) fn is_own(check: KeyedHash, id: EventId) -> bool {
    let upper = id.as_u128() & !0xffff;
    check_bits(check, upper) == (id.as_u128() & 0xffff) as u16
}

fn check_bits(check: KeyedHash, upper: u128) -> u16 {
    (check.of_numbers(upper as u64, (upper >> 64) as u64) >> 48) as u16
}

/// A small, fast random generator for the steps of the counter. Not for secrets.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed_hash::KeyedHash;

    fn hash() -> KeyedHash {
        KeyedHash::new([0x1234_5678_9abc_def1, 0xfeed_face_cafe_beef])
    }

    #[test]
    fn ids_increase_when_the_clock_stands_still_or_goes_back() {
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
    fn ids_continue_after_the_last_one_after_a_restart() {
        let mut maker = IdMaker::new(EventId::default(), 1, hash());
        let last = (0..100).map(|_| maker.next(77_000)).last().unwrap();
        let mut again = IdMaker::new(last, 2, hash());
        assert!(again.next(10) > last);
    }

    #[test]
    fn ids_are_version_7_and_start_with_the_time() {
        let id = IdMaker::new(EventId::default(), 1, hash()).next(0x0191_aaaa_bbbb);
        let text = id.to_string();
        assert!(text.starts_with("0191aaaa-bbbb-7"), "{text}");
        assert!(matches!(text.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{text}");
        assert!(id.is_time_ordered());
    }

    #[test]
    fn the_log_recognizes_its_own_ids() {
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
