//! Handlers whose effects and marks commit in one transaction, for any database.
//!
//! The steps are in an order that is safe at a crash: mark, effect, commit, ack. A crash before the commit leaves neither mark
//! nor effect, and the event is redelivered. A crash after the commit leaves both; if the event is redelivered, it has its
//! mark and is only acked.

use super::Consumer;
use crate::backend::Backend;
use crate::box_future::BoxFuture;
use crate::consume::told_to_stop;
use crate::error::{GroupError, Unavailable};
use crate::event::{Delivery, Event, Settling};
use crate::failure_log::FailureLog;
use crate::subscribe::{HandlerHandle, Subscribe, Subscription, after_nack};
use prombus_protocol::{AfterFailure, FailedEvent, HandlerFailure, Topic};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The pause after a database error, before the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Expired marks are removed each time this many events were handled.
const REMOVE_MARKS_EVERY: u64 = 1_000;

/// An event, and the name of its consumer in marks.
#[derive(Clone, Debug)]
pub struct EventOnce {
    /// The event.
    pub event: Event,
    /// The consumer's name in the mark.
    pub consumer: String,
}

/// Events of a topic that are settled and will not be delivered to the consumer again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledEvents {
    /// The topic.
    pub topic: Topic,
    /// The consumer's name in the marks.
    pub consumer: String,
    /// The last of these events; all lower seqs are settled too.
    pub last_seq: u64,
}

/// The outcome of an event: `Ok` if it was handled, now or before; otherwise the handler's error.
pub type EventFate = Result<(), String>;

/// Why a transaction did not commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionTrouble {
    /// The handler's writes caused the failure, so a retry may fail again. The attempt counts.
    Handler(String),
    /// The database failed and may recover. The events are released, and the attempt does not count.
    Database(String),
}

/// A database in which effects and marks commit together.
pub trait EffectStore: Send + Sync + 'static {
    /// The most events in one transaction.
    fn events_per_transaction(&self) -> u32;

    /// Handles the events that have no mark, in order, and marks them, all in one transaction, which is durable when this
    /// resolves. If a transaction of several events does not commit, the caller retries them one by one.
    fn commit<'a>(
        &'a self,
        events: &'a [EventOnce],
    ) -> BoxFuture<'a, Result<Vec<EventFate>, TransactionTrouble>>;

    /// Deletes the expired marks among those of these events.
    fn forget(&self, settled: Vec<SettledEvents>) -> BoxFuture<'_, Result<(), String>>;
}

impl Subscribe {
    /// Handles each event exactly once, in transactions of a database, one after the other and in order.
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// If called outside a tokio runtime.
    pub async fn in_transactions(self, store: Arc<dyn EffectStore>) -> Result<HandlerHandle, GroupError> {
        let mut worker = Worker {
            backend: Arc::clone(&self.backend),
            consumer: Consumer::new(&self),
            last_ack: None,
            since_marks_removed: REMOVE_MARKS_EVERY,
            store,
            failures: Arc::clone(&self.failures),
        };
        let failures = Arc::clone(&self.failures);
        // All deliveries of a pull are settled before the next pull, so a pull takes at most as many as fit in one transaction.
        let subscription = match worker.store.events_per_transaction() {
            0 | 1 => self.join().await?,
            events => self.batch_size(events).join().await?,
        };
        Ok(HandlerHandle::spawn(subscription, failures, |subscription, stopped| async move {
            worker.run(subscription, stopped).await;
        }))
    }
}

/// A running consumer.
struct Worker {
    store: Arc<dyn EffectStore>,
    backend: Arc<dyn Backend>,
    consumer: Consumer,
    /// The last ack. When it is durable, all acks before it are.
    last_ack: Option<Settling>,
    /// How many events were handled since expired marks were last removed.
    since_marks_removed: u64,
    failures: Arc<FailureLog>,
}

