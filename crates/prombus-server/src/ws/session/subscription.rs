//! One subscription of a session: its deliveries, settlements and pulls.

use super::corrs::Corrs;
use super::delivered::{Delivered, Sent};
use super::delivery_times::DeliveryTimes;
use super::event_frame::EventFrame;
use super::frame_time::FrameTime;
use super::ready_list::SlotWaker;
use super::settling::Settling;
use crate::clock::steady_ms;
use crate::metrics::SubscriptionMetrics;
use crate::ws::send_buffer::SendBuffer;
use prombus::delivery::{MemberSettings, Position};
use prombus::{
    DeliveryBatch, GroupError, GroupSpec, Membership, Pattern, PullLimit, SettleOutcome, Unavailable, Verdict,
};
use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use uuid::Uuid;

thread_local! {
    /// The buffer for deliveries between group and socket. It belongs to the thread, so connections need no memory for it.
    static PULLED: RefCell<DeliveryBatch> = RefCell::default();
    /// The outcomes of a settlement.
    static OUTCOMES: RefCell<Vec<SettleOutcome>> = RefCell::default();
}

/// A subscription of one client to a group.
pub(super) struct Subscription {
    /// The topic or pattern that names the subscription.
    pub(super) topic: String,
    pub(super) group: String,
    /// Further topics and patterns that the group reads.
    more_topics: Vec<Pattern>,
    pub(super) membership: Arc<dyn Membership>,
    /// Adds the subscription to the ready list.
    pub(super) slot: Arc<SlotWaker>,
    /// `slot` as a waker.
    waker: Waker,
    settings: MemberSettings,
    frame: EventFrame,
    delivered: Delivered,
    times: DeliveryTimes,
    /// Collected acks that are not submitted yet.
    acks: Vec<(Position, Verdict<'static>)>,
    /// The `corr`s of `acks`.
    ack_corrs: Corrs,
    /// Whether the last pull was pending. If so, the group may be reading events for this member.
    pub(super) is_waiting: bool,
    /// Whether a SEEK of the group waits for its answer, see [`Subscriptions::begin_move`](super::subscriptions::Subscriptions).
    pub(super) is_moving: bool,
}

/// The result of a pull.
pub(super) enum Pulled {
    /// This many events were written; there may be more.
    Some(u32),
    /// No events are available now.
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
        Self {
            frame: EventFrame::new(&topic, &group, settings.max_attempts),
            topic,
            group,
            more_topics: spec.topics.clone(),
            membership,
            waker: Waker::from(Arc::clone(&slot)),
            slot,
            settings,
            delivered: Delivered::default(),
            times: DeliveryTimes::new(metrics),
            acks: Vec::new(),
            ack_corrs: Corrs::default(),
            is_waiting: false,
            is_moving: false,
        }
    }

