//! The states of the dead letters of a topic.

use prombus_protocol::Topic;

/// The states of the letters of a dead-letter topic. A letter is open until it is redriven or discarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterStates {
    /// The dead-letter topic.
    pub topic: Topic,
    /// The lowest seq that may be stored.
    pub first_seq: u64,
    /// The newest seq.
    pub last_seq: u64,
    /// The number of open letters.
    pub open: u64,
    /// The seqs of redriven letters: ranges in order, both ends included.
    pub redriven: Vec<(u64, u64)>,
    /// The seqs of discarded letters: ranges in order, both ends included.
    pub discarded: Vec<(u64, u64)>,
}

/// The result of closing dead letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClosedCount {
    /// The number of letters that were open and are closed now.
    pub closed: u64,
    /// The number of ids that the topic does not have.
    pub unknown: u64,
}
