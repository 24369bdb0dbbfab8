//! Compares a delivery with the previous delivery of the same event.

use super::{Delivery, Departure, Entry, GroupBook, IN_TIME_MS, SILENT_ACK_MS, Verdict};
use crate::ledger::Fault;
use crate::timeline::{EndKind, Timeline};

impl GroupBook {
    /// Checks that first deliveries come in seq order. Not checked where members leave: an event that was leased but not sent may
    /// then follow later ones.
    pub(super) fn check_order(&mut self, delivery: &Delivery<'_>, place: &str) -> Option<Fault> {
        if self.plan.leaves || delivery.attempt > 1 || delivery.reason.is_some() {
            return None;
        }
        let last = self.first_seqs.entry((delivery.session, delivery.topic)).or_default();
        let before = std::mem::replace(last, delivery.seq.max(*last));
        (delivery.seq < before)
            .then(|| ("out_of_order", format!("{place}: after first delivery of seq {before}")))
    }

    /// Checks that the event was not settled, and that no other member held its lease.
    pub(super) fn check_redelivery(
        &self,
        before: &Entry,
        delivery: &Delivery<'_>,
        place: &str,
        timeline: &Timeline,
    ) -> Option<Fault> {
        let holder = &self.sessions[before.session as usize];
        let life_end = timeline.end_of(holder.life);
        let is_alive = holder.ended.is_none() && life_end.is_none();
        let said = format!(
            "{place}; attempt {} was received at {} ms by session {} in life {}, verdict {:?} at {} ms, its lease ran to at \
             least {} ms",
            before.attempt,
            before.received_ms,
            before.session,
            holder.life,
            before.verdict,
            before.verdict_ms,
            before.lease_until_ms
        );
        match before.verdict {
            Verdict::Acked => Some(("acked_delivered_again", said)),
            Verdict::None => {
                let is_leased =
                    is_alive && !before.has_other_verdict && delivery.received_ms < before.lease_until_ms;
                is_leased.then_some(("two_holders", said))
            }
            Verdict::AckSent | Verdict::AckSilent { .. } => {
                if is_alive && before.verdict_ms + IN_TIME_MS < before.lease_until_ms {
                    return Some(("ack_ignored", said));
                }
                let Verdict::AckSilent { handled_ms } = before.verdict else { return None };
                if handled_ms == 0 || handled_ms > before.lease_until_ms {
                    return None;
                }
                let is_excused = life_end.is_some_and(|end| {
                    end.kind == EndKind::Killed
                        && timeline.running_between(handled_ms, end.at_ms) < SILENT_ACK_MS
                });
                (!is_excused).then(|| {
                    ("silent_ack_lost", format!("{said}; handled by {handled_ms} ms, end {life_end:?}"))
                })
            }
            Verdict::NackSent => None,
            Verdict::Nacked { due_ms } => (delivery.received_ms + 20 < due_ms)
                .then(|| ("nack_delay_ignored", format!("{said}; due at {due_ms} ms"))),
        }
    }

    /// Checks that the attempt number rises, unless the previous attempt does not count.
    pub(super) fn check_attempt(
        &self,
        before: &Entry,
        delivery: &Delivery<'_>,
        place: &str,
        timeline: &Timeline,
    ) -> Option<Fault> {
        let holder = &self.sessions[before.session as usize];
        let said = format!(
            "{place}; attempt {} was received at {} ms by session {} in life {}, left {:?}",
            before.attempt, before.received_ms, before.session, holder.life, holder.ended
        );
        if delivery.attempt < before.attempt {
            return Some(("attempt_fell", said));
        }
        if delivery.attempt > before.attempt {
            return None;
        }
        let life_end = timeline.end_of(holder.life);
        let left_cleanly = holder.ended == Some(Departure::Clean);
        let by_server = holder.ended == Some(Departure::ByServer) && life_end.is_none();
        let stopped_cleanly = life_end.is_some_and(|end| end.kind == EndKind::Terminated);
        // A first attempt is not durable, so a crash forgets it.
        let is_forgotten = before.attempt == 1 && life_end.is_some();
        let is_allowed = left_cleanly || by_server || stopped_cleanly || is_forgotten;
        (!is_allowed).then_some(("attempt_repeated", said))
    }

    /// Checks that an event that was delivered before a crash is redelivered with the reason `server_restarted`.
    pub(super) fn check_reason(
        &self,
        before: &Entry,
        delivery: &Delivery<'_>,
        place: &str,
        timeline: &Timeline,
    ) -> Option<Fault> {
        let life = self.sessions[before.session as usize].life;
        let was_killed = timeline.end_of(life).is_some_and(|end| end.kind == EndKind::Killed);
        let is_next_life = self.sessions[delivery.session as usize].life == life + 1;
        let is_missing = self.has_restart_reason && was_killed && is_next_life && delivery.reason.is_none();
        is_missing.then(|| {
            let text =
                format!("{place}; delivered at {} ms in life {life}, which was killed", before.received_ms);
            ("restart_reason_missing", text)
        })
    }
}
