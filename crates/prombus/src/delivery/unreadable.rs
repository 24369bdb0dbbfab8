//! Events that the engine cannot read at the moment. They are neither delivered nor settled. A topic waits for them for
//! [`WAIT_MS`]; after that, later events are delivered while the unreadable ones are retried.
//!
//! Unreadable seqs stay fresh, and the topic is blocked until the next retry. After the wait they are removed from the fresh
//! ranges between two retries. So the floor stays below them, and they do not count towards `max_unsettled`.

use super::group::Group;
use super::lease::UnsettledState;
use super::member::MemberId;
use super::source::Unreadable;
use super::{Millis, Position, SourceId};

/// How long a topic waits for unreadable events before it delivers later ones.
pub const WAIT_MS: Millis = 60_000;
/// The wait before the first retry. It doubles after each failed retry.
const RETRY_FIRST_MS: Millis = 100;
/// The longest wait before a retry.
const RETRY_MAX_MS: Millis = 5_000;

impl Group {
    /// Notes seqs that a member could not read. Its reservation has ended, so they are fresh again. `may_pass` is the member's
    /// `passes_unreadable`.
    pub fn unreadable(&mut self, id: SourceId, first_seq: u64, last_seq: u64, may_pass: bool, now: Millis) {
        let source = &mut self.sources[id.0 as usize];
        let last_seq = last_seq.min(source.granted_to).max(first_seq);
        let (mut since, mut tries) = (now, 0);
        for it in &mut source.unreadable {
            // If the range touches one that has already waited, it continues that wait instead of starting a new one.
            if it.first_seq <= last_seq.saturating_add(1) && first_seq <= it.last_seq.saturating_add(1) {
                since = since.min(it.since);
                tries = tries.max(it.tries);
            }
            if (first_seq..=last_seq).contains(&it.first_seq) {
                it.first_seq = last_seq + 1;
            }
        }
        source.unreadable.retain(|it| it.first_seq <= it.last_seq);
        let retry_at = now.saturating_add((RETRY_FIRST_MS << tries.min(16)).min(RETRY_MAX_MS));
        let is_aside = may_pass && now.saturating_sub(since) >= WAIT_MS;
        source.unreadable.push(Unreadable {
            first_seq,
            last_seq,
            since,
            retry_at,
            tries: tries + 1,
            is_aside,
        });
        if is_aside {
            source.remove_fresh(first_seq, last_seq);
        } else {
            source.is_blocked = true;
        }
        if source.is_blocked || source.fresh.is_empty() {
            source.is_active = false;
            self.active.retain(|&other| other != id);
        } else {
            self.activate(id);
        }
        self.retry_reads_at = self.retry_reads_at.min(retry_at);
    }

    /// Unblocks the topics whose retry is due, and makes their ranges that were set aside fresh again.
    pub(super) fn retry_reads(&mut self, now: Millis) {
        self.retry_reads_at = Millis::MAX;
        for at in 0..self.sources.len() {
            let id = SourceId(at as u32);
            let source = &mut self.sources[at];
            if source.unreadable.is_empty() {
                continue;
            }
            let mut returned = Vec::new();
            let mut is_blocked = false;
            for it in &mut source.unreadable {
                if it.retry_at > now {
                    is_blocked |= !it.is_aside;
                    self.retry_reads_at = self.retry_reads_at.min(it.retry_at);
                } else if std::mem::replace(&mut it.is_aside, false) {
                    returned.push((it.first_seq, it.last_seq));
                }
            }
            source.is_blocked = is_blocked;
            for (first_seq, last_seq) in returned {
                source.add_fresh(first_seq, last_seq);
            }
            self.activate(id);
        }
    }

    /// Notes a reserved redelivery that a member could not read: no attempt is used, and the event is retried after 5 s.
    pub fn unreadable_redelivery(&mut self, member: MemberId, position: Position, now: Millis) {
        if !self.is_reserved_by(member, position) {
            return;
        }
        // Undo the recorded start of the attempt: the event may be unreadable for a long time.
        self.give_back_lease(member, position, now);
        let Some(unsettled) = self.unsettled.get_mut(&position) else { return };
        unsettled.state = UnsettledState::Waiting;
        unsettled.at = now.saturating_add(RETRY_MAX_MS);
        if !std::mem::replace(&mut unsettled.is_unreadable, true) {
            self.unreadable_unsettled += 1;
        }
        let at = unsettled.at;
        self.timers.add(at, position);
    }

    /// The number of events that are not delivered because they are unreadable.
    pub fn unreadable_count(&self) -> u64 {
        let fresh = self.sources.iter().flat_map(|source| &source.unreadable);
        fresh.map(|it| it.last_seq - it.first_seq + 1).sum::<u64>() + self.unreadable_unsettled as u64
    }
}
