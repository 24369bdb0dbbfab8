//! Binary search in a topic: fields that rise with seq need no index of their own.

use crate::database::MongoDatabase;
use crate::document::seq_of;
use crate::keys::bson_key;
use mongodb::bson::{Document, RawBsonRef, RawDocumentBuf, doc};
use mongodb::error::Result as MongoResult;
use prombus::engine::network::ReadableSeqs;
use prombus::engine::{EventId, TopicId};

/// A field that never falls from one event of a topic to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rising {
    /// The highest `ts` so far.
    MaxTs,
    /// The commit time.
    CommittedAt,
    /// The bytes of the topic so far.
    TopicBytes,
}

impl Rising {
    fn name(self) -> &'static str {
        match self {
            Self::MaxTs => "max_ts",
            Self::CommittedAt => "committed_at",
            Self::TopicBytes => "topic_bytes",
        }
    }

    fn of(self, document: &RawDocumentBuf) -> Option<i64> {
        match document.get(self.name()).ok().flatten()? {
            RawBsonRef::Int64(value) => Some(value),
            RawBsonRef::DateTime(at) => Some(at.timestamp_millis()),
            _ => None,
        }
    }
}

/// The events of a topic with these seqs. Ids of cleaned events are left out.
pub(crate) fn kept_in(topic: TopicId, seqs: ReadableSeqs) -> Document {
    doc! {
        "_id": { "$gte": bson_key(topic, seqs.first_seq), "$lte": bson_key(topic, seqs.last_seq) },
        "expire_at": { "$exists": false },
    }
}

impl MongoDatabase {
    /// The first kept event with one of these seqs; only the named field and the key.
    async fn probe(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
        field: Rising,
    ) -> MongoResult<Option<RawDocumentBuf>> {
        if seqs.first_seq > seqs.last_seq {
            return Ok(None);
        }
        let events = &self.collections.events;
        events
            .find_one(kept_in(topic, seqs))
            .sort(doc! { "_id": 1 })
            .projection(doc! { field.name(): 1 })
            .await
    }

    /// The first kept event whose field is at least `value`.
    pub(crate) async fn first_with(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
        field: Rising,
        value: i64,
    ) -> MongoResult<Option<u64>> {
        let ReadableSeqs { first_seq: mut low, last_seq: mut high } = seqs;
        let mut found = None;
        // Everything below `low` is smaller; `found` is the lowest seq that is known to be large enough.
        while low <= high {
            let middle = low + (high - low) / 2;
            let Some(document) =
                self.probe(topic, ReadableSeqs { first_seq: middle, last_seq: high }, field).await?
            else {
                // Nothing is kept from the middle on.
                let Some(below) = middle.checked_sub(1) else { break };
                high = below;
                continue;
            };
            let (Some(seq), Some(at)) = (seq_of(&document), field.of(&document)) else { break };
            if at >= value {
                found = Some(seq);
                let Some(below) = middle.checked_sub(1) else { break };
                high = below;
            } else {
                low = seq + 1;
            }
        }
        Ok(found)
    }

    /// The event with an id that an engine made. Such an id has the commit time of its event.
    pub(crate) async fn find_own_id(
        &self,
        topic: TopicId,
        id: EventId,
        seqs: ReadableSeqs,
    ) -> MongoResult<Option<u64>> {
        let made_ms = (id.as_u128() >> 80) as i64;
        let Some(first_seq) = self.first_with(topic, seqs, Rising::CommittedAt, made_ms).await? else {
            return Ok(None);
        };
        let after = ReadableSeqs { first_seq, ..seqs };
        let last = self.first_with(topic, after, Rising::CommittedAt, made_ms + 1).await?;
        let last_seq = last.map_or(seqs.last_seq, |seq| seq - 1);
        let mut filter = kept_in(topic, ReadableSeqs { first_seq, last_seq });
        filter.insert("id", id.to_string());
        let found = self.collections.events.find_one(filter).projection(doc! { "_id": 1 }).await?;
        Ok(found.as_ref().and_then(|document| seq_of(document)))
    }
}
