//! The leader's view of the whole store: the topics with totals of their events, and the state of groups and topics that results from the
//! state records of all commits.
//!
//! A catalog is the result of applying all commits in order. It is restored from its newest snapshot (a stored copy) and the commits after
//! that snapshot, so a takeover does not have to read events.

use crate::engine::fence::{Fence, FencedTopic};
use crate::engine::keys::RESERVED_MAX;
use prombus::Topic;
use prombus::engine::network::{EncodedRecord, FoundState};
use prombus::engine::{EventId, StateFold, StateRecord, TopicId};
use std::collections::{BTreeMap, BTreeSet};

/// The tag of the record of a new topic, which contains its number and name. It is outside the range of the [`StateRecord`] tags.
const TOPIC_MADE: u32 = 0x8000_0001;
/// The version of the snapshot format.
const SNAPSHOT_VERSION: u8 = 1;

/// A topic, and totals of its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CatalogTopic {
    pub(crate) name: Topic,
    /// The newest seq.
    pub(crate) last_seq: u64,
    /// The highest `ts`.
    pub(crate) max_ts: i64,
    /// The size of all events that the topic ever got.
    pub(crate) topic_bytes: u64,
}

impl CatalogTopic {
    pub(crate) fn new(name: Topic) -> Self {
        Self { name, last_seq: 0, max_ts: i64::MIN, topic_bytes: 0 }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Catalog {
    pub(crate) topics: BTreeMap<TopicId, CatalogTopic>,
    /// The highest topic number that was ever used.
    topic_number: u32,
    pub(crate) fold: StateFold,
    /// The newest id that an engine of this store generated.
    newest_id: EventId,
    /// The newest commit time.
    newest_ms: i64,
    /// Deleted topics some of whose events may still be stored.
    pub(crate) deleted: BTreeSet<TopicId>,
}

/// The topics and groups that a commit changed, for the collections `topics` and `cursors`.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub(crate) topics: BTreeSet<TopicId>,
    pub(crate) groups: BTreeSet<u32>,
}

/// The record of a new topic.
pub(crate) fn topic_made(topic: TopicId, name: &Topic) -> EncodedRecord {
    let mut body = topic.number().to_le_bytes().to_vec();
    body.extend_from_slice(name.as_str().as_bytes());
    EncodedRecord { tag: TOPIC_MADE, body }
}

impl Catalog {
    pub(crate) fn new() -> Self {
        Self { topic_number: RESERVED_MAX, newest_ms: i64::MIN, ..Self::default() }
    }

    /// Applies a commit.
    ///
    /// # Errors
    /// If a record cannot be read or is not known to this version.
    pub(crate) fn apply(&mut self, fence: &Fence, records: &[EncodedRecord]) -> Result<Touched, String> {
        let mut touched = Touched::default();
        // New topics come first, because a commit may create a topic and add events to it.
        for record in records.iter().filter(|record| record.tag == TOPIC_MADE) {
            touched.topics.insert(self.add_topic(&record.body)?);
        }
        for it in &fence.topics {
            self.advance_topic(it);
        }
        self.newest_id = self.newest_id.max(fence.newest_id);
        self.newest_ms = self.newest_ms.max(fence.newest_ms);
        for EncodedRecord { tag, body } in records.iter().filter(|record| record.tag != TOPIC_MADE) {
            let record = StateRecord::parse(*tag, body)
                .ok_or_else(|| format!("a state record of kind {tag} is not known to this version"))?;
            self.note(&record, &mut touched);
            self.fold.apply_record(*tag, body);
        }
        Ok(touched)
    }

    fn add_topic(&mut self, body: &[u8]) -> Result<TopicId, String> {
        let bad = || "the record of a topic cannot be read".to_owned();
        let (number, name) = body.split_first_chunk::<4>().ok_or_else(bad)?;
        let name = std::str::from_utf8(name).ok().and_then(|name| Topic::new(name).ok()).ok_or_else(bad)?;
        let number = u32::from_le_bytes(*number);
        self.topic_number = self.topic_number.max(number);
        let topic = TopicId::from_number(number);
        self.topics.insert(topic, CatalogTopic::new(name));
        Ok(topic)
    }

    /// Sets the newest seq and the totals of a topic to those of a commit.
    fn advance_topic(&mut self, fenced: &FencedTopic) {
        if let Some(topic) = self.topics.get_mut(&fenced.topic) {
            topic.last_seq = fenced.to;
            topic.max_ts = fenced.max_ts;
            topic.topic_bytes = fenced.topic_bytes;
        }
    }

    fn note(&mut self, record: &StateRecord, touched: &mut Touched) {
        match record {
            StateRecord::Made { group, .. }
            | StateRecord::Progress { group, .. }
            | StateRecord::Sought { group, .. }
            | StateRecord::Deleted { group }
            | StateRecord::Paused { group, .. } => {
                touched.groups.insert(*group);
            }
            StateRecord::Cut { firsts } => touched.topics.extend(firsts.iter().map(|(topic, _)| *topic)),
            StateRecord::TopicSet { topic, .. } => {
                let named = self.topics.iter().filter(|(_, it)| it.name.as_str() == topic.as_str());
                touched.topics.extend(named.map(|(&id, _)| id));
            }
            StateRecord::TopicDeleted { topic, .. } => {
                self.topics.remove(topic);
                self.deleted.insert(*topic);
                touched.topics.insert(*topic);
            }
            StateRecord::Kept { .. } | StateRecord::Requires { .. } | StateRecord::LettersClosed { .. } => {}
        }
    }

