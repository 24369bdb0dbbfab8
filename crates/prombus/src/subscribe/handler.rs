//! Handlers: a task that calls a function for each event and acks or nacks according to its result.

use super::Subscription;
use super::deliveries::Deliveries;
use crate::backend::{Membership, Verdict};
use crate::delivery::{Millis, Position};
use crate::error::{GroupError, Unavailable};
use crate::event::{Delivery, Event};
use crate::failure_log::FailureLog;
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use prombus_protocol::{AfterFailure, DeliveryContext, FailedEvent, HandlerFailure};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The results of finished calls are collected for this long, so that they are settled together.
const SETTLE_AFTER_MS: Millis = 5;

/// A running handler. Dropping this changes nothing: the handler runs until the bus is closed.
pub struct HandlerHandle {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
    member: Arc<dyn Membership>,
    created: bool,
    failures: Arc<FailureLog>,
}

impl HandlerHandle {
    /// Spawns `run`, which serves the subscription until it is told to stop, and leaves the group.
    pub(crate) fn spawn<R>(
        subscription: Subscription,
        failures: Arc<FailureLog>,
        run: impl FnOnce(Subscription, watch::Receiver<bool>) -> R,
    ) -> Self
    where
        R: Future<Output = ()> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        let created = subscription.created;
        let member = Arc::clone(&subscription.member);
        let task = tokio::spawn(run(subscription, stopped));
        Self { stop, task, member, created, failures }
    }

    /// Whether this subscription created the group.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Stops deliveries until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.member.pause(true);
    }

    /// Starts deliveries again.
    pub fn resume(&self) {
        self.member.pause(false);
    }

    /// Calls a function for each failure: an error or a panic of the handler, an event that cannot be read, the end of the
    /// handler. [`HandlerFailure::next`] says whether the event is retried or becomes a dead letter. If there was a failure
    /// before, the function is called with the last one at once; [`Subscribe::on_error`](super::Subscribe::on_error) misses
    /// none. The function is called by the task of the handler and must not block. There may be several.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let bus = prombus::Bus::memory();
    /// let orders = bus.subscribe("orders", "billing").handler(|event, _| async move {
    ///     event.json::<u64>().map(drop) // fails: the payload is not a number
    /// }).await?;
    /// orders.on_error(|failure| eprintln!("{failure}"));
    /// bus.publish("orders", "twelve").await?;
    /// # while orders.last_error().is_none() { tokio::task::yield_now().await; }
    /// # let failure = orders.last_error().expect("the handler failed");
    /// # assert_eq!(failure.event.map(|event| (event.seq, event.attempt)), Some((1, 1)));
    /// # Ok(()) }
    /// ```
    pub fn on_error(&self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) {
        self.failures.on_error(callback);
    }

    /// The last failure; `None` if there was none. A later success does not remove it.
    pub fn last_error(&self) -> Option<HandlerFailure> {
        self.failures.last_error()
    }

    /// Takes no more events, waits for the running handler calls, and leaves the group.
    ///
    /// # Errors
    /// [`Unavailable`] when the bus stopped writing.
    pub async fn unsubscribe(self) -> Result<(), Unavailable> {
        let _ = self.stop.send(true);
        if let Err(error) = self.task.await {
            tracing::error!("the task of a handler ended early: {error}");
        }
        self.member.leave().await
    }
}

impl std::fmt::Debug for HandlerHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("HandlerHandle")
            .field("last_error", &self.last_error())
            .finish_non_exhaustive()
    }
}

/// The position of an event, and the result of the handler call for it.
type Handled = (Position, Result<(), FailedCall>);

/// A handler call that failed.
struct FailedCall {
    event: FailedEvent,
    error: String,
}

