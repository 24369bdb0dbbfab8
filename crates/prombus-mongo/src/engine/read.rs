//! Reads events, and answers queries about topics.

use crate::engine::database::MongoDatabase;
use crate::engine::document::{parse_event, parse_head, seq_of};
use crate::engine::keys::kept_in;
use crate::engine::search::Rising;
use futures_util::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};
use mongodb::error::Result as MongoResult;
use prombus::engine::network::{FetchLimit, Piece, ReadableSeqs, has_id_mark};
use prombus::engine::{EventHead, EventId, TopicId, TopicUsage};
use std::sync::Arc;

/// The maximum number of events of one fetch.
const FETCH_EVENTS_MAX: usize = 10_000;
/// Up to about this event size, whole documents are read; for larger events the BSON payload is left out.
const SMALL_EVENT_BYTES: u64 = 1_024;
/// The assumed size of an event in a topic whose average event size is not known.
const EVENT_BYTES_GUESS: u64 = 256;

impl MongoDatabase {
    pub(crate) async fn fetch_piece(
        &self,
        topic: TopicId,
        first_seq: u64,
        limit: FetchLimit,
    ) -> MongoResult<Piece> {
        let events = self.fetch_count(topic, limit);
        let seqs = ReadableSeqs { first_seq, last_seq: limit.last_seq };
        let find = self.collections.events.find(kept_in(topic, seqs)).sort(doc! { "_id": 1 });
        // The batch size is one more than the limit, so that the server closes the cursor with the first batch.
        let find = find.limit(events as i64).batch_size(events as u32 + 1);
        // Leaving out the BSON payloads costs the server more than sending them, unless they are large.
        let is_large = self.usage.average_bytes(topic).is_none_or(|bytes| bytes > SMALL_EVENT_BYTES);
        let mut found = if is_large { find.projection(doc! { "payload": 0 }).await? } else { find.await? };
        let mut piece = Piece { first_seq, last_seq: limit.last_seq, ..Piece::default() };
        let (mut count, mut bytes, mut last) = (0, 0, first_seq);
        while found.advance().await? {
            let document = found.current();
            count += 1;
            match parse_event(document) {
                Some((seq, event)) => {
                    (last, bytes) = (seq, bytes + event.bytes());
                    piece.events.push_back((seq, Arc::new(event)));
                }
                None => {
                    last = seq_of(document).unwrap_or(last);
                    piece.corrupt += 1;
                    tracing::error!(
                        "the document of seq {last} in topic number {} is damaged",
                        topic.number()
                    );
                }
            }
            if bytes >= limit.bytes {
                piece.last_seq = last;
                return Ok(piece);
            }
        }
        if count >= events {
            piece.last_seq = last;
        }
        Ok(piece)
    }

    /// The number of events that together have about the maximum size of a fetch.
    fn fetch_count(&self, topic: TopicId, limit: FetchLimit) -> usize {
        let average = self.usage.average_bytes(topic).unwrap_or(EVENT_BYTES_GUESS).max(64);
        let wanted = (limit.bytes as u64 / average).clamp(1, FETCH_EVENTS_MAX as u64) as usize;
        wanted.min(limit.events).max(1)
    }

    pub(crate) async fn find_head(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
    ) -> MongoResult<Option<EventHead>> {
        let mut seqs = seqs;
        while seqs.first_seq <= seqs.last_seq {
            let fields = doc! { "id": 1, "ts": 1, "committed_at": 1, "client_id": 1 };
            let find = self.collections.events.find_one(kept_in(topic, seqs));
            let Some(found) = find.sort(doc! { "_id": 1 }).projection(fields).await? else { break };
            if let Some(head) = parse_head(&found) {
                return Ok(Some(head));
            }
            // A damaged document is skipped here. It is counted when the events are read.
            seqs.first_seq = seq_of(&found).map_or(seqs.last_seq, |seq| seq) + 1;
        }
        Ok(None)
    }