    /// The state that the engine starts with.
    ///
    /// # Errors
    /// If a record could not be read.
    pub(crate) fn found(&self, commit: u64, id_mark: u64) -> Result<FoundState, String> {
        self.fold.all()?;
        let topics = self.topics.iter().map(|(&id, it)| (id, it.name.clone(), it.last_seq)).collect();
        Ok(FoundState {
            commit,
            topic_number: self.topic_number,
            topics,
            firsts: self.fold.firsts(),
            restored: self.fold.restored(),
            newest_id: self.newest_id,
            newest_commit_ms: self.newest_ms,
            id_mark,
        })
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![SNAPSHOT_VERSION];
        bytes.extend_from_slice(&self.topic_number.to_le_bytes());
        bytes.extend_from_slice(&self.newest_id.to_bytes());
        bytes.extend_from_slice(&self.newest_ms.to_le_bytes());
        bytes.extend_from_slice(&(self.topics.len() as u32).to_le_bytes());
        for (topic, it) in &self.topics {
            bytes.extend_from_slice(&topic.number().to_le_bytes());
            bytes.extend_from_slice(&it.last_seq.to_le_bytes());
            bytes.extend_from_slice(&it.max_ts.to_le_bytes());
            bytes.extend_from_slice(&it.topic_bytes.to_le_bytes());
            bytes.extend_from_slice(&(it.name.as_str().len() as u32).to_le_bytes());
            bytes.extend_from_slice(it.name.as_str().as_bytes());
        }
        bytes.extend_from_slice(&(self.deleted.len() as u32).to_le_bytes());
        self.deleted.iter().for_each(|topic| bytes.extend_from_slice(&topic.number().to_le_bytes()));
        bytes.extend_from_slice(&self.fold.to_bytes());
        bytes
    }

    /// # Errors
    /// If the bytes are truncated, or a newer version wrote them.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let mut bytes = Bytes(bytes);
        let version = bytes.array::<1>()?[0];
        if version > SNAPSHOT_VERSION {
            return Err(format!(
                "a snapshot has version {version}; this program reads up to {SNAPSHOT_VERSION}"
            ));
        }
        let mut catalog = Self {
            topic_number: bytes.u32()?,
            newest_id: EventId::from_bytes(bytes.array()?),
            newest_ms: bytes.u64()? as i64,
            ..Self::default()
        };
        for _ in 0..bytes.u32()? {
            let topic = TopicId::from_number(bytes.u32()?);
            let (last_seq, max_ts, topic_bytes) = (bytes.u64()?, bytes.u64()? as i64, bytes.u64()?);
            let length = bytes.u32()? as usize;
            let name = std::str::from_utf8(bytes.take(length)?).ok().and_then(|name| Topic::new(name).ok());
            let name = name.ok_or("a snapshot has a topic whose name is not valid")?;
            catalog.topics.insert(topic, CatalogTopic { name, last_seq, max_ts, topic_bytes });
        }
        for _ in 0..bytes.u32()? {
            catalog.deleted.insert(TopicId::from_number(bytes.u32()?));
        }
        catalog.fold = StateFold::from_bytes(bytes.0)?;
        Ok(catalog)
    }
}

/// Reads a snapshot's bytes.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("a snapshot is truncated")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.take(N)?.try_into().expect("it has this length"))
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(number: u32) -> TopicId {
        TopicId::from_number(number)
    }

    fn fence(topics: Vec<FencedTopic>) -> Fence {
        Fence { topics, newest_id: EventId::from_u128(8), newest_ms: 77, ..Fence::default() }
    }

    #[test]
    fn a_snapshot_restores_the_result_of_the_commits() {
        let name = |name: &str| Topic::new(name).expect("a topic");
        let mut catalog = Catalog::new();
        let tail = FencedTopic { topic: topic(2), from: 1, to: 5, max_ts: -3, topic_bytes: 900 };
        let made = [topic_made(topic(2), &name("a")), topic_made(topic(3), &name("b"))];
        let touched = catalog.apply(&fence(vec![tail]), &made).expect("it is understood");
        assert_eq!(touched.topics.len(), 2);
        let deleted = StateRecord::TopicDeleted { topic: topic(3), name: "b".to_owned() };
        let cut = StateRecord::Cut { firsts: vec![(topic(2), 3)] };
        let records = [EncodedRecord::from(&deleted), EncodedRecord::from(&cut)];
        catalog.apply(&fence(Vec::new()), &records).expect("it is understood");
        let bytes = catalog.to_bytes();
        let restored = Catalog::from_bytes(&bytes).expect("it was just written");
        assert_eq!(restored.topics, catalog.topics);
        assert_eq!(restored.deleted, BTreeSet::from([topic(3)]));
        let found = restored.found(9, 1).expect("nothing is broken");
        assert_eq!(found.topics, [(topic(2), name("a"), 5)]);
        assert_eq!((found.topic_number, found.newest_commit_ms, found.commit), (3, 77, 9));
        assert_eq!(found.firsts, [(topic(2), 3)]);
        for length in 0..bytes.len().min(60) {
            assert!(Catalog::from_bytes(&bytes[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_record_of_a_newer_version_is_an_error() {
        let record = EncodedRecord { tag: 4_000, body: vec![1] };
        assert!(Catalog::new().apply(&fence(Vec::new()), &[record]).is_err());
    }
}
