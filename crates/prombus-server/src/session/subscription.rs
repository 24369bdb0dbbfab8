//! One subscription of a session: what it was sent, what it settles, what it pulls.

use super::Now;
use super::corrs::Corrs;
use super::delivered::{Delivered, Sent};
use super::ready::SlotWaker;
use crate::gateway::steady_ms;
use crate::metrics::SubscriptionMetrics;
use crate::ws::frame::put_text;
use prombus::delivery::{MemberSettings, Position};
use prombus::{
    DeliveryBatch, DeliveryItem, DurableTicket, GroupError, GroupSpec, Histogram, Membership, Pattern,
    PullLimit, SettleOutcome, Unavailable, Verdict,
};
use prombus_protocol::{
    EventContext, OkFrame, RawValue, RedeliveryReason, put_err, put_event_head, put_event_tail, put_record,
};
use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use uuid::Uuid;

/// What the head and the context of an EVENT take, about.
const EVENT_FRAME_BYTES: usize = 250;

thread_local! {
    /// Where deliveries are put on their way from the group to the socket: in no connection's own memory.
    static PULLED: RefCell<DeliveryBatch> = RefCell::default();
    static OUTCOMES: RefCell<Vec<SettleOutcome>> = RefCell::default();
}

pub(super) struct Subscription {
    pub(super) topic: String,
    pub(super) group: String,
    more_topics: Vec<Pattern>,
    pub(super) membership: Arc<dyn Membership>,
    pub(super) slot: Arc<SlotWaker>,
    waker: Waker,
    settings: MemberSettings,
    /// An EVENT up to its record.
    head: Vec<u8>,
    /// The end of an EVENT, after the record, and of which delivery it is: nearly always the next one has the same.
    tail: Vec<u8>,
    tail_of: Option<TailOf>,
    delivered: Delivered,
    metrics: Arc<SubscriptionMetrics>,
    handler_durations: Repeated,
    latencies: Repeated,
    /// Acks that were read and not handed over yet.
    acks: Vec<(Position, Verdict<'static>)>,
    ack_corrs: Corrs,
}

/// What the end of an EVENT says: attempt, lease, reason. An error of the attempt before is not kept.
type TailOf = (u32, u64, Option<RedeliveryReason>);

/// The same value again and again, before it is counted: acks come in runs that took equally long.
#[derive(Default)]
struct Repeated {
    value_ms: u64,
    count: u64,
}

/// Settlements whose answers wait until they are durable.
pub(super) struct Settling {
    ticket: DurableTicket,
    corrs: Corrs,
    stale: Vec<bool>,
}

/// What a pull came to.
pub(super) enum Pulled {
    /// Events were written; there may be more.
    Some(u32),
    /// Nothing now.
    None,
}

impl Subscription {
    pub(super) fn new(
        spec: &GroupSpec,
        membership: Arc<dyn Membership>,
        settings: MemberSettings,
        slot: Arc<SlotWaker>,
        metrics: Arc<SubscriptionMetrics>,
    ) -> Self {
        let (topic, group) = (spec.subscription.as_str().to_owned(), spec.group.as_str().to_owned());
        let mut head = Vec::new();
        put_event_head(&mut head, &topic, &group);
        let waker = Waker::from(Arc::clone(&slot));
        let (delivered, acks, ack_corrs) = (Delivered::default(), Vec::new(), Corrs::default());
        let more_topics = spec.topics.clone();
        Self {
            topic,
            group,
            more_topics,
            membership,
            slot,
            waker,
            settings,
            head,
            tail: Vec::new(),
            tail_of: None,
            delivered,
            metrics,
            handler_durations: Repeated::default(),
            latencies: Repeated::default(),
            acks,
            ack_corrs,
        }
    }

    /// All that it reads.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.topic.as_str()).chain(self.more_topics.iter().map(Pattern::as_str))
    }

    /// Gathers an ack. Answers whether it is the first since they were handed over; `None` when the id is not in flight.
    pub(super) fn ack(&mut self, id: Uuid, corr: Option<&str>, ignored: &[String], now: Now) -> Option<bool> {
        let sent = self.take_delivered(id)?;
        self.acks.push((sent.position, Verdict::Ack));
        self.ack_corrs.push_noting(corr, ignored);
        self.observe(&sent, true, now);
        Some(self.acks.len() == 1)
    }

