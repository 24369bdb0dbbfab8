//! The leader lease of the simulated database.

use crate::engine::LeaseRecord;
use parking_lot::Mutex;
use std::sync::Arc;

/// The record of the leader lease. Clones refer to the same record.
#[derive(Clone, Default)]
pub(super) struct SharedLeaseRecord(Arc<Mutex<Option<LeaseRecord>>>);

impl SharedLeaseRecord {
    pub(super) fn read(&self) -> Option<LeaseRecord> {
        self.0.lock().clone()
    }

    pub(super) fn compare_and_set(&self, expected: Option<u64>, record: LeaseRecord) -> bool {
        let mut stored = self.0.lock();
        let is_expected = stored.as_ref().map(|it| it.revision) == expected;
        if is_expected {
            *stored = Some(record);
        }
        is_expected
    }
}