impl Worker {
    async fn run(&mut self, mut subscription: Subscription, mut stopped: watch::Receiver<bool>) {
        loop {
            let pulled = tokio::select! {
                biased;
                () = told_to_stop(&mut stopped) => break,
                pulled = self.pull(&mut subscription) => pulled,
            };
            match pulled {
                None => break,
                Some(Ok(deliveries)) => {
                    if !self.work(&deliveries).await {
                        tokio::select! {
                            () = told_to_stop(&mut stopped) => break,
                            () = tokio::time::sleep(RETRY_AFTER) => {}
                        }
                    }
                }
                Some(Err(error @ GroupError::Unavailable(_))) => {
                    self.report_general(error.to_string(), AfterFailure::Stop);
                    break;
                }
                Some(Err(error)) => {
                    self.report_general(error.to_string(), AfterFailure::Retry);
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
            self.remove_expired_marks().await;
        }
        let _ = subscription.unsubscribe().await;
    }

    fn report_general(&self, error: String, next: AfterFailure) {
        self.failures.report(&HandlerFailure::general(error, next));
    }

    /// The events of the next transaction.
    async fn pull(&self, subscription: &mut Subscription) -> Option<Result<Vec<Delivery>, GroupError>> {
        if self.store.events_per_transaction() <= 1 {
            return Some(subscription.next().await?.map(|delivery| vec![delivery]));
        }
        match subscription.next_batch().await {
            Ok(deliveries) => Some(Ok(deliveries.iter().collect())),
            Err(
                GroupError::Unavailable(Unavailable::Closed) | GroupError::Deleted | GroupError::TakenOver,
            ) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Handles deliveries and settles them. Returns false if the database failed; then the deliveries that were not settled
    /// before are released.
    async fn work(&mut self, deliveries: &[Delivery]) -> bool {
        let fates = self.commit(deliveries).await;
        if fates.is_err() && deliveries.len() > 1 {
            // A single event may have made the whole transaction fail.
            for (at, delivery) in deliveries.iter().enumerate() {
                let one = self.commit(std::slice::from_ref(delivery)).await;
                if !self.settle(std::slice::from_ref(delivery), one) {
                    deliveries[at + 1..].iter().for_each(Delivery::release);
                    return false;
                }
            }
            return true;
        }
        self.settle(deliveries, fates)
    }

    async fn commit(&self, deliveries: &[Delivery]) -> Result<Vec<EventFate>, TransactionTrouble> {
        let once = |delivery: &Delivery| EventOnce {
            event: delivery.event().clone(),
            consumer: self.consumer.of(delivery.topic()),
        };
        let events: Vec<EventOnce> = deliveries.iter().map(once).collect();
        self.store.commit(&events).await
    }

    fn settle(&mut self, deliveries: &[Delivery], fates: Result<Vec<EventFate>, TransactionTrouble>) -> bool {
        self.since_marks_removed += deliveries.len() as u64;
        let fates = match fates {
            Ok(fates) => fates,
            Err(TransactionTrouble::Handler(error)) => vec![Err(error); deliveries.len()],
            Err(TransactionTrouble::Database(error)) => {
                self.report_general(format!("the database failed: {error}"), AfterFailure::Retry);
                deliveries.iter().for_each(Delivery::release);
                return false;
            }
        };
        for (delivery, fate) in deliveries.iter().zip(fates) {
            match fate {
                Ok(()) => self.last_ack = Some(delivery.ack()),
                Err(error) => {
                    let event = FailedEvent {
                        topic: delivery.topic().clone(),
                        seq: delivery.seq(),
                        id: delivery.id(),
                        attempt: delivery.attempt(),
                        max_attempts: delivery.context().max_attempts,
                    };
                    // Before the nack, as for other handlers.
                    let next = after_nack(&event);
                    self.failures.report(&HandlerFailure::of_event(event, error.clone(), next));
                    drop(delivery.nack(&error));
                }
            }
        }
        true
    }

    /// Lets the store delete expired marks of events that are durably settled. If this fails, a later call does it.
    async fn remove_expired_marks(&mut self) {
        if self.since_marks_removed < REMOVE_MARKS_EVERY {
            return;
        }
        self.since_marks_removed = 0;
        // The floor includes acks that are not durable yet; wait until they are.
        if let Some(ack) = self.last_ack.take()
            && ack.await.is_err()
        {
            return;
        }
        let group = self.backend.group(&self.consumer.subscription, &self.consumer.group).await;
        let Ok(Some(info)) = group else { return };
        let settled = info.topics.iter().map(|place| SettledEvents {
            topic: place.topic.clone(),
            consumer: self.consumer.of(&place.topic),
            last_seq: place.floor,
        });
        if let Err(error) = self.store.forget(settled.collect()).await {
            tracing::warn!("cannot delete expired marks, will retry: {error}");
        }
    }
}
