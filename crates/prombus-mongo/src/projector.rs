//! A projector folds the events of a topic into documents. Each transaction commits the changes of these documents together with the
//! projector's position, which is the last event that was folded.
//!
//! The stored position is authoritative; the group only delivers the events and shows the lag. An event at or below the position is not
//! folded again. If the position is lower than the floor of the group (the seq up to which it has settled all events), as after a restore
//! of the database, the group is moved back.
//!
//! One projector runs per group: opening a projector writes a new owner into the position, and the next transaction of an older projector
//! that still runs is refused ([`MongoProjectorError::Superseded`]).

mod changelog;
mod position;
mod runner;

pub use changelog::{ChangelogOptions, ChangelogProjector};
pub use runner::MongoProjectorHandle;

use crate::errors::reason;
use crate::server_abilities::{ServerError, require_replica_set};
use crate::transaction::{HandlerError, Transaction, WorkError, call};
use mongodb::{ClientSession, Database};
use parking_lot::Mutex;
use position::{Position, Positions};
use prombus::consume::Rejected;
use prombus::{
    AfterFailure, BoxFuture, Bus, Clock as _, Deliveries, Event, FailedEvent, FailureLog, GroupError,
    HandlerFailure, PublishError, Start, Subscription, SystemClock,
};
use std::sync::Arc;
use std::time::Duration;

/// More attempts than a projector ever needs: an event must not become a dead letter because the process crashes repeatedly.
const MAX_ATTEMPTS: u32 = prombus_protocol::limits::MAX_MAX_ATTEMPTS;
/// The pause before a retry after an error of the database.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// How events become documents.
pub trait MongoProjection: Send + 'static {
    /// Folds an event. Everything that is written with the session commits together with the projector's position. After a conflict with
    /// another transaction, this method may be called again for the same event; its earlier writes are rolled back.
    ///
    /// An error or a panic rejects the event: the event changes no documents and becomes a dead letter, and the projector continues with
    /// the next events. Temporary errors of the driver are retried.
    fn fold<'a>(
        &'a mut self,
        event: &'a Event,
        session: &'a mut ClientSession,
    ) -> BoxFuture<'a, Result<(), HandlerError>>;

    /// Folds the events of one transaction. Default: calls [`fold`](Self::fold) for each event. If this fails, the transaction is aborted,
    /// and each event is folded in a transaction of its own.
    fn fold_all<'a>(
        &'a mut self,
        events: &'a [Event],
        session: &'a mut ClientSession,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            for event in events {
                self.fold(event, session).await?;
            }
            Ok(())
        })
    }

    /// Removes everything that was folded, before a rebuild. Default: removes nothing.
    fn clear(&mut self) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async { Ok(()) })
    }
}

/// Options of a projector.
#[derive(Clone, Debug)]
pub struct MongoProjectorOptions {
    /// The topic.
    pub topic: String,
    /// The group that reads it.
    pub group: String,
    /// Where a projector without a position starts. Default: at the oldest event.
    pub from: Start,
    /// The most events in one transaction. Default: 100.
    pub batch_size: u32,
    /// Calls [`MongoProjection::clear`] and begins at the oldest event. Default: no.
    pub rebuild: bool,
    /// The collection of positions. Default: `prombus_positions`.
    pub positions: String,
}

impl MongoProjectorOptions {
    /// The default options for a group. Set its [`topic`](Self::topic).
    pub fn group(group: impl Into<String>) -> Self {
        Self {
            topic: String::new(),
            group: group.into(),
            from: Start::Earliest,
            batch_size: 100,
            rebuild: false,
            positions: "prombus_positions".to_owned(),
        }
    }

    /// The topic that is folded: a typed topic, or a name.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self
    }
}

