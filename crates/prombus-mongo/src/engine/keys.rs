//! The `_id` of documents in `events`: topic number and seq, big-endian, so that a topic is a range in seq order.

use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document, doc};
use prombus::engine::TopicId;
use prombus::engine::network::ReadableSeqs;

/// The topic number of fences.
pub(crate) const FENCES: TopicId = TopicId::from_number(0);
/// The topic number of state records.
pub(crate) const RECORDS: TopicId = TopicId::from_number(1);
/// The highest topic number that is reserved for documents other than events.
pub(crate) const RESERVED_MAX: u32 = 1;

/// The bytes of an `_id`.
pub(crate) type Key = [u8; 12];

pub(crate) fn key(topic: TopicId, seq: u64) -> Key {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&topic.number().to_be_bytes());
    key[4..].copy_from_slice(&seq.to_be_bytes());
    key
}

/// An `_id` as a BSON value.
pub(crate) fn bson_key(topic: TopicId, seq: u64) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: key(topic, seq).to_vec() })
}

/// The topic and seq of an `_id`; `None` if prombus did not write it.
pub(crate) fn parse_key(bytes: &[u8]) -> Option<(TopicId, u64)> {
    let (topic, seq) = bytes.split_first_chunk::<4>()?;
    let seq: [u8; 8] = seq.try_into().ok()?;
    Some((TopicId::from_number(u32::from_be_bytes(*topic)), u64::from_be_bytes(seq)))
}

/// A filter for the events of a topic with these seqs, without the documents that only keep the ids of removed events.
pub(crate) fn kept_in(topic: TopicId, seqs: ReadableSeqs) -> Document {
    doc! {
        "_id": { "$gte": bson_key(topic, seqs.first_seq), "$lte": bson_key(topic, seqs.last_seq) },
        "expire_at": { "$exists": false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_topic_and_then_by_seq() {
        let number = TopicId::from_number;
        let sorted = [(0, 0), (1, u64::MAX), (2, 1), (2, 255), (2, 256), (255, 0), (256, 0)];
        let keys: Vec<Key> = sorted.iter().map(|&(topic, seq)| key(number(topic), seq)).collect();
        assert!(keys.is_sorted());
        for (&(topic, seq), key) in sorted.iter().zip(&keys) {
            assert_eq!(parse_key(key), Some((number(topic), seq)));
        }
        assert_eq!(parse_key(&[0; 11]), None);
    }
}
