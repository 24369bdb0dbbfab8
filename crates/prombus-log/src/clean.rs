//! Retention, compaction and deletion are one job: the caller says which events live, segments without any are recycled, and
//! neighbours whose live events fit into one are rewritten, clustered by topic.
//!
//! Only sealed segments that lie before the older of the two kept checkpoints are touched: the state records in them are
//! covered by both, so they are dead too. Where there is something to clean behind it, cleaning writes checkpoints first. Seqs
//! go on behind what was cleaned, because checkpoints keep each topic's newest one.
//!
//! A segment is judged by its index. One that is damaged is never rewritten, because an event that is damaged and lives must
//! stay damaged for its readers and not become cleaned; once nothing in it lives it goes like any other. One that cannot be
//! read stays as it is until it can; only retention and the deletion of topics, which need not read it, may take it whole.
//!
//! **Invariant:** no lock is held while segments are read or written, nor while the caller is asked. Any two neighbours that
//! cleaning leaves behind have more live events than fit into one segment, so sealed segments take at most twice what lives
//! and one segment more.

use crate::append::TopicId;
use crate::error::Unavailable;
use crate::index::Index;
use crate::jobs::{JobKind, Pace, Refused};
use crate::judge::{Group, Judge};
use crate::kept_ids::{Keep, KeptIds};
use crate::layout::{SEGMENT_DATA_START, index_name};
use crate::log::Shared;
use crate::retire::Change;
use crate::rewrite::{Broken, Rewritten, rewrite, rewritten_room};
use crate::segment::Segment;
use crate::storage::is_full;
use std::collections::HashSet;
use std::sync::Arc;

/// Says which events live. Events of deleted topics are dead without asking.
///
/// It may read the log and append to it, but not close it: closing waits for cleaning, which waits for the answer.
pub trait Liveness {
    /// The first seq of the topic that may live; everything below it is dead. It only rises.
    fn first_live(&self, topic: TopicId) -> u64;
    /// Whether single events at or past [`first_live`](Self::first_live) may be dead (compaction).
    fn is_sparse(&self, topic: TopicId) -> bool;
    /// How many events of a sparse topic live among these seqs, and about how many bytes of frames they take. `None`: not
    /// known, all count as live.
    fn live_in(&self, topic: TopicId, first_seq: u64, last_seq: u64) -> Option<LiveCount>;
    /// Whether one event of a sparse topic, at or past [`first_live`](Self::first_live), lives. Answers only change from true
    /// to false.
    fn is_live(&self, topic: TopicId, seq: u64) -> bool;
}

/// Events and what they take on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveCount {
    /// How many events.
    pub events: u64,
    /// What their frames take.
    pub bytes: u64,
}

/// How a log is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanOptions {
    /// Whether to look at sparse topics; else their events at or past [`Liveness::first_live`] all live.
    pub compact: bool,
    /// Share of the time that reading and writing may take; 100 is as fast as it goes.
    pub duty_percent: u8,
}

impl Default for CleanOptions {
    fn default() -> Self {
        Self { compact: true, duty_percent: 25 }
    }
}

/// What cleaning did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Segments that were all dead and are free to be used again.
    pub segments_retired: usize,
    /// Segments that were rewritten.
    pub segments_rewritten: usize,
    /// Events that are gone.
    pub events_removed: u64,
    /// Bytes of log that are gone.
    pub bytes_removed: u64,
    /// There was no room to rewrite; whole segments were still retired.
    pub was_full: bool,
    /// Some segments could not be read and stayed as they are: worth another try later.
    pub was_unreadable: bool,
}

impl CleanReport {
    /// Whether nothing was removed.
    pub fn is_empty(&self) -> bool {
        self.segments_retired == 0 && self.segments_rewritten == 0
    }
}

impl Shared {
    /// Cleans what can be cleaned now. A second call while one runs does nothing.
    pub(crate) fn clean(
        &self,
        liveness: &dyn Liveness,
        options: &CleanOptions,
    ) -> Result<CleanReport, Unavailable> {
        self.poison.check()?;
        let job = match self.jobs.begin(JobKind::Clean) {
            Ok(job) => job,
            Err(Refused::Busy) => return Ok(CleanReport::default()),
            Err(Refused::Stopped) => {
                self.poison.check()?;
                return Err(Unavailable::Closed);
            }
        };
        let mut cleaner = Cleaner {
            judge: Judge { shared: self, liveness, options },
            pace: Pace::new(self, options.duty_percent),
            report: CleanReport::default(),
            unreadable: HashSet::new(),
        };
        let cleaned = cleaner.run();
        let mut report = cleaner.report;
        match cleaned {
            Ok(()) | Err(Broken::Stopped | Broken::Damaged { .. }) => {}
            Err(Broken::Unreadable { .. }) => report.was_unreadable = true,
            Err(Broken::Io(error)) if is_full(&error) => report.was_full = true,
            Err(Broken::Io(error)) => self.poison(format!("cleaning: {error}")),
        }
        drop(job);
        self.poison.check()?;
        self.wake_housekeeper();
        Ok(report)
    }
}

struct Cleaner<'a> {
    judge: Judge<'a>,
    pace: Pace<'a>,
    report: CleanReport,
    /// Segments that could not be read this time.
    unreadable: HashSet<u64>,
}

