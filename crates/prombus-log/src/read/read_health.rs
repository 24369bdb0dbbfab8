//! Events that could not be read and are still wanted: which, since when, and where in which file.
//!
//! Readers note what they fail to read and take back what they read later, so the list is what operators must know about now. A
//! successful read pays one atomic load for it while the list is empty.

use crate::context::Context;
use crate::error::ReadError;
use crate::observer::Notice;
use crate::topics::TopicId;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// A read error keeps the log degraded for this long.
const RECENT_MS: i64 = 5_000;
/// Ranges that are remembered; more are only counted.
const RANGES_MAX: usize = 10_000;

/// Events that cannot be read now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableEvents {
    /// The topic's internal id.
    pub topic: TopicId,
    /// The first seq.
    pub first_seq: u64,
    /// The last one.
    pub last_seq: u64,
    /// The file.
    pub file: String,
    /// The bytes that the disk cannot read; none where the file as a whole cannot be opened.
    pub bytes: Vec<Range<u64>>,
    /// When that was noticed first.
    pub since_ms: i64,
    /// What the system said.
    pub error: String,
}

/// How reading goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadHealth {
    /// Reads that failed since the log was opened.
    pub errors: u64,
    /// Events that cannot be read now.
    pub events_unreadable: u64,
    /// What failed last, if that was a moment ago or still holds.
    pub problem: Option<String>,
}

/// The list of unreadable events, and the counters of failed reads.
pub(crate) struct ReadErrors {
    context: Arc<Context>,
    list: Mutex<Vec<UnreadableEvents>>,
    is_any: AtomicBool,
    errors: AtomicU64,
    /// When a read failed last; `i64::MIN` before the first time.
    failed_ms: AtomicI64,
    last_error: Mutex<String>,
    /// The error was told, and not yet its end.
    is_told: AtomicBool,
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
            is_told: AtomicBool::new(false),
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

    /// Adds events; ranges of one topic and file that touch become one.
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

    /// Removes the seqs `first..end` of a topic: they were read, or do not matter any more.
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

    /// Counts a read error, and tells about it unless the last one was told and is not over.
    pub(crate) fn note_error(&self, error: &ReadError) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        self.failed_ms.store(self.context.now_ms(), Ordering::Release);
        let text = with_source(error);
        if !self.is_told.swap(true, Ordering::AcqRel) {
            self.context.observer().notice(&Notice::Unreadable { error: text.clone() });
        }
        *self.last_error.lock() = text;
    }

    /// Notes events that could not be read.
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

    /// Events were read: they are not unreadable any more.
    pub(crate) fn note_read(&self, topic: u32, first: u64, end: u64) {
        self.remove(TopicId(topic), first, end);
    }

    /// How reading goes. Tells when it goes well again.
    pub(crate) fn health(&self) -> ReadHealth {
        let age_ms = self.context.now_ms().saturating_sub(self.failed_ms.load(Ordering::Acquire));
        // A clock that was set back must not keep the log degraded.
        let is_recent = (0..RECENT_MS).contains(&age_ms);
        let is_bad = self.is_any() || is_recent;
        if !is_bad && self.is_told.swap(false, Ordering::AcqRel) {
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
