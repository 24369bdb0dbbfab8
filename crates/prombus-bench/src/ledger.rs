//! Accounts for every message of a run: whether it was answered, and each of its deliveries to every group.

use crate::stamp::Stamp;

/// A dense set of numbers, as a bitmap.
#[derive(Debug, Default)]
struct Numbers {
    /// One bit per number.
    words: Vec<u64>,
    /// How many numbers the set contains.
    count: u64,
}

impl Numbers {
    /// Adds a number. Returns false if the set already contained it.
    fn insert(&mut self, number: u64) -> bool {
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if word >= self.words.len() {
            self.words.resize((word + 1).next_power_of_two(), 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u64::from(is_new);
        is_new
    }
}

/// The messages that one group has received, or the messages that were answered.
#[derive(Debug)]
struct Tally {
    /// The numbers of the messages, by publisher.
    seen: Vec<Numbers>,
    /// The highest number so far, by publisher and topic.
    last: Vec<Option<u64>>,
    /// Messages that were received or answered again, and messages of unknown publishers.
    doubled: u64,
    /// Messages that arrived after a later message of the same publisher and topic.
    out_of_order: u64,
}

impl Tally {
    fn new(publishers: usize, topics: usize) -> Self {
        let seen = (0..publishers).map(|_| Numbers::default()).collect();
        Self { seen, last: vec![None; publishers * topics], doubled: 0, out_of_order: 0 }
    }

    fn note(&mut self, publisher: usize, number: u64, topics: usize) {
        let Some(seen) = self.seen.get_mut(publisher) else {
            self.doubled += 1;
            return;
        };
        if !seen.insert(number) {
            self.doubled += 1;
            return;
        }
        let last = &mut self.last[publisher * topics + (number % topics as u64) as usize];
        if last.is_some_and(|last| number < last) {
            self.out_of_order += 1;
        }
        *last = Some(number.max(last.unwrap_or(0)));
    }

    fn count(&self) -> u64 {
        self.seen.iter().map(|numbers| numbers.count).sum()
    }
}

/// The account of a run.
#[derive(Debug)]
pub struct Ledger {
    /// The number of topics.
    topics: usize,
    /// Messages that each publisher sent.
    sent: Vec<u64>,
    /// The answered messages.
    answers: Tally,
    /// The messages that each group received.
    groups: Vec<Tally>,
}

/// The totals of a ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Balance {
    /// Messages that were sent.
    pub sent: u64,
    /// Messages that were answered OK.
    pub answered: u64,
    /// Deliveries to all groups; each message is counted once per group.
    pub delivered: u64,
    /// Messages without an answer, plus answered messages that a group did not receive, counted once per group.
    pub lost: u64,
    /// Repeated answers and deliveries, and deliveries of unknown publishers' messages.
    pub doubled: u64,
    /// Answers and deliveries that arrived after a later one of the same publisher and topic.
    pub out_of_order: u64,
}

impl Balance {
    /// Whether each message was answered and delivered exactly once and in order.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.doubled == 0 && self.out_of_order == 0
    }
}

impl Ledger {
    /// An empty ledger. A publisher's message `n` goes to topic `n % topics`.
    #[must_use]
    pub fn new(publishers: usize, topics: usize, groups: usize) -> Self {
        Self {
            topics,
            sent: vec![0; publishers],
            answers: Tally::new(publishers, topics),
            groups: (0..groups).map(|_| Tally::new(publishers, topics)).collect(),
        }
    }

    /// Records that the publisher sends a message. Returns the message's number.
    pub fn send(&mut self, publisher: usize) -> u64 {
        let number = self.sent[publisher];
        self.sent[publisher] += 1;
        number
    }

    /// Records that a message was answered OK.
    pub fn answer(&mut self, publisher: usize, number: u64) {
        self.answers.note(publisher, number, self.topics);
    }

    /// Records a delivery to a group.
    pub fn deliver(&mut self, group: usize, stamp: Stamp) {
        self.groups[group].note(usize::from(stamp.publisher), stamp.number, self.topics);
    }

    /// Messages sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.iter().sum()
    }

    /// Messages answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answers.count()
    }

    /// Deliveries so far; each message is counted once per group.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.groups.iter().map(Tally::count).sum()
    }

    /// Replaces the groups by new ones without deliveries. The counts of the previous groups are dropped.
    pub fn set_groups(&mut self, groups: usize) {
        let publishers = self.sent.len();
        self.groups = (0..groups).map(|_| Tally::new(publishers, self.topics)).collect();
    }

    /// The totals so far.
    #[must_use]
    pub fn balance(&self) -> Balance {
        let mut balance = Balance { sent: self.sent(), answered: self.answered(), ..Balance::default() };
        balance.lost = balance.sent.saturating_sub(balance.answered);
        for tally in self.groups.iter().chain([&self.answers]) {
            balance.doubled += tally.doubled;
            balance.out_of_order += tally.out_of_order;
        }
        for tally in &self.groups {
            balance.delivered += tally.count();
            for (answered, seen) in self.answers.seen.iter().zip(&tally.seen) {
                let missing = answered.words.iter().enumerate().map(|(at, answered)| {
                    u64::from((answered & !seen.words.get(at).copied().unwrap_or(0)).count_ones())
                });
                balance.lost += missing.sum::<u64>();
            }
        }
        balance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(number: u64) -> Stamp {
        Stamp { publisher: 0, number, due_ns: 0 }
    }

    #[test]
    fn messages_delivered_once_and_in_order_are_clean() {
        let mut ledger = Ledger::new(1, 2, 2);
        for _ in 0..100 {
            let number = ledger.send(0);
            ledger.answer(0, number);
            ledger.deliver(0, stamp(number));
            ledger.deliver(1, stamp(number));
        }
        let balance = ledger.balance();
        assert!(balance.is_clean());
        assert_eq!((balance.sent, balance.answered, balance.delivered), (100, 100, 200));
    }

    #[test]
    fn order_is_checked_per_topic() {
        let mut ledger = Ledger::new(1, 2, 1);
        for _ in 0..4 {
            let number = ledger.send(0);
            ledger.answer(0, number);
        }
        for number in [1, 3, 0, 2] {
            ledger.deliver(0, stamp(number));
        }
        assert!(ledger.balance().is_clean());
    }

    #[test]
    fn each_fault_is_counted() {
        let mut ledger = Ledger::new(1, 1, 1);
        for _ in 0..5 {
            ledger.send(0);
        }
        for number in [0, 1, 2, 3] {
            ledger.answer(0, number);
        }
        for number in [0, 2, 1, 2] {
            ledger.deliver(0, stamp(number));
        }
        // Number 4 was never answered, 3 never delivered; 1 arrived after 2, and 2 arrived twice.
        let balance = ledger.balance();
        assert_eq!((balance.lost, balance.doubled, balance.out_of_order), (2, 1, 1));
    }

    #[test]
    fn a_message_of_an_unknown_publisher_is_a_fault() {
        let mut ledger = Ledger::new(1, 1, 1);
        ledger.deliver(0, Stamp { publisher: 7, number: 0, due_ns: 0 });
        assert!(!ledger.balance().is_clean());
    }
}
