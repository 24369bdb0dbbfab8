//! Cleans the log. Retention, compaction and the deletion of topics are one job: the caller says which events live
//! (must be kept), segments without live events are retired (removed from the log, so that their files can be
//! recycled), and neighbouring segments whose live events fit into one segment are rewritten, with their events grouped
//! by topic.
//!
//! Only sealed segments before the mark of the older checkpoint (the end of the last batch that it covers) are cleaned:
//! both checkpoints cover the state records in these segments, so these records are dead too. To clean later segments,
//! cleaning first writes new checkpoints. Cleaning does not affect new seqs, because checkpoints contain each topic's
//! newest seq.
//!
//! The index of a segment shows how much of it lives. A damaged segment is never rewritten: readers must find a live
//! damaged event as damaged, and not as cleaned. When no event in it lives, it is retired like any other. An unreadable
//! segment stays as it is while it cannot be read. Only retention and the deletion of topics may remove it as a whole,
//! because they do not have to read it.
//!
//! **Invariant:** no lock is held while segments are read or written, or while the caller's [`Liveness`] runs. After
//! cleaning, the live events of any two neighbouring segments that it may rewrite do not fit into one segment. So these
//! segments take at most twice the size of their live events, plus one segment.

use crate::clean::clean_plan::RewriteGroup;
use crate::clean::clean_stop::CleanStop;
use crate::clean::keep_ids::Keep;
use crate::clean::liveness::{CleanOptions, CleanReport, Liveness};
use crate::clean::rewrite_segments::{Rewritten, rewrite, rewritten_room};
use crate::clean::segment_liveness::SegmentLiveness;
use crate::error::Unavailable;
use crate::index::Index;
use crate::layout::{SEGMENT_DATA_START, index_name};
use crate::maintain::long_jobs::{JobKind, Pace, Refused};
use crate::maintain::maintenance::Maintenance;
use crate::maintain::retire_segments::SegmentChange;
use crate::read::kept_ids::KeptIds;
use crate::segment::Segment;
use crate::storage::is_full;
use std::collections::HashSet;
use std::sync::Arc;

/// Cleans everything that can be cleaned at present. A second call while one runs does nothing.
pub(crate) fn clean(
    maintenance: &Maintenance,
    liveness: &dyn Liveness,
    options: &CleanOptions,
) -> Result<CleanReport, Unavailable> {
    let context = &maintenance.context;
    context.failure.check()?;
    let job = match maintenance.jobs.begin(JobKind::Clean) {
        Ok(job) => job,
        Err(Refused::Busy) => return Ok(CleanReport::default()),
        Err(Refused::Stopped) => return Err(context.why_stopped()),
    };
    let mut cleaner = Cleaner {
        live: SegmentLiveness { maintenance, liveness, options },
        pace: maintenance.pace(options.duty_percent),
        report: CleanReport::default(),
        unreadable: HashSet::new(),
    };
    let cleaned = cleaner.run();
    let mut report = cleaner.report;
    match cleaned {
        Ok(()) | Err(CleanStop::Stopped | CleanStop::Damaged { .. }) => {}
        Err(CleanStop::Unreadable { .. }) => report.was_unreadable = true,
        Err(CleanStop::Io(error)) if is_full(&error) => report.was_full = true,
        Err(CleanStop::Io(error)) => context.fail(format!("cleaning: {error}")),
    }
    drop(job);
    context.failure.check()?;
    maintenance.committed.maintenance_due.notify();
    Ok(report)
}

struct Cleaner<'a> {
    live: SegmentLiveness<'a>,
    pace: Pace<'a>,
    report: CleanReport,
    /// Segments that could not be read in this cleaning.
    unreadable: HashSet<u64>,
}

