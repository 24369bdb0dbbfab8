//! A topic in a group: which of its seqs are settled, fresh, or set aside because they cannot be read.

use super::Millis;
use super::lease_mark::LeaseMark;
use super::member::MemberId;
use super::settled::SettledSeqs;
use prombus_protocol::RedeliveryReason;
use std::collections::{BTreeMap, VecDeque};

/// The durable progress of a topic, restored when the group is loaded.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// The settled seqs.
    pub settled: SettledSeqs,
    /// Attempts of unsettled events: used-up attempts, earliest time of the next one, reason of the redelivery.
    pub attempts: BTreeMap<u64, (u32, Millis, Option<RedeliveryReason>)>,
    /// The lease mark: no event above it was leased.
    pub leased_to: u64,
    /// Events up to here may have been delivered before a restart: the lease mark, or the end of the topic if that is lower.
    pub restarted_to: u64,
}

#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) settled: SettledSeqs,
    /// Granted ranges that are neither reserved, leased nor settled, in order.
    pub(super) fresh: VecDeque<(u64, u64)>,
    /// All seqs up to this one are granted.
    pub(super) granted_to: u64,
    /// Whether the topic is in `Group::active`.
    pub(super) is_active: bool,
    /// Attempts from before a restart, of seqs that are not granted yet.
    pub(super) restored: BTreeMap<u64, (u32, Millis, Option<RedeliveryReason>)>,
    /// Ranges that could not be read.
    pub(super) unreadable: Vec<Unreadable>,
    /// Whether no event of the topic is delivered until an unreadable range is retried.
    pub(super) is_blocked: bool,
    pub(super) mark: LeaseMark,
    /// The topic was deleted: nothing about it is recorded any more.
    pub(super) is_dropped: bool,
    /// A member that may have reserved more seqs than will be delivered to it. No other member reserves from the topic
    /// until this member has returned the rest; otherwise later events would be delivered first.
    pub(super) held_by: Option<MemberId>,
}

/// A range of a topic that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
    /// When it was first found to be unreadable.
    pub(super) since: Millis,
    pub(super) retry_at: Millis,
    /// How many reads have failed.
    pub(super) tries: u32,
    /// Whether the range is removed from the fresh ranges until `retry_at`, so that later events are delivered.
    pub(super) is_aside: bool,
}

impl Source {
    /// Inserts a range into the fresh ranges, in order.
    pub(super) fn add_fresh(&mut self, first_seq: u64, last_seq: u64) {
        let at = self.fresh.partition_point(|other| other.0 < first_seq);
        match self.fresh.get_mut(at) {
            Some(next) if next.0 == last_seq + 1 => next.0 = first_seq,
            _ => self.fresh.insert(at, (first_seq, last_seq)),
        }
    }

    /// Removes a range from the fresh ranges.
    pub(super) fn remove_fresh(&mut self, first_seq: u64, last_seq: u64) {
        let mut left = VecDeque::with_capacity(self.fresh.len() + 1);
        for (first, last) in self.fresh.drain(..) {
            if first < first_seq {
                left.push_back((first, last.min(first_seq - 1)));
            }
            if last > last_seq {
                left.push_back((first.max(last_seq + 1), last));
            }
        }
        self.fresh = left;
    }
}

impl Source {
    /// Whether no event of the topic is delivered before the next retry.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Notes that these seqs were read, or removed by retention.
    pub(super) fn now_readable(&mut self, first_seq: u64, last_seq: u64) {
        let mut left = Vec::with_capacity(self.unreadable.len());
        for it in self.unreadable.drain(..) {
            if it.first_seq < first_seq {
                left.push(Unreadable { last_seq: it.last_seq.min(first_seq - 1), ..it });
            }
            if it.last_seq > last_seq {
                left.push(Unreadable { first_seq: it.first_seq.max(last_seq + 1), ..it });
            }
        }
        self.unreadable = left;
        self.is_blocked &= self.unreadable.iter().any(|it| !it.is_aside);
    }

    /// Forgets all unreadable seqs up to `last_seq`, and returns the ranges among them that are set aside.
    pub(super) fn take_aside_to(&mut self, last_seq: u64) -> Vec<(u64, u64)> {
        let is_hit = |it: &&Unreadable| it.is_aside && it.first_seq <= last_seq;
        let gone = self.unreadable.iter().filter(is_hit).map(|it| (it.first_seq, it.last_seq.min(last_seq)));
        let gone = gone.collect();
        self.now_readable(0, last_seq);
        gone
    }
}
