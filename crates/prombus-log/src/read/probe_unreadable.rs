//! Retries failed reads, and finds the events in unreadable ranges.

use crate::error::ReadError;
use crate::read::chunk::{Chunk, ReadLimit};
use crate::read::committed_log::CommittedLog;
use crate::read::read_health::UnreadableEvents;
use std::ops::Range;

/// Retries the failed reads. Events that are readable again or gone are removed from the list of unreadable events. This
/// may block for a long time, so it must not run on a thread that others wait for.
pub(crate) fn probe_unreadable(log: &CommittedLog) {
    let mut chunk = Chunk::default();
    for events in log.read_errors.list() {
        try_reading(log, events.topic.0, events.first_seq, events.last_seq, &mut chunk);
    }
    log.read_errors.health();
}

/// Finds the events of all topics in the known unreadable ranges.
pub(crate) fn list_unreadable(log: &CommittedLog) -> Vec<UnreadableEvents> {
    probe_unreadable(log);
    let mut chunk = Chunk::default();
    for events in log.read_errors.list() {
        let Some(segment) = log.segment_named(&events.file) else { continue };
        let Ok(spans) = log.topic_spans(&segment) else { continue };
        for span in spans {
            let seqs = log.with_entries(&segment, span.topic, |entries| {
                let is_hit = |range: &Range<u64>, start: u32, end: u32| {
                    range.start < u64::from(end) && range.end > u64::from(start)
                };
                let hit = entries
                    .iter()
                    .filter(|entry| events.bytes.iter().any(|it| is_hit(it, entry.position, entry.end)));
                hit.map(|entry| (entry.first_seq, entry.last_seq)).collect::<Vec<_>>()
            });
            for (first_seq, last_seq) in seqs.unwrap_or_default() {
                try_reading(log, span.topic, first_seq, last_seq, &mut chunk);
            }
        }
    }
    log.read_errors.list()
}

/// Reads a range of seqs. The reads themselves record the unreadable events.
pub(crate) fn try_reading(log: &CommittedLog, topic: u32, first_seq: u64, last_seq: u64, chunk: &mut Chunk) {
    let mut seq = first_seq;
    while seq <= last_seq {
        match log.read(topic, seq, ReadLimit::default(), chunk) {
            Ok(()) if chunk.next_seq() > seq => seq = chunk.next_seq(),
            Err(ReadError::Unreadable { last_seq: unreadable, .. }) => seq = unreadable + 1,
            Err(ReadError::UnknownTopic(_)) => {
                // The topic was deleted, so its events do not matter.
                log.read_errors.note_read(topic, 0, u64::MAX);
                return;
            }
            Ok(()) | Err(ReadError::Io { .. }) => return,
        }
    }
}
