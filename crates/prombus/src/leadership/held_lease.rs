//! The leader lease while this process holds it: decides when to renew it, and releases it.

use super::timing::LeaseTiming;
use crate::engine::{LeaseError, LeaseRecord, Takeover};

/// The leader lease while this process holds it. Times are milliseconds of the caller's clock.
pub(super) struct HeldLease {
    /// The record as this process last wrote or read it. The stored record may be newer.
    pub(super) record: LeaseRecord,
    /// The term, and whether the previous leader released the lease: the engine needs both to take over the store.
    pub(super) takeover: Takeover,
    /// When the newest confirmed write was sent.
    confirmed_ms: u64,
    /// When a write of the next revision was first sent, if the outcome of a write is unknown: such a write may still
    /// be applied. `None` if all outcomes are known.
    unresolved_since: Option<u64>,
    /// Whether the record must be read before it is written again.
    must_read: bool,
    /// When the next write is due.
    write_at: u64,
    /// Whether the next write releases the lease.
    is_releasing: bool,
}

/// What to do next for the lease.
pub(super) enum HeldStep {
    Read,
    Write(LeaseRecord),
    WaitUntil(u64),
}

/// Whether the lease is still held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holding {
    Kept,
    Ended,
}

impl HeldLease {
    /// The lease that this process took with a write that was sent at `sent_ms`.
    pub(super) fn taken(record: LeaseRecord, was_released: bool, sent_ms: u64, timing: &LeaseTiming) -> Self {
        Self {
            takeover: Takeover { term: record.term, was_released },
            record,
            confirmed_ms: sent_ms,
            unresolved_since: None,
            must_read: false,
            write_at: sent_ms + timing.renew_every_ms,
            is_releasing: false,
        }
    }

    /// Makes the next write release the lease, and makes it due at once.
    pub(super) fn release(&mut self, now: u64) {
        self.is_releasing = true;
        self.write_at = self.write_at.min(now);
    }

    /// Whether the lease is being released.
    pub(super) fn is_releasing(&self) -> bool {
        self.is_releasing
    }

    /// When the newest confirmed write was sent.
    pub(super) fn confirmed_ms(&self) -> u64 {
        self.confirmed_ms
    }

    /// The time until which this process may lease events to members; `None` if the lease is being released.
    pub(super) fn gate_deadline(&self, timing: &LeaseTiming) -> Option<u64> {
        (!self.is_releasing).then_some(self.confirmed_ms + timing.gate_ms)
    }

    pub(super) fn next(&self, now: u64) -> HeldStep {
        if self.must_read {
            return HeldStep::Read;
        }
        if now < self.write_at {
            return HeldStep::WaitUntil(self.write_at);
        }
        let mut record = LeaseRecord { revision: self.record.revision + 1, ..self.record.clone() };
        if self.is_releasing {
            record = LeaseRecord { term: record.term, revision: record.revision, ..released() };
        }
        HeldStep::Write(record)
    }

    /// Handles the response to a write of the next revision.
    pub(super) fn was_set(
        &mut self,
        set: Result<bool, LeaseError>,
        record: LeaseRecord,
        sent_ms: u64,
        timing: &LeaseTiming,
    ) -> Holding {
        match set {
            Ok(true) if record.is_released() => Holding::Ended,
            Ok(true) => {
                self.renewed(record, sent_ms, timing);
                Holding::Kept
            }
            // The revision may have changed because an earlier write, whose response was lost, was applied. A read of
            // the record tells.
            Ok(false) if self.unresolved_since.is_some() => {
                self.must_read = true;
                Holding::Kept
            }
            Ok(false) => Holding::Ended,
            Err(_) => {
                self.unresolved_since.get_or_insert(sent_ms);
                self.must_read = true;
                self.write_at = sent_ms + timing.poll_every_ms;
                Holding::Kept
            }
        }
    }

    /// Handles the stored record, which was read because the outcome of a write is unknown.
    pub(super) fn was_read(&mut self, stored: Option<LeaseRecord>, timing: &LeaseTiming) -> Holding {
        let is_own = |it: &LeaseRecord| it.leader_id == self.record.leader_id && it.term == self.record.term;
        let Some(stored) = stored.filter(is_own) else { return Holding::Ended };
        self.must_read = false;
        if stored.revision > self.record.revision {
            // It is unknown which attempt was applied. It is safe to assume the first: the lease then counts as older
            // than it may be.
            let sent_ms = self.unresolved_since.unwrap_or(self.confirmed_ms);
            self.renewed(stored, sent_ms, timing);
        }
        Holding::Kept
    }

    fn renewed(&mut self, record: LeaseRecord, sent_ms: u64, timing: &LeaseTiming) {
        self.record = record;
        self.confirmed_ms = self.confirmed_ms.max(sent_ms);
        self.unresolved_since = None;
        self.write_at = if self.is_releasing { 0 } else { sent_ms + timing.renew_every_ms };
    }
}

/// A record that names no leader.
fn released() -> LeaseRecord {
    LeaseRecord {
        term: 0,
        revision: 0,
        leader_id: String::new(),
        address: String::new(),
        cert_hash: None,
        secret: [0; 32],
    }
}
