//! Settling deliveries: acks, nacks, extensions, and verdicts by event id.

use super::Groups;
use super::cell::{GroupCell, GroupCore};
use super::durable_ticket::{DeadLetterRecords, GroupRecords};
use crate::backend::{DurableTicket, SettleOutcome, Verdict, event_id_of};
use crate::delivery::{AckOutcome, Millis, Position, Sender};
use crate::error::GroupError;
use prombus_protocol::Uuid;
use prombus_protocol::limits::MAX_REASON_BYTES;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Applies verdicts, and appends the outcome of each to `outcomes`. The ticket resolves when they are durable. If a lease
/// must not be extended, because another process may have leased the event, the outcome is `Stale` and the ticket fails.
pub(in crate::local) fn settle(
    groups: &Groups,
    records: &Arc<GroupRecords>,
    cell: &Arc<GroupCell>,
    sender: Sender,
    verdicts: &[(Position, Verdict<'_>)],
    outcomes: &mut Vec<SettleOutcome>,
) -> DurableTicket {
    if cell.is_deleted() {
        outcomes.extend(verdicts.iter().map(|_| SettleOutcome::Stale));
        return DurableTicket::done();
    }
    let (mut has_room, mut refused) = (false, None);
    let ((), last_dead_letter) = groups.runtime.act_counting_dead_letters(cell, |core, now| {
        core.machine.advance(now);
        for &(position, verdict) in verdicts {
            let may_extend = || groups.check_leasing().map_err(|reason| refused = Some(reason)).is_ok();
            let outcome = apply(core, sender, position, verdict, may_extend, now);
            has_room |= outcome == SettleOutcome::Counted;
            if sender == Sender::LastHolder && outcome == SettleOutcome::Counted {
                // The holder may have pulled the event and not handed it out yet: it must check its lease again.
                cell.raise_epoch();
            }
            outcomes.push(outcome);
        }
    });
    if has_room {
        let holder = match sender {
            Sender::Member(member) => Some(member),
            Sender::LastHolder => None,
        };
        cell.waiters.wake_windows(holder);
    }
    if let Some(reason) = refused {
        return DurableTicket::failed(reason);
    }
    match last_dead_letter {
        Some(dead_letter) => {
            let dead_letter = DeadLetterRecords {
                records: Arc::clone(records),
                dead_letter,
                generation: AtomicU64::new(0),
            };
            DurableTicket::new(Arc::new(dead_letter), 0)
        }
        None => {
            let generation = cell.changes.lock().current_generation();
            DurableTicket::new(Arc::clone(records) as Arc<dyn crate::backend::Durability>, generation)
        }
    }
}

fn apply(
    core: &mut GroupCore,
    sender: Sender,
    position: Position,
    verdict: Verdict<'_>,
    may_extend: impl FnOnce() -> bool,
    now: Millis,
) -> SettleOutcome {
    let settled = |settling| match settling {
        AckOutcome::Counted => SettleOutcome::Counted,
        AckOutcome::Stale => SettleOutcome::Stale,
    };
    let machine = &mut core.machine;
    match verdict {
        Verdict::Ack => settled(machine.ack(sender, position)),
        Verdict::Nack { delay_ms, reason } => {
            settled(machine.nack(sender, position, delay_ms, reason.map(short_reason), now))
        }
        Verdict::GiveUp { reason } => settled(machine.nack_dead(sender, position, reason.map(short_reason))),
        Verdict::Release => {
            let holder = match sender {
                Sender::Member(member) => machine.is_leased_to(member, position).then_some(member),
                Sender::LastHolder => machine.holder(position),
            };
            let Some(holder) = holder else { return SettleOutcome::Stale };
            machine.give_back_lease(holder, position, now);
            SettleOutcome::Counted
        }
        Verdict::Extend { .. } if !may_extend() => SettleOutcome::Stale,
        Verdict::Extend { extend_ms } => match machine.extend(sender, position, extend_ms, now) {
            Some(deadline) => SettleOutcome::Extended(deadline - now),
            None => SettleOutcome::Stale,
        },
    }
}

/// Cuts a reason to its maximum size, at a character boundary.
fn short_reason(text: &str) -> &str {
    let end = (0..=MAX_REASON_BYTES.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

impl Groups {
    /// Applies a verdict to the event with this id, as if the member that last held its lease had sent it. Resolves when
    /// that is durable.
    pub(in crate::local) async fn settle_by_id(
        &self,
        subscription: &str,
        group: &str,
        id: Uuid,
        verdict: Verdict<'_>,
    ) -> Result<SettleOutcome, GroupError> {
        self.commits.check_open()?;
        let cell = self.registry.find_group(subscription, group)?;
        let records =
            GroupRecords::new(Arc::clone(&self.runtime), Arc::clone(&self.commits), Arc::clone(&cell));
        let records = Arc::new(records);
        let mut is_known = false;
        for (source, topic) in cell.sources() {
            let Some(seq) = self.engine.find(topic, event_id_of(id)).await? else { continue };
            is_known = true;
            if let Verdict::Extend { .. } = verdict {
                self.check_leasing()?;
            }
            let position = Position { source, seq };
            let mut outcomes = Vec::with_capacity(1);
            let verdicts = [(position, verdict)];
            let ticket = settle(self, &records, &cell, Sender::LastHolder, &verdicts, &mut outcomes);
            if outcomes[0] == SettleOutcome::Stale {
                // Another topic of the group may have an event with the same id, if publishers chose the id.
                continue;
            }
            ticket.await?;
            return Ok(outcomes[0]);
        }
        if !is_known && matches!(verdict, Verdict::Ack | Verdict::Nack { .. } | Verdict::GiveUp { .. }) {
            cell.count_stale();
        }
        Ok(SettleOutcome::Stale)
    }
}
