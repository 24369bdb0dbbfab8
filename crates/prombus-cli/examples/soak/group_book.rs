//! The deliveries and verdicts of one group: every delivery is compared with the previous delivery of the same event.
//!
//! Times are those of this program, so a rule is applied only where no delay between the server and this program can explain the
//! observation. The lease of a delivery began no earlier than the moment when the socket was last empty, minus [`SLACK_MS`] of
//! running time.

mod checks;

use crate::ledger::Fault;
use crate::plan::GroupPlan;
use crate::timeline::Timeline;
use std::collections::HashMap;

/// How long the server may take from leasing an event to sending it, and this program from receiving a frame to reading it.
const SLACK_MS: u64 = 500;
/// An ack counts as in time if it was sent this long before the lease ended.
const IN_TIME_MS: u64 = 1_000;
/// An ack without corr that was handled this long before a kill must survive it.
const SILENT_ACK_MS: u64 = 100;

/// One subscription of one connection.
struct Session {
    life: usize,
    opened_ms: u64,
    ended: Option<Departure>,
}

/// How a member left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// UNSUBSCRIBE or a close frame: leases are returned and the attempt is not raised.
    Clean,
    /// The member dropped the connection.
    Vanished,
    /// The server ended the connection, or died.
    ByServer,
}

/// The verdict of a member on a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    None,
    /// With corr, not answered yet.
    AckSent,
    /// Without corr. `handled_ms` is when a later frame of the connection was answered; 0 before that.
    AckSilent {
        handled_ms: u64,
    },
    Acked,
    NackSent,
    /// Answered OK; the redelivery is due at this time.
    Nacked {
        due_ms: u64,
    },
}

/// The last delivery of an event, and what followed.
pub(crate) struct Entry {
    pub(crate) attempt: u16,
    pub(crate) verdict: Verdict,
    session: u32,
    pub(crate) received_ms: u64,
    /// The earliest time at which the lease can have ended.
    lease_until_ms: u64,
    verdict_ms: u64,
    /// A member acked a delivery that looked older than this one. The order of the two is not certain.
    pub(crate) has_other_ack: bool,
    /// The same subscription sent a verdict about an earlier delivery, and the server may apply it to this one.
    has_other_verdict: bool,
}

/// A delivery as received.
pub(crate) struct Delivery<'a> {
    pub(crate) topic: usize,
    pub(crate) seq: u32,
    pub(crate) id: &'a str,
    pub(crate) attempt: u16,
    pub(crate) reason: Option<&'a str>,
    pub(crate) session: u32,
    pub(crate) received_ms: u64,
    /// When the socket was last empty before this delivery was read.
    pub(crate) empty_ms: u64,
}

/// A delivery that a member settles or extends, and when the frame for it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) topic: usize,
    pub(crate) seq: u32,
    pub(crate) session: u32,
    pub(crate) attempt: u16,
    pub(crate) sent_ms: u64,
}

pub(crate) struct GroupBook {
    plan: &'static GroupPlan,
    sessions: Vec<Session>,
    /// By topic and seq.
    entries: HashMap<(usize, u32), Entry>,
    /// The highest seq delivered as a first attempt, per subscription and topic.
    first_seqs: HashMap<(u32, usize), u32>,
    /// Whether a delivery with the reason `server_restarted` was seen.
    has_restart_reason: bool,
    /// Events whose last attempt was nacked with an OK: these must be dead letters.
    given_up: Vec<(usize, u32)>,
}

impl GroupBook {
    pub(crate) fn new(plan: &'static GroupPlan) -> Self {
        Self {
            plan,
            sessions: Vec::new(),
            entries: HashMap::new(),
            first_seqs: HashMap::new(),
            has_restart_reason: false,
            given_up: Vec::new(),
        }
    }

    pub(crate) fn open_session(&mut self, life: usize, now_ms: u64) -> u32 {
        self.sessions.push(Session { life, opened_ms: now_ms, ended: None });
        self.sessions.len() as u32 - 1
    }

    /// Records that a subscription ended: its leases may go to other members.
    pub(crate) fn end_session(&mut self, session: u32, departure: Departure) {
        let session = &mut self.sessions[session as usize];
        if session.ended.is_none() {
            session.ended = Some(departure);
        }
    }

