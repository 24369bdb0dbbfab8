//! Binary search in a topic: fields that rise with seq need no index of their own.

use crate::database::MongoDatabase;
use crate::document::seq_of;
use crate::keys::kept_in;
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

impl MongoDatabase {
    /// Binary search: the first kept event that is at or after the wanted place. `is_after` tells of a document with the fields of
    /// `projection` whether it is; it never changes back from one event to the next. Only events that `extra` matches count.
    async fn first_where(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
        (projection, extra): (&Document, &Document),
        is_after: impl Fn(&RawDocumentBuf) -> Option<bool>,
    ) -> MongoResult<Option<RawDocumentBuf>> {
        let ReadableSeqs { first_seq: mut low, last_seq: mut high } = seqs;
        let mut found = None;
        // Everything below `low` is before the place; `found` is the lowest event that is known to be after it.
        while low <= high {
            let middle = low + (high - low) / 2;
            let mut filter = kept_in(topic, ReadableSeqs { first_seq: middle, last_seq: high });
            filter.extend(extra.clone());
            let probe = self.collections.events.find_one(filter).sort(doc! { "_id": 1 });
            let probed = probe.projection(projection.clone()).await?;
            // Nothing from the middle on: the place is below.
            let is_high = probed.as_ref().is_none_or(|document| is_after(document).unwrap_or(true));
            if is_high {
                found = probed.or(found);
                let Some(below) = middle.checked_sub(1) else { break };
                high = below;
            } else {
                low = probed.as_ref().and_then(|document| seq_of(document)).unwrap_or(middle) + 1;
            }
        }
        Ok(found)
    }

    /// The first kept event whose field is at least `value`.
    pub(crate) async fn first_with(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
        field: Rising,
        value: i64,
    ) -> MongoResult<Option<u64>> {
        let fields = (&doc! { field.name(): 1 }, &Document::new());
        let is_after = |document: &RawDocumentBuf| Some(field.of(document)? >= value);
        let found = self.first_where(topic, seqs, fields, is_after).await?;
        Ok(found.as_ref().and_then(|document| seq_of(document)))
    }

    /// The event with an id that an engine made. Such ids rise with seq, and have the commit time of their events: among the
    /// events of that time, those whose ids publishers chose are left out.
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
        let same_time = ReadableSeqs { first_seq, last_seq: last.map_or(seqs.last_seq, |seq| seq - 1) };
        let fields = (&doc! { "id": 1 }, &doc! { "client_id": { "$exists": false } });
        let wanted = id.to_string();
        let is_after = |document: &RawDocumentBuf| Some(document.get_str("id").ok()? >= wanted.as_str());
        let found = self.first_where(topic, same_time, fields, is_after).await?;
        let found = found.filter(|document| document.get_str("id").is_ok_and(|id| id == wanted));
        Ok(found.as_ref().and_then(|document| seq_of(document)))
    }
}
