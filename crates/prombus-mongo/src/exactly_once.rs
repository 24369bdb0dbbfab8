//! Exactly-once handling with MongoDB: the writes of a handler and the mark of its event commit in one transaction.
//!
//! The lifetime of a mark begins when its event is settled durably. As long as an event may be redelivered, it keeps its mark.

use crate::dedupe::{expiry, mark_key, open_marks};
use crate::errors::{DUPLICATE_KEY, is_code, reason};
use crate::server_abilities::{ServerError, majority, require_replica_set};
use crate::transaction::{FunctionHandler, HandlerError, Transaction, TransactionHandler, WorkError, call};
use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{Client, ClientSession, Collection, Database, IndexModel};
use prombus::consume::dedupe::DEDUPE_TTL_MS;
use prombus::consume::exactly_once::{EffectStore, EventFate, EventOnce, SettledEvents, TransactionTrouble};
use prombus::{BoxFuture, Event, GroupError, HandlerHandle, Subscribe};
use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::Arc;

/// Runs handlers in transactions of a MongoDB database. This requires a replica set.
#[derive(Clone)]
pub struct MongoExactlyOnce {
    client: Client,
    marks: Collection<Document>,
    /// How long a mark lives after its event was settled.
    ttl_ms: u64,
    events_per_transaction: u32,
}

impl MongoExactlyOnce {
    /// Opens a database. Marks are in its collection `exactly_once`.
    ///
    /// # Errors
    /// See [`ServerError`]. A standalone server has no transactions.
    pub async fn open(database: &Database) -> Result<Self, ServerError> {
        Self::open_collection(database, "exactly_once").await
    }

    /// Opens a database, with another collection for the marks.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub async fn open_collection(database: &Database, name: &str) -> Result<Self, ServerError> {
        require_replica_set(database, "MongoExactlyOnce", "transactions").await?;
        let marks = open_marks(database, name).await?;
        let has_seq = IndexOptions::builder().partial_filter_expression(doc! { "seq": { "$exists": true } });
        let keys = doc! { "topic": 1, "consumer": 1, "seq": 1 };
        marks.create_index(IndexModel::builder().keys(keys).options(has_seq.build()).build()).await?;
        let client = database.client().clone();
        Ok(Self { client, marks, ttl_ms: DEDUPE_TTL_MS, events_per_transaction: 1 })
    }

    /// How long a mark lives after its event was settled. Default: seven days.
    #[must_use]
    pub fn ttl_ms(mut self, ttl_ms: u64) -> Self {
        self.ttl_ms = ttl_ms;
        self
    }

    /// The most events that one transaction handles. Default: 1. If a transaction does not commit, its events are retried in
    /// transactions of one event each.
    #[must_use]
    pub fn events_per_transaction(mut self, events: u32) -> Self {
        self.events_per_transaction = events.max(1);
        self
    }

    /// Calls a handler for each event that has no mark, one at a time and in the order of events. The handler must pass the session to
    /// all its writes. If it returns `Ok`, these writes are committed together with the mark, and then the event is acked. If it returns
    /// `Err` or panics, the transaction is aborted and the event is nacked. After a conflict with another transaction, the handler may be
    /// called again; its earlier writes are rolled back.
    ///
    /// While the server is unreachable, no attempts are used up: the transaction is retried every second.
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub async fn handler<F, E>(&self, subscribe: Subscribe, handler: F) -> Result<HandlerHandle, GroupError>
    where
        F: for<'a> Fn(&'a Event, &'a mut ClientSession) -> BoxFuture<'a, Result<(), E>>
            + Send
            + Sync
            + 'static,
        E: Into<HandlerError> + 'static,
    {
        let effects = Effects { once: self.clone(), handler: FunctionHandler(handler, PhantomData) };
        subscribe.in_transactions(Arc::new(effects)).await
    }
}

