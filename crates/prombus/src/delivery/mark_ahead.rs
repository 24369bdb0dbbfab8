//! The lease mark: a durable upper bound of the seqs of a topic that a group has leased.
//!
//! Only events up to the durable mark are leased for the first time. So after a crash, an unsettled event above the mark
//! was certainly not delivered since the last seek. An unsettled event at or below the mark may have been: its next
//! delivery has the reason `server_restarted`. The mark is recorded well ahead of the leases, together with other changes,
//! so that a pull rarely waits for it. A seek resets the mark. A clean close lowers it to the highest seq that was leased.

use super::SourceId;
use super::group::Group;
use super::lease_mark::LeaseMark;

impl Group {
    /// Records a higher mark, `seq + ahead`, if leases up to `seq` come close to the newest mark. Does nothing while the
    /// newest mark is not durable.
    #[inline]
    pub(super) fn keep_mark_ahead(&mut self, id: SourceId, seq: u64, ahead: u64) {
        let mark = &self.sources[id.0 as usize].mark;
        if mark.gate == 0 && seq + ahead / 2 >= mark.written {
            self.raise_mark(id, seq + ahead);
        }
    }

    #[cold]
    fn raise_mark(&mut self, id: SourceId, to: u64) {
        let mark = &mut self.sources[id.0 as usize].mark;
        mark.written = to;
        mark.gate = u64::MAX;
        self.changes.marks.push((id, to));
        self.ungated_marks.push(id);
    }

    /// Records a mark above the leases if there is none yet: for a new topic, and after a clean restart.
    pub fn prepare_mark(&mut self, id: SourceId) {
        let source = &self.sources[id.0 as usize];
        if source.is_dropped {
            return;
        }
        let leased_to = source.mark.leased_to.max(source.settled.floor());
        self.keep_mark_ahead(id, leased_to, self.mark_ahead);
    }

    /// Calls [`prepare_mark`](Self::prepare_mark) for all topics.
    pub(super) fn prepare_marks(&mut self) {
        for number in 0..self.sources.len() {
            self.prepare_mark(SourceId(number as u32));
        }
    }

    /// Notes that a member waits because the next event of a topic is above the durable mark.
    #[cold]
    pub(super) fn await_mark(&mut self, id: SourceId, next_seq: u64, ahead: u64) {
        self.keep_mark_ahead(id, next_seq, ahead);
        let mark = &mut self.sources[id.0 as usize].mark;
        if !std::mem::replace(&mut mark.is_awaited, true) {
            self.is_mark_awaited = true;
        }
    }

    /// Whether a member has begun to wait for a mark since the last call. If so, the caller should soon write the changes
    /// that it has taken.
    pub fn take_mark_awaited(&mut self) -> bool {
        std::mem::take(&mut self.is_mark_awaited)
    }

    /// Notes a mark that the caller recorded itself, together with a seek, in a record of this generation.
    pub fn marked(&mut self, id: SourceId, to: u64, generation: u64) {
        let mark = &mut self.sources[id.0 as usize].mark;
        mark.written = to;
        mark.gate = generation;
    }

    /// Assigns a generation to the marks that were just taken.
    pub(super) fn gate_marks(&mut self, generation: u64) {
        for id in self.ungated_marks.drain(..) {
            let mark = &mut self.sources[id.0 as usize].mark;
            if mark.gate == u64::MAX {
                mark.gate = generation;
            }
        }
    }

    /// Resets the mark after a seek: from now on, no event above `floor` counts as leased.
    pub(super) fn reset_mark(&mut self, id: SourceId, floor: u64) {
        self.sources[id.0 as usize].mark =
            LeaseMark { durable: floor, written: floor, leased_to: floor, ..LeaseMark::default() };
        self.ungated_marks.retain(|&other| other != id);
    }

    /// Lowers each mark to the highest seq that was leased.
    pub(super) fn write_exact_marks(&mut self) {
        for (number, source) in self.sources.iter_mut().enumerate() {
            let mark = &mut source.mark;
            if mark.written > mark.leased_to && !source.is_dropped {
                mark.written = mark.leased_to;
                self.changes.marks.push((SourceId(number as u32), mark.leased_to));
            }
        }
    }
}
