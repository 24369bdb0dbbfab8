//! A transaction that is retried as long as the server's error labels say that a retry may succeed.

use crate::errors::is_outage;
use crate::server_abilities::majority;
use mongodb::error::{
    Error, Result as MongoResult, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT,
};
use mongodb::options::ReadConcern;
use mongodb::{Client, ClientSession};
use prombus::BoxFuture;
use prombus::Event;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// How long a transaction is retried before its error is reported.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause after the first failure. The pause doubles after each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The error of a handler.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// A transaction with retries. `start` it, write with `session`, then [`commit`](Self::commit). After an error, call
/// [`recover`](Self::recover).
pub(crate) struct Transaction {
    pub(crate) session: ClientSession,
    /// When retrying ends.
    until: Instant,
    /// The next pause.
    pause: Duration,
}

impl Transaction {
    pub(crate) async fn new(client: &Client) -> MongoResult<Self> {
        Ok(Self::with_session(client.start_session().await?))
    }

    pub(crate) fn with_session(session: ClientSession) -> Self {
        Self { session, until: Instant::now() + PATIENCE, pause: PAUSE_MIN }
    }

    pub(crate) async fn start(&mut self) -> MongoResult<()> {
        let start = self.session.start_transaction();
        start.read_concern(ReadConcern::snapshot()).write_concern(majority()).await
    }

    /// Commits the transaction. Returns false if it must be started again.
    ///
    /// # Errors
    /// If the transaction cannot be committed, or it is unknown whether it was committed.
    pub(crate) async fn commit(&mut self) -> MongoResult<bool> {
        loop {
            let Err(error) = self.session.commit_transaction().await else { return Ok(true) };
            if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) && Instant::now() < self.until {
                self.rest().await;
            } else if error.contains_label(TRANSIENT_TRANSACTION_ERROR) && Instant::now() < self.until {
                self.abort().await;
                self.rest().await;
                return Ok(false);
            } else {
                return Err(error);
            }
        }
    }

    /// Ends the transaction after an error. If this returns `Ok`, the transaction may be started again.
    ///
    /// # Errors
    /// The same error, if a retry cannot succeed or the time for retries is over.
    pub(crate) async fn recover(&mut self, error: WorkError) -> Result<(), WorkError> {
        self.abort().await;
        let is_transient = match &error {
            WorkError::Driver(error) => error.contains_label(TRANSIENT_TRANSACTION_ERROR),
            WorkError::Conflict(_) => true,
            WorkError::Refused(_) => false,
        };
        if !is_transient || Instant::now() >= self.until {
            return Err(error);
        }
        self.rest().await;
        Ok(())
    }

    pub(crate) async fn abort(&mut self) {
        // If this does not reach the server, the server ends the transaction itself.
        let _ = self.session.abort_transaction().await;
    }

    async fn rest(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

/// A handler that writes in a transaction.
pub(crate) trait TransactionHandler: Send + Sync + 'static {
    fn call<'a>(
        &'a self,
        event: &'a Event,
        session: &'a mut ClientSession,
    ) -> BoxFuture<'a, Result<(), HandlerError>>;
}

/// A function as a handler.
pub(crate) struct FunctionHandler<F, E>(pub(crate) F, pub(crate) PhantomData<fn() -> E>);

impl<F, E> TransactionHandler for FunctionHandler<F, E>
where
    F: for<'a> Fn(&'a Event, &'a mut ClientSession) -> BoxFuture<'a, Result<(), E>> + Send + Sync + 'static,
    E: Into<HandlerError> + 'static,
{
    fn call<'a>(
        &'a self,
        event: &'a Event,
        session: &'a mut ClientSession,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        let calling = (self.0)(event, session);
        Box::pin(async move { calling.await.map_err(Into::into) })
    }
}

/// Why a transaction failed.
#[derive(Debug)]
pub(crate) enum WorkError {
    /// An error of the server; a retry may succeed.
    Driver(Error),
    /// Another transaction committed first; the next attempt sees its writes.
    Conflict(Error),
    /// The handler failed or panicked, or the server reported a permanent error; a retry would fail again.
    Refused(String),
}

impl From<Error> for WorkError {
    fn from(error: Error) -> Self {
        let may_work_later = is_outage(&error)
            || error.contains_label(TRANSIENT_TRANSACTION_ERROR)
            || error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT);
        match may_work_later {
            true => Self::Driver(error),
            false => Self::Refused(crate::errors::reason(&error)),
        }
    }
}

/// Classifies the error of a handler: as [`WorkError::Driver`] if a temporary error of the driver caused it, otherwise as
/// [`WorkError::Refused`].
pub(crate) fn handler_error(error: &HandlerError) -> WorkError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(it) = cause {
        if let Some(driver) = it.downcast_ref::<Error>()
            && let WorkError::Driver(driver) = WorkError::from(driver.clone())
        {
            return WorkError::Driver(driver);
        }
        cause = it.source();
    }
    WorkError::Refused(error.to_string())
}

/// Calls a handler; a panic becomes an error.
pub(crate) async fn call(calling: BoxFuture<'_, Result<(), HandlerError>>) -> Result<(), WorkError> {
    use futures_util::FutureExt as _;
    match std::panic::AssertUnwindSafe(calling).catch_unwind().await {
        Ok(result) => result.map_err(|error| handler_error(&error)),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.as_deref().unwrap_or("(no message)");
            Err(WorkError::Refused(format!("the handler panicked: {text}")))
        }
    }
}
