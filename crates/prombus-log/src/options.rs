//! The options of a log, and its clock.

use crate::error::OpenError;
use crate::layout::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_DATA_START};
use crate::observer::{NoObserver, Observer};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The clock that the log uses.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970. The clock may jump back: commit times and server ids still never decrease.
    fn now_ms(&self) -> i64;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
        }
    }
}

/// The options of a log. The defaults suit a server.
#[derive(Clone)]
pub struct Options {
    /// Size of a segment file. Default: 64 MiB. A change applies to new segments only.
    pub segment_bytes: u64,
    /// Size of the first segment of a new log, so that a log with few events is small. Each new segment is twice as large as
    /// the one before, up to `segment_bytes`. If the disk has no room for that, a smaller segment is created, but not one
    /// smaller than this. At most `segment_bytes` is used. Default: 2 MiB.
    pub first_segment_bytes: u64,
    /// Size of each of the two segments that are reserved for a full disk. Default: 4 MiB.
    pub reserve_bytes: u64,
    /// Number of segments that are prepared in advance. Default: 1.
    pub prepared_segments: usize,
    /// Appends are added to the same batch up to this size. A larger append gets a batch of its own. Default: 4 MiB.
    pub batch_bytes: usize,
    /// Maximum size of the newest committed batches that stay in memory for readers. Default: 64 MiB.
    pub tail_bytes: usize,
    /// A checkpoint is written after this many bytes of log. Default: 32 MiB.
    pub checkpoint_bytes: u64,
    /// Maximum size of the index tables of sealed segments that stay in memory. Default: 32 MiB.
    pub index_cache_bytes: usize,
    /// How long an id that a publisher chose still counts as a duplicate after cleaning has removed its event. Default:
    /// 7 days.
    pub dedupe_ms: i64,
    /// The maximum total size of the files that keep ids of removed events. Above it, the oldest ids are forgotten
    /// early. Default: no limit.
    pub kept_ids_bytes: u64,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Receives commits and notices.
    pub observer: Arc<dyn Observer>,
    /// Whether the log runs its own threads. Default: true. Without threads, the caller does all background work with
    /// [`Log::step_commit`](crate::Log::step_commit) and [`Log::step_housekeeping`](crate::Log::step_housekeeping).
    pub threads: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            first_segment_bytes: 2 << 20,
            reserve_bytes: 4 << 20,
            prepared_segments: 1,
            batch_bytes: 4 << 20,
            tail_bytes: 64 << 20,
            checkpoint_bytes: 32 << 20,
            index_cache_bytes: 32 << 20,
            dedupe_ms: 7 * 24 * 60 * 60 * 1000,
            kept_ids_bytes: u64::MAX,
            clock: Arc::new(SystemClock),
            observer: Arc::new(NoObserver),
            threads: true,
        }
    }
}

impl Options {
    /// The size of the next segment. `newest_bytes`: the size of the newest one, or zero if there is none. `needed_bytes`: the size
    /// that waiting appends need.
    pub(crate) fn next_segment_bytes(&self, newest_bytes: u64, needed_bytes: u64) -> u64 {
        let grown_bytes = newest_bytes.saturating_mul(2).max(self.first_segment_bytes);
        grown_bytes.max(needed_bytes.next_multiple_of(SEGMENT_DATA_START)).min(self.segment_bytes)
    }

    /// The sizes to try after the disk had no room for a segment of `wanted_bytes`: each is half of the one before. The last one
    /// is the size of a first segment, or what waiting appends need if that is more.
    pub(crate) fn smaller_segment_bytes(
        &self,
        wanted_bytes: u64,
        needed_bytes: u64,
    ) -> impl Iterator<Item = u64> + use<> {
        let least_bytes = self.next_segment_bytes(0, needed_bytes);
        let half = |bytes: u64| (bytes / 2).next_multiple_of(SEGMENT_DATA_START);
        let next = move |&bytes: &u64| (bytes > least_bytes).then(|| half(bytes).max(least_bytes));
        std::iter::successors(Some(wanted_bytes), next).skip(1)
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let range = SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX;
        if !range.contains(&self.segment_bytes) {
            return Err(bad(
                "segment_bytes",
                self.segment_bytes,
                &format!("{} to {}", range.start(), range.end()),
            ));
        }
        if !range.contains(&self.first_segment_bytes) {
            return Err(bad(
                "first_segment_bytes",
                self.first_segment_bytes,
                &format!("{} to {}", range.start(), range.end()),
            ));
        }
        if !range.contains(&self.reserve_bytes) {
            return Err(bad(
                "reserve_bytes",
                self.reserve_bytes,
                &format!("{} to {}", range.start(), range.end()),
            ));
        }
        if self.prepared_segments == 0 {
            return Err(bad("prepared_segments", 0, "at least 1"));
        }
        if self.batch_bytes < 1024 {
            return Err(bad("batch_bytes", self.batch_bytes as u64, "at least 1024"));
        }
        if self.dedupe_ms < 0 {
            return Err(OpenError::Options(format!("dedupe_ms is {}; allowed: 0 or more", self.dedupe_ms)));
        }
        if self.checkpoint_bytes < 1024 {
            return Err(bad("checkpoint_bytes", self.checkpoint_bytes, "at least 1024"));
        }
        Ok(())
    }
}

fn bad(name: &str, value: u64, allowed: &str) -> OpenError {
    OpenError::Options(format!("{name} is {value}; allowed: {allowed}"))
}

impl std::fmt::Debug for Options {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Options")
            .field("segment_bytes", &self.segment_bytes)
            .field("first_segment_bytes", &self.first_segment_bytes)
            .field("reserve_bytes", &self.reserve_bytes)
            .field("prepared_segments", &self.prepared_segments)
            .field("batch_bytes", &self.batch_bytes)
            .field("tail_bytes", &self.tail_bytes)
            .field("checkpoint_bytes", &self.checkpoint_bytes)
            .field("index_cache_bytes", &self.index_cache_bytes)
            .field("dedupe_ms", &self.dedupe_ms)
            .field("kept_ids_bytes", &self.kept_ids_bytes)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_segments_end_at_the_size_of_a_first_segment_or_at_the_needed_size() {
        let options = Options::default();
        let smaller = |wanted, needed| options.smaller_segment_bytes(wanted, needed).collect::<Vec<_>>();
        const MIB: u64 = 1 << 20;
        assert_eq!(smaller(64 * MIB, 0), [32 * MIB, 16 * MIB, 8 * MIB, 4 * MIB, 2 * MIB]);
        assert_eq!(smaller(20 * MIB, 7 * MIB), [10 * MIB, 7 * MIB]);
        // All sizes consist of whole pages.
        assert_eq!(smaller(5 * MIB, 3 * MIB - 5), [3 * MIB]);
        assert_eq!(smaller(5 * MIB + 4096, 0), [(5 * MIB) / 2 + 4096, 2 * MIB]);
        assert_eq!(smaller(2 * MIB, 0), [0; 0]);
        let small = Options { segment_bytes: 16 * 1024, ..Options::default() };
        assert_eq!(small.smaller_segment_bytes(16 * 1024, 0).count(), 0);
    }
}
