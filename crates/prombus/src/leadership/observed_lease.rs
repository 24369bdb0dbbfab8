//! What a process has seen of the lease record.

use crate::engine::LeaseRecord;

/// The newest record that was read, and since when it has been the same.
#[derive(Debug, Default)]
pub(super) struct ObservedLease {
    record: Option<LeaseRecord>,
    /// When the answer came that showed this revision for the first time.
    since_ms: u64,
    /// The highest term and revision that were ever seen: they continue there even if somebody deletes the record.
    newest_term: u64,
    newest_revision: u64,
}

impl ObservedLease {
    /// The record was read; its answer came at `now`.
    pub(super) fn was_read(&mut self, record: Option<&LeaseRecord>, now: u64) {
        let revision = |record: &LeaseRecord| record.revision;
        if record.map(revision) != self.record.as_ref().map(revision) {
            self.since_ms = now;
        }
        if let Some(record) = record {
            self.note(record);
        }
        self.record = record.cloned();
    }

    /// This process wrote the record.
    pub(super) fn note(&mut self, record: &LeaseRecord) {
        self.note_term(record.term);
        self.newest_revision = self.newest_revision.max(record.revision);
    }

    /// The store knows this term, whatever the record says.
    pub(super) fn note_term(&mut self, term: u64) {
        self.newest_term = self.newest_term.max(term);
    }

    /// What was seen is out of date.
    pub(super) fn forget(&mut self) {
        self.record = None;
    }

    pub(super) fn record(&self) -> Option<&LeaseRecord> {
        self.record.as_ref()
    }

    /// For how long the record was unchanged, given that a read which was sent at `sent_ms` still found it so.
    pub(super) fn unchanged_ms(&self, sent_ms: u64) -> u64 {
        sent_ms.saturating_sub(self.since_ms)
    }

    pub(super) fn next_term(&self) -> u64 {
        self.newest_term + 1
    }

    pub(super) fn next_revision(&self) -> u64 {
        self.newest_revision + 1
    }
}
