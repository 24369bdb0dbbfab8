//! Reading again what could not be read, and finding out which events an unreadable place holds.

use crate::error::ReadError;
use crate::read::chunk::{Chunk, ReadLimit};
use crate::read::committed_log::CommittedLog;
use crate::read::read_health::UnreadableEvents;
use std::ops::Range;

/// Reads again what could not be read, and forgets what is gone or readable. Not for a thread that others wait for.
pub(crate) fn probe_unreadable(log: &CommittedLog) {
    let mut chunk = Chunk::default();
    for events in log.read_errors.list() {
        try_reading(log, events.topic.0, events.first_seq, events.last_seq, &mut chunk);
    }
    log.read_errors.health();
}

/// Finds out which events of any topic the known unreadable places hold.
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

/// Reads a range; what cannot be read is noted on the way.
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
