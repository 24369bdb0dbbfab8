//! Moving a group to another position in a topic, and topics that are deleted.

use super::group::Group;
use super::member::ReservedRange;
use super::settled::SettledSeqs;
use super::{Position, SourceId};

impl Group {
    /// Moves the group to another position in a topic: all seqs up to `floor` are settled, none above it. All leases and
    /// reservations of the topic are void. The caller records the move.
    pub fn seek(&mut self, id: SourceId, floor: u64) {
        let mut void: Vec<Position> =
            self.unsettled.keys().filter(|position| position.source == id).copied().collect();
        void.sort_unstable();
        for position in void {
            self.forget(position);
        }
        let mut reserved_count = 0;
        for member in self.members.values_mut() {
            member.reserved.retain(|range| range.source != id);
            reserved_count += member.reserved.iter().map(ReservedRange::count).sum::<u64>();
        }
        self.reserved_count = reserved_count;
        self.changes.forget(id);
        self.ungated.retain(|position| position.source != id);
        self.due.retain(|position| position.source != id);
        self.given_up.retain(|give_up| give_up.position.source != id);
        self.put_off.retain(|(_, give_up)| give_up.position.source != id);
        let source = &mut self.sources[id.0 as usize];
        source.settled = SettledSeqs::up_to(floor);
        source.restored.clear();
        source.unreadable.clear();
        source.is_blocked = false;
        source.held_by = None;
        source.fresh.clear();
        source.granted_to = source.granted_to.max(floor);
        if floor < source.granted_to {
            source.fresh.push_back((floor + 1, source.granted_to));
        }
        self.active.retain(|&other| other != id);
        self.sources[id.0 as usize].is_active = false;
        self.reset_mark(id, floor);
        self.activate(id);
    }

    /// Drops a deleted topic: its events are not delivered any more, and its leases are void.
    pub fn drop_source(&mut self, id: SourceId) {
        self.seek(id, self.sources[id.0 as usize].granted_to);
        self.sources[id.0 as usize].is_dropped = true;
    }
}
