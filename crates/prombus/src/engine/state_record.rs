//! The records about groups and topics, and their encoding: small records with variable-length numbers, described in
//! `docs/disk-format.md`.
//!
//! Each record changes the state that the earlier records produced, so they are applied in order. A saved state is also a list of
//! records.

use prombus_log::TopicId;
use prombus_protocol::RedeliveryReason;

/// The attempts at an unsettled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupAttempts {
    /// The seq of the event.
    pub seq: u64,
    /// The number of attempts that are used up.
    pub attempts: u32,
    /// The earliest wall clock time of the next attempt, in milliseconds since 1970.
    pub not_before_ms: i64,
    /// Why the event is redelivered.
    pub reason: Option<RedeliveryReason>,
}

/// The progress of a group in one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupProgress {
    /// The topic.
    pub topic: TopicId,
    /// The ranges of seqs that were settled: in order, disjoint, both ends included.
    pub settled: Vec<(u64, u64)>,
    /// The attempts at events, as far as they changed; one entry per event.
    pub attempts: Vec<GroupAttempts>,
    /// The lease mark, if it changed: no event above this seq was ever leased. `None` if it is unchanged.
    pub leased_to: Option<u64>,
}

impl GroupProgress {
    /// Whether the progress needs version 2 of the record.
    fn needs_version_2(&self) -> bool {
        let is_new = |it: &GroupAttempts| it.reason == Some(RedeliveryReason::ServerRestarted);
        self.leased_to.is_some() || self.attempts.iter().any(is_new)
    }
}

/// How a dead letter was closed. A letter without such a record is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LetterClosing {
    /// Its event was published again.
    Redriven,
    /// It was discarded.
    Discarded,
}

/// A record about a group or a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateRecord {
    /// A group was created.
    Made {
        /// The number of the group, which is never reused.
        group: u32,
        /// The topic or pattern that the group reads, as the subscriber wrote it.
        subscription: String,
        /// The name of the group.
        name: String,
        /// More topics and patterns that the group reads.
        topics: Vec<String>,
        /// The filter as JSON; empty if the group has none.
        filter: String,
        /// When the group was created, in milliseconds since 1970.
        made_ms: i64,
        /// The group is deleted after this many milliseconds without members; `None` if its creator did not set a time.
        expire_ms: Option<u64>,
        /// The topics that existed when the group was created, each with the seq after which the group starts. In topics that are
        /// created later, the group starts at the first event.
        starts: Vec<(TopicId, u64)>,
    },
    /// Events were settled or attempted.
    Progress {
        /// The group.
        group: u32,
        /// The progress, by topic.
        topics: Vec<GroupProgress>,
    },
    /// The group was moved: in each topic, everything up to the new floor is settled, and nothing above it.
    Sought {
        /// The group.
        group: u32,
        /// The topics and their new floors.
        floors: Vec<(TopicId, u64)>,
    },
    /// The group was deleted.
    Deleted {
        /// The group.
        group: u32,
    },
    /// The group was paused or resumed.
    Paused {
        /// The group.
        group: u32,
        /// Whether it is paused from now on.
        is_paused: bool,
    },
    /// Retention raised the first seqs of topics: earlier events are not served.
    Cut {
        /// Topics and their first seqs.
        firsts: Vec<(TopicId, u64)>,
    },
    /// The settings of a topic were replaced.
    TopicSet {
        /// The topic's name.
        topic: String,
        /// The settings as JSON; empty if they were removed.
        settings: String,
    },
    /// A topic was deleted. The progress of groups in it is discarded.
    TopicDeleted {
        /// The topic.
        topic: TopicId,
        /// The name of the topic.
        name: String,
    },
    /// A value was stored under a name.
    Kept {
        /// The name.
        name: String,
        /// The value. Only the first value of a name counts.
        value: Vec<u8>,
    },
    /// The store uses a feature. A version that does not know the feature must not open the store.
    Requires {
        /// The feature, e.g. [`ADDRESSEE_FEATURE`].
        feature: String,
    },
    /// Dead letters were closed.
    LettersClosed {
        /// The dead-letter topic.
        topic: TopicId,
        /// How they were closed. The oldest record about a dead letter counts.
        closing: LetterClosing,
        /// The ranges of their seqs: in order, disjoint, both ends included.
        seqs: Vec<(u64, u64)>,
    },
}

/// The feature of a store that has events with an addressee. A version that does not know it would deliver them to all groups.
pub const ADDRESSEE_FEATURE: &str = "addressee";

