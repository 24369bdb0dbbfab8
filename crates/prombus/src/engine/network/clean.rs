//! Cleaning: removes the events that retention has cut off (those below the first seq of their topic), events of deleted topics,
//! and dead events of compacted topics: those that newer events of the same key have replaced.

use super::connection::Connection;
use super::database::{DeadEvents, RemoteDatabase, RemoveError, Removed};
use super::piece::ReadableSeqs;
use crate::engine::{Cleaned, Liveness, StoredTopic, TopicId};
use crate::error::{ReadError, Unavailable};
use std::sync::Arc;

/// The maximum number of events that one step of compaction examines. A step removes at most as many.
const SLICE: usize = 10_000;

/// Why a cleaning ended early.
enum Ended {
    /// The database is unreachable, or the engine is ending. The next cleaning does the rest.
    Later,
    /// Another process leads the store. The text names it, if it is known.
    Deposed(String),
}

/// Removes dead events.
pub(super) fn clean<D: RemoteDatabase>(
    connection: &Connection<D>,
    liveness: &dyn Liveness,
    compact: bool,
) -> Result<Cleaned, Unavailable> {
    let mut cleaned = Cleaned::default();
    match clean_topics(connection, liveness, compact, &mut cleaned) {
        Ok(()) => {}
        Err(Ended::Later) => cleaned.is_cut_short = true,
        Err(Ended::Deposed(leader)) => return Err(Unavailable::Deposed(leader)),
    }
    Ok(cleaned)
}

fn clean_topics<D: RemoteDatabase>(
    connection: &Connection<D>,
    liveness: &dyn Liveness,
    compact: bool,
    cleaned: &mut Cleaned,
) -> Result<(), Ended> {
    remove(connection, DeadEvents::DeletedTopics, cleaned)?;
    let topics = connection.leader.lock().stored_topics();
    for StoredTopic { id, .. } in topics {
        let Ok(ReadableSeqs { first_seq, last_seq }) = connection.leader.lock().readable(id) else {
            continue;
        };
        // `first_seq` would be too high: it rises as soon as retention is applied, but events may be removed only when the
        // record of the retention is durable.
        let removable = connection.leader.lock().removable_below(id);
        if removable > 1 {
            remove(connection, DeadEvents::Below(id, removable), cleaned)?;
        }
        let first_live = first_seq.max(liveness.first_live(id));
        if compact && liveness.is_sparse(id) {
            compact_topic(
                connection,
                id,
                ReadableSeqs { first_seq: first_live, last_seq },
                liveness,
                cleaned,
            )?;
        }
    }
    Ok(())
}

/// Removes the dead events of a topic, slice by slice.
fn compact_topic<D: RemoteDatabase>(
    connection: &Connection<D>,
    topic: TopicId,
    mut seqs: ReadableSeqs,
    liveness: &dyn Liveness,
    cleaned: &mut Cleaned,
) -> Result<(), Ended> {
    while seqs.first_seq <= seqs.last_seq {
        let database = Arc::clone(&connection.database);
        let found = connection.wait_for(async move { database.seqs(topic, seqs, SLICE).await });
        let found = match found {
            Some(Ok(found)) => found,
            // The topic was deleted meanwhile.
            Some(Err(ReadError::UnknownTopic(_))) => return Ok(()),
            Some(Err(_)) | None => return Err(Ended::Later),
        };
        let Some(&last) = found.last() else { return Ok(()) };
        let dead: Vec<u64> = found.into_iter().filter(|&seq| !liveness.is_live(topic, seq)).collect();
        if !dead.is_empty() {
            remove(connection, DeadEvents::Seqs(topic, dead), cleaned)?;
        }
        seqs.first_seq = last + 1;
    }
    Ok(())
}

fn remove<D: RemoteDatabase>(
    connection: &Connection<D>,
    dead: DeadEvents,
    cleaned: &mut Cleaned,
) -> Result<(), Ended> {
    if connection.leader.lock().availability.is_suspended {
        return Err(Ended::Later);
    }
    let database = Arc::clone(&connection.database);
    match connection.wait_for(async move { database.remove(dead).await }) {
        Some(Ok(Removed { events, bytes })) => {
            cleaned.events += events;
            cleaned.bytes += bytes;
            Ok(())
        }
        Some(Err(RemoveError::Deposed(leader))) => Err(Ended::Deposed(leader)),
        Some(Err(RemoveError::Later(reason))) => {
            tracing::debug!("cleaning was interrupted and continues later: {reason}");
            Err(Ended::Later)
        }
        None => Err(Ended::Later),
    }
}
