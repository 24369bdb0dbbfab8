//! Ids that an engine makes. They rise over all engines of a database, one after the other, whatever their clocks say.

use crate::engine::EventId;

/// Makes UUIDv7 that rise strictly: 48 bits of time, 22 bits that mark the database, 40 bits that count.
pub(super) struct IdMaker {
    /// The newest id.
    last: u128,
    mark: u64,
}

impl IdMaker {
    const COUNTER_BITS: u32 = 40;

    /// Continues after the newest id of a database.
    pub(super) fn new(newest: EventId, mark: u64) -> Self {
        Self { last: newest.as_u128(), mark }
    }

    pub(super) fn next(&mut self, now_ms: i64) -> EventId {
        let millis = u128::try_from(now_ms).unwrap_or(0) & 0xffff_ffff_ffff;
        let fresh = millis << 80 | 7 << 76 | 0b10 << 62 | u128::from(self.mark) << Self::COUNTER_BITS;
        self.last = fresh.max(self.last + 1);
        EventId::from_u128(self.last)
    }

    /// The newest id.
    pub(super) fn newest(&self) -> EventId {
        EventId::from_u128(self.last)
    }

    /// Whether an engine of this database made the id.
    pub(super) fn is_own(&self, id: EventId) -> bool {
        let number = id.as_u128();
        let mark = (number as u64 & ((1 << 62) - 1)) >> Self::COUNTER_BITS;
        number <= self.last && mark == self.mark
    }
}
