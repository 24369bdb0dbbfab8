//! A transaction that is tried again as long as the server says that it makes sense.

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

/// How long a transaction is tried before its error is reported.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Why a handler did not do its work.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// See the module. `start` it, work in `session`, then [`commit`](Self::commit); after an error
/// [`recover`](Self::recover).
pub(crate) struct Transaction {
    pub(crate) session: ClientSession,
    until: Instant,
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

    /// Returns whether it is committed; otherwise it is to be started again.
    ///
    /// # Errors
    /// It is not known whether it is committed, or it cannot be.
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

    /// Ends the transaction after an error. Ok: it may be started again.
    ///
    /// # Errors
    /// The same error, if that makes no sense.
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
        // The server ends it by itself if this does not reach it.
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

/// What went wrong in a transaction.
#[derive(Debug)]
pub(crate) enum WorkError {
    /// The server; the same may work later.
    Driver(Error),
    /// Another transaction was faster; the next attempt sees what it did.
    Conflict(Error),
    /// The work itself, which would fail again.
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

/// The error of a handler: the driver's if that is its cause.
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

/// Calls a handler; a panic is an error.
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