/// Why a projector could not start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MongoProjectorError {
    /// The server lacks a required feature, or cannot be reached.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The group could not be read.
    #[error("cannot read the topic: {0}")]
    Group(#[from] GroupError),
    /// A dead letter could not be published.
    #[error("cannot publish a dead letter: {0}")]
    Publish(#[from] PublishError),
    /// Another projector of the group has taken over.
    #[error("another projector of the group was opened")]
    Superseded,
    /// The folded documents could not be removed.
    #[error("cannot remove the folded documents: {0}")]
    Clear(String),
    /// The collection of a changelog projector is not set.
    #[error("the collection of the changelog projector is not set")]
    NoCollection,
    /// The topic no longer contains the stored position, or the position cannot be stored.
    #[error("{0}")]
    Position(String),
}

impl From<mongodb::error::Error> for MongoProjectorError {
    fn from(error: mongodb::error::Error) -> Self {
        Self::Server(error.into())
    }
}

impl MongoProjectorError {
    /// Whether the only cause is that the bus was closed.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Group(GroupError::Unavailable(prombus::Unavailable::Closed)))
    }
}

/// Counters and current state of a projector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MongoProjectorFigures {
    /// Events that were folded.
    pub folded: u64,
    /// Redelivered events that had been folded before.
    pub skipped: u64,
    /// Events that were rejected.
    pub rejected: u64,
    /// Transactions that were committed.
    pub transactions: u64,
    /// How often the database was unusable.
    pub failures: u64,
    /// The seq of the last event that was folded or rejected.
    pub position: u64,
    /// Why the projector cannot work at present; `None` if it can.
    pub trouble: Option<String>,
}

impl MongoProjectorFigures {
    /// The figures in the Prometheus text format.
    pub fn to_prometheus(&self, topic: &str, group: &str) -> String {
        crate::figures_text::prometheus(
            "prombus_mongo_projector",
            &[("topic", topic), ("group", group)],
            &[
                ("folded_total", "Events that were folded.", self.folded),
                ("skipped_total", "Redelivered events that had been folded before.", self.skipped),
                ("rejected_total", "Events that were rejected.", self.rejected),
                ("transactions_total", "Transactions that were committed.", self.transactions),
                ("failures_total", "How often the database was unusable.", self.failures),
                ("position", "The seq of the last event that was folded or rejected.", self.position),
                ("up", "1 while the projector works.", u64::from(self.trouble.is_none())),
            ],
        )
    }
}

/// A projector: [`run_until`](Self::run_until) or [`spawn`](Self::spawn) it.
pub struct MongoProjector<P> {
    bus: Bus,
    database: Database,
    options: MongoProjectorOptions,
    projection: P,
    /// The stored position.
    positions: Positions,
    /// The last event that was folded or rejected.
    position: Position,
    subscription: Subscription,
    /// The session of the transactions. If a transaction is still open in it when another projector takes over the position, that projector
    /// ends the transaction.
    session: Option<ClientSession>,
    figures: Arc<Mutex<MongoProjectorFigures>>,
    failures: Arc<FailureLog>,
}

impl<P: MongoProjection> MongoProjector<P> {
    /// Takes over the group and the position.
    ///
    /// # Errors
    /// See [`MongoProjectorError`]. A standalone server has no transactions.
    pub async fn open(
        bus: &Bus,
        database: &Database,
        options: MongoProjectorOptions,
        mut projection: P,
    ) -> Result<Self, MongoProjectorError> {
        require_replica_set(database, "a projector", "transactions").await?;
        let subscribe = bus.subscribe(&options.topic, &options.group).from(options.from);
        let subscribe = subscribe.batch_size(options.batch_size).max_attempts(MAX_ATTEMPTS).in_order();
        let subscription = subscribe.await?;
        subscription.take_over().await?;
        let name = format!("{}::{}", options.topic, options.group);
        let positions = Positions::new(database, &options.positions, name);
        let session = database.client().start_session().await?;
        let mut found = positions.take_over(&session).await?;
        if found.is_rebuilding || options.rebuild {
            // The stored position is marked as rebuilding until the rebuild is done, so that the rebuild restarts after a crash.
            positions.begin_rebuild().await?;
            projection.clear().await.map_err(|error| MongoProjectorError::Clear(error.to_string()))?;
            bus.seek(&options.topic, &options.group, Start::Earliest).await?;
            found.position = positions.end_rebuild().await?;
        } else if found.is_new && !subscription.created() {
            // The group is older than the position: it was used for something else, or with another database.
            bus.seek(&options.topic, &options.group, options.from).await?;
        }
        let failures = Arc::new(FailureLog::new(format!("projector {}", options.group)));
        let projector = Self {
            failures,
            bus: bus.clone(),
            database: database.clone(),
            options,
            projection,
            positions,
            position: found.position,
            subscription,
            session: Some(session),
            figures: Arc::default(),
        };
        projector.move_group_back().await?;
        projector.figures.lock().position = projector.position.seq;
        Ok(projector)
    }

