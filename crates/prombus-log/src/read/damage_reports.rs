//! Remembers the damage that was reported since the log was opened, so that each place and each event is reported and
//! counted once.

use crate::context::Context;
use crate::error::Fault;
use crate::observer::Notice;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Damage that was reported since the log was opened.
#[derive(Default)]
pub(crate) struct ReportedFaults {
    /// Damaged places, by file and position.
    places: HashSet<(String, u64)>,
    /// Damaged events, as ranges of seqs from first to last, by the topic's name.
    events: HashMap<String, BTreeMap<u64, u64>>,
    /// The number of damaged events.
    event_count: u64,
}

impl ReportedFaults {
    /// Adds a fault. Returns false if it was reported before.
    pub(crate) fn add(&mut self, fault: &Fault) -> bool {
        let is_new_place = self.places.insert((fault.file.clone(), fault.position));
        let (Some(topic), Some(first)) = (&fault.topic, fault.seq) else { return is_new_place };
        let last = fault.last_seq.unwrap_or(first).max(first);
        let ranges = self.events.entry(topic.clone()).or_default();
        let added = add_range(ranges, first, last);
        self.event_count += added;
        added > 0
    }

    /// The number of damaged places.
    pub(crate) fn place_count(&self) -> u64 {
        self.places.len() as u64
    }

    /// The number of damaged events.
    pub(crate) fn event_count(&self) -> u64 {
        self.event_count
    }
}

/// Adds `first..=last` to ranges that do not overlap. Returns how many of its numbers are new.
fn add_range(ranges: &mut BTreeMap<u64, u64>, first: u64, last: u64) -> u64 {
    let (mut merged_first, mut merged_last) = (first, last);
    let mut added = last - first + 1;
    while let Some((&start, &end)) = ranges.range(..=last).next_back().filter(|&(_, &end)| end >= first) {
        added -= end.min(last) - start.max(first) + 1;
        merged_first = merged_first.min(start);
        merged_last = merged_last.max(end);
        ranges.remove(&start);
    }
    ranges.insert(merged_first, merged_last);
    added
}

/// Reports damage to the observer.
pub(crate) struct DamageReports {
    context: Arc<Context>,
    reported: Mutex<ReportedFaults>,
}

impl DamageReports {
    pub(crate) fn new(context: Arc<Context>, reported: ReportedFaults) -> Self {
        Self { context, reported: Mutex::new(reported) }
    }

    /// Counts and reports damage, unless it was reported before.
    pub(crate) fn report(&self, fault: Fault) {
        if self.reported.lock().add(&fault) {
            self.context.observer().notice(&Notice::Damaged(fault));
        }
    }

    /// The number of damaged places, and of damaged events.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let reported = self.reported.lock();
        (reported.place_count(), reported.event_count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::FaultKind;

    #[test]
    fn each_event_counts_once_however_the_ranges_overlap() {
        let mut faults = ReportedFaults::default();
        let mut add = |position, first, last| {
            let place = Fault::new("1.seg", position, FaultKind::Event);
            let fault = Fault { topic: Some("t".into()), seq: Some(first), last_seq: last, ..place };
            (faults.add(&fault), faults.event_count())
        };
        assert_eq!(add(10, 5, Some(10)), (true, 6));
        assert_eq!(add(10, 6, None), (false, 6));
        assert_eq!(add(10, 1, Some(6)), (true, 10));
        assert_eq!(add(90, 20, Some(30)), (true, 21));
        assert_eq!(add(91, 9, Some(25)), (true, 30));
        assert_eq!(add(92, 1, Some(31)), (true, 31));
        assert_eq!(add(92, 3, Some(12)), (false, 31));
        assert!(faults.add(&Fault::new("MANIFEST", 0, FaultKind::Manifest)));
        assert!(!faults.add(&Fault::new("MANIFEST", 0, FaultKind::Manifest)));
        assert_eq!((faults.place_count(), faults.event_count()), (5, 31));
    }
}
