//! Detects another process that advertises the same address as this one.
//!
//! A record with the address of this process but another id was usually written by the same program before a restart.
//! Such a record never changes again. If its revision rises, another running process renews it, with the same address.
//! This process then cannot relay connections to that leader, because the address is its own; and other followers may
//! reach the wrong one of the two processes.

use crate::engine::LeaseRecord;

/// The last other process whose record had the address of this process.
#[derive(Debug, Default)]
pub(super) struct SharedAddress {
    /// The id of that process, and the revision of its record.
    seen: Option<(String, u64)>,
    /// Whether [`Self::note`] has returned true.
    is_reported: bool,
}

impl SharedAddress {
    /// Notes a record that another process wrote with the address of this one. Returns true once: at the first call
    /// that proves that such a process is alive.
    pub(super) fn note(&mut self, record: &LeaseRecord) -> bool {
        let is_alive = self.seen.as_ref().is_some_and(|(leader_id, revision)| {
            *leader_id == record.leader_id && *revision < record.revision
        });
        self.seen = Some((record.leader_id.clone(), record.revision));
        is_alive && !std::mem::replace(&mut self.is_reported, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_renews_at_the_same_address_is_noticed_once_and_an_earlier_one_is_not() {
        let record = |leader_id: &str, revision| LeaseRecord {
            term: 1,
            revision,
            leader_id: leader_id.to_owned(),
            address: "a:7070".to_owned(),
            cert_hash: None,
            secret: [0; 32],
        };
        let mut address = SharedAddress::default();
        // Records that two earlier processes left before restarts.
        for (leader_id, revision) in [("first", 3), ("first", 3), ("second", 4), ("second", 4)] {
            assert!(!address.note(&record(leader_id, revision)), "{leader_id} {revision}");
        }
        assert!(address.note(&record("second", 5)));
        assert!(!address.note(&record("second", 6)), "only the first call reports it");
    }
}
