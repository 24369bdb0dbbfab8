//! Handlers that are not called again for an event that they have handled.
//!
//! The guarantee depends on where the handler's effects are stored:
//!
//! - [`Subscribe::exactly_once`] with a [`DedupeStore`]: the handler is called, then the event is marked, then it is acked.
//!   A redelivered event that has its mark is only acked. After a crash between the handler's end and the mark, the handler
//!   is called again: this is at-least-once with deduplication, and exactly-once for idempotent handlers.
//! - [`SqliteExactlyOnce`] (feature `sqlite`): the handler's writes and the mark commit in one transaction. A crash at any
//!   point neither loses nor repeats these writes. [`EffectStore`] does the same for other databases.
//!
//! A mark is kept for `ttl_ms`, seven days by default. After a seek back, events whose marks have expired are handled again.

mod in_transactions;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use in_transactions::{EffectStore, EventFate, EventOnce, SettledEvents, TransactionTrouble};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteExactlyOnce;

use super::dedupe::{DEDUPE_TTL_MS, DedupeError, DedupeStore};
use crate::bus::Bus;
use crate::error::{GroupError, with_causes};
use crate::event::Event;
use crate::subscribe::{HandlerHandle, Subscribe};
use parking_lot::Mutex;
use prombus_protocol::{DeliveryContext, Topic, Uuid};
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

impl Bus {
    /// Calls a handler for each event that has no mark in the store, with the default options of a subscription; for other
    /// options see [`Subscribe::exactly_once`].
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// If called outside a tokio runtime.
    pub async fn subscribe_exactly_once<F, R, E>(
        &self,
        topic: impl Into<String>,
        group: impl Into<String>,
        store: Arc<dyn DedupeStore>,
        handler: F,
    ) -> Result<HandlerHandle, GroupError>
    where
        F: Fn(Event, DeliveryContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        self.subscribe(topic, group).exactly_once(store).handler(handler).await
    }
}

impl Subscribe {
    /// Remembers in a store which events were handled.
    ///
    /// ```
    /// use prombus::Bus;
    /// use prombus::consume::dedupe::MemoryDedupe;
    /// use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let bus = Bus::memory();
    /// let subscribe = bus.subscribe("orders", "mailer").from_earliest();
    /// let mailer = subscribe.exactly_once(Arc::new(MemoryDedupe::new())).handler(|event, _| async move {
    ///     println!("a mail about {}", event.payload());
    ///     Ok::<(), String>(())
    /// }).await?;
    /// mailer.unsubscribe().await?;
    /// # Ok(()) }
    /// ```
    pub fn exactly_once(self, store: Arc<dyn DedupeStore>) -> ExactlyOnce {
        ExactlyOnce { subscribe: self, store, ttl_ms: DEDUPE_TTL_MS }
    }
}

/// A subscription whose handler is not called again for events that it has handled; see [`Subscribe::exactly_once`].
#[must_use = "a subscription starts when it is given a handler"]
pub struct ExactlyOnce {
    subscribe: Subscribe,
    store: Arc<dyn DedupeStore>,
    /// How long a mark is kept.
    ttl_ms: u64,
}

impl ExactlyOnce {
    /// How long a mark is kept. Default: seven days.
    pub fn ttl_ms(mut self, ttl_ms: u64) -> Self {
        self.ttl_ms = ttl_ms;
        self
    }

    /// Calls a handler for each event that has no mark. `Ok` marks the event and acks it; `Err` or a panic nacks it without
    /// a mark. If the mark cannot be read or written, the event is nacked too; if writing failed, the handler is called
    /// again although it had succeeded. `manual_ack` is ignored.
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// If called outside a tokio runtime.
    pub async fn handler<F, R, E>(self, handler: F) -> Result<HandlerHandle, GroupError>
    where
        F: Fn(Event, DeliveryContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let Self { subscribe, store, ttl_ms } = self;
        let consumer = Consumer::new(&subscribe);
        let shared = Arc::new((handler, consumer, store, Running::default()));
        let wrapped = move |event: Event, context: DeliveryContext| {
            let shared = Arc::clone(&shared);
            async move {
                let (handler, consumer, store, running) = &*shared;
                // The same event may be in progress here already, if its lease expired while the handler ran.
                let turn = running.turn_of(&event);
                let _mine = turn.lock.lock().await;
                let group = consumer.of(event.topic());
                once(&**store, &group, ttl_ms, &event, || handler(event.clone(), context)).await
            }
        };
        subscribe.manual_ack(false).handler(wrapped).await
    }
}

impl std::fmt::Debug for ExactlyOnce {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ExactlyOnce({} {})", self.subscribe.topic, self.subscribe.group)
    }
}

async fn once<R, E>(
    store: &dyn DedupeStore,
    group: &str,
    ttl_ms: u64,
    event: &Event,
    handle: impl FnOnce() -> R,
) -> Result<(), String>
where
    R: Future<Output = Result<(), E>>,
    E: Display,
{
    let (topic, id) = (event.topic().as_str(), event.id());
    let failed = |what: &str, error: DedupeError| format!("{what}: {}", with_causes(&error));
    if store.seen(topic, group, id).await.map_err(|error| failed("reading the mark", error))? {
        return Ok(());
    }
    handle().await.map_err(|error| error.to_string())?;
    // Mark before the ack: an event that is acked but not marked would be handled again after a seek.
    store.mark(topic, group, id, ttl_ms).await.map_err(|error| failed("writing the mark", error))
}

/// The owner of marks: a subscription and its group. Groups with the same name on different subscriptions are different
/// groups and must not share marks.
#[derive(Clone, Debug)]
struct Consumer {
    subscription: String,
    group: String,
}

impl Consumer {
    fn new(subscribe: &Subscribe) -> Self {
        Self { subscription: subscribe.topic.clone(), group: subscribe.group.clone() }
    }

    /// The group name that marks of this topic's events contain: the group's own name if it subscribed to exactly this topic,
    /// otherwise `<subscription>/<group>`. The two forms cannot collide, because names of topics and groups contain no slash.
    fn of(&self, topic: &Topic) -> String {
        if *topic == *self.subscription.as_str() {
            self.group.clone()
        } else {
            format!("{}/{}", self.subscription, self.group)
        }
    }
}

/// Held by the call that may handle the event.
type TurnLock = Arc<tokio::sync::Mutex<()>>;

/// The events that are being handled now.
#[derive(Default)]
struct Running {
    locks: Mutex<HashMap<(Topic, Uuid), TurnLock>>,
}

/// A handler call's turn at an event. The last turn that is dropped removes the event from the map, also after a panic.
struct HandlerTurn<'a> {
    running: &'a Running,
    key: (Topic, Uuid),
    lock: TurnLock,
}

impl Running {
    fn turn_of(&self, event: &Event) -> HandlerTurn<'_> {
        let key = (event.topic().clone(), event.id());
        let lock = Arc::clone(self.locks.lock().entry(key.clone()).or_default());
        HandlerTurn { running: self, key, lock }
    }
}

impl Drop for HandlerTurn<'_> {
    fn drop(&mut self) {
        let mut locks = self.running.locks.lock();
        // Only the map and this turn refer to the lock: no other call waits for it.
        if Arc::strong_count(&self.lock) == 2 {
            locks.remove(&self.key);
        }
    }
}
