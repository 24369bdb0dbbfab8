//! The list of unreadable events: their seqs, their file, and since when they are unreadable.
//!
//! Readers add the events that they fail to read and remove the ones that they read later. So the list shows operators what
//! is unreadable at present. While the list is empty, it costs a successful read one atomic load.

use crate::context::Context;
use crate::error::ReadError;
use crate::observer::Notice;
use crate::topics::TopicId;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// The log counts as degraded for this long after a read error.
const RECENT_MS: i64 = 5_000;
/// The maximum number of ranges in the list. Read errors beyond it are only counted.
const RANGES_MAX: usize = 10_000;

/// Events that cannot be read at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableEvents {
    /// The topic's internal id.
    pub topic: TopicId,
    /// The first seq.
    pub first_seq: u64,
    /// The last seq.
    pub last_seq: u64,
    /// The file.
    pub file: String,
    /// The bytes that the disk cannot read; empty if the file cannot be opened at all.
    pub bytes: Vec<Range<u64>>,
    /// When a read failed for the first time.
    pub since_ms: i64,
    /// The system's error.
    pub error: String,
}

/// The failed reads of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadHealth {
    /// The number of reads that failed since the log was opened.
    pub errors: u64,
    /// The number of events that cannot be read at present.
    pub events_unreadable: u64,
    /// The last error, if it is recent or events are still unreadable.
    pub problem: Option<String>,
}

/// The list of unreadable events, and the counters of failed reads.
pub(crate) struct ReadErrors {
    context: Arc<Context>,
    list: Mutex<Vec<UnreadableEvents>>,
    /// Whether the list may contain events. While it is false, readers need not lock the list.
    is_any: AtomicBool,
    /// The number of failed reads since the log was opened.
    errors: AtomicU64,
    /// When a read failed last; `i64::MIN` if none has failed.
    failed_ms: AtomicI64,
    last_error: Mutex<String>,
    /// Whether [`Notice::Unreadable`] was sent and [`Notice::ReadableAgain`] not yet.
    is_reported: AtomicBool,
}

impl ReadErrors {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            list: Mutex::default(),
            is_any: AtomicBool::new(false),
            errors: AtomicU64::new(0),
            failed_ms: AtomicI64::new(i64::MIN),
            last_error: Mutex::default(),
            is_reported: AtomicBool::new(false),
        }
    }

    /// Whether any event is known to be unreadable.
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Whether a file has events that are known to be unreadable.
    pub(crate) fn has_file(&self, file: &str) -> bool {
        self.is_any() && self.list.lock().iter().any(|events| events.file == file)
    }

    /// Adds events. Ranges of the same topic and file that touch are merged.
    fn add(&self, mut added: UnreadableEvents) {
        let mut list = self.list.lock();
        let touches = |known: &UnreadableEvents, added: &UnreadableEvents| {
            known.topic == added.topic
                && known.first_seq <= added.last_seq.saturating_add(1)
                && added.first_seq <= known.last_seq.saturating_add(1)
                && known.file == added.file
        };
        while let Some(at) = list.iter().position(|known| touches(known, &added)) {
            let known = list.swap_remove(at);
            added.first_seq = known.first_seq.min(added.first_seq);
            added.last_seq = known.last_seq.max(added.last_seq);
            added.since_ms = known.since_ms.min(added.since_ms);
            for range in known.bytes {
                if !added.bytes.contains(&range) {
                    added.bytes.push(range);
                }
            }
        }
        if list.len() < RANGES_MAX {
            list.push(added);
        }
        self.is_any.store(true, Ordering::Release);
    }

    /// Removes the seqs `first..end` of a topic, because they were read or are gone.
    fn remove(&self, topic: TopicId, first: u64, end: u64) {
        let mut list = self.list.lock();
        let mut rest = Vec::new();
        list.retain_mut(|known| {
            if known.topic != topic || known.last_seq < first || known.first_seq >= end {
                return true;
            }
            if known.last_seq >= end {
                rest.push(UnreadableEvents { first_seq: end, ..known.clone() });
            }
            known.last_seq = first.saturating_sub(1);
            known.first_seq <= known.last_seq
        });
        list.append(&mut rest);
        self.is_any.store(!list.is_empty(), Ordering::Release);
    }

    fn count(&self) -> u64 {
        self.list.lock().iter().map(|events| events.last_seq - events.first_seq + 1).sum()
    }

    pub(crate) fn list(&self) -> Vec<UnreadableEvents> {
        self.list.lock().clone()
    }

    /// Counts a read error. Notifies the observer if it is the first since reads last succeeded.
    pub(crate) fn note_error(&self, error: &ReadError) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        self.failed_ms.store(self.context.now_ms(), Ordering::Release);
        let text = with_source(error);
        if !self.is_reported.swap(true, Ordering::AcqRel) {
            self.context.observer().notice(&Notice::Unreadable { error: text.clone() });
        }
        *self.last_error.lock() = text;
    }

    /// Adds unreadable events to the list.
    pub(crate) fn note_events(&self, topic: u32, bytes: &[Range<u64>], error: &ReadError) {
        let ReadError::Unreadable { first_seq, last_seq, file, .. } = error else { return };
        self.add(UnreadableEvents {
            topic: TopicId(topic),
            first_seq: *first_seq,
            last_seq: *last_seq,
            file: file.clone(),
            bytes: bytes.to_vec(),
            since_ms: self.context.now_ms(),
            error: with_source(error),
        });
    }

    /// Removes events from the list, because they were read.
    pub(crate) fn note_read(&self, topic: u32, first: u64, end: u64) {
        self.remove(TopicId(topic), first, end);
    }

    /// The current state. Notifies the observer if all events have become readable again.
    pub(crate) fn health(&self) -> ReadHealth {
        let age_ms = self.context.now_ms().saturating_sub(self.failed_ms.load(Ordering::Acquire));
        // A negative age means that the clock was set back. It must not keep the log degraded.
        let is_recent = (0..RECENT_MS).contains(&age_ms);
        let is_bad = self.is_any() || is_recent;
        if !is_bad && self.is_reported.swap(false, Ordering::AcqRel) {
            self.context.observer().notice(&Notice::ReadableAgain);
        }
        ReadHealth {
            errors: self.errors.load(Ordering::Relaxed),
            events_unreadable: self.count(),
            problem: is_bad.then(|| self.last_error.lock().clone()),
        }
    }
}

fn with_source(error: &ReadError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