    /// The delivery that an ack or nack names. One that this connection never had is counted as stale.
    fn take_delivered(&mut self, id: Uuid) -> Option<Sent> {
        let sent = self.delivered.remove(id);
        if sent.is_none() {
            self.membership.count_stale();
        }
        sent
    }

    fn observe(&mut self, sent: &Sent, is_ack: bool, now: Now) {
        let took_ms = now.steady_ms.saturating_sub(sent.at_ms);
        self.handler_durations.add(took_ms, &self.metrics.handler_duration_ms);
        if is_ack {
            let latency_ms = now.wall_ms.saturating_sub(sent.ts).max(0).unsigned_abs();
            self.latencies.add(latency_ms, &self.metrics.latency_ms);
        }
    }

    fn count_observed(&mut self) {
        self.handler_durations.count(&self.metrics.handler_duration_ms);
        self.latencies.count(&self.metrics.latency_ms);
    }

    /// Hands the gathered acks over, and answers what waits for them to be durable.
    pub(super) fn settle(&mut self, is_healthy: bool) -> Option<Settling> {
        if self.acks.is_empty() {
            return None;
        }
        self.count_observed();
        let settling = OUTCOMES.with_borrow_mut(|outcomes| {
            outcomes.clear();
            let ticket = self.membership.settle(&self.acks, outcomes);
            // Without corr they are answered on error only.
            if self.ack_corrs.is_silent() && is_healthy {
                return None;
            }
            let stale = outcomes.iter().map(|&outcome| outcome == SettleOutcome::Stale).collect();
            Some(Settling { ticket, corrs: std::mem::take(&mut self.ack_corrs), stale })
        });
        self.acks.clear();
        self.ack_corrs.clear();
        settling
    }

    /// Nacks at once. `None` when the id is not in flight.
    pub(super) fn nack(
        &mut self,
        id: Uuid,
        corr: Option<&str>,
        ignored: &[String],
        verdict: Verdict<'_>,
        now: Now,
    ) -> Option<Settling> {
        let sent = self.take_delivered(id)?;
        self.observe(&sent, false, now);
        self.count_observed();
        let mut outcomes = Vec::with_capacity(1);
        let ticket = self.membership.settle(&[(sent.position, verdict)], &mut outcomes);
        let mut corrs = Corrs::default();
        corrs.push_noting(corr, ignored);
        Some(Settling { ticket, corrs, stale: vec![outcomes.contains(&SettleOutcome::Stale)] })
    }

    /// Extends a lease; false when it is not this member's.
    pub(super) fn extend(&mut self, id: Uuid, extend_ms: Option<u64>) -> bool {
        let extend_ms = extend_ms.unwrap_or(self.settings.ack_timeout_ms);
        let Some(sent) = self.delivered.get(id) else { return false };
        let mut outcomes = Vec::with_capacity(1);
        let verdict = (sent.position, Verdict::Extend { extend_ms });
        // An extension is not written down: after a restart nobody has a lease.
        drop(self.membership.settle(&[verdict], &mut outcomes));
        match outcomes.first() {
            Some(SettleOutcome::Extended(ms)) => {
                sent.deadline_ms = steady_ms() + ms;
                true
            }
            _ => false,
        }
    }

