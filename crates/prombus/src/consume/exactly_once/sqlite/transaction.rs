//! One transaction with the marks and effects of events, each of which succeeds or fails on its own.

use crate::consume::exactly_once::in_transactions::{EventFate, EventOnce, TransactionTrouble};
use crate::event::Event;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};
use std::fmt::Display;
use std::panic::AssertUnwindSafe;

/// A handler, with its error type erased.
pub(super) type Handler = dyn Fn(&Event, &Transaction<'_>) -> EventFate + Send + Sync;

/// Calls a handler; a panic is an error.
pub(super) fn call<F, E>(handler: &F, event: &Event, transaction: &Transaction<'_>) -> Result<(), String>
where
    F: Fn(&Event, &Transaction<'_>) -> Result<(), E>,
    E: Display,
{
    // `AssertUnwindSafe` is right: the writes of a call that panicked are rolled back.
    let called = std::panic::catch_unwind(AssertUnwindSafe(|| handler(event, transaction)));
    match called {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(format!("the handler panicked: {}", text.as_deref().unwrap_or("(no message)")))
        }
    }
}

/// Tells whether the handler or the database caused an error.
pub(super) fn trouble(error: &rusqlite::Error) -> TransactionTrouble {
    match error.sqlite_error_code() {
        // A deferred constraint, which is checked at the commit.
        Some(ErrorCode::ConstraintViolation) => TransactionTrouble::Handler(error.to_string()),
        _ => TransactionTrouble::Database(error.to_string()),
    }
}

/// Handles events in one transaction, which has committed when this returns `Ok`.
pub(super) fn transact(
    connection: &mut Connection,
    events: &[EventOnce],
    expires_ms: i64,
    handler: &Handler,
) -> Result<Vec<EventFate>, TransactionTrouble> {
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let transaction = begun.map_err(|error| trouble(&error))?;
    let mut fates = Vec::with_capacity(events.len());
    for EventOnce { event, consumer } in events {
        fates.push(do_once(&transaction, event, consumer, expires_ms, handler)?);
    }
    transaction.commit().map_err(|error| trouble(&error))?;
    Ok(fates)
}

/// Marks an event and calls the handler, unless the event has its mark already. The writes of a failed handler, and the
/// mark, are rolled back.
fn do_once(
    transaction: &Transaction<'_>,
    event: &Event,
    consumer: &str,
    expires_ms: i64,
    handler: &Handler,
) -> Result<EventFate, TransactionTrouble> {
    let run = |sql: &str| transaction.execute_batch(sql).map_err(|error| trouble(&error));
    run("SAVEPOINT prombus_event")?;
    if !mark(transaction, event, consumer, expires_ms).map_err(|error| trouble(&error))? {
        run("RELEASE prombus_event")?;
        return Ok(Ok(()));
    }
    let fate = handler(event, transaction);
    if transaction.is_autocommit() {
        // The handler ended the transaction, or SQLite ended it after an error. The handler did not necessarily return that
        // error.
        let error = fate.err().unwrap_or_else(|| "the cause is unknown".to_owned());
        return Err(TransactionTrouble::Handler(format!(
            "the transaction ended inside the handler: {error}"
        )));
    }
    match fate {
        Ok(()) => run("RELEASE prombus_event")?,
        Err(_) => run("ROLLBACK TO prombus_event; RELEASE prombus_event")?,
    }
    Ok(fate)
}

/// Marks an event. Returns false if it has a mark already, even an expired one.
fn mark(
    transaction: &Transaction<'_>,
    event: &Event,
    consumer: &str,
    expires_ms: i64,
) -> Result<bool, rusqlite::Error> {
    let sql = "INSERT INTO prombus_dedupe (topic, consumer, id, seq, expires_ms) VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT DO NOTHING";
    let (topic, id, seq) = (event.topic().as_str(), event.id().to_string(), event.seq().cast_signed());
    let rows = transaction.prepare_cached(sql)?.execute(params![topic, consumer, id, seq, expires_ms])?;
    Ok(rows == 1)
}