    /// Moves the group back if its floor is above the position; otherwise the projector would miss events.
    async fn move_group_back(&self) -> Result<(), MongoProjectorError> {
        let MongoProjectorOptions { topic, group, .. } = &self.options;
        let info = self.bus.group(topic, group).await.map_err(GroupError::from)?;
        let floor = info.and_then(|info| info.topics.first().map(|place| place.floor)).unwrap_or(0);
        let Some(id) = self.position.id else { return Ok(()) };
        if floor <= self.position.seq {
            return Ok(());
        }
        tracing::warn!(
            "projector {group}: the database is at seq {} and the group at {floor}: the group is moved back",
            self.position.seq
        );
        self.bus.seek(topic, group, Start::AfterId(id)).await.map_err(|error| {
            MongoProjectorError::Position(format!(
                "the position of {group} in the database is seq {}, which {topic} no longer has ({error}): rebuild the projection",
                self.position.seq
            ))
        })
    }

    /// The counters and the current state of the projector.
    pub fn figures(&self) -> MongoProjectorFigures {
        self.figures.lock().clone()
    }

    /// Calls a function for each failure: an event that is rejected and becomes a dead letter, a database that is
    /// unreachable, the end of the projector. Like
    /// [`HandlerHandle::on_error`](prombus::HandlerHandle::on_error).
    pub fn on_error(&self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) {
        self.failures.on_error(callback);
    }

    /// The last failure; `None` if there was none.
    pub fn last_error(&self) -> Option<HandlerFailure> {
        self.failures.last_error()
    }

    /// Waits for events and folds a batch of them. When this returns, their changes are durable and the events are acked.
    ///
    /// # Errors
    /// See [`MongoProjectorError`]. After an error, the projector must be reopened.
    pub async fn next(&mut self) -> Result<(), MongoProjectorError> {
        let deliveries = self.subscription.next_batch().await.map_err(pull_error)?;
        self.apply(&deliveries).await
    }

    async fn apply(&mut self, deliveries: &Deliveries) -> Result<(), MongoProjectorError> {
        let all = deliveries.events().len() as u64;
        let events: Vec<Event> =
            deliveries.events().filter(|event| event.seq() > self.position.seq).collect();
        self.figures.lock().skipped += all - events.len() as u64;
        if !events.is_empty() && !self.fold_batch(&events).await? {
            match events.as_slice() {
                [event] => self.skip(event).await?,
                // One of the events may be the reason why the whole transaction failed.
                _ => self.fold_one_by_one(&events).await?,
            }
        }
        drop(deliveries.ack());
        Ok(())
    }

    async fn fold_one_by_one(&mut self, events: &[Event]) -> Result<(), MongoProjectorError> {
        for event in events {
            if !self.fold_batch(std::slice::from_ref(event)).await? {
                self.skip(event).await?;
            }
        }
        Ok(())
    }

    /// Folds events in one transaction, and waits while the database is unreachable. Returns false if they cannot be folded. A single event
    /// that cannot be folded is rejected.
    async fn fold_batch(&mut self, events: &[Event]) -> Result<bool, MongoProjectorError> {
        let Some(last) = events.last() else { return Ok(true) };
        let to = Position { seq: last.seq(), id: Some(last.id()) };
        match self.commit(events, to).await? {
            None => {
                self.figures.lock().folded += events.len() as u64;
                Ok(true)
            }
            Some(why) => {
                if events.len() == 1 {
                    self.reject(last, &why).await?;
                }
                Ok(false)
            }
        }
    }

    /// Moves the position past a rejected event.
    async fn skip(&mut self, event: &Event) -> Result<(), MongoProjectorError> {
        let to = Position { seq: event.seq(), id: Some(event.id()) };
        match self.commit(&[], to).await? {
            None => Ok(()),
            Some(why) => Err(MongoProjectorError::Position(why)),
        }
    }