/// A failed read is retried after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(super) async fn run_handler<F, R, E>(
    mut subscription: Subscription,
    handler: Arc<F>,
    failures: Arc<FailureLog>,
    mut stopped: watch::Receiver<bool>,
) where
    F: Fn(Event, DeliveryContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send + 'static,
    E: std::fmt::Display + Send + 'static,
{
    let mut running = FuturesUnordered::new();
    let mut handled: Vec<Handled> = Vec::new();
    let is_manual = subscription.is_manual;
    let mut is_pulling = true;
    // False after the handle was dropped.
    let mut may_be_stopped = true;
    while is_pulling || !running.is_empty() {
        tokio::select! {
            biased;
            changed = stopped.changed(), if is_pulling && may_be_stopped => match changed {
                Ok(()) => is_pulling = false,
                Err(_) => may_be_stopped = false,
            },
            Some(done) = running.next(), if !running.is_empty() => {
                handled.push(done);
                // Settle all calls that are done by now together.
                while let Some(Some(done)) = running.next().now_or_never() {
                    handled.push(done);
                }
            }
            pulled = subscription.next_paced(), if is_pulling => match pulled {
                Ok(deliveries) => {
                    let cursor = subscription.member.cursor().await;
                    let call = |delivery: &Delivery| {
                        let context = delivery.context_with(cursor.clone());
                        handle(Arc::clone(&handler), delivery.event().clone(), context, delivery.position())
                    };
                    call_each(&subscription, &failures, &deliveries, call, &mut running, &mut handled);
                }
                Err(error @ (GroupError::Unavailable(_) | GroupError::Deleted | GroupError::TakenOver)) => {
                    if error != GroupError::Unavailable(Unavailable::Closed) {
                        failures.report(&HandlerFailure::general(error.to_string(), AfterFailure::Stop));
                    }
                    is_pulling = false;
                }
                Err(error) => {
                    failures.report(&HandlerFailure::general(error.to_string(), AfterFailure::Retry));
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            },
        }
        settle(&*subscription.member, &failures, &mut handled, is_manual);
    }
    // Leave cleanly: unsettled deliveries go to other members, and the attempt does not count.
    subscription.release_rest();
    let _ = subscription.member.leave().await;
}

/// Calls the handler for each delivery. Calls that do not finish at once go into `running`.
fn call_each<C: Future<Output = Handled>>(
    subscription: &Subscription,
    failures: &FailureLog,
    deliveries: &Deliveries,
    call: impl Fn(&Delivery) -> C,
    running: &mut FuturesUnordered<Pin<Box<C>>>,
    handled: &mut Vec<Handled>,
) {
    let member = &*subscription.member;
    let mut settled_at = member.now_ms();
    for delivery in deliveries.iter() {
        let mut handling = Box::pin(call(&delivery));
        // A handler that never waits is done after the first poll.
        match (&mut handling).now_or_never() {
            Some(done) => handled.push(done),
            None => running.push(handling),
        }
        // Quick calls are settled together; the ack of a slow call does not wait for the rest of the batch.
        let now = member.now_ms();
        if now.saturating_sub(settled_at) >= SETTLE_AFTER_MS {
            settle(member, failures, handled, subscription.is_manual);
            settled_at = now;
        }
    }
}

async fn handle<F, R, E>(
    handler: Arc<F>,
    event: Event,
    context: DeliveryContext,
    position: Position,
) -> Handled
where
    F: Fn(Event, DeliveryContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send + 'static,
    E: std::fmt::Display + Send + 'static,
{
    let (topic, seq, id) = (event.topic().clone(), event.seq(), event.id());
    let (attempt, max_attempts) = (context.attempt, context.max_attempts);
    let called = AssertUnwindSafe(async move { handler(event, context).await }).catch_unwind().await;
    let result = match called {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(format!("the handler panicked: {}", text.as_deref().unwrap_or("(no message)")))
        }
    };
    let failed = |error| FailedCall { event: FailedEvent { topic, seq, id, attempt, max_attempts }, error };
    (position, result.map_err(failed))
}

/// What happens to an event after a nack. Also true for a nack that is stale because the lease has expired.
pub(crate) fn after_nack(event: &FailedEvent) -> AfterFailure {
    if event.attempt >= event.max_attempts { AfterFailure::DeadLetter } else { AfterFailure::Retry }
}

fn settle(member: &dyn Membership, failures: &FailureLog, handled: &mut Vec<Handled>, is_manual: bool) {
    if handled.is_empty() {
        return;
    }
    // Before the events are settled: a caller that waits until the group is idle then finds the failure in `last_error`.
    for failed in handled.iter().filter_map(|(_, result)| result.as_ref().err()) {
        let next = after_nack(&failed.event);
        failures.report(&HandlerFailure::of_event(failed.event.clone(), failed.error.clone(), next));
    }
    let verdicts: Vec<(Position, Verdict<'_>)> = handled
        .iter()
        .filter_map(|(position, result)| match result {
            Ok(()) if is_manual => None,
            Ok(()) => Some((*position, Verdict::Ack)),
            Err(failed) => Some((*position, Verdict::Nack { delay_ms: None, reason: Some(&failed.error) })),
        })
        .collect();
    drop(member.settle(&verdicts, &mut Vec::with_capacity(verdicts.len())));
    handled.clear();
}
