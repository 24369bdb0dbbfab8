//! Which segments have no live event, and which neighbours are worth rewriting together.

use crate::clean::clean_stop::CleanStop;
use crate::clean::liveness::{CleanOptions, LiveCount};
use crate::clean::segment_liveness::{Census, SegmentLiveness};
use crate::layout::SEGMENT_DATA_START;
use crate::maintain::long_jobs::Pace;
use crate::segment::Segment;
use std::collections::HashSet;
use std::sync::Arc;

/// The smallest write to a file.
const PAGE_BYTES: u64 = 4096;

/// Neighbours that are rewritten together.
pub(crate) struct RewriteGroup {
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Place of the last of them in the log.
    pub(crate) last: usize,
    pub(crate) live_bytes: u64,
}

/// What there is to clean.
#[derive(Default)]
pub(crate) struct CleanPlan {
    /// Segments without a live event, where they stand, and how many events they hold.
    pub(crate) dead: Vec<(usize, Arc<Segment>, u64)>,
    pub(crate) groups: Vec<RewriteGroup>,
    /// Segments were left out because they cannot be read.
    pub(crate) was_unreadable: bool,
}

impl CleanPlan {
    /// How many segments from the oldest on must be covered by both checkpoints for all of it.
    pub(crate) fn needs_covered(&self) -> usize {
        let dead = self.dead.iter().map(|(at, _, _)| at + 1);
        dead.chain(self.groups.iter().map(|group| group.last + 1)).max().unwrap_or(0)
    }

    /// Leaves out what is not covered.
    pub(crate) fn limit_to(&mut self, covered: usize) {
        self.dead.retain(|(at, _, _)| *at < covered);
        self.groups.retain(|group| group.last < covered);
    }
}

impl SegmentLiveness<'_> {
    /// Judges these segments, oldest first. Those in `left_alone`, and those whose index cannot be read now, stay as they are
    /// while anything in them lives.
    pub(crate) fn plan(
        &self,
        segments: &[Arc<Segment>],
        left_alone: &HashSet<u64>,
        room: u64,
        pace: &mut Pace<'_>,
    ) -> Result<CleanPlan, CleanStop> {
        let mut plan = CleanPlan::default();
        let mut group: Option<RewriteGroup> = None;
        for (at, segment) in segments.iter().enumerate() {
            if !pace.rest() {
                return Err(CleanStop::Stopped);
            }
            // What compaction knows of a topic it knows by reading: about a segment that cannot be read it does not decide.
            let is_unreadable = self.maintenance.committed.read_errors.has_file(&segment.name());
            let census = if is_unreadable {
                let options = &CleanOptions { compact: false, ..*self.options };
                SegmentLiveness { options, ..*self }.census(segment)
            } else {
                self.census(segment)
            };
            plan.was_unreadable |= is_unreadable || census.is_err();
            if let Ok(Census { events, live: LiveCount { events: 0, .. } }) = census {
                // Its neighbours become each other's.
                plan.dead.push((at, Arc::clone(segment), events));
                continue;
            }
            let live_bytes = match census {
                Ok(census) if !is_unreadable && !left_alone.contains(&segment.id.number) => census.live.bytes,
                _ => {
                    plan.groups.extend(group.take());
                    continue;
                }
            };
            match &mut group {
                Some(group) if group.live_bytes + live_bytes <= room => {
                    group.segments.push(Arc::clone(segment));
                    group.last = at;
                    group.live_bytes += live_bytes;
                }
                _ => {
                    let segments = vec![Arc::clone(segment)];
                    plan.groups.extend(group.replace(RewriteGroup { segments, last: at, live_bytes }));
                }
            }
        }
        plan.groups.extend(group);
        plan.groups.retain(RewriteGroup::is_worth_it);
        Ok(plan)
    }
}

impl RewriteGroup {
    /// Each merge leaves fewer segments, and a lone one gets half as large at least: nothing is written again and again.
    fn is_worth_it(&self) -> bool {
        let capacity = self.segments[0].id.capacity;
        self.segments.len() > 1
            || (self.live_bytes * 2 <= capacity
                && SEGMENT_DATA_START + self.live_bytes + 2 * PAGE_BYTES <= capacity)
    }
}
