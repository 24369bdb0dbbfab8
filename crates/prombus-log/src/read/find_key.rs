//! Finds the seq of the newest event with a key, and whether an older event with the key exists.

use crate::error::{Fault, FaultKind, ReadError};
use crate::index::KeyEntry;
use crate::read::committed_log::CommittedLog;
use crate::record::{FLAG_KEY, HEADER_BYTES};
use crate::segment::Segment;

pub(crate) fn find_key(log: &CommittedLog, topic: u32, key: &[u8]) -> Result<Option<u64>, ReadError> {
    log.durable_seq(topic)?;
    let hash = log.context.hash.of_key(topic, key);
    for segment in log.segments().iter().rev() {
        let Some(entry) = key_entry(log, segment, hash)? else { continue };
        if entry.topic != topic {
            continue;
        }
        // The index contains only the hash, so the key is compared with the record. If the record is damaged, an older
        // segment may have an older event with the key.
        let Some((header, frame)) = log.read_frame(segment, entry.position)? else {
            let topic = log.topic_name(topic);
            let place = Fault::new(segment.name(), u64::from(entry.position), FaultKind::Event);
            log.damage.report(Fault { topic, ..place });
            continue;
        };
        let found = &frame[HEADER_BYTES..HEADER_BYTES + header.key_length as usize];
        if header.topic == topic && header.flags & FLAG_KEY != 0 && found == key {
            return Ok(Some(header.seq));
        }
    }
    Ok(None)
}

pub(crate) fn has_key_before(
    log: &CommittedLog,
    topic: u32,
    key: &[u8],
    seq: u64,
) -> Result<bool, ReadError> {
    log.durable_seq(topic)?;
    let hash = log.context.hash.of_key(topic, key);
    for segment in log.segments().iter() {
        let Some(entry) = key_entry(log, segment, hash)?.filter(|entry| entry.topic == topic) else {
            continue;
        };
        // The damaged record may be an earlier event with this key, so true is the safe answer.
        let Some((header, _)) = log.read_frame(segment, entry.position)? else { return Ok(true) };
        if header.seq < seq {
            return Ok(true);
        }
    }
    Ok(false)
}

fn key_entry(log: &CommittedLog, segment: &Segment, hash: u64) -> Result<Option<KeyEntry>, ReadError> {
    log.query_index(segment, |file| file.find_key(hash), |index| index.keys.get(&hash).copied())
}
