//! Handlers that are not called again for an event that they have done.
//!
//! What is promised depends on where the effect goes:
//!
//! - [`Subscribe::exactly_once`] with a [`DedupeStore`]: the handler is called, then the event is marked, then it is acked. An
//!   event that comes again finds its mark and is only acked. A crash between the handler's end and the mark calls it again:
//!   at least once with dedupe, which is exactly once for handlers that do the same when called twice.
//! - [`SqliteExactlyOnce`] (feature `sqlite`): what the handler writes and the mark commit in one transaction. A crash at any
//!   point neither loses nor repeats what it wrote. [`EffectStore`] does the same for other databases.
//!
//! A mark lives for `ttl_ms`, seven days by default. A seek back to events that were done longer ago does them again.

mod in_transactions;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use in_transactions::{EffectStore, EventFate, EventOnce, SettledEvents, TransactionTrouble};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteExactlyOnce;

use super::dedupe::{DEDUPE_TTL_MS, DedupeError, DedupeStore};
use crate::bus::Bus;
use crate::error::GroupError;
use crate::event::Event;
use crate::subscribe::{HandlerHandle, Subscribe};
use parking_lot::Mutex;
use prombus_protocol::{DeliveryContext, Topic, Uuid};
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

impl Bus {
    /// Calls a handler for each event that has no mark in the store, with the options that a subscription has by default; see
    /// [`Subscribe::exactly_once`] for others.
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
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
    /// Remembers in a store which events were done.
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

/// A subscription whose handler is not called again for what it has done; see [`Subscribe::exactly_once`].
#[must_use = "a subscription starts when it is given a handler"]
pub struct ExactlyOnce {
    subscribe: Subscribe,
    store: Arc<dyn DedupeStore>,
    ttl_ms: u64,
}

impl ExactlyOnce {
    /// How long a mark lives. Default: seven days.
    pub fn ttl_ms(mut self, ttl_ms: u64) -> Self {
        self.ttl_ms = ttl_ms;
        self
    }

    /// Calls a handler for each event that has no mark. Ok marks the event and acks it; Err and a panic mark nothing and nack.
    /// A mark that cannot be read or kept nacks too, and in the second case the handler is called again although it was done.
    /// Events are acked by this alone, whatever `manual_ack` says.
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
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
                // The same event may be here already, when its lease ended while the handler ran.
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
    let failed = |what: &str, error: DedupeError| {
        let error = format!("{what}: {}", with_causes(&error));
        tracing::error!("{topic} seq {}: {error}", event.seq());
        error
    };
    if store.seen(topic, group, id).await.map_err(|error| failed("looking for the mark", error))? {
        return Ok(());
    }
    handle().await.map_err(|error| error.to_string())?;
    // Marked before it is acked: an event that is acked and not marked would be done again after a seek.
    store.mark(topic, group, id, ttl_ms).await.map_err(|error| failed("marking what was done", error))
}

/// An error and its causes in a line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Who marks. Groups of one name on several subscriptions are several groups and must not share marks.
#[derive(Clone, Debug)]
struct Consumer {
    subscription: String,
    group: String,
}

impl Consumer {
    fn new(subscribe: &Subscribe) -> Self {
        Self { subscription: subscribe.topic.clone(), group: subscribe.group.clone() }
    }

    /// What the group is called in marks of a topic's events. No name has a slash.
    fn of(&self, topic: &Topic) -> String {
        if *topic == *self.subscription.as_str() {
            self.group.clone()
        } else {
            format!("{}/{}", self.subscription, self.group)
        }
    }
}

/// Who has it has the turn.
type TurnLock = Arc<tokio::sync::Mutex<()>>;

/// The events that handlers have now.
#[derive(Default)]
struct Running {
    locks: Mutex<HashMap<(Topic, Uuid), TurnLock>>,
}

/// A handler's turn at an event. Whoever is last takes the event off the list, also by a panic.
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
        // The list's own and this one.
        if Arc::strong_count(&self.lock) == 2 {
            locks.remove(&self.key);
        }
    }
}
