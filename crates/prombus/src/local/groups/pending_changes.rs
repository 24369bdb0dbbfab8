//! Changes of a group that wait to be written, and the generations by which their durability is known.

use crate::clock::Clock;
use crate::delivery::{AttemptsChange, Changes, SourceId};
use crate::engine::{GroupAttempts, GroupProgress, StateRecord, TopicId};
use std::collections::{BTreeMap, HashSet};

/// Changes of a group that are not in a record yet.
pub(in crate::local) struct PendingChanges {
    changes: Changes,
    /// The number that the next record gets.
    generation: u64,
    /// The group is in the record writer's queue.
    pub(in crate::local) is_queued: bool,
    /// By source.
    topics: Vec<TopicId>,
}

/// A record on its way to disk.
pub(in crate::local) struct RecordInFlight {
    pub(in crate::local) generation: u64,
    /// Members may wait for it: for an event that failed, or for a lease mark.
    pub(in crate::local) wakes_members: bool,
}

impl Default for PendingChanges {
    fn default() -> Self {
        Self { changes: Changes::default(), generation: 1, is_queued: false, topics: Vec::new() }
    }
}

impl PendingChanges {
    pub(in crate::local) fn add_source(&mut self, topic: TopicId) {
        self.topics.push(topic);
    }

    /// Adds what the machine wants written down. Returns the generation that it is part of.
    pub(in crate::local) fn take_in(&mut self, changes: &mut Changes) -> u64 {
        if self.changes.is_empty() {
            std::mem::swap(&mut self.changes, changes);
        } else {
            self.changes.is_wanted |= changes.is_wanted;
            self.changes.attempts.append(&mut changes.attempts);
            self.changes.marks.append(&mut changes.marks);
            for range in changes.settled.drain(..) {
                match self.changes.settled.last_mut() {
                    Some(last) if last.0 == range.0 && last.2 + 1 == range.1 => last.2 = range.2,
                    _ => self.changes.settled.push(range),
                }
            }
        }
        changes.is_wanted = false;
        self.generation
    }

    /// The generation that changes made now are part of, or that is on its way.
    pub(in crate::local) fn current_generation(&self) -> u64 {
        if self.changes.is_empty() { self.generation - 1 } else { self.generation }
    }

    /// Starts a new generation, whose record the caller writes; returns its number.
    pub(in crate::local) fn begin_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation - 1
    }

    /// The newest generation has no record after all.
    pub(in crate::local) fn end_generation(&mut self, generation: u64) {
        debug_assert_eq!(self.generation, generation + 1, "none was begun after it");
        self.generation = generation;
    }

    /// Makes a record of the changes.
    pub(in crate::local) fn take_record(
        &mut self,
        group: u32,
        clock: &dyn Clock,
    ) -> Option<(StateRecord, RecordInFlight)> {
        self.is_queued = false;
        if self.changes.is_empty() {
            return None;
        }
        let mut changes = std::mem::take(&mut self.changes);
        let has_attempts = !changes.attempts.is_empty();
        let wakes_members = has_attempts || !changes.marks.is_empty();
        let flushed = RecordInFlight { generation: self.begin_generation(), wakes_members };
        let mut topics: BTreeMap<SourceId, GroupProgress> = BTreeMap::new();
        let topic = |source: SourceId| GroupProgress {
            topic: self.topics[source.0 as usize],
            settled: Vec::new(),
            attempts: Vec::new(),
            leased_to: None,
        };
        changes.settled.sort_unstable();
        for (source, first, last) in changes.settled.drain(..) {
            let progress = topics.entry(source).or_insert_with(|| topic(source));
            match progress.settled.last_mut() {
                Some(range) if range.1 + 1 >= first => range.1 = range.1.max(last),
                _ => progress.settled.push((first, last)),
            }
        }
        if has_attempts {
            let (steady, wall) = (clock.steady_ms(), clock.wall_ms());
            let mut seen = HashSet::new();
            for &AttemptsChange { position, attempts, not_before, reason } in changes.attempts.iter().rev() {
                // The newest of each event counts.
                if seen.insert(position) {
                    let progress = topics.entry(position.source).or_insert_with(|| topic(position.source));
                    let not_before_ms = match not_before.saturating_sub(steady) {
                        0 => 0,
                        wait => wall.saturating_add_unsigned(wait),
                    };
                    progress.attempts.push(GroupAttempts {
                        seq: position.seq,
                        attempts,
                        not_before_ms,
                        reason,
                    });
                }
            }
            changes.attempts.clear();
        }
        for (source, leased_to) in changes.marks.drain(..) {
            topics.entry(source).or_insert_with(|| topic(source)).leased_to = Some(leased_to);
        }
        changes.is_wanted = false;
        // Its lists are used again.
        self.changes = changes;
        Some((StateRecord::Progress { group, topics: topics.into_values().collect() }, flushed))
    }
}
