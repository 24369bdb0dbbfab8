//! Granting: tells the group which events of a topic are durable, so that they can be delivered. Their seqs become fresh,
//! except those of events that were tried before a restart: these events wait for their next attempt.

use super::group::Group;
use super::lease::Unsettled;
use super::lease_mark::LeaseMark;
use super::source::{Restored, Source};
use super::{Millis, Position, SourceId};
use prombus_protocol::RedeliveryReason;
use std::collections::BTreeSet;

impl Group {
    /// Adds a topic with its restored progress. None of its seqs are granted yet.
    pub fn add_source(&mut self, restored: Restored) -> SourceId {
        let floor = restored.settled.floor();
        self.sources.push(Source {
            settled: restored.settled,
            granted_to: floor,
            restored: restored.attempts,
            mark: LeaseMark::restored(restored.leased_to, restored.restarted_to),
            ..Source::default()
        });
        SourceId(self.sources.len() as u32 - 1)
    }

    /// Grants all seqs of a topic up to `to`: their events are durable and can be delivered.
    pub fn grant(&mut self, id: SourceId, to: u64) {
        let source = &mut self.sources[id.0 as usize];
        if to <= source.granted_to {
            return;
        }
        let first = source.granted_to + 1;
        source.granted_to = to;
        let mut known = Vec::new();
        if !source.restored.is_empty() {
            let later = source.restored.split_off(&(to + 1));
            known.extend(std::mem::replace(&mut source.restored, later));
        }
        let fresh = &mut source.fresh;
        let mut push = |first: u64, last: u64| match fresh.back_mut() {
            Some(range) if range.1 + 1 == first => range.1 = last,
            _ => fresh.push_back((first, last)),
        };
        let known_seqs: BTreeSet<u64> = known.iter().map(|&(seq, _)| seq).collect();
        source.settled.unsettled(first, to, |first, last| {
            let mut from = first;
            for &seq in known_seqs.range(first..=last) {
                if seq > from {
                    push(from, seq - 1);
                }
                from = seq + 1;
            }
            if from <= last {
                push(from, last);
            }
        });
        known.retain(|&(seq, _)| !source.settled.contains(seq));
        for (seq, (attempts, not_before, reason)) in known {
            self.restore(Position { source: id, seq }, attempts, not_before, reason);
        }
        self.activate(id);
    }

    /// Restores an event that was tried before a restart and waits for its next attempt.
    fn restore(
        &mut self,
        position: Position,
        attempts: u32,
        not_before: Millis,
        reason: Option<RedeliveryReason>,
    ) {
        self.unsettled.insert(position, Unsettled::restored(attempts, not_before, reason));
        self.timers.add(not_before, position);
    }

    /// Adds a topic to the rotation (`Group::active`) if it has fresh seqs, is not blocked by unreadable events, and is not
    /// held by a member.
    #[inline]
    pub(super) fn activate(&mut self, id: SourceId) {
        let source = &mut self.sources[id.0 as usize];
        let is_free = !source.is_blocked() && source.held_by.is_none();
        if !source.is_active && !source.fresh.is_empty() && is_free {
            source.is_active = true;
            self.active.push_back(id);
        }
    }
}
