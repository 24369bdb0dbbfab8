//! Handlers whose effects and marks commit together, whatever the database.
//!
//! The order is what survives a crash: mark, effect, commit, ack. Before the commit there is neither mark nor effect, and the event
//! comes again. After it there are both, and the event, if it comes again, finds its mark and is only acked.

use super::Consumer;
use crate::backend::Backend;
use crate::box_future::BoxFuture;
use crate::consume::told_to_stop;
use crate::error::{GroupError, Unavailable};
use crate::event::{Delivery, Event, Settling};
use crate::subscribe::{HandlerHandle, Subscribe, Subscription};
use prombus_protocol::Topic;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// After trouble with the database it is tried again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Marks are forgotten once in so many events.
const FORGET_EVERY: u64 = 1_000;

/// An event, and what the group that handles it is called in marks.
#[derive(Clone, Debug)]
pub struct EventOnce {
    /// The event.
    pub event: Event,
    /// The name in its mark.
    pub consumer: String,
}

/// Events of a topic that a consumer never gets again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledEvents {
    /// The topic.
    pub topic: Topic,
    /// The name in the marks.
    pub consumer: String,
    /// Up to this seq.
    pub last_seq: u64,
}

/// What became of an event: done now or before, or the handler's error.
pub type EventFate = Result<(), String>;

/// Why a transaction did not commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionTrouble {
    /// Because of what the handler did, which it may do again.
    Handler(String),
    /// Because of the database, which may recover. Events are given back and no attempt counts.
    Database(String),
}

/// A database in which effects and marks commit together.
pub trait EffectStore: Send + Sync + 'static {
    /// How many events go into one transaction at most.
    fn events_per_transaction(&self) -> u32;

    /// Handles events that have no mark, in order, and marks them, all in one transaction. When this answers, what was done is
    /// durable. A transaction of several events that does not commit is tried again event by event.
    fn commit<'a>(
        &'a self,
        events: &'a [EventOnce],
    ) -> BoxFuture<'a, Result<Vec<EventFate>, TransactionTrouble>>;

    /// Marks of these events may go when they have expired.
    fn forget(&self, settled: Vec<SettledEvents>) -> BoxFuture<'_, Result<(), String>>;
}

impl Subscribe {
    /// Handles each event once, in transactions of a database: one event after the other, in order.
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn in_transactions(self, store: Arc<dyn EffectStore>) -> Result<HandlerHandle, GroupError> {
        let mut worker = Worker {
            backend: Arc::clone(&self.backend),
            consumer: Consumer::new(&self),
            last_ack: None,
            since_forgotten: FORGET_EVERY,
            store,
        };
        // Each delivery is settled before the next is looked at: no more need be leased at once than go together.
        let subscription = match worker.store.events_per_transaction() {
            0 | 1 => self.join().await?,
            events => self.batch_size(events).join().await?,
        };
        Ok(HandlerHandle::spawn(subscription, |subscription, stopped| async move {
            worker.run(subscription, stopped).await;
        }))
    }
}

/// One consumer at work.
struct Worker {
    store: Arc<dyn EffectStore>,
    backend: Arc<dyn Backend>,
    consumer: Consumer,
    /// When it is durable, all acks before it are.
    last_ack: Option<Settling>,
    since_forgotten: u64,
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
                    tracing::error!("a handler ends: {error}");
                    break;
                }
                Some(Err(error)) => {
                    tracing::error!("a subscription cannot read: {error}");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
            self.forget_now_and_then().await;
        }
        let _ = subscription.unsubscribe().await;
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

    /// Does events and settles them. False: the database did not work, and they are given back.
    async fn work(&mut self, deliveries: &[Delivery]) -> bool {
        let fates = self.commit(deliveries).await;
        if fates.is_err() && deliveries.len() > 1 {
            // One of them may have spoiled the transaction for all.
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
        self.since_forgotten += deliveries.len() as u64;
        let fates = match fates {
            Ok(fates) => fates,
            Err(TransactionTrouble::Handler(error)) => vec![Err(error); deliveries.len()],
            Err(TransactionTrouble::Database(error)) => {
                tracing::error!("the database of {} failed: {error}", self.consumer.group);
                deliveries.iter().for_each(Delivery::release);
                return false;
            }
        };
        for (delivery, fate) in deliveries.iter().zip(fates) {
            match fate {
                Ok(()) => self.last_ack = Some(delivery.ack()),
                Err(error) => {
                    tracing::warn!("{} seq {}: {error}", delivery.topic(), delivery.seq());
                    drop(delivery.nack(&error));
                }
            }
        }
        true
    }

    /// Lets the store forget marks of events that are settled for good. What is not done now is done another time.
    async fn forget_now_and_then(&mut self) {
        if self.since_forgotten < FORGET_EVERY {
            return;
        }
        self.since_forgotten = 0;
        // The floor counts acks that a power cut could take back; wait for those.
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
            tracing::warn!("expired marks stay for now: {error}");
        }
    }
}
