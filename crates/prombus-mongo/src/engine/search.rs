//! Binary search in a topic: fields that never decrease with the seq need no index.

use crate::engine::database::MongoDatabase;
use crate::engine::document::seq_of;
use crate::engine::keys::kept_in;
use mongodb::bson::{Document, RawBsonRef, RawDocumentBuf, doc};
use mongodb::error::Result as MongoResult;
use prombus::engine::network::ReadableSeqs;
use prombus::engine::{EventId, TopicId};
use std::collections::HashMap;

/// The maximum number of seqs that a scan for ids covers.
const SCAN_SEQS_MAX: u64 = 50_000;

/// A field that never decreases from one event of a topic to the next.
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
    /// Finds the first kept event for which `is_after` is true, by binary search. `is_after` gets a document with the fields of
    /// `projection`. If it is true for an event, it must be true for all later events. Only events that `extra` matches are considered.
    async fn first_where(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
        (projection, extra): (&Document, &Document),
        is_after: impl Fn(&RawDocumentBuf) -> Option<bool>,
    ) -> MongoResult<Option<RawDocumentBuf>> {
        let ReadableSeqs { first_seq: mut low, last_seq: mut high } = seqs;
        let mut found = None;
        // `is_after` is false for everything below `low`; `found` is the lowest event for which it is known to be true.
        while low <= high {
            let middle = low + (high - low) / 2;
            let mut filter = kept_in(topic, ReadableSeqs { first_seq: middle, last_seq: high });
            filter.extend(extra.clone());
            let probe = self.collections.events.find_one(filter).sort(doc! { "_id": 1 });
            let probed = probe.projection(projection.clone()).await?;
            // If no event is found from the middle on, the search continues below the middle.
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

    /// The event with an id that an engine generated. Such ids increase with the seq and contain the commit time, so the search is limited
    /// to events of that time whose ids publishers did not choose.
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

    /// Finds which of these engine-generated ids belong to events of a topic. Ids that are close to each other are searched in one scan.
    pub(crate) async fn find_own_ids(
        &self,
        topic: TopicId,
        ids: &[EventId],
        seqs: ReadableSeqs,
    ) -> MongoResult<Vec<(EventId, u64)>> {
        let made_ms = |id: &EventId| (id.as_u128() >> 80) as i64;
        let (Some(oldest), Some(newest)) = (ids.iter().map(made_ms).min(), ids.iter().map(made_ms).max())
        else {
            return Ok(Vec::new());
        };
        let Some(first_seq) = self.first_with(topic, seqs, Rising::CommittedAt, oldest).await? else {
            return Ok(Vec::new());
        };
        let after = ReadableSeqs { first_seq, ..seqs };
        let past = self.first_with(topic, after, Rising::CommittedAt, newest + 1).await?;
        let near = ReadableSeqs { first_seq, last_seq: past.map_or(seqs.last_seq, |seq| seq - 1) };
        let mut found = Vec::new();
        if near.last_seq - near.first_seq.min(near.last_seq) > SCAN_SEQS_MAX {
            for &id in ids {
                found.extend(self.find_own_id(topic, id, near).await?.map(|seq| (id, seq)));
            }
            return Ok(found);
        }
        let wanted: HashMap<String, EventId> = ids.iter().map(|&id| (id.to_string(), id)).collect();
        let scan = self.collections.events.find(kept_in(topic, near)).projection(doc! { "id": 1 });
        let mut scan = scan.await?;
        while scan.advance().await? {
            let document = scan.current();
            let id = document.get_str("id").ok().and_then(|id| wanted.get(id));
            found.extend(id.copied().zip(seq_of(document)));
        }
        Ok(found)
    }
}