const MADE: u32 = 1;
const PROGRESS: u32 = 2;
const SOUGHT: u32 = 3;
const DELETED: u32 = 4;
const CUT: u32 = 5;
const TOPIC_SET: u32 = 6;
const TOPIC_DELETED: u32 = 7;
/// Progress that contains lease marks, or events that are redelivered because of a restart. Older versions of the program do not
/// know this tag and refuse to open the log.
const PROGRESS_2: u32 = 8;
/// A group with an expiry time. Older versions of the program do not know this tag and refuse to open the log.
const MADE_2: u32 = 9;
/// A group that was paused or resumed. Older versions of the program do not know this tag and refuse to open the log.
const PAUSED: u32 = 10;
/// A named value. Older versions of the program do not know this tag and refuse to open a log that contains it.
const KEPT: u32 = 16;
/// A feature that the store uses. Older versions of the program do not know this tag and refuse to open a log that contains it.
const REQUIRES: u32 = 20;
/// Closed dead letters. Older versions of the program do not know this tag and refuse to open a log that contains it.
const LETTERS_CLOSED: u32 = 21;

impl StateRecord {
    /// The tag that identifies the kind of record in the log.
    pub fn tag(&self) -> u32 {
        match self {
            Self::Made { expire_ms: Some(_), .. } => MADE_2,
            Self::Made { .. } => MADE,
            Self::Progress { topics, .. } if topics.iter().any(GroupProgress::needs_version_2) => PROGRESS_2,
            Self::Progress { .. } => PROGRESS,
            Self::Sought { .. } => SOUGHT,
            Self::Deleted { .. } => DELETED,
            Self::Paused { .. } => PAUSED,
            Self::Cut { .. } => CUT,
            Self::TopicSet { .. } => TOPIC_SET,
            Self::TopicDeleted { .. } => TOPIC_DELETED,
            Self::Kept { .. } => KEPT,
            Self::Requires { .. } => REQUIRES,
            Self::LettersClosed { .. } => LETTERS_CLOSED,
        }
    }

    /// Encodes the record.
    pub fn put(&self, into: &mut Vec<u8>) {
        match self {
            Self::Made { group, subscription, name, topics, filter, made_ms, expire_ms, starts } => {
                put_number(into, u64::from(*group));
                put_text(into, subscription);
                put_text(into, name);
                put_number(into, topics.len() as u64);
                topics.iter().for_each(|topic| put_text(into, topic));
                put_text(into, filter);
                put_signed(into, *made_ms);
                if let Some(expire_ms) = expire_ms {
                    put_number(into, *expire_ms);
                }
                put_places(into, starts);
            }
            Self::Progress { group, topics } => {
                put_number(into, u64::from(*group));
                put_number(into, topics.len() as u64);
                let has_marks = self.tag() == PROGRESS_2;
                for progress in topics {
                    put_progress(into, progress);
                    if has_marks {
                        put_number(into, progress.leased_to.map_or(0, |seq| seq.saturating_add(1)));
                    }
                }
            }
            Self::Sought { group, floors } => {
                put_number(into, u64::from(*group));
                put_places(into, floors);
            }
            Self::Deleted { group } => put_number(into, u64::from(*group)),
            Self::Paused { group, is_paused } => {
                put_number(into, u64::from(*group));
                into.push(u8::from(*is_paused));
            }
            Self::Cut { firsts } => put_places(into, firsts),
            Self::TopicSet { topic, settings } => {
                put_text(into, topic);
                put_text(into, settings);
            }
            Self::TopicDeleted { topic, name } => {
                put_number(into, u64::from(topic.number()));
                put_text(into, name);
            }
            Self::Kept { name, value } => {
                put_text(into, name);
                put_bytes(into, value);
            }
            Self::Requires { feature } => put_text(into, feature),
            Self::LettersClosed { topic, closing, seqs } => {
                put_number(into, u64::from(topic.number()));
                into.push(match closing {
                    LetterClosing::Redriven => 1,
                    LetterClosing::Discarded => 2,
                });
                put_ranges(into, seqs);
            }
        }
    }

