//! One transaction: marks and effects of events, each of which succeeds or fails on its own.

use crate::consume::exactly_once::in_transactions::{EventFate, EventOnce, TransactionTrouble};
use crate::event::Event;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};
use std::fmt::Display;
use std::panic::AssertUnwindSafe;

/// A handler, whatever its type of errors.
pub(super) type Handler = dyn Fn(&Event, &Transaction<'_>) -> EventFate + Send + Sync;

/// Calls a handler; a panic is an error.
pub(super) fn call<F, E>(handler: &F, event: &Event, transaction: &Transaction<'_>) -> Result<(), String>
where
    F: Fn(&Event, &Transaction<'_>) -> Result<(), E>,
    E: Display,
{
    // What the panic left half done is rolled back.
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

/// Why a transaction did not commit.
pub(super) fn trouble(error: &rusqlite::Error) -> TransactionTrouble {
    match error.sqlite_error_code() {
        // A constraint that is checked at the commit.
        Some(ErrorCode::ConstraintViolation) => TransactionTrouble::Handler(error.to_string()),
        _ => TransactionTrouble::Database(error.to_string()),
    }
}

/// Does events in a transaction of their own; when this answers, it has committed.
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

/// Marks an event and does it, or finds that it was done. A handler that fails leaves no trace.
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
        // By the handler, or by SQLite itself after an error that the handler may have kept to itself.
        let error = fate.err().unwrap_or_else(|| "nobody said why".to_owned());
        return Err(TransactionTrouble::Handler(format!(
            "the transaction ended inside of the handler: {error}"
        )));
    }
    match fate {
        Ok(()) => run("RELEASE prombus_event")?,
        Err(_) => run("ROLLBACK TO prombus_event; RELEASE prombus_event")?,
    }
    Ok(fate)
}

/// False when the event has its mark already; an expired one counts.
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
