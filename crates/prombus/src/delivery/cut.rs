//! Events that retention removed before the group settled them.

use super::group::Group;
use super::lease::UnsettledState;
use super::{Position, SourceId};

impl Group {
    /// Records that all events of a topic below `first_seq` were removed. Events that wait for their first delivery or for a
    /// redelivery are settled; members may still settle events that they hold. Returns how many events the group missed.
    pub fn cut(&mut self, id: SourceId, first_seq: u64) -> u64 {
        let last = first_seq.saturating_sub(1);
        let source = &mut self.sources[id.0 as usize];
        if last <= source.settled.floor() {
            return 0;
        }
        let mut missed = 0;
        let mut gone: Vec<(u64, u64)> = Vec::new();
        while let Some(range) = source.fresh.front_mut()
            && range.0 <= last
        {
            gone.push((range.0, range.1.min(last)));
            range.0 = last + 1;
            if range.0 > range.1 {
                source.fresh.pop_front();
            }
        }
        gone.extend(source.take_aside_to(last));
        if source.granted_to < last {
            // The group has also missed the events whose seqs were not granted yet.
            source.settled.unsettled(source.granted_to + 1, last, |first, last| gone.push((first, last)));
            source.granted_to = last;
            source.restored = source.restored.split_off(&first_seq);
        }
        if source.fresh.is_empty() && std::mem::replace(&mut source.is_active, false) {
            self.active.retain(|&other| other != id);
        }
        let is_gone = |position: &Position| position.source == id && position.seq <= last;
        let waiting = self.unsettled.iter().filter(|(position, it)| {
            is_gone(position) && matches!(it.state, UnsettledState::Waiting | UnsettledState::Due)
        });
        gone.extend(waiting.map(|(position, _)| (position.seq, position.seq)));
        gone.sort_unstable();
        for (first, last) in gone {
            missed += last - first + 1;
            self.remove_unsettled(Position { source: id, seq: first });
            self.sources[id.0 as usize].settled.insert(first, last);
            self.changes.settle(id, first, last);
        }
        self.activate(id);
        self.counters.missed += missed;
        missed
    }
}
