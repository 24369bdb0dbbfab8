//! What a commit changes, and what the database answers.

use crate::engine::outcomes::Published;
use crate::engine::{EventId, StateRecord, StoredEvent, TopicId};
use prombus_protocol::Topic;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What an event takes in the queue besides its key and its body.
const EVENT_BYTES: usize = 64;

/// An event on its way to a database. The database decides its seq.
#[derive(Clone, Debug)]
pub struct EventDocument {
    /// Its topic.
    pub topic: TopicId,
    /// Its id, chosen by the publisher or made by the engine.
    pub id: EventId,
    /// The publisher's time.
    pub ts: i64,
    /// When the engine took it; never falls.
    pub commit_ms: i64,
    /// Its key.
    pub key: Option<Box<[u8]>>,
    /// Everything else, as [`prombus_protocol::Body`] reads it.
    pub body: Box<[u8]>,
    /// Whether it deletes its key in a compacted topic.
    pub is_tombstone: bool,
    /// Whether the publisher chose the id.
    pub is_client_id: bool,
}

impl EventDocument {
    /// What it takes in memory, and about what it takes in the database.
    pub fn bytes(&self) -> usize {
        Self::bytes_of(self.key.as_deref(), &self.body)
    }

    /// What an event with this key and body takes.
    pub fn bytes_of(key: Option<&[u8]>, body: &[u8]) -> usize {
        EVENT_BYTES + key.map_or(0, <[u8]>::len) + body.len()
    }

    /// The event at a seq, as readers see it.
    pub fn at(&self, seq: u64) -> StoredEvent<'_> {
        StoredEvent {
            seq,
            id: self.id,
            ts: self.ts,
            commit_ms: self.commit_ms,
            key: self.key.as_deref(),
            body: &self.body,
            tombstone: self.is_tombstone,
            client_id: self.is_client_id,
        }
    }
}

/// An event in the queue.
#[derive(Clone, Debug)]
pub struct QueuedEvent {
    /// The event.
    pub document: Arc<EventDocument>,
    /// What [`RemoteDatabase::prepare`](super::RemoteDatabase::prepare) made of it.
    pub prepared: Box<[u8]>,
}

impl std::ops::Deref for QueuedEvent {
    type Target = EventDocument;

    fn deref(&self) -> &EventDocument {
        &self.document
    }
}

/// One step of a commit. The steps of a commit become durable together.
#[derive(Debug)]
pub enum Change {
    /// A topic is created.
    TopicMade {
        /// Its number, which was never used before.
        topic: TopicId,
        /// Its name.
        name: Topic,
    },
    /// Events, then records.
    Batch {
        /// The events, in order.
        events: Vec<QueuedEvent>,
        /// The records, in order.
        records: Vec<EncodedRecord>,
    },
    /// A topic is deleted with all its events.
    TopicDeleted {
        /// Its number.
        topic: TopicId,
        /// What the fold over the records must learn of it.
        record: EncodedRecord,
    },
}

/// A state record as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedRecord {
    /// Its kind.
    pub tag: u32,
    /// Its content.
    pub body: Vec<u8>,
}

impl From<&StateRecord> for EncodedRecord {
    fn from(record: &StateRecord) -> Self {
        let mut body = Vec::new();
        record.put(&mut body);
        Self { tag: record.tag(), body }
    }
}

/// What the database answers to a commit.
#[derive(Clone, Debug, Default)]
pub struct CommitAnswer {
    /// One list per [`Change::Batch`], in order.
    pub outcomes: Vec<Vec<Published>>,
    /// The newest seqs of topics that got events.
    pub newest: BTreeMap<TopicId, u64>,
}
