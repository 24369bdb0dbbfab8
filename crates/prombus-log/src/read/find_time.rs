//! Finds the first seq whose event has a given `ts` or a later one.

use crate::error::ReadError;
use crate::index::Entry;
use crate::read::chunk::Chunk;
use crate::read::committed_log::CommittedLog;

pub(crate) fn first_at_or_after(
    log: &CommittedLog,
    topic: u32,
    ts: i64,
    from: u64,
) -> Result<Option<u64>, ReadError> {
    log.durable_seq(topic)?;
    let mut chunk = Chunk::default();
    let mut candidates = Vec::new();
    for segment in log.segments().iter() {
        candidates.clear();
        log.with_entries(segment, topic, |entries| {
            let is_wanted = |entry: &&Entry| entry.max_ts >= ts && entry.last_seq >= from;
            candidates.extend(entries.iter().filter(is_wanted));
        })?;
        for entry in &candidates {
            let found = log.search_entry(topic, entry, &mut chunk, |chunk| {
                chunk.events().find(|event| event.ts >= ts && event.seq >= from).map(|event| event.seq)
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}