    /// Writes events into `out`, as far as the limit allows. `sent_before` is what the connection was sent before `out`.
    pub(super) fn pull(
        &mut self,
        limit: PullLimit,
        out: &mut Vec<u8>,
        sent_before: u64,
    ) -> Result<Pulled, GroupError> {
        PULLED.with_borrow_mut(|batch| {
            let began = std::time::Instant::now();
            let mut context = Context::from_waker(&self.waker);
            let Poll::Ready(pulled) = self.membership.poll_pull(limit, batch, &mut context) else {
                return Ok(Pulled::None);
            };
            pulled?;
            self.metrics.poll_duration_ms.observe(began.elapsed().as_secs_f64() * 1000.0);
            let now_ms = steady_ms();
            for item in batch.items() {
                let body = batch.body(item);
                let id = Uuid::from_u128(item.id.as_u128());
                let tail_of = Some((item.attempt, item.lease_ms, item.reason));
                if self.tail_of != tail_of {
                    self.put_tail(batch, item);
                    self.tail_of = tail_of.filter(|_| !batch.has_last_errors());
                }
                put_text(out, EVENT_FRAME_BYTES + body.len(), |into| {
                    into.extend_from_slice(&self.head);
                    put_record(into, id, item.position.seq, body);
                    into.extend_from_slice(&self.tail);
                });
                let sent = Sent {
                    position: item.position,
                    ts: item.ts,
                    at_ms: now_ms,
                    deadline_ms: now_ms + item.lease_ms,
                    end: sent_before + out.len() as u64,
                };
                self.delivered.insert(id, sent);
            }
            let window = self.settings.max_in_flight as usize;
            self.delivered.forget_expired(window, now_ms);
            Ok(Pulled::Some(batch.items().len() as u32))
        })
    }

    #[cold]
    fn put_tail(&mut self, batch: &DeliveryBatch, item: &DeliveryItem) {
        self.tail.clear();
        let context = EventContext {
            attempt: item.attempt,
            ack_deadline_ms: item.lease_ms,
            max_attempts: self.settings.max_attempts,
            reason: item.reason,
            last_error: batch.last_error(item).map(str::to_owned),
        };
        put_event_tail(&mut self.tail, &context);
    }

    /// Ends it in order: what is unsettled goes to others, and no attempt counts.
    pub(super) fn leave(mut self) {
        drop(self.settle(true));
        drop(self.membership.leave());
    }

    /// Ends it because the connection broke. What never left this process was no attempt.
    pub(super) fn lose(mut self, written: u64) {
        drop(self.settle(true));
        let unsent = self.delivered.iter().filter(|sent| sent.end > written);
        let unsent: Vec<_> = unsent.map(|sent| (sent.position, Verdict::Release)).collect();
        if !unsent.is_empty() {
            drop(self.membership.settle(&unsent, &mut Vec::new()));
        }
        self.membership.lose();
    }
}

impl Repeated {
    fn add(&mut self, value_ms: u64, histogram: &Histogram) {
        if value_ms != self.value_ms {
            self.count(histogram);
            self.value_ms = value_ms;
        }
        self.count += 1;
    }

    fn count(&mut self, histogram: &Histogram) {
        let count = std::mem::take(&mut self.count);
        if count > 0 {
            histogram.observe_many(self.value_ms as f64, count);
        }
    }
}

impl Settling {
    /// Writes the answers when they are due; false while they are not.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> bool {
        let Poll::Ready(result) = Pin::new(&mut self.ticket).poll(context) else { return false };
        for (number, (corr, &stale)) in self.corrs.iter().zip(&self.stale).enumerate() {
            if corr.is_some() || result.is_err() {
                let (ignored, failed) = (self.corrs.ignored(number), result.as_ref().err());
                put_text(out, 100, |into| put_settled(into, corr, ignored, stale, failed));
            }
        }
        true
    }

    /// Nobody waits for an answer.
    pub(super) fn is_silent(&self) -> bool {
        self.corrs.is_silent()
    }
}

/// The answer to an ACK or NACK.
fn put_settled(
    into: &mut Vec<u8>,
    corr: Option<&str>,
    ignored: &[String],
    stale: bool,
    failed: Option<&Unavailable>,
) {
    match failed {
        Some(reason) => put_err(into, corr, reason.code(), &reason.to_string(), None),
        None => {
            let corr = corr.and_then(|corr| RawValue::from_string(corr.to_owned()).ok());
            OkFrame { corr, stale, ignored: ignored.to_vec(), ..OkFrame::default() }.put(into);
        }
    }
}

/// The OK of an ACK or NACK for an id that is not in flight.
pub(super) fn put_stale(into: &mut Vec<u8>, corr: Option<&str>, ignored: &[String]) {
    put_settled(into, corr, ignored, true, None);
}
