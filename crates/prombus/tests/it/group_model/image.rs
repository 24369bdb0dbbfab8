//! What is on disk of a group: the records that the machine asked for, written in order, durable up to some generation, folded
//! when they are read again. Beside each record stands what the model says must be known once it is durable.

use prombus::delivery::{Changes, Millis, Position, Restored, SettledSeqs, SourceId};
use prombus_protocol::RedeliveryReason;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is known of an event that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub attempts: u32,
    pub not_before: Millis,
    pub reason: Option<RedeliveryReason>,
}

/// What is known of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicImage {
    pub settled: BTreeSet<u64>,
    pub attempts: BTreeMap<u64, Kept>,
    /// The lease mark.
    pub leased_to: u64,
}

impl TopicImage {
    /// A group that starts behind a seq.
    pub fn up_to(floor: u64) -> Self {
        Self { settled: (1..=floor).collect(), ..Self::default() }
    }

    /// As the machine wants it. `end` is the newest seq of the topic.
    pub fn restored(&self, end: u64) -> Restored {
        let mut settled = SettledSeqs::default();
        for &seq in &self.settled {
            settled.insert(seq, seq);
        }
        let attempts = self.attempts.iter();
        let attempts = attempts.map(|(&seq, kept)| (seq, (kept.attempts, kept.not_before, kept.reason)));
        let restarted_to = self.leased_to.min(end);
        Restored { settled, attempts: attempts.collect(), leased_to: self.leased_to, restarted_to }
    }

    fn settle(&mut self, seq: u64) {
        self.settled.insert(seq);
        self.attempts.remove(&seq);
    }
}

/// One record.
#[derive(Debug)]
pub enum Record {
    /// What the machine gathered.
    Changes(Changes),
    /// A dead letter and its settling.
    GaveUp(Position),
    /// A seek to after a seq, with a lease mark.
    Sought(SourceId, u64, u64),
}

impl Record {
    fn apply(&self, topics: &mut [TopicImage]) {
        match self {
            Self::Changes(changes) => {
                for change in &changes.attempts {
                    let kept = Kept {
                        attempts: change.attempts,
                        not_before: change.not_before,
                        reason: change.reason,
                    };
                    let topic = &mut topics[change.position.source.0 as usize];
                    if !topic.settled.contains(&change.position.seq) {
                        topic.attempts.insert(change.position.seq, kept);
                    }
                }
                for &(source, first, last) in &changes.settled {
                    (first..=last).for_each(|seq| topics[source.0 as usize].settle(seq));
                }
                for &(source, leased_to) in &changes.marks {
                    topics[source.0 as usize].leased_to = leased_to;
                }
            }
            Self::GaveUp(position) => topics[position.source.0 as usize].settle(position.seq),
            Self::Sought(source, floor, leased_to) => {
                topics[source.0 as usize] = TopicImage { leased_to: *leased_to, ..TopicImage::up_to(*floor) };
            }
        }
    }
}

/// The records of a group.
#[derive(Debug)]
pub struct Journal {
    on_disk: Vec<TopicImage>,
    durable: u64,
    /// Not durable yet, each with what must be known once it is.
    written: VecDeque<(Record, Vec<TopicImage>)>,
}

impl Journal {
    /// Topics as they are at first.
    pub fn new(topics: Vec<TopicImage>) -> Self {
        Self { on_disk: topics, durable: 0, written: VecDeque::new() }
    }

    /// The newest durable generation.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The newest written one.
    pub fn generation(&self) -> u64 {
        self.durable + self.written.len() as u64
    }

    /// What is durable.
    pub fn on_disk(&self) -> &[TopicImage] {
        &self.on_disk
    }

    /// Writes what the machine gathered; then this must be known. Answers its generation.
    pub fn write_changes(&mut self, changes: Changes, expected: Vec<TopicImage>) -> u64 {
        self.written.push_back((Record::Changes(changes), expected));
        self.generation()
    }

    /// Writes a record that the caller makes.
    pub fn write(&mut self, record: Record) {
        let newest = self.written.back().map_or(&self.on_disk, |(_, expected)| expected);
        let mut expected = newest.clone();
        record.apply(&mut expected);
        self.written.push_back((record, expected));
    }

    /// Makes everything up to a generation durable.
    pub fn sync(&mut self, generation: u64) {
        while self.durable < generation {
            let (record, expected) = self.written.pop_front().expect("only what was written is synced");
            record.apply(&mut self.on_disk);
            self.durable += 1;
            assert_eq!(
                self.on_disk, expected,
                "generation {} does not hold what it must: {record:?}",
                self.durable
            );
        }
    }

    /// A crash: what was not durable is lost.
    pub fn crash(&mut self) {
        self.written.clear();
    }
}