    pub(crate) fn entry(&self, topic: usize, seq: u32) -> Option<&Entry> {
        self.entries.get(&(topic, seq))
    }

    pub(crate) fn given_up(&self) -> &[(usize, u32)] {
        &self.given_up
    }

    pub(crate) fn delivered(&mut self, delivery: &Delivery<'_>, timeline: &Timeline) -> Vec<Fault> {
        let mut faults = Vec::new();
        let place = self.place(delivery);
        if delivery.attempt == 0 || delivery.attempt > self.plan.max_attempts {
            faults.push(("attempt_out_of_range", format!("{place}: at most {}", self.plan.max_attempts)));
        }
        self.has_restart_reason |= delivery.reason == Some("server_restarted");
        let began_ms = timeline.back(delivery.empty_ms, SLACK_MS);
        let mut entry = Entry {
            attempt: delivery.attempt,
            session: delivery.session,
            received_ms: delivery.received_ms,
            lease_until_ms: began_ms + self.plan.ack_timeout_ms,
            verdict: Verdict::None,
            verdict_ms: 0,
            has_other_ack: false,
            has_other_verdict: false,
        };
        let Some(before) = self.entries.get(&(delivery.topic, delivery.seq)) else {
            faults.extend(self.check_order(delivery, &place));
            self.entries.insert((delivery.topic, delivery.seq), entry);
            return faults;
        };
        let is_newer = self.plan.seeks
            || before.session == delivery.session
            || delivery.attempt > before.attempt
            || began_ms > before.received_ms
            || (delivery.attempt == before.attempt && self.sessions[before.session as usize].ended.is_some())
            || self.sessions[delivery.session as usize].opened_ms > before.received_ms;
        if !is_newer {
            // This delivery may have been sent before the known one, which therefore remains the latest.
            return faults;
        }
        if !self.plan.seeks {
            faults.extend(self.check_redelivery(before, delivery, &place, timeline));
            faults.extend(self.check_attempt(before, delivery, &place, timeline));
            faults.extend(self.check_reason(before, delivery, &place, timeline));
        }
        let is_open =
            matches!(before.verdict, Verdict::AckSent | Verdict::AckSilent { .. } | Verdict::NackSent);
        if before.session == delivery.session && (is_open || before.has_other_verdict) {
            entry.has_other_verdict = true;
            entry.has_other_ack = before.has_other_ack || is_open && before.verdict != Verdict::NackSent;
        }
        self.entries.insert((delivery.topic, delivery.seq), entry);
        faults
    }

    fn place(&self, delivery: &Delivery<'_>) -> String {
        let &Delivery { seq, id, attempt, reason, session, .. } = delivery;
        let topic = crate::plan::TOPICS[delivery.topic].name;
        let reason = reason.unwrap_or("none");
        let life = self.sessions[session as usize].life;
        format!(
            "group {}, topic {topic}, seq {seq}, id {id}: delivered with attempt {attempt}, reason {reason} to member session \
             {session} in life {life}",
            self.plan.name
        )
    }