    /// Decodes a record; `None` if this version cannot decode it.
    pub fn parse(tag: u32, bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields { bytes };
        let record = match tag {
            MADE | MADE_2 => Self::Made {
                group: fields.small()?,
                subscription: fields.text()?,
                name: fields.text()?,
                topics: fields.list(Fields::text)?,
                filter: fields.text()?,
                made_ms: fields.signed()?,
                expire_ms: if tag == MADE_2 { Some(fields.number()?) } else { None },
                starts: fields.list(Fields::place)?,
            },
            PROGRESS => Self::Progress { group: fields.small()?, topics: fields.list(Fields::progress)? },
            PROGRESS_2 => {
                Self::Progress { group: fields.small()?, topics: fields.list(Fields::progress_with_mark)? }
            }
            SOUGHT => Self::Sought { group: fields.small()?, floors: fields.list(Fields::place)? },
            DELETED => Self::Deleted { group: fields.small()? },
            PAUSED => Self::Paused { group: fields.small()?, is_paused: fields.flag()? },
            CUT => Self::Cut { firsts: fields.list(Fields::place)? },
            TOPIC_SET => Self::TopicSet { topic: fields.text()?, settings: fields.text()? },
            TOPIC_DELETED => Self::TopicDeleted { topic: fields.topic()?, name: fields.text()? },
            KEPT => Self::Kept { name: fields.text()?, value: fields.byte_list()? },
            REQUIRES => Self::Requires { feature: fields.text()? },
            LETTERS_CLOSED => Self::LettersClosed {
                topic: fields.topic()?,
                closing: match fields.byte()? {
                    1 => LetterClosing::Redriven,
                    2 => LetterClosing::Discarded,
                    _ => return None,
                },
                seqs: fields.ranges()?,
            },
            _ => return None,
        };
        fields.bytes.is_empty().then_some(record)
    }
}

fn put_number(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

fn put_signed(into: &mut Vec<u8>, value: i64) {
    put_number(into, (value << 1 ^ value >> 63) as u64);
}

fn put_text(into: &mut Vec<u8>, text: &str) {
    put_bytes(into, text.as_bytes());
}

fn put_bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    put_number(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}

fn put_places(into: &mut Vec<u8>, places: &[(TopicId, u64)]) {
    put_number(into, places.len() as u64);
    for (topic, seq) in places {
        put_number(into, u64::from(topic.number()));
        put_number(into, *seq);
    }
}

fn put_ranges(into: &mut Vec<u8>, ranges: &[(u64, u64)]) {
    put_number(into, ranges.len() as u64);
    let mut before = 0;
    for &(first, last) in ranges {
        put_number(into, first - before);
        put_number(into, last - first);
        before = last;
    }
}

fn put_progress(into: &mut Vec<u8>, progress: &GroupProgress) {
    put_number(into, u64::from(progress.topic.number()));
    put_ranges(into, &progress.settled);
    put_number(into, progress.attempts.len() as u64);
    for it in &progress.attempts {
        put_number(into, it.seq);
        put_number(into, u64::from(it.attempts));
        put_signed(into, it.not_before_ms);
        into.push(match it.reason {
            None => 0,
            Some(RedeliveryReason::LeaseExpired) => 1,
            Some(RedeliveryReason::Nacked) => 2,
            Some(RedeliveryReason::MemberLost) => 3,
            Some(RedeliveryReason::ServerRestarted) => 4,
        });
    }
}

struct Fields<'a> {
    bytes: &'a [u8],
}

