//! Subscriptions, as a stream of deliveries or as a handler that is called for each event.
//!
//! This file contains the stream; `builder.rs` has the options and joins the group, `handler.rs` runs handlers.

mod builder;
mod deliveries;
mod handler;
mod pull_pace;

pub use builder::{Subscribe, max_attempts};
pub use deliveries::Deliveries;
pub use handler::HandlerHandle;
pub(crate) use handler::after_nack;

use crate::backend::{Membership, Verdict};
use crate::batch::{DeliveryBatch, PullLimit};
use crate::delivery::{MemberSettings, Position};
use crate::error::{GroupError, Unavailable};
use crate::event::Delivery;
use futures_core::Stream;
use pull_pace::PullPace;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::task::coop::poll_proceed;

/// A member of a group, as a stream of deliveries. If it is dropped, the member counts as lost: its unsettled deliveries go
/// to other members at once, and the attempt counts. To leave cleanly, call [`unsubscribe`](Self::unsubscribe).
pub struct Subscription {
    member: Arc<dyn Membership>,
    /// Whether this subscription created the group.
    created: bool,
    settings: MemberSettings,
    /// Whether a handler's `Ok` does not ack (`manual_ack`).
    is_manual: bool,
    /// The deliveries of the last pull.
    batch: Arc<DeliveryBatch>,
    /// Index of the first delivery of the batch that was not handed out.
    next: usize,
    pace: PullPace,
    /// Whether the stream has returned the error that another process leads the store.
    is_deposed: bool,
}

impl Subscription {
    fn new(member: Arc<dyn Membership>, created: bool, settings: MemberSettings, is_manual: bool) -> Self {
        let batch = Arc::default();
        Self {
            member,
            created,
            settings,
            is_manual,
            batch,
            next: 0,
            pace: PullPace::new(),
            is_deposed: false,
        }
    }

    /// Makes this the only member of the group. It receives the events that other members hold, in order; the other members
    /// get [`GroupError::TakenOver`].
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn take_over(&self) -> Result<(), GroupError> {
        self.member.take_over().await
    }

    /// Whether this subscription created the group.
    pub fn created(&self) -> bool {
        self.created
    }

    /// The next delivery. Returns `None` when the bus is closed or the group is deleted or taken over. If another process
    /// has become the leader of the store, returns that error first, then `None`.
    pub async fn next(&mut self) -> Option<Result<Delivery, GroupError>> {
        Wait::new(self).until_ready(Self::poll_delivery).await
    }

    /// Waits for at least one delivery and returns all that are available, at most `batch_size`, to be settled together.
    ///
    /// # Errors
    /// [`GroupError`]; also when the bus is closed.
    pub async fn next_batch(&mut self) -> Result<Deliveries, GroupError> {
        self.skip_void();
        if self.next >= self.batch.items().len() {
            let poll =
                |it: &mut Self, context: &mut Context<'_>| it.poll_batch(PullLimit::default(), context);
            Wait::new(self).until_ready(poll).await?;
        }
        Ok(self.take_batch())
    }

    /// Like [`next_batch`](Self::next_batch), but returns only as many as can be handled one by one before their leases
    /// expire.
    async fn next_paced(&mut self) -> Result<Deliveries, GroupError> {
        self.skip_void();
        if self.next >= self.batch.items().len() {
            Wait::new(self).until_ready(Self::poll_paced).await?;
        }
        Ok(self.take_batch())
    }

    fn take_batch(&mut self) -> Deliveries {
        let from = std::mem::replace(&mut self.next, self.batch.items().len());
        Deliveries {
            batch: Arc::clone(&self.batch),
            from,
            member: Arc::clone(&self.member),
            max_attempts: self.settings.max_attempts,
        }
    }

    /// Stops deliveries until [`resume`](Self::resume). Deliveries that were handed out keep their leases.
    pub fn pause(&mut self) {
        self.release_rest();
        self.member.pause(true);
    }

    /// Starts deliveries again.
    pub fn resume(&self) {
        self.member.pause(false);
    }

