//! Handlers: a task that calls a function for each event and settles the event by the function's result.

use super::command::{Command, MemberHandle};
use super::delivery::Delivery;
use super::failure_log::FailureLog;
use super::handler_error::{settlement_of, settlement_of_panic};
use super::lease::Lease;
use super::settlement::Settlement;
use super::subscription::Subscription;
use crate::error::ClientError;
use futures_util::FutureExt as _;
use prombus_protocol::{AfterFailure, EventContext, EventRecord, FailedEvent, HandlerFailure};
use std::fmt::Display;
use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// What a handler gets in addition to the event: the fields of [`EventContext`], such as the attempt and the reason of a redelivery, and
/// its lease.
#[derive(Debug)]
pub struct HandlerContext {
    context: EventContext,
    lease: Arc<Lease>,
    member: MemberHandle,
}

impl HandlerContext {
    /// When the lease ends. It changes when the lease is extended, and when a reconnect brings a new lease.
    pub fn lease_deadline(&self) -> Instant {
        self.lease.deadline()
    }

    /// Whether the lease was lost: it expired, or the server reported its loss. Another member may have the event, so the handler should
    /// stop and return an error: Ok would ack an event that was not handled, if the event is redelivered to this member. If the event is
    /// redelivered to this member while the handler runs, the handler adopts the new lease and this is false again.
    pub fn is_lease_lost(&self) -> bool {
        self.lease.is_lost()
    }

    /// Resolves when the lease is lost; for `tokio::select!`. A handler that stops because of this returns an error, such as
    /// `HandlerError::retry("the lease was lost")`; see [`is_lease_lost`](Self::is_lease_lost).
    pub async fn lease_lost(&self) {
        self.lease.lost().await;
    }

    /// Extends the lease: it ends this long from now, at least a second. Leases of handlers are extended automatically unless
    /// `auto_extend(false)` is set. Returns false if the lease is already over, or belongs to a connection that was lost.
    ///
    /// # Errors
    /// [`ClientError::Lost`] if the connection was lost before the response.
    pub async fn extend(&self, by: Duration) -> Result<bool, ClientError> {
        let serial = self.lease.serial();
        self.member.request(|reply| Command::Extend { serial, by, reply }).await
    }
}

impl Deref for HandlerContext {
    type Target = EventContext;

    fn deref(&self) -> &EventContext {
        &self.context
    }
}

/// A running handler. Dropping this has no effect: the handler runs until the server permanently refuses the subscription, or the
/// runtime ends. Call [`stop`](Self::stop) before a program exits, so that running handlers finish and their results are sent.
#[derive(Debug)]
pub struct HandlerHandle {
    stop: watch::Sender<bool>,
    /// `None` after its result was returned.
    task: Option<JoinHandle<Result<(), ClientError>>>,
    member: MemberHandle,
    created: bool,
    failures: Arc<FailureLog>,
}

impl HandlerHandle {
    pub(super) fn spawn<F, R, E>(
        subscription: Subscription,
        handler: F,
        concurrency: usize,
        failures: Arc<FailureLog>,
    ) -> Self
    where
        F: Fn(EventRecord, HandlerContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        let (created, member) = (subscription.created(), subscription.member().clone());
        let run = run_handler(subscription, Arc::new(handler), concurrency, Arc::clone(&failures), stopped);
        Self { stop, task: Some(tokio::spawn(run)), member, created, failures }
    }

    /// Whether this subscription created the group.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Stops deliveries until [`resume`](Self::resume). Events that were received before are still handled.
    pub fn pause(&self) {
        self.member.send(Command::Pause(true));
    }

    /// Starts deliveries again.
    pub fn resume(&self) {
        self.member.send(Command::Pause(false));
    }

