//! Plans a cleaning: finds the segments without a live event, and the neighbours that are worth rewriting together.

use crate::clean::clean_stop::CleanStop;
use crate::clean::liveness::{CleanOptions, LiveCount};
use crate::clean::segment_liveness::{Census, SegmentLiveness};
use crate::layout::SEGMENT_DATA_START;
use crate::maintain::long_jobs::Pace;
use crate::segment::Segment;
use std::collections::HashSet;
use std::sync::Arc;

/// The size of a rewritten segment is rounded up to this.
const PAGE_BYTES: u64 = 4096;

/// Neighbouring segments that are rewritten together.
pub(crate) struct RewriteGroup {
    pub(crate) segments: Vec<Arc<Segment>>,
    /// The index, in log order, of the last of these segments.
    pub(crate) last: usize,
    /// The size of their live events.
    pub(crate) live_bytes: u64,
}

/// The result of planning.
#[derive(Default)]
pub(crate) struct CleanPlan {
    /// Segments without a live event: the index in log order, the segment, and its number of events.
    pub(crate) dead: Vec<(usize, Arc<Segment>, u64)>,
    /// The groups to rewrite.
    pub(crate) groups: Vec<RewriteGroup>,
    /// Whether segments were left out because they cannot be read.
    pub(crate) was_unreadable: bool,
}

impl CleanPlan {
    /// The number of segments, from the oldest on, that both checkpoints must cover before the whole plan can be executed.
    pub(crate) fn needs_covered(&self) -> usize {
        let dead = self.dead.iter().map(|(at, _, _)| at + 1);
        dead.chain(self.groups.iter().map(|group| group.last + 1)).max().unwrap_or(0)
    }

    /// Removes from the plan all segments except the `covered` oldest ones of the log.
    pub(crate) fn limit_to(&mut self, covered: usize) {
        self.dead.retain(|(at, _, _)| *at < covered);
        self.groups.retain(|group| group.last < covered);
    }
}

impl SegmentLiveness<'_> {
    /// Plans the cleaning of these segments, oldest first. `room` is the maximum size of the live events in a group.
    /// Segments in `left_alone` and segments with unreadable events are not rewritten, but are removed when no event in
    /// them lives. A segment whose index cannot be read at present stays as it is.
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
            // Compaction needs the content of events, so it does not apply to an unreadable segment.
            let is_unreadable = self.maintenance.committed.read_errors.has_file(&segment.name());
            let census = if is_unreadable {
                let options = &CleanOptions { compact: false, ..*self.options };
                SegmentLiveness { options, ..*self }.census(segment)
            } else {
                self.census(segment)
            };
            plan.was_unreadable |= is_unreadable || census.is_err();
            if let Ok(Census { events, live: LiveCount { events: 0, .. } }) = census {
                // When this segment is gone, the segments before and after it are neighbours, so the group continues.
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
    /// Whether to rewrite the group. Several segments are always merged, because that reduces their number. A single
    /// segment is rewritten only if at most half of it lives. So the same events are not rewritten repeatedly without
    /// effect.
    fn is_worth_it(&self) -> bool {
        let capacity = self.segments[0].id.capacity;
        self.segments.len() > 1
            || (self.live_bytes * 2 <= capacity
                && SEGMENT_DATA_START + self.live_bytes + 2 * PAGE_BYTES <= capacity)
    }
}
