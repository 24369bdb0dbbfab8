//! Which dead letters of a topic are closed, and how: redriven or discarded. All others are open.

use super::state_record::{LetterClosing, StateRecord};
use crate::delivery::SettledSeqs;
use prombus_log::TopicId;

/// The closed dead letters of one dead-letter topic, by seq. A closed letter stays closed, and the first closing counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosedLetters {
    /// All closed letters, and all seqs below the first one that is stored.
    closed: SettledSeqs,
    /// The closed letters that were discarded; the others were redriven.
    discarded: SettledSeqs,
}

impl ClosedLetters {
    /// Closes a range of letters, both ends included. Letters that are closed already stay as they are. Returns how many were
    /// open.
    pub fn close(&mut self, closing: LetterClosing, first: u64, last: u64) -> u64 {
        let mut open = Vec::new();
        self.closed.unsettled(first, last, |first, last| open.push((first, last)));
        for &(first, last) in &open {
            self.closed.insert(first, last);
            if closing == LetterClosing::Discarded {
                self.discarded.insert(first, last);
            }
        }
        open.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// How a letter was closed; `None` if it is open.
    pub fn closing(&self, seq: u64) -> Option<LetterClosing> {
        let is_discarded = self.discarded.contains(seq);
        let closing = if is_discarded { LetterClosing::Discarded } else { LetterClosing::Redriven };
        self.closed.contains(seq).then_some(closing)
    }

    /// The number of open letters with seqs in `first..=last`.
    pub fn open_in(&self, first: u64, last: u64) -> u64 {
        let mut open = 0;
        self.closed.unsettled(first, last, |first, last| open += last - first + 1);
        open
    }

    /// The ranges of letters in `first..=last` that were closed in this way, in order, both ends included.
    pub fn ranges(&self, closing: LetterClosing, first: u64, last: u64) -> Vec<(u64, u64)> {
        let mut ranges = Vec::new();
        for (from, to) in
            all_ranges(if closing == LetterClosing::Discarded { &self.discarded } else { &self.closed })
        {
            let (from, to) = (from.max(first), to.min(last));
            match closing {
                LetterClosing::Discarded if from <= to => ranges.push((from, to)),
                LetterClosing::Redriven if from <= to => {
                    self.discarded.unsettled(from, to, |from, to| ranges.push((from, to)));
                }
                _ => {}
            }
        }
        ranges
    }

    /// Forgets the letters below a seq, which were removed.
    pub(crate) fn forget_below(&mut self, first_seq: u64) {
        if first_seq > 1 {
            self.closed.insert(1, first_seq - 1);
            // The ranges of removed letters become one range, so that they do not accumulate.
            if all_ranges(&self.discarded).any(|(first, _)| first < first_seq) {
                self.discarded.insert(1, first_seq - 1);
            }
        }
    }

    /// Records that reproduce this value.
    pub(super) fn records(&self, topic: TopicId) -> impl Iterator<Item = StateRecord> {
        // The first closing counts, so the discarded ones come first.
        let parts = [(LetterClosing::Discarded, &self.discarded), (LetterClosing::Redriven, &self.closed)];
        let parts = parts.map(|(closing, seqs)| (closing, all_ranges(seqs).collect::<Vec<_>>()));
        let records = parts.into_iter().filter(|(_, seqs)| !seqs.is_empty());
        records.map(move |(closing, seqs)| StateRecord::LettersClosed { topic, closing, seqs })
    }
}

/// All ranges of a set, from seq 1 on.
fn all_ranges(seqs: &SettledSeqs) -> impl Iterator<Item = (u64, u64)> + '_ {
    (seqs.floor() > 0).then_some((1, seqs.floor())).into_iter().chain(seqs.above())
}

#[cfg(test)]
mod tests {
    use super::*;
    use LetterClosing::{Discarded, Redriven};

    #[test]
    fn the_first_closing_of_a_letter_counts() {
        let mut letters = ClosedLetters::default();
        assert_eq!(letters.close(Redriven, 3, 5), 3);
        assert_eq!(letters.close(Discarded, 1, 7), 4);
        assert_eq!(letters.close(Redriven, 1, 8), 1);
        let states: Vec<_> = (1..=9).map(|seq| letters.closing(seq)).collect();
        let [d, r] = [Some(Discarded), Some(Redriven)];
        assert_eq!(states, [d, d, r, r, r, d, d, r, None]);
        assert_eq!(letters.open_in(1, 10), 2);
        assert_eq!(letters.ranges(Discarded, 2, 10), [(2, 2), (6, 7)]);
        assert_eq!(letters.ranges(Redriven, 1, 10), [(3, 5), (8, 8)]);
    }

    #[test]
    fn records_reproduce_the_closed_letters() {
        let mut letters = ClosedLetters::default();
        for (closing, first, last) in
            [(Redriven, 1, 2), (Discarded, 4, 4), (Redriven, 9, 9), (Discarded, 3, 3)]
        {
            letters.close(closing, first, last);
        }
        let mut copy = ClosedLetters::default();
        for record in letters.records(TopicId::from_number(1)) {
            let StateRecord::LettersClosed { closing, seqs, .. } = record else { panic!("{record:?}") };
            for (first, last) in seqs {
                copy.close(closing, first, last);
            }
        }
        assert_eq!(copy, letters);
    }

    #[test]
    fn removed_letters_are_not_open_and_take_no_memory() {
        let mut letters = ClosedLetters::default();
        for seq in (1..1_000).step_by(2) {
            letters.close(Discarded, seq, seq);
        }
        letters.forget_below(998);
        assert_eq!(letters.open_in(1, 1_001), 3);
        assert_eq!(letters.records(TopicId::from_number(1)).count(), 2);
        assert_eq!(all_ranges(&letters.discarded).count(), 2);
    }
}