    /// Calls a function for each failure: an error or a panic of the handler, and the end of the subscription.
    /// [`HandlerFailure::next`] says whether the event is retried or becomes a dead letter. If there was a failure before, the function is
    /// called with the last one at once; [`Subscribe::on_error`](super::Subscribe::on_error) misses none. The function must not block.
    /// There may be several.
    pub fn on_error(&self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) {
        self.failures.on_error(callback);
    }

    /// The last failure; `None` if there was none. A later success does not remove it.
    pub fn last_error(&self) -> Option<HandlerFailure> {
        self.failures.last_error()
    }

    /// Takes no more events, waits for running handlers, sends their results and leaves the group. Received events that were not handled
    /// yet go to other members when this member leaves the group, and their attempt does not count. If a running handler takes so long that
    /// the leases of these events end first, the events are redelivered then.
    ///
    /// # Errors
    /// The error that ended the subscription. [`ClientError::Lost`] if the connection was lost before the server responded to all results,
    /// or if a result waits for a redelivery: events whose result the server did not receive are redelivered.
    pub async fn stop(mut self) -> Result<(), ClientError> {
        let _ = self.stop.send(true);
        self.ended().await
    }

    /// Waits until the server has permanently refused the subscription, and the handlers that ran at that time have returned.
    ///
    /// # Errors
    /// The reason of the end. A second call returns Ok.
    pub async fn ended(&mut self) -> Result<(), ClientError> {
        let Some(task) = &mut self.task else { return Ok(()) };
        let ended = task.await;
        self.task = None;
        match ended {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is shutting down.
            Err(_) => Ok(()),
        }
    }
}

async fn run_handler<F, R, E>(
    mut subscription: Subscription,
    handler: Arc<F>,
    concurrency: usize,
    failures: Arc<FailureLog>,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), ClientError>
where
    F: Fn(EventRecord, HandlerContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send + 'static,
    E: Display + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut refused = None;
    let mut is_taking = true;
    // False after the handle was dropped.
    let mut may_be_stopped = true;
    while is_taking || !running.is_empty() {
        tokio::select! {
            biased;
            changed = stopped.changed(), if is_taking && may_be_stopped => match changed {
                Ok(()) => {
                    is_taking = false;
                    subscription.drain();
                }
                Err(_) => may_be_stopped = false,
            },
            Some(_) = running.join_next() => {}
            next = subscription.next(), if is_taking && running.len() < concurrency => match next {
                Some(Ok(delivery)) => {
                    running.spawn(handle(Arc::clone(&handler), Arc::clone(&failures), delivery));
                }
                Some(Err(error)) => (is_taking, refused) = (false, Some(error)),
                None => is_taking = false,
            },
        }
    }
    match refused {
        Some(error) => {
            failures.report(&HandlerFailure::general(error.to_string(), AfterFailure::Stop));
            Err(error)
        }
        // The results were queued before this, so they are sent before UNSUBSCRIBE, which returns the unsettled events.
        None => subscription.unsubscribe().await,
    }
}

/// Calls the handler and queues its result.
async fn handle<F, R, E>(handler: Arc<F>, failures: Arc<FailureLog>, delivery: Delivery)
where
    F: Fn(EventRecord, HandlerContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send + 'static,
    E: Display + Send + 'static,
{
    let Delivery { event, context, ticket } = delivery;
    let (lease, member) = (Arc::clone(ticket.lease()), ticket.member().clone());
    let failed = FailedEvent {
        topic: event.topic.clone(),
        seq: event.seq,
        id: event.id,
        attempt: context.attempt,
        max_attempts: context.max_attempts,
    };
    let context = HandlerContext { context, lease, member };
    let called = AssertUnwindSafe(async move { handler(event, context).await }).catch_unwind().await;
    let settlement = match called {
        Ok(Ok(())) => Settlement::Ack,
        Ok(Err(error)) => settlement_of(&error),
        Err(panic) => settlement_of_panic(&*panic),
    };
    let failure = settlement.failure(failed);
    ticket.settle_soon(settlement);
    if let Some(failure) = failure {
        failures.report(&failure);
    }
}
