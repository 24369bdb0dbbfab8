//! A fence is the first document of a commit. Its `_id` contains its number, and numbers have no gaps. A new leader also writes a fence
//! without a commit, the fence of its takeover.
//!
//! **Invariant:** a commit is one ordered bulk insert that begins with its fence. If the number of the fence is taken, the server inserts
//! nothing. Commit n + 1 is sent only when commit n is known to be whole (all of it is durable), or to be void (it does not count).
//!
//! **Invariant:** after another writer has taken over, the number that the old writer would use next stays taken: the fence of a takeover
//! and the fence before it are never removed. The old writer continues with the number of one of these two.

use crate::bson_writer::BsonWriter;
use crate::engine::keys::{FENCES, key, parse_key};
use mongodb::bson::{RawBsonRef, RawDocument};
use prombus::engine::{EventId, TopicId};

/// A fence, which describes the content of its commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fence {
    /// The number of the fence.
    pub(crate) number: u64,
    /// The term of its writer.
    pub(crate) term: u64,
    /// Identifies the writer of the commit; new for every engine.
    pub(crate) writer: [u8; 16],
    /// The topics that got events.
    pub(crate) topics: Vec<FencedTopic>,
    /// The number of documents with state records. The last of them is the last document of the bulk. 0 for the fence of a takeover.
    pub(crate) record_pieces: u32,
    /// The time limit of the bulk on the server.
    pub(crate) max_time_ms: u32,
    /// The newest id that engines of this store generated, up to this commit.
    pub(crate) newest_id: EventId,
    /// The newest commit time, up to this commit.
    pub(crate) newest_ms: i64,
    /// The commit was marked whole: all of it is durable. Never set together with `is_void`.
    pub(crate) is_whole: bool,
    /// The commit was cut and does not count.
    pub(crate) is_void: bool,
    /// The documents of a void commit are removed.
    pub(crate) is_removed: bool,
}

/// The events that a commit added to a topic, and the totals of the topic after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FencedTopic {
    pub(crate) topic: TopicId,
    /// The first seq of the commit in this topic.
    pub(crate) from: u64,
    /// The last seq of the commit in this topic.
    pub(crate) to: u64,
    /// The highest `ts` of the topic's events up to `to`.
    pub(crate) max_ts: i64,
    /// The bytes of all events of the topic up to `to`, including removed events.
    pub(crate) topic_bytes: u64,
}

impl Fence {
    /// Whether the commit has documents other than its fence.
    pub(crate) fn has_content(&self) -> bool {
        self.record_pieces > 0
    }

    pub(crate) fn put(&self, writer: &mut BsonWriter, name: &str, now_ms: i64) {
        let document = writer.begin_document(name);
        writer.binary("_id", &key(FENCES, self.number));
        writer.i64("term", self.term as i64);
        writer.uuid("writer", self.writer);
        writer.date("at", now_ms);
        writer.uuid("newest_id", self.newest_id.to_bytes());
        writer.i64("newest_ms", self.newest_ms);
        writer.i32("records", self.record_pieces as i32);
        writer.i32("max_time_ms", self.max_time_ms as i32);
        let topics = writer.begin_array("topics");
        for (at, it) in self.topics.iter().enumerate() {
            let topic = writer.begin_document(&at.to_string());
            writer.i32("no", it.topic.number() as i32);
            writer.i64("from", it.from as i64);
            writer.i64("to", it.to as i64);
            writer.i64("max_ts", it.max_ts);
            writer.i64("topic_bytes", it.topic_bytes as i64);
            writer.end(topic);
        }
        writer.end(topics);
        writer.end(document);
    }

    /// # Errors
    /// If the document is not a fence.
    pub(crate) fn parse_strictly(document: &RawDocument) -> mongodb::error::Result<Self> {
        Self::parse(document).ok_or_else(|| {
            let id = document.get_binary("_id").ok().and_then(|id| parse_key(id.bytes));
            let number = id.map_or_else(|| "?".to_owned(), |(_, number)| number.to_string());
            mongodb::error::Error::custom(format!("the document of commit {number} is damaged"))
        })
    }

    /// `None` if the document is not a fence.
    fn parse(document: &RawDocument) -> Option<Self> {
        let (_, number) = parse_key(document.get_binary("_id").ok()?.bytes)?;
        let uuid = |name| <[u8; 16]>::try_from(document.get_binary(name).ok()?.bytes).ok();
        let flag = |name| document.get(name).ok().flatten().and_then(RawBsonRef::as_bool).unwrap_or(false);
        let mut topics = Vec::new();
        for topic in document.get_array("topics").ok()? {
            let topic = topic.ok()?;
            let it = topic.as_document()?;
            topics.push(FencedTopic {
                topic: TopicId::from_number(it.get_i32("no").ok()? as u32),
                from: it.get_i64("from").ok()? as u64,
                to: it.get_i64("to").ok()? as u64,
                max_ts: it.get_i64("max_ts").ok()?,
                topic_bytes: it.get_i64("topic_bytes").ok()? as u64,
            });
        }
        Some(Self {
            number,
            term: document.get_i64("term").ok()? as u64,
            writer: uuid("writer")?,
            topics,
            record_pieces: document.get_i32("records").ok()? as u32,
            max_time_ms: document.get_i32("max_time_ms").ok()? as u32,
            newest_id: EventId::from_bytes(uuid("newest_id")?),
            newest_ms: document.get_i64("newest_ms").ok()?,
            is_whole: flag("whole"),
            is_void: flag("void"),
            is_removed: flag("removed"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::RawDocumentBuf;

    #[test]
    fn a_fence_is_read_as_it_was_written() {
        let topic = TopicId::from_number(2);
        let fence = Fence {
            number: 1 << 40,
            term: 3,
            writer: [9; 16],
            topics: vec![FencedTopic { topic, from: 1, to: 500, max_ts: -1, topic_bytes: 12_345 }],
            record_pieces: 2,
            max_time_ms: 1_500,
            newest_id: EventId::from_u128(5),
            newest_ms: i64::MIN,
            ..Fence::default()
        };
        let mut writer = BsonWriter::default();
        let outer = writer.begin();
        fence.put(&mut writer, "0", 17);
        writer.end(outer);
        let outer = RawDocumentBuf::from_bytes(writer.into_bytes()).expect("it is a document");
        assert_eq!(Fence::parse(outer.get_document("0").expect("the fence")), Some(fence));
        assert_eq!(Fence::parse(&mongodb::bson::rawdoc! { "_id": 1 }), None);
    }
}
