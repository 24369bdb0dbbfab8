//! Changes of a group that are not in a record yet. The records of a group are numbered with *generations*: a change
//! is durable when the record of its generation is.

use crate::clock::Clock;
use crate::delivery::{AttemptsChange, Changes, SourceId};
use crate::engine::{GroupAttempts, GroupProgress, StateRecord, TopicId};
use std::collections::{BTreeMap, HashSet};

/// Changes of a group that are not in a record yet.
pub(in crate::local) struct PendingChanges {
    changes: Changes,
    /// The generation of the next record, which will contain the pending changes.
    generation: u64,
    /// Whether the group is in the record writer's queue.
    pub(in crate::local) is_queued: bool,
    /// The topics of the group. The index of a topic is its [`SourceId`].
    topics: Vec<TopicId>,
}

/// A record that was appended or is about to be, and is not durable yet.
pub(in crate::local) struct RecordInFlight {
    /// The generation that becomes durable with this record.
    pub(in crate::local) generation: u64,
    /// Whether members may wait for the record: before a failed event is delivered again, its attempts must be
    /// durable; before an event is leased, a lease mark (the seq up to which events may be leased) must be durable.
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

    /// Adds changes of the machine. Returns the generation that they belong to.
    pub(in crate::local) fn add(&mut self, changes: &mut Changes) -> u64 {
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

    /// The generation of the newest change, which may be pending or already in flight.
    pub(in crate::local) fn current_generation(&self) -> u64 {
        if self.changes.is_empty() { self.generation - 1 } else { self.generation }
    }

    /// Assigns the current generation to a record that the caller writes, and begins the next one. Returns the
    /// generation of the record.
    pub(in crate::local) fn begin_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation - 1
    }

    /// Takes back the generation that was assigned last, because its record was not written.
    pub(in crate::local) fn cancel_generation(&mut self, generation: u64) {
        debug_assert_eq!(self.generation, generation + 1, "no later generation was begun");
        self.generation = generation;
    }

    /// Makes a record of all pending changes; `None` if there are none.
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
                // The list is read from its end, and only the newest change of each event counts.
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
        // Keeps the lists for reuse.
        self.changes = changes;
        Some((StateRecord::Progress { group, topics: topics.into_values().collect() }, flushed))
    }
}