    /// The entry of this delivery; `None` when a newer delivery is known.
    fn entry_of(&mut self, sent: &Sent) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(&(sent.topic, sent.seq))?;
        (entry.session == sent.session && entry.attempt == sent.attempt).then_some(entry)
    }

    /// Records an ACK or NACK that is about to be sent.
    pub(crate) fn verdict_sent(&mut self, sent: &Sent, verdict: Verdict) {
        if let Some(entry) = self.entry_of(sent)
            && entry.verdict != Verdict::Acked
        {
            (entry.verdict, entry.verdict_ms) = (verdict, sent.sent_ms);
        } else if let Some(entry) = self.entries.get_mut(&(sent.topic, sent.seq)) {
            entry.has_other_ack |= verdict != Verdict::NackSent;
            entry.has_other_verdict |= entry.session == sent.session;
        }
    }

    /// Records that the server has handled an ACK without corr: it answered a later frame of the connection.
    pub(crate) fn silent_ack_handled(&mut self, sent: &Sent, now_ms: u64) {
        if let Some(entry) = self.entry_of(sent)
            && let Verdict::AckSilent { handled_ms } = &mut entry.verdict
        {
            *handled_ms = now_ms;
        }
    }

    /// Records the OK of an ACK or, if `due_ms` is set, of a NACK whose redelivery is due then.
    pub(crate) fn verdict_answered(
        &mut self,
        sent: &Sent,
        stale: bool,
        due_ms: Option<u64>,
        now_ms: u64,
    ) -> Vec<Fault> {
        let seeks = self.plan.seeks;
        let is_last = sent.attempt >= self.plan.max_attempts;
        let place = format!(
            "group {}, topic {}, seq {}, attempt {}, session {}: verdict sent at {} ms",
            self.plan.name,
            crate::plan::TOPICS[sent.topic].name,
            sent.seq,
            sent.attempt,
            sent.session,
            sent.sent_ms
        );
        let has_left = self.sessions[sent.session as usize].ended.is_some();
        let Some(entry) = self.entry_of(sent) else {
            return if stale {
                Vec::new()
            } else {
                self.accepted_late(sent, &place, due_ms.is_none(), now_ms)
            };
        };
        if stale {
            let is_in_time = sent.sent_ms + IN_TIME_MS < entry.lease_until_ms;
            let is_latest_verdict = entry.verdict_ms == sent.sent_ms && entry.verdict != Verdict::Acked;
            if is_latest_verdict {
                entry.verdict = Verdict::None;
            }
            if is_in_time && is_latest_verdict && !entry.has_other_verdict && !has_left && !seeks {
                let text =
                    format!("{place}, answered stale; the lease ran to at least {} ms", entry.lease_until_ms);
                return vec![("stale_in_time", text)];
            }
        } else if let Some(due_ms) = due_ms {
            if entry.verdict == Verdict::NackSent {
                entry.verdict = Verdict::Nacked { due_ms };
                if is_last {
                    self.given_up.push((sent.topic, sent.seq));
                }
            }
        } else {
            (entry.verdict, entry.verdict_ms) = (Verdict::Acked, sent.sent_ms);
        }
        Vec::new()
    }

    /// The server accepted a verdict on an older delivery. That is wrong if another member holds the lease of a newer delivery.
    fn accepted_late(&mut self, sent: &Sent, place: &str, is_ack: bool, now_ms: u64) -> Vec<Fault> {
        let seeks = self.plan.seeks;
        let sender_life = self.sessions[sent.session as usize].life;
        let Some(entry) = self.entries.get_mut(&(sent.topic, sent.seq)) else { return Vec::new() };
        let holder = &self.sessions[entry.session as usize];
        // An accepted NACK may itself have caused the newer delivery.
        let is_held = is_ack
            && entry.session != sent.session
            && entry.attempt > sent.attempt
            && holder.ended.is_none()
            && holder.life == sender_life
            && entry.verdict == Verdict::None
            && now_ms < entry.lease_until_ms;
        if is_held && !seeks {
            let text =
                format!("{place}, answered OK; session {} holds attempt {}", entry.session, entry.attempt);
            return vec![("old_ack_accepted", text)];
        }
        if is_ack {
            (entry.verdict, entry.verdict_ms) = (Verdict::Acked, sent.sent_ms);
        }
        Vec::new()
    }

    /// Records the answer of a MODACK.
    pub(crate) fn extend_answered(&mut self, sent: &Sent, extend_ms: u64, is_ok: bool) -> Vec<Fault> {
        let (seeks, name) = (self.plan.seeks, self.plan.name);
        let has_left = self.sessions[sent.session as usize].ended.is_some();
        let Some(entry) = self.entry_of(sent) else { return Vec::new() };
        if is_ok {
            entry.lease_until_ms = entry.lease_until_ms.max(sent.sent_ms + extend_ms);
        } else if sent.sent_ms + IN_TIME_MS < entry.lease_until_ms
            && entry.verdict == Verdict::None
            && !entry.has_other_verdict
            && !has_left
            && !seeks
        {
            let text = format!(
                "group {name}, topic {}, seq {}: MODACK sent at {} ms, the lease ran to at least {} ms",
                sent.topic, sent.seq, sent.sent_ms, entry.lease_until_ms
            );
            return vec![("extend_refused", text)];
        }
        Vec::new()
    }
}