    pub(crate) async fn find_id(
        &self,
        topic: TopicId,
        id: EventId,
        seqs: ReadableSeqs,
    ) -> MongoResult<Option<u64>> {
        let chosen = self.find_client_ids(topic, &[id]).await?;
        if let Some((_, seq)) = chosen.first().filter(|(_, seq)| *seq <= seqs.last_seq) {
            return Ok(Some(*seq));
        }
        if has_id_mark(id, self.id_mark) { self.find_own_id(topic, id, seqs).await } else { Ok(None) }
    }

    /// Finds the first event at or after the time `ts`. The field `max_ts` also covers events that cleaning has removed, so the binary
    /// search may end at an event with an earlier time; the second query skips such events.
    pub(crate) async fn find_time(
        &self,
        topic: TopicId,
        ts: i64,
        seqs: ReadableSeqs,
    ) -> MongoResult<Option<u64>> {
        let Some(first_seq) = self.first_with(topic, seqs, Rising::MaxTs, ts).await? else { return Ok(None) };
        let mut filter = kept_in(topic, ReadableSeqs { first_seq, ..seqs });
        filter.insert("ts", doc! { "$gte": ts });
        let find = self.collections.events.find_one(filter).sort(doc! { "_id": 1 });
        Ok(find.projection(doc! { "_id": 1 }).await?.as_ref().and_then(|document| seq_of(document)))
    }

    pub(crate) async fn find_keys_before(
        &self,
        topic: TopicId,
        keys: &[(u64, Vec<u8>)],
        seqs: ReadableSeqs,
    ) -> MongoResult<Vec<bool>> {
        let mut found = Vec::with_capacity(keys.len());
        for (seq, key) in keys {
            let filter = doc! {
                "topic_no": topic.number() as i32,
                "key": String::from_utf8_lossy(key).as_ref(),
                "seq": { "$lt": *seq as i64, "$gte": seqs.first_seq as i64 },
            };
            let find = self.collections.events.find_one(filter).projection(doc! { "_id": 1 });
            found.push(find.hint(mongodb::options::Hint::Name("keys".to_owned())).await?.is_some());
        }
        Ok(found)
    }

    pub(crate) async fn find_within_bytes(
        &self,
        topic: TopicId,
        bytes: u64,
        seqs: ReadableSeqs,
    ) -> MongoResult<u64> {
        let find = self.collections.events.find_one(kept_in(topic, seqs)).sort(doc! { "_id": -1 });
        let newest = find.projection(doc! { "topic_bytes": 1 }).await?;
        let all = newest.as_ref().and_then(|newest| newest.get_i64("topic_bytes").ok());
        let Some(over) = all.map(|all| all - bytes as i64).filter(|over| *over > 0) else {
            return Ok(seqs.first_seq.max(1));
        };
        // The events after the first one whose `topic_bytes` is at least `over` have at most `bytes` together. The newest event stays,
        // whatever its size.
        let last_gone = self.first_with(topic, seqs, Rising::TopicBytes, over).await?;
        Ok(last_gone.map_or(seqs.first_seq.max(1), |seq| (seq + 1).min(seqs.last_seq)))
    }

    /// The number and size of the events that a filter matches.
    pub(crate) async fn count_usage(&self, filter: Document) -> MongoResult<TopicUsage> {
        let stages = [
            doc! { "$match": filter },
            doc! { "$group": { "_id": null, "events": { "$sum": 1 }, "bytes": { "$sum": "$bytes" } } },
        ];
        let mut found = self.collections.events.aggregate(stages).await?;
        let sums = found.try_next().await?.unwrap_or_default();
        let number = |name: &str| match sums.get(name) {
            Some(Bson::Int32(value)) => u64::try_from(*value).unwrap_or(0),
            Some(Bson::Int64(value)) => u64::try_from(*value).unwrap_or(0),
            _ => 0,
        };
        Ok(TopicUsage { events: number("events"), bytes: number("bytes") })
    }

    pub(crate) async fn find_seqs(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
        limit: usize,
    ) -> MongoResult<Vec<u64>> {
        let find = self.collections.events.find(kept_in(topic, seqs)).sort(doc! { "_id": 1 });
        let mut found =
            find.projection(doc! { "_id": 1 }).limit(limit as i64).batch_size(limit as u32 + 1).await?;
        let mut list = Vec::new();
        while found.advance().await? {
            list.extend(seq_of(found.current()));
        }
        Ok(list)
    }
}
