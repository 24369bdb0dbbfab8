//! The lease record as this process last read it.

use crate::engine::LeaseRecord;

/// The record as it was last read, and since when it has been unchanged.
#[derive(Debug, Default)]
pub(super) struct ObservedLease {
    record: Option<LeaseRecord>,
    /// When the first response that contained this revision arrived.
    since_ms: u64,
    /// The highest term ever seen. The next term is above it, even if the record is deleted.
    newest_term: u64,
    /// The highest revision ever seen. The next revision is above it, even if the record is deleted.
    newest_revision: u64,
}

impl ObservedLease {
    /// Notes a record that was read; the response arrived at `now`.
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

    /// Notes the term and revision of a record that was read, or that this process wrote.
    pub(super) fn note(&mut self, record: &LeaseRecord) {
        self.note_term(record.term);
        self.newest_revision = self.newest_revision.max(record.revision);
    }

    /// Notes a term that the store contains.
    pub(super) fn note_term(&mut self, term: u64) {
        self.newest_term = self.newest_term.max(term);
    }

    /// Forgets the record, because it is out of date. The highest term and revision stay known.
    pub(super) fn forget(&mut self) {
        self.record = None;
    }

    pub(super) fn record(&self) -> Option<&LeaseRecord> {
        self.record.as_ref()
    }

    /// For how long the record is known to have been unchanged, if a read that was sent at `sent_ms` found it
    /// unchanged.
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