    /// Leaves the group: unsettled deliveries go to other members at once, and the attempt does not count.
    ///
    /// # Errors
    /// [`Unavailable`] when the bus stopped writing.
    pub async fn unsubscribe(self) -> Result<(), Unavailable> {
        self.member.leave().await
    }

    fn poll_batch(&mut self, limit: PullLimit, context: &mut Context<'_>) -> Poll<Result<(), GroupError>> {
        // The batch's memory can be reused only if no event of the last pull is still held.
        if Arc::get_mut(&mut self.batch).is_none() {
            self.batch = Arc::default();
        }
        // A subscriber that always finds events must yield to other tasks now and then.
        let progress = std::task::ready!(poll_proceed(context));
        let batch = Arc::get_mut(&mut self.batch).expect("this is the only reference");
        self.next = 0;
        let pulled = self.member.poll_pull(limit, batch, context);
        if pulled.is_ready() {
            progress.made_progress();
        }
        pulled
    }

    /// Pulls as many events as can be handed out before their leases expire.
    fn poll_paced(&mut self, context: &mut Context<'_>) -> Poll<Result<(), GroupError>> {
        let events = self.pace.next(self.member.now_ms(), &self.settings);
        let pulled = self.poll_batch(PullLimit { events, ..PullLimit::default() }, context);
        if pulled.is_ready() {
            self.pace.pulled_at = Some(self.member.now_ms());
        }
        pulled
    }

    fn poll_delivery(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delivery, GroupError>>> {
        self.skip_void();
        if self.next >= self.batch.items().len() {
            match std::task::ready!(self.poll_paced(context)) {
                Ok(()) => {}
                Err(
                    GroupError::Unavailable(Unavailable::Closed)
                    | GroupError::Deleted
                    | GroupError::TakenOver,
                ) => {
                    return Poll::Ready(None);
                }
                Err(GroupError::Unavailable(Unavailable::Deposed(_))) if self.is_deposed => {
                    return Poll::Ready(None);
                }
                Err(error @ GroupError::Unavailable(Unavailable::Deposed(_))) => {
                    self.is_deposed = true;
                    return Poll::Ready(Some(Err(error)));
                }
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let at = self.next;
        self.next += 1;
        let (batch, member) = (Arc::clone(&self.batch), Arc::clone(&self.member));
        Poll::Ready(Some(Ok(Delivery::new(batch, at, member, self.settings.max_attempts))))
    }

    /// Skips pulled deliveries that this member does not hold any more: their lease expired before they were handed out, or
    /// a seek voided it.
    fn skip_void(&mut self) {
        while let Some(item) = self.batch.items().get(self.next) {
            if self.member.is_live(item, &self.batch) {
                return;
            }
            self.next += 1;
        }
    }

    /// Releases deliveries that were pulled but not handed out, as if they had not been pulled.
    fn release_rest(&mut self) {
        let rest = &self.batch.items()[self.next.min(self.batch.items().len())..];
        if !rest.is_empty() {
            let verdicts: Vec<(Position, Verdict<'_>)> =
                rest.iter().map(|item| (item.position, Verdict::Release)).collect();
            drop(self.member.settle(&verdicts, &mut Vec::new()));
        }
        self.next = usize::MAX;
    }
}

/// A wait for deliveries. If it is dropped early, events that are being read for this member can go to other members.
struct Wait<'a> {
    subscription: &'a mut Subscription,
    /// Whether the wait has ended with a result.
    is_over: bool,
}

impl<'a> Wait<'a> {
    fn new(subscription: &'a mut Subscription) -> Self {
        Self { subscription, is_over: false }
    }

    async fn until_ready<T>(
        mut self,
        mut poll: impl FnMut(&mut Subscription, &mut Context<'_>) -> Poll<T>,
    ) -> T {
        let output = poll_fn(|context| poll(self.subscription, context)).await;
        self.is_over = true;
        output
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.subscription.member.stop_waiting();
        }
    }
}

/// A stream that is not polled keeps the events that are being read for it. [`Subscription::next`], in contrast, releases
/// them when its future is dropped.
impl Stream for Subscription {
    type Item = Result<Delivery, GroupError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_delivery(context)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.release_rest();
        self.member.lose();
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Subscription({:?})", self.settings)
    }
}