impl std::fmt::Debug for MongoExactlyOnce {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "MongoExactlyOnce({} ms, {} events)", self.ttl_ms, self.events_per_transaction)
    }
}

/// A handler and the database that it writes to.
struct Effects<H> {
    once: MongoExactlyOnce,
    handler: H,
}

impl<H: TransactionHandler> Effects<H> {
    async fn transact(&self, events: &[EventOnce]) -> Result<(), WorkError> {
        let mut transaction = Transaction::new(&self.once.client).await?;
        loop {
            transaction.start().await?;
            match self.work(events, &mut transaction.session).await {
                Ok(()) => {
                    if transaction.commit().await? {
                        return Ok(());
                    }
                }
                Err(error) => transaction.recover(error).await?,
            }
        }
    }

    /// Marks the events that have no mark, and handles them.
    async fn work(&self, events: &[EventOnce], session: &mut ClientSession) -> Result<(), WorkError> {
        let keys: Vec<String> = events.iter().map(key_of).collect();
        let find = self.once.marks.find(doc! { "_id": { "$in": &keys } }).projection(doc! { "_id": 1 });
        let mut seen = HashSet::new();
        let mut found = find.session(&mut *session).await?;
        let mut found = found.stream(session);
        while let Some(mark) = found.try_next().await? {
            seen.extend(mark.get_str("_id").map(str::to_owned));
        }
        drop(found);
        // A batch may contain the same event twice.
        let fresh: Vec<(&EventOnce, String)> =
            events.iter().zip(keys).filter(|(_, key)| seen.insert(key.clone())).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        let marks: Vec<Document> = fresh.iter().map(|(once, key)| mark_of(once, key)).collect();
        match self.once.marks.insert_many(marks).session(&mut *session).await {
            Ok(_) => {}
            // Another member committed first; the next attempt sees its marks.
            Err(error) if is_code(&error, DUPLICATE_KEY) => {
                return Err(WorkError::Conflict(error));
            }
            Err(error) => return Err(error.into()),
        }
        for (once, _) in fresh {
            call(self.handler.call(&once.event, session)).await?;
        }
        Ok(())
    }
}

fn key_of(once: &EventOnce) -> String {
    mark_key(once.event.topic().as_str(), &once.consumer, once.event.id())
}

/// A mark without `expireAt`, which is set when the event is settled durably.
fn mark_of(once: &EventOnce, key: &str) -> Document {
    doc! {
        "_id": key,
        "topic": once.event.topic().as_str(),
        "consumer": &once.consumer,
        "seq": once.event.seq() as i64,
    }
}

impl<H: TransactionHandler> EffectStore for Effects<H> {
    fn events_per_transaction(&self) -> u32 {
        self.once.events_per_transaction
    }

    fn commit<'a>(
        &'a self,
        events: &'a [EventOnce],
    ) -> BoxFuture<'a, Result<Vec<EventFate>, TransactionTrouble>> {
        Box::pin(async move {
            match self.transact(events).await {
                Ok(()) => Ok(vec![Ok(()); events.len()]),
                Err(WorkError::Driver(error) | WorkError::Conflict(error)) => {
                    Err(TransactionTrouble::Database(reason(&error)))
                }
                Err(WorkError::Refused(why)) => Err(TransactionTrouble::Handler(why)),
            }
        })
    }

    fn forget(&self, settled: Vec<SettledEvents>) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            for SettledEvents { topic, consumer, last_seq } in settled {
                let filter = doc! {
                    "topic": topic.as_str(),
                    "consumer": consumer,
                    "seq": { "$exists": true, "$lte": last_seq as i64 },
                    "expireAt": { "$exists": false },
                };
                let update = vec![doc! { "$set": { "expireAt": expiry(self.once.ttl_ms) } }];
                let update = self.once.marks.update_many(filter, update).write_concern(majority());
                update.await.map_err(|error| reason(&error))?;
            }
            Ok(())
        })
    }
}