impl Cleaner<'_> {
    fn run(&mut self) -> Result<(), CleanStop> {
        while self.round()? {}
        self.live.merge_kept()
    }

    /// Plans and cleans. Returns true if a new plan is needed because a segment turned out to be damaged or unreadable.
    fn round(&mut self) -> Result<bool, CleanStop> {
        let maintenance = self.live.maintenance;
        let segments = {
            let view = maintenance.committed.view();
            // No checkpoint can cover the segment with the newest batch.
            let end = view.segments.iter().position(|segment| segment.id.number == view.mark.segment);
            view.segments[..end.unwrap_or(0)].to_vec()
        };
        let mut left_alone = maintenance.work().ok_or(CleanStop::Stopped)?.damaged.clone();
        left_alone.extend(&self.unreadable);
        let room = rewritten_room(maintenance.context.options.segment_bytes);
        let mut plan = self.live.plan(&segments, &left_alone, room, &mut self.pace)?;
        self.report.was_unreadable |= plan.was_unreadable;
        drop(segments);
        let needed = plan.needs_covered();
        if needed == 0 {
            return Ok(false);
        }
        plan.limit_to(self.cover(needed)?);
        if !self.retire_dead(plan.dead)? {
            // A dead segment that stays may be between the segments of a planned group. Merging them across it would
            // change the log order.
            return Ok(false);
        }
        // Each group is dropped as soon as it is rewritten, because a file is not recycled while anything holds its
        // segment.
        for group in plan.groups {
            match self.rewrite_group(&group) {
                Err(CleanStop::Damaged { segment }) => {
                    maintenance.work().ok_or(CleanStop::Stopped)?.damaged.insert(segment);
                    return Ok(true);
                }
                Err(CleanStop::Unreadable { segment }) => {
                    self.unreadable.insert(segment);
                    self.report.was_unreadable = true;
                    return Ok(true);
                }
                rewritten => rewritten?,
            }
        }
        Ok(false)
    }

    /// Writes checkpoints until both cover `needed` segments. Returns how many they cover.
    fn cover(&self, needed: usize) -> Result<usize, CleanStop> {
        let maintenance = self.live.maintenance;
        let mut work = maintenance.work().ok_or(CleanStop::Stopped)?;
        for _ in 0..2 {
            let covered = work.covered();
            if covered >= needed || !work.checkpoint()? {
                return Ok(covered);
            }
        }
        Ok(work.covered())
    }

    /// Retires the segments without a live event, with one write of the manifest. Returns false if some had to stay.
    fn retire_dead(&mut self, dead: Vec<(usize, Arc<Segment>, u64)>) -> Result<bool, CleanStop> {
        let maintenance = self.live.maintenance;
        let mut gone = Vec::with_capacity(dead.len());
        let mut kept = Vec::new();
        let mut done = CleanReport::default();
        let mut are_all_gone = true;
        for (_, segment, events) in dead {
            if !self.pace.rest() {
                return Err(CleanStop::Stopped);
            }
            match self.live.keep_of_dead(&segment)? {
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
            let mut work = maintenance.work().ok_or(CleanStop::Stopped)?;
            work.retire(&SegmentChange { gone: &gone, replaced_by: &[], kept: &kept })?;
            self.report.segments_retired += done.segments_retired;
            self.report.events_removed += done.events_removed;
            self.report.bytes_removed += done.bytes_removed;
        }
        Ok(are_all_gone)
    }

    /// Replaces a group by new segments that contain only its live events.
    fn rewrite_group(&mut self, group: &RewriteGroup) -> Result<(), CleanStop> {
        let maintenance = self.live.maintenance;
        loop {
            match self.try_rewrite(group) {
                // Retired files are kept for recycling, but removing one makes room to continue cleaning, which frees
                // more.
                Err(CleanStop::Io(error)) if is_full(&error) => {
                    let Some(mut work) = maintenance.work() else { return Err(error.into()) };
                    if !work.free_one_retired()? {
                        return Err(error.into());
                    }
                }
                rewritten => return rewritten,
            }
        }
    }

    fn try_rewrite(&mut self, group: &RewriteGroup) -> Result<(), CleanStop> {
        let maintenance = self.live.maintenance;
        let mut rewritten = rewrite(&self.live, group, &mut self.pace)?;
        let removed_ids = std::mem::take(&mut rewritten.removed_ids);
        let mut kept = None;
        let replaced = self.replace(group, &rewritten, removed_ids, &mut kept);
        if let Err(CleanStop::Io(error)) = &replaced
            && is_full(error)
        {
            // The manifest does not list these files, so they would only occupy space.
            rewritten.discard(&*maintenance.context.storage);
            if let Some(kept) = kept {
                let _ = maintenance.context.storage.remove(&index_name(kept.row.number));
            }
        }
        replaced
    }

    fn replace(
        &mut self,
        group: &RewriteGroup,
        rewritten: &Rewritten,
        removed_ids: Index,
        kept: &mut Option<Arc<KeptIds>>,
    ) -> Result<(), CleanStop> {
        let maintenance = self.live.maintenance;
        *kept = self.live.keep_removed(&removed_ids)?;
        drop(removed_ids);
        let sealed = |segments: &[Arc<Segment>]| segments.iter().filter_map(|one| one.sealed()).sum::<u64>();
        let (before, after) = (sealed(&group.segments), sealed(&rewritten.segments));
        let mut work = maintenance.work().ok_or(CleanStop::Stopped)?;
        let change =
            SegmentChange { gone: &group.segments, replaced_by: &rewritten.segments, kept: kept.as_slice() };
        work.retire(&change)?;
        self.report.segments_rewritten += group.segments.len();
        self.report.events_removed += rewritten.events_removed;
        self.report.bytes_removed += before.saturating_sub(after);
        Ok(())
    }
}
