//! The size of each topic on disk, according to the indexes.

use crate::error::ReadError;
use crate::index::{Entry, TopicSpan};
use crate::read::committed_log::CommittedLog;
use crate::segment::Segment;
use crate::topics::TopicId;
use std::collections::BTreeMap;

/// The size of a topic on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicUsage {
    /// The topic.
    pub topic: TopicId,
    /// The number of its events on disk, including dead ones that are not cleaned yet.
    pub events: u64,
    /// The size of the frames of these events.
    pub bytes: u64,
}

/// The sizes of all topics, in one pass over all segments.
pub(crate) fn usage(log: &CommittedLog) -> Result<Vec<TopicUsage>, ReadError> {
    let segments = log.segments();
    let mut topics: BTreeMap<u32, TopicUsage> = BTreeMap::new();
    for segment in segments.iter() {
        for span in log.topic_spans(segment)? {
            let topic = TopicId(span.topic);
            let usage = topics.entry(span.topic).or_insert(TopicUsage { topic, events: 0, bytes: 0 });
            usage.events = usage.events.saturating_add(span.events);
            usage.bytes = usage.bytes.saturating_add(span_bytes(log, segment, &span)?);
        }
    }
    let view = log.view();
    // Deleted topics are left out, even if cleaning has not removed their events yet.
    Ok(topics.into_values().filter(|usage| view.last_seq(usage.topic.0).is_some()).collect())
}

/// The sizes of some topics, from their own entries; `None` for a topic that does not exist or is not durable yet.
pub(crate) fn usage_of(log: &CommittedLog, topics: &[TopicId]) -> Result<Vec<Option<TopicUsage>>, ReadError> {
    let segments = log.segments();
    let mut all: Vec<Option<TopicUsage>> = {
        let view = log.view();
        let usage =
            |&topic: &TopicId| view.last_seq(topic.0).map(|_| TopicUsage { topic, events: 0, bytes: 0 });
        topics.iter().map(usage).collect()
    };
    for segment in segments.iter() {
        for usage in all.iter_mut().flatten() {
            log.with_entries(segment, usage.topic.0, |entries| {
                for entry in entries {
                    usage.events = usage.events.saturating_add(u64::from(entry.count));
                    usage.bytes = usage.bytes.saturating_add(entry.frame_bytes());
                }
            })?;
        }
    }
    Ok(all)
}

fn span_bytes(log: &CommittedLog, segment: &Segment, span: &TopicSpan) -> Result<u64, ReadError> {
    match span.bytes {
        // The size is unknown, because an early build wrote the index file. The positions of the entries give an upper
        // bound.
        0 => log.with_entries(segment, span.topic, |entries| {
            entries.iter().map(Entry::frame_bytes).fold(0, u64::saturating_add)
        }),
        bytes => Ok(u64::from(bytes)),
    }
}

/// The lowest seq such that the events from it on take at most about `bytes`. The newest event is always included.
pub(crate) fn first_within_bytes(log: &CommittedLog, topic: u32, bytes: u64) -> Result<u64, ReadError> {
    let last_seq = log.durable_seq(topic)?;
    let segments = log.segments();
    let mut left = bytes;
    // A topic without events starts at seq 1.
    let mut first = last_seq.max(1);
    for segment in segments.iter().rev() {
        let is_used_up = log.with_entries(segment, topic, |entries| {
            for entry in entries.iter().rev() {
                let entry_bytes = entry.frame_bytes();
                if entry_bytes > left {
                    // Only a part of this entry fits: assume that its events are equally large.
                    let events = u128::from(entry.count) * u128::from(left) / u128::from(entry_bytes);
                    let seq = (entry.last_seq + 1).saturating_sub(events as u64);
                    first = first.min(seq.max(entry.first_seq));
                    return true;
                }
                left -= entry_bytes;
                first = first.min(entry.first_seq);
            }
            false
        })?;
        if is_used_up {
            break;
        }
    }
    Ok(first)
}
