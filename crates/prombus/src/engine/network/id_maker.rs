//! Generates event ids. They rise across all engines that lead a database one after the other, whatever their clocks say.

use crate::engine::EventId;

/// The number of low bits of an id that are a counter.
const COUNTER_BITS: u32 = 40;

/// Whether an id has the 22 bits that mark the ids which engines of a database generated.
pub fn has_id_mark(id: EventId, mark: u64) -> bool {
    (id.as_u128() as u64 & ((1 << 62) - 1)) >> COUNTER_BITS == mark
}

/// Generates UUIDv7 ids that rise strictly: 48 bits of time, 22 bits that mark the database, and a counter of 40 bits.
pub(super) struct IdMaker {
    /// The newest generated id.
    last: u128,
    /// The 22 bits that mark the database.
    mark: u64,
}

impl IdMaker {
    /// Continues after the newest id that an engine of the database generated.
    pub(super) fn new(newest: EventId, mark: u64) -> Self {
        Self { last: newest.as_u128(), mark }
    }

    pub(super) fn next(&mut self, now_ms: i64) -> EventId {
        let millis = u128::try_from(now_ms).unwrap_or(0) & 0xffff_ffff_ffff;
        let fresh = millis << 80 | 7 << 76 | 0b10 << 62 | u128::from(self.mark) << COUNTER_BITS;
        self.last = fresh.max(self.last + 1);
        EventId::from_u128(self.last)
    }

    /// The newest generated id.
    pub(super) fn newest(&self) -> EventId {
        EventId::from_u128(self.last)
    }

    /// Whether an engine of this database generated the id.
    pub(super) fn is_own(&self, id: EventId) -> bool {
        id.as_u128() <= self.last && has_id_mark(id, self.mark)
    }
}