    /// Commits the changes of events together with the position after them. `Some` is the reason why they cannot be folded.
    async fn commit(
        &mut self,
        events: &[Event],
        to: Position,
    ) -> Result<Option<String>, MongoProjectorError> {
        loop {
            match self.transact(events, to).await {
                Ok(()) => {
                    self.position = to;
                    let mut figures = self.figures.lock();
                    figures.transactions += 1;
                    figures.position = to.seq;
                    if figures.trouble.take().is_some() {
                        tracing::info!("projector {}: the database can be used again", self.options.group);
                    }
                    return Ok(None);
                }
                Err(Stopped::Superseded) => return Err(MongoProjectorError::Superseded),
                Err(Stopped::Work(WorkError::Refused(why))) => return Ok(Some(why)),
                Err(Stopped::Work(WorkError::Driver(error) | WorkError::Conflict(error))) => {
                    self.note_trouble(&reason(&error));
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    fn note_trouble(&self, why: &str) {
        let mut figures = self.figures.lock();
        figures.failures += 1;
        let before = figures.trouble.replace(why.to_owned());
        drop(figures);
        if before.as_deref() != Some(why) {
            let error = format!("waiting for the database: {why}");
            self.failures.report(&HandlerFailure::general(error, AfterFailure::Retry));
        }
    }

    async fn transact(&mut self, events: &[Event], to: Position) -> Result<(), Stopped> {
        let mut transaction = match self.session.take() {
            Some(session) => Transaction::with_session(session),
            // The session was lost with a future that was dropped.
            None => Transaction::new(self.database.client()).await.map_err(WorkError::Driver)?,
        };
        let done = self.transact_in(&mut transaction, events, to).await;
        self.session = Some(transaction.session);
        done
    }

    async fn transact_in(
        &mut self,
        transaction: &mut Transaction,
        events: &[Event],
        to: Position,
    ) -> Result<(), Stopped> {
        loop {
            transaction.start().await.map_err(WorkError::Driver)?;
            let worked = self.work(events, to, &mut transaction.session).await;
            match worked {
                Ok(()) => {
                    if transaction.commit().await.map_err(WorkError::Driver)? {
                        return Ok(());
                    }
                }
                Err(Stopped::Work(error)) => transaction.recover(error).await?,
                Err(superseded) => {
                    transaction.abort().await;
                    return Err(superseded);
                }
            }
        }
    }

    async fn work(
        &mut self,
        events: &[Event],
        to: Position,
        session: &mut ClientSession,
    ) -> Result<(), Stopped> {
        // The position is written first: two projectors of a group conflict there.
        match self.positions.advance(self.position, to, session).await.map_err(WorkError::Driver)? {
            position::Advanced::Yes => {}
            position::Advanced::WasThere => return Ok(()),
            position::Advanced::NotOurs => return Err(Stopped::Superseded),
        }
        Ok(call(self.projection.fold_all(events, session)).await?)
    }

    async fn reject(&mut self, event: &Event, why: &str) -> Result<(), MongoProjectorError> {
        self.figures.lock().rejected += 1;
        let (topic, seq, id) = (event.topic().clone(), event.seq(), event.id());
        let failed = FailedEvent { topic, seq, id, attempt: 1, max_attempts: 1 };
        self.failures.report(&HandlerFailure::of_event(failed, why, AfterFailure::DeadLetter));
        let now = SystemClock::default().wall_ms();
        let Some(letter) = Rejected::new(event, &self.options.topic, &self.options.group, why, now) else {
            return Ok(());
        };
        let letter = letter.with_next_id(&**self.bus.backend()).await.map_err(GroupError::from)?;
        let mut batch = self.bus.batch();
        // A dead letter that is too large is skipped; the event itself stays in its topic.
        if batch.push_json(letter.topic, &letter.json, &letter.options).is_ok() {
            self.bus.publish_batch(batch).await?;
        }
        Ok(())
    }
}

impl<P> std::fmt::Debug for MongoProjector<P> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "MongoProjector({:?})", self.options)
    }
}

/// Why a transaction did not commit.
enum Stopped {
    Work(WorkError),
    Superseded,
}

impl From<WorkError> for Stopped {
    fn from(error: WorkError) -> Self {
        Self::Work(error)
    }
}

/// Converts the error of a pull.
fn pull_error(error: GroupError) -> MongoProjectorError {
    match error {
        GroupError::TakenOver => MongoProjectorError::Superseded,
        other => other.into(),
    }
}