impl Cleaner<'_> {
    fn run(&mut self) -> Result<(), Broken> {
        while self.round()? {}
        self.judge.merge_kept()
    }

    /// Judges the log and cleans it; true when it has to be judged again, because a segment is damaged or could not be read.
    fn round(&mut self) -> Result<bool, Broken> {
        let shared = self.judge.shared;
        let segments = {
            let view = shared.view.read();
            // No checkpoint can cover the segment with the newest batch.
            let end = view.segments.iter().position(|segment| segment.id.number == view.mark.segment);
            view.segments[..end.unwrap_or(0)].to_vec()
        };
        let mut left_alone = shared.housekeeper.lock().damaged.clone();
        left_alone.extend(&self.unreadable);
        let room = rewritten_room(shared.options.segment_bytes);
        let mut plan = self.judge.plan(&segments, &left_alone, room, &mut self.pace)?;
        self.report.was_unreadable |= plan.was_unreadable;
        drop(segments);
        let needed = plan.needs_covered();
        if needed == 0 {
            return Ok(false);
        }
        plan.limit_to(self.cover(needed)?);
        if !self.retire_dead(plan.dead)? {
            // What could not go stands between neighbours that may not change places with it.
            return Ok(false);
        }
        // One by one let go of: while somebody holds a segment its file is not used again.
        for group in plan.groups {
            match self.rewrite_group(&group) {
                Err(Broken::Damaged { segment }) => {
                    shared.housekeeper.lock().damaged.insert(segment);
                    return Ok(true);
                }
                Err(Broken::Unreadable { segment }) => {
                    self.unreadable.insert(segment);
                    self.report.was_unreadable = true;
                    return Ok(true);
                }
                rewritten => rewritten?,
            }
        }
        Ok(false)
    }

    /// Writes checkpoints until both cover this many segments; answers how many they do.
    fn cover(&self, needed: usize) -> Result<usize, Broken> {
        let shared = self.judge.shared;
        let mut housekeeper = shared.housekeeper.lock();
        for _ in 0..2 {
            if housekeeper.is_finished {
                return Err(Broken::Stopped);
            }
            let covered = housekeeper.covered(shared)?;
            if covered >= needed || !housekeeper.checkpoint(shared)? {
                return Ok(covered);
            }
        }
        Ok(housekeeper.covered(shared)?)
    }

    /// Retires segments without a live event, all at once; false when some had to stay.
    fn retire_dead(&mut self, dead: Vec<(usize, Arc<Segment>, u64)>) -> Result<bool, Broken> {
        let shared = self.judge.shared;
        let mut gone = Vec::with_capacity(dead.len());
        let mut kept = Vec::new();
        let mut done = CleanReport::default();
        let mut are_all_gone = true;
        for (_, segment, events) in dead {
            if !self.pace.rest() {
                return Err(Broken::Stopped);
            }
            match self.judge.keep_of_dead(&segment)? {
                Keep::Nothing => {}
                Keep::Ids(ids) => kept.push(ids),
                Keep::NotYet => {
                    self.report.was_full = true;
                    are_all_gone = false;
                    continue;
                }
                Keep::Unreadable => {
                    self.report.was_unreadable = true;
                    are_all_gone = false;
                    continue;
                }
            }
            done.segments_retired += 1;
            done.events_removed += events;
            done.bytes_removed += segment.sealed().unwrap_or(SEGMENT_DATA_START) - SEGMENT_DATA_START;
            gone.push(segment);
        }
        if !gone.is_empty() {
            let mut housekeeper = shared.housekeeper.lock();
            if housekeeper.is_finished {
                return Err(Broken::Stopped);
            }
            housekeeper.retire(shared, &Change { gone: &gone, replaced_by: &[], kept: &kept })?;
            self.report.segments_retired += done.segments_retired;
            self.report.events_removed += done.events_removed;
            self.report.bytes_removed += done.bytes_removed;
        }
        Ok(are_all_gone)
    }

    /// Puts what lives in a group into new segments that take its place.
    fn rewrite_group(&mut self, group: &Group) -> Result<(), Broken> {
        let shared = self.judge.shared;
        loop {
            match self.try_rewrite(group) {
                // Retired files wait for publishers; what this frees is more.
                Err(Broken::Io(error)) if is_full(&error) => {
                    let mut housekeeper = shared.housekeeper.lock();
                    if housekeeper.is_finished || !housekeeper.free_one_retired(shared)? {
                        return Err(error.into());
                    }
                }
                rewritten => return rewritten,
            }
        }
    }

    fn try_rewrite(&mut self, group: &Group) -> Result<(), Broken> {
        let shared = self.judge.shared;
        let mut rewritten = rewrite(&self.judge, group, &mut self.pace)?;
        let removed_ids = std::mem::take(&mut rewritten.removed_ids);
        let mut kept = None;
        let replaced = self.replace(group, &rewritten, removed_ids, &mut kept);
        if let Err(Broken::Io(error)) = &replaced
            && is_full(error)
        {
            // The manifest does not name them, so they would only take room.
            rewritten.discard(shared);
            if let Some(kept) = kept {
                let _ = shared.storage.remove(&index_name(kept.row.number));
            }
        }
        replaced
    }

    fn replace(
        &mut self,
        group: &Group,
        rewritten: &Rewritten,
        removed_ids: Index,
        kept: &mut Option<Arc<KeptIds>>,
    ) -> Result<(), Broken> {
        let shared = self.judge.shared;
        *kept = self.judge.keep_removed(&removed_ids)?;
        drop(removed_ids);
        let sealed = |segments: &[Arc<Segment>]| segments.iter().filter_map(|one| one.sealed()).sum::<u64>();
        let (before, after) = (sealed(&group.segments), sealed(&rewritten.segments));
        let mut housekeeper = shared.housekeeper.lock();
        if housekeeper.is_finished {
            return Err(Broken::Stopped);
        }
        let change =
            Change { gone: &group.segments, replaced_by: &rewritten.segments, kept: kept.as_slice() };
        housekeeper.retire(shared, &change)?;
        self.report.segments_rewritten += group.segments.len();
        self.report.events_removed += rewritten.events_removed;
        self.report.bytes_removed += before.saturating_sub(after);
        Ok(())
    }
}
