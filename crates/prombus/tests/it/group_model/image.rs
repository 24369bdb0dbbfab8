//! The records of a group on disk: the machine's changes, written in order, durable up to some generation, and folded when
//! they are read. Each record has the state that the model expects once the record is durable.

use prombus::delivery::{Changes, Millis, Position, Restored, SettledSeqs, SourceId};
use prombus_protocol::RedeliveryReason;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The recorded attempts of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub attempts: u32,
    pub not_before: Millis,
    pub reason: Option<RedeliveryReason>,
}

/// The recorded state of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicImage {
    pub settled: BTreeSet<u64>,
    pub attempts: BTreeMap<u64, Kept>,
    /// The lease mark.
    pub leased_to: u64,
}

impl TopicImage {
    /// The state of a group that starts after a seq.
    pub fn up_to(floor: u64) -> Self {
        Self { settled: (1..=floor).collect(), ..Self::default() }
    }

    /// Converts it for the machine. `end` is the newest seq of the topic.
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
    /// Changes that the machine collected.
    Changes(Changes),
    /// A dead letter and the settle of its event.
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
    /// Records that are not durable yet, each with the expected state once it is.
    written: VecDeque<(Record, Vec<TopicImage>)>,
}

impl Journal {
    /// A journal with the initial state of the topics.
    pub fn new(topics: Vec<TopicImage>) -> Self {
        Self { on_disk: topics, durable: 0, written: VecDeque::new() }
    }

    /// The newest durable generation.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The newest written generation.
    pub fn generation(&self) -> u64 {
        self.durable + self.written.len() as u64
    }

    /// The durable state.
    pub fn on_disk(&self) -> &[TopicImage] {
        &self.on_disk
    }

    /// Writes changes of the machine with the expected state, and returns their generation.
    pub fn write_changes(&mut self, changes: Changes, expected: Vec<TopicImage>) -> u64 {
        self.written.push_back((Record::Changes(changes), expected));
        self.generation()
    }

    /// Writes a record of the caller.
    pub fn write(&mut self, record: Record) {
        let newest = self.written.back().map_or(&self.on_disk, |(_, expected)| expected);
        let mut expected = newest.clone();
        record.apply(&mut expected);
        self.written.push_back((record, expected));
    }

    /// Makes everything up to a generation durable.
    pub fn sync(&mut self, generation: u64) {
        while self.durable < generation {
            let (record, expected) = self.written.pop_front().expect("only written records are synced");
            record.apply(&mut self.on_disk);
            self.durable += 1;
            assert_eq!(
                self.on_disk, expected,
                "generation {} has an unexpected state: {record:?}",
                self.durable
            );
        }
    }

    /// Crashes: records that are not durable are lost.
    pub fn crash(&mut self) {
        self.written.clear();
    }
}