    /// All topics and patterns that the subscription reads.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.topic.as_str()).chain(self.more_topics.iter().map(Pattern::as_str))
    }

    /// Collects an ack. Returns whether it is the first since the last submission; `None` when the id is not in flight.
    pub(super) fn ack(
        &mut self,
        id: Uuid,
        corr: Option<&str>,
        ignored: &[String],
        now: FrameTime,
    ) -> Option<bool> {
        let sent = self.take_delivered(id)?;
        self.acks.push((sent.position, Verdict::Ack));
        self.ack_corrs.push_noting(corr, ignored);
        self.times.settled(&sent, true, now);
        Some(self.acks.len() == 1)
    }

    /// The delivery that an ack or nack names. An unknown id is counted as stale.
    fn take_delivered(&mut self, id: Uuid) -> Option<Sent> {
        let sent = self.delivered.remove(id);
        if sent.is_none() {
            self.membership.count_stale();
        }
        sent
    }

    /// Submits the collected acks. Returns the answers, which wait until the acks are durable; `None` if there are none to send.
    /// `is_healthy`: whether acks can become durable now.
    pub(super) fn settle(&mut self, is_healthy: bool) -> Option<Settling> {
        if self.acks.is_empty() {
            return None;
        }
        self.times.flush();
        let settling = OUTCOMES.with_borrow_mut(|outcomes| {
            outcomes.clear();
            let ticket = self.membership.settle(&self.acks, outcomes);
            // Acks without a `corr` are answered only if they cannot become durable.
            if self.ack_corrs.is_silent() && is_healthy {
                return None;
            }
            let stale = outcomes.iter().map(|&outcome| outcome == SettleOutcome::Stale).collect();
            Some(Settling::new(ticket, std::mem::take(&mut self.ack_corrs), stale))
        });
        self.acks.clear();
        self.ack_corrs.clear();
        settling
    }

    /// Submits a nack at once. Returns its answer, which waits until the nack is durable; `None` when the id is not in flight.
    pub(super) fn nack(
        &mut self,
        id: Uuid,
        corr: Option<&str>,
        ignored: &[String],
        verdict: Verdict<'_>,
        now: FrameTime,
    ) -> Option<Settling> {
        let sent = self.take_delivered(id)?;
        self.times.settled(&sent, false, now);
        self.times.flush();
        let mut outcomes = Vec::with_capacity(1);
        let ticket = self.membership.settle(&[(sent.position, verdict)], &mut outcomes);
        let mut corrs = Corrs::default();
        corrs.push_noting(corr, ignored);
        Some(Settling::new(ticket, corrs, vec![outcomes.contains(&SettleOutcome::Stale)]))
    }

    /// Extends a lease; false if this member does not hold it. Fails if this process no longer leads, because the new leader may
    /// have delivered the event to another member.
    pub(super) fn extend(&mut self, id: Uuid, extend_ms: Option<u64>) -> Result<bool, Unavailable> {
        let extend_ms = extend_ms.unwrap_or(self.settings.ack_timeout_ms);
        let Some(sent) = self.delivered.get(id) else { return Ok(false) };
        let mut outcomes = Vec::with_capacity(1);
        let verdict = (sent.position, Verdict::Extend { extend_ms });
        let mut ticket = self.membership.settle(&[verdict], &mut outcomes);
        if let Some(SettleOutcome::Extended(ms)) = outcomes.first() {
            // An extension is not stored: leases do not survive a restart.
            sent.deadline_ms = steady_ms() + ms;
            return Ok(true);
        }
        match Pin::new(&mut ticket).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(reason)) => Err(reason),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(false),
        }
    }

    /// Appends events to `out`, up to the limit.
    pub(super) fn pull(&mut self, limit: PullLimit, out: &mut SendBuffer) -> Result<Pulled, GroupError> {
        PULLED.with_borrow_mut(|batch| {
            let began = std::time::Instant::now();
            let mut context = Context::from_waker(&self.waker);
            let Poll::Ready(pulled) = self.membership.poll_pull(limit, batch, &mut context) else {
                return Ok(Pulled::None);
            };
            pulled?;
            self.times.pulled(began.elapsed());
            let now_ms = steady_ms();
            for item in batch.items() {
                let id = Uuid::from_u128(item.id.as_u128());
                self.frame.put(out, batch, item, id);
                let sent = Sent {
                    position: item.position,
                    ts: item.ts,
                    at_ms: now_ms,
                    deadline_ms: now_ms + item.lease_ms,
                    end: out.end(),
                };
                self.delivered.insert(id, sent);
            }
            let window = self.settings.max_in_flight as usize;
            self.delivered.forget_expired(window, now_ms);
            Ok(Pulled::Some(batch.items().len() as u32))
        })
    }

    /// Leaves the group cleanly: unsettled events go to other members without counting an attempt.
    pub(super) fn leave(mut self) {
        drop(self.settle(true));
        drop(self.membership.leave());
    }

    /// Ends the subscription of a lost client. Everything before the position `sent` of the send buffer was sent to it. A
    /// delivery that was not sent completely does not count as an attempt.
    pub(super) fn lose(mut self, sent: u64) {
        self.membership.stop_waiting();
        drop(self.settle(true));
        let unsent = self.delivered.iter().filter(|delivery| delivery.end > sent);
        let unsent: Vec<_> = unsent.map(|delivery| (delivery.position, Verdict::Release)).collect();
        if !unsent.is_empty() {
            drop(self.membership.settle(&unsent, &mut Vec::new()));
        }
        self.membership.lose();
    }
}
