//! Handlers: a task that calls a function for each event and acks or nacks according to its result.

use super::Subscription;
use super::deliveries::Deliveries;
use crate::backend::{Membership, Verdict};
use crate::delivery::{Millis, Position};
use crate::error::{GroupError, Unavailable};
use crate::event::{Delivery, Event};
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use prombus_protocol::DeliveryContext;
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
}

impl HandlerHandle {
    /// Spawns `run`, which serves the subscription until it is told to stop, and leaves the group.
    pub(crate) fn spawn<R>(
        subscription: Subscription,
        run: impl FnOnce(Subscription, watch::Receiver<bool>) -> R,
    ) -> Self
    where
        R: Future<Output = ()> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        let created = subscription.created;
        let member = Arc::clone(&subscription.member);
        let task = tokio::spawn(run(subscription, stopped));
        Self { stop, task, member, created }
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
        formatter.write_str("HandlerHandle")
    }
}

/// The position of an event, and the result of the handler call for it.
type Handled = (Position, Result<(), String>);

/// A failed read is retried after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(super) async fn run_handler<F, R, E>(
    mut subscription: Subscription,
    handler: Arc<F>,
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
                    call_each(&subscription, &deliveries, call, &mut running, &mut handled);
                }
                Err(error @ (GroupError::Unavailable(_) | GroupError::Deleted | GroupError::TakenOver)) => {
                    if error != GroupError::Unavailable(Unavailable::Closed) {
                        tracing::error!("a handler stops: {error}");
                    }
                    is_pulling = false;
                }
                Err(error) => {
                    tracing::error!("a subscription cannot read: {error}");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            },
        }
        settle(&*subscription.member, &mut handled, is_manual);
    }
    // Leave cleanly: unsettled deliveries go to other members, and the attempt does not count.
    subscription.release_rest();
    let _ = subscription.member.leave().await;
}

/// Calls the handler for each delivery. Calls that do not finish at once go into `running`.
fn call_each<C: Future<Output = Handled>>(
    subscription: &Subscription,
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
            settle(member, handled, subscription.is_manual);
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
    let (topic, seq) = (event.topic().clone(), event.seq());
    let called = AssertUnwindSafe(async move { handler(event, context).await }).catch_unwind().await;
    let result = match called {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let error = format!("the handler panicked: {}", text.as_deref().unwrap_or("(no message)"));
            tracing::error!("{topic} seq {seq}: {error}");
            Err(error)
        }
    };
    (position, result)
}

fn settle(member: &dyn Membership, handled: &mut Vec<Handled>, is_manual: bool) {
    if handled.is_empty() {
        return;
    }
    let verdicts: Vec<(Position, Verdict<'_>)> = handled
        .iter()
        .filter_map(|(position, result)| match result {
            Ok(()) if is_manual => None,
            Ok(()) => Some((*position, Verdict::Ack)),
            Err(error) => Some((*position, Verdict::Nack { delay_ms: None, reason: Some(error) })),
        })
        .collect();
    let mut outcomes = Vec::with_capacity(verdicts.len());
    drop(member.settle(&verdicts, &mut outcomes));
    handled.clear();
}