impl Fields<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(byte)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn signed(&mut self) -> Option<i64> {
        let value = self.number()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.byte_list()?).ok()
    }

    fn byte_list(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.number()?).ok().filter(|&length| length <= self.bytes.len())?;
        let (bytes, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        Some(bytes.to_vec())
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()?;
        // An item takes at least one byte, so a wrong count cannot cause a large allocation.
        let count = usize::try_from(count).ok().filter(|&count| count <= self.bytes.len())?;
        (0..count).map(|_| item(self)).collect()
    }

    fn topic(&mut self) -> Option<TopicId> {
        self.small().map(TopicId::from_number)
    }

    fn place(&mut self) -> Option<(TopicId, u64)> {
        Some((self.topic()?, self.number()?))
    }

    fn ranges(&mut self) -> Option<Vec<(u64, u64)>> {
        let mut before = 0u64;
        self.list(|fields| {
            let first = before.checked_add(fields.number()?)?;
            let last = first.checked_add(fields.number()?).filter(|&last| last < u64::MAX)?;
            before = last;
            Some((first, last))
        })
    }

    fn progress(&mut self) -> Option<GroupProgress> {
        let topic = self.topic()?;
        let settled = self.ranges()?;
        let attempts = self.list(|fields| {
            Some(GroupAttempts {
                seq: fields.number()?,
                attempts: fields.small()?,
                not_before_ms: fields.signed()?,
                reason: match fields.byte()? {
                    0 => None,
                    1 => Some(RedeliveryReason::LeaseExpired),
                    2 => Some(RedeliveryReason::Nacked),
                    3 => Some(RedeliveryReason::MemberLost),
                    4 => Some(RedeliveryReason::ServerRestarted),
                    _ => return None,
                },
            })
        })?;
        Some(GroupProgress { topic, settled, attempts, leased_to: None })
    }

    fn progress_with_mark(&mut self) -> Option<GroupProgress> {
        let progress = self.progress()?;
        Some(GroupProgress { leased_to: self.number()?.checked_sub(1), ..progress })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<StateRecord> {
        let topic = TopicId::from_number;
        vec![
            StateRecord::Made {
                group: 7,
                subscription: "orders.*".into(),
                name: "billing".into(),
                topics: vec!["a".into(), "b.**".into()],
                filter: r#"{"tag":"x"}"#.into(),
                made_ms: 1_700_000_000_000,
                expire_ms: None,
                starts: vec![(topic(1), 0), (topic(300), u64::MAX)],
            },
            StateRecord::Made {
                group: 7,
                subscription: "orders.*".into(),
                name: "billing".into(),
                topics: vec!["a".into(), "b.**".into()],
                filter: r#"{"tag":"x"}"#.into(),
                made_ms: 1_700_000_000_000,
                expire_ms: Some(90_000),
                starts: vec![(topic(1), 0), (topic(300), u64::MAX)],
            },
            StateRecord::Progress {
                group: u32::MAX,
                topics: vec![GroupProgress {
                    topic: topic(3),
                    settled: vec![(1, 1), (5, 900), (1 << 40, (1 << 40) + 3)],
                    attempts: vec![
                        GroupAttempts { seq: 2, attempts: 3, not_before_ms: -1, reason: None },
                        GroupAttempts {
                            seq: 4,
                            attempts: 1,
                            not_before_ms: 5,
                            reason: Some(RedeliveryReason::Nacked),
                        },
                    ],
                    leased_to: None,
                }],
            },
            StateRecord::Progress {
                group: 2,
                topics: vec![
                    GroupProgress {
                        topic: topic(3),
                        settled: vec![(1, 1)],
                        attempts: vec![GroupAttempts {
                            seq: 2,
                            attempts: 2,
                            not_before_ms: 0,
                            reason: Some(RedeliveryReason::ServerRestarted),
                        }],
                        leased_to: None,
                    },
                    GroupProgress {
                        topic: topic(4),
                        settled: vec![],
                        attempts: vec![],
                        leased_to: Some(1 << 40),
                    },
                ],
            },
            StateRecord::Sought { group: 0, floors: vec![(topic(1), 99)] },
            StateRecord::Deleted { group: 1 },
            StateRecord::Paused { group: 300, is_paused: true },
            StateRecord::Paused { group: 1, is_paused: false },
            StateRecord::Cut { firsts: vec![(topic(1), 7), (topic(2), 1 << 50)] },
            StateRecord::TopicSet { topic: "orders".into(), settings: r#"{"compaction":true}"#.into() },
            StateRecord::TopicDeleted { topic: topic(9), name: "orders".into() },
            StateRecord::Kept { name: "key".into(), value: vec![0, 255, 7] },
            StateRecord::Requires { feature: "addressee".into() },
            StateRecord::LettersClosed {
                topic: topic(300),
                closing: LetterClosing::Discarded,
                seqs: vec![(1, 4), (7, 7)],
            },
        ]
    }

    #[test]
    fn records_survive_encoding_and_decoding() {
        for record in samples() {
            let mut bytes = Vec::new();
            record.put(&mut bytes);
            assert_eq!(StateRecord::parse(record.tag(), &bytes), Some(record));
        }
    }

    #[test]
    fn decoding_never_panics_and_refuses_truncated_records() {
        let mut seed = 9u64;
        for record in samples() {
            let mut bytes = Vec::new();
            record.put(&mut bytes);
            for length in 0..bytes.len() {
                assert_eq!(StateRecord::parse(record.tag(), &bytes[..length]), None);
            }
            for _ in 0..2_000 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let mut broken = bytes.clone();
                let at = (seed >> 33) as usize % broken.len();
                broken[at] = (seed >> 20) as u8;
                for tag in (0..10).chain([KEPT, REQUIRES, LETTERS_CLOSED]) {
                    let _ = StateRecord::parse(tag, &broken);
                }
            }
        }
    }
}
