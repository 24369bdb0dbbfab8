//! Cleaning: deletes events in slices, after retention, compaction or the deletion of a topic has made them removable. An id that a
//! publisher chose is kept for `dedupe_ms`, unless the topic was deleted.
//!
//! Cleaning needs no fence: an event that may be removed stays removable, whichever process leads.

use crate::engine::database::MongoDatabase;
use crate::engine::keys::{bson_key, kept_in};
use crate::errors::reason;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::error::Result as MongoResult;
use prombus::engine::TopicId;
use prombus::engine::network::{DeadEvents, ReadableSeqs, RemoveError, Removed};

/// The maximum number of events that one delete removes.
const SLICE: usize = 5_000;

impl MongoDatabase {
    pub(crate) async fn remove_dead(&self, dead: DeadEvents) -> Result<Removed, RemoveError> {
        let removed = match dead {
            DeadEvents::Below(topic, first_seq) => self.remove_below(topic, first_seq).await,
            DeadEvents::Seqs(topic, seqs) => self.remove_seqs(topic, &seqs).await,
            DeadEvents::DeletedTopics => self.remove_deleted_topics().await,
        };
        removed.map_err(|error| {
            let reason = reason(&error);
            self.availability.failed(&reason);
            RemoveError::Later(reason)
        })
    }

    async fn remove_below(&self, topic: TopicId, first_seq: u64) -> MongoResult<Removed> {
        let mut removed = Removed::default();
        let mut from = self.cleaned_to.lock().get(&topic).copied().unwrap_or(0);
        while from < first_seq {
            let seqs = ReadableSeqs { first_seq: from, last_seq: first_seq - 1 };
            let slice = self.find_seqs(topic, seqs, SLICE).await?;
            let Some(&last_seq) = slice.last() else { break };
            let slice = kept_in(topic, ReadableSeqs { first_seq: from, last_seq });
            removed = sum(removed, self.remove_slice(topic, slice).await?);
            from = last_seq + 1;
        }
        self.cleaned_to.lock().insert(topic, first_seq);
        Ok(removed)
    }

    async fn remove_seqs(&self, topic: TopicId, seqs: &[u64]) -> MongoResult<Removed> {
        let mut removed = Removed::default();
        for slice in seqs.chunks(SLICE) {
            let (Some(&first), Some(&last)) = (slice.iter().min(), slice.iter().max()) else { continue };
            let keys: Vec<Bson> = slice.iter().map(|&seq| bson_key(topic, seq)).collect();
            // The bounds are needed: for a list alone, the server scans the whole clustered collection.
            let filter = doc! {
                "_id": { "$gte": bson_key(topic, first), "$lte": bson_key(topic, last), "$in": keys },
                "expire_at": { "$exists": false },
            };
            removed = sum(removed, self.remove_slice(topic, filter).await?);
        }
        Ok(removed)
    }

    async fn remove_slice(&self, topic: TopicId, filter: Document) -> MongoResult<Removed> {
        let events = &self.collections.events;
        let usage = self.count_usage(filter.clone()).await?;
        if self.options.dedupe_ms > 0 {
            let now_ms = self.clock.wall_ms();
            let expire_at = now_ms.saturating_add(i64::try_from(self.options.dedupe_ms).unwrap_or(i64::MAX));
            let mut with_id = filter.clone();
            with_id.insert("client_id", doc! { "$exists": true });
            let stub = doc! { "$replaceWith": {
                "_id": "$_id", "topic_no": "$topic_no", "seq": "$seq", "client_id": "$client_id",
                "expire_at": DateTime::from_millis(expire_at),
            } };
            events.update_many(with_id, vec![stub]).await?;
        }
        events.delete_many(filter).await?;
        let removed = Removed { events: usage.events, bytes: usage.bytes };
        self.usage.removed(topic, removed);
        Ok(removed)
    }

    /// Removes the events of deleted topics, and all ids that were kept for these topics.
    async fn remove_deleted_topics(&self) -> MongoResult<Removed> {
        let deleted = self.writer.lock().await.catalog.deleted.clone();
        let mut removed = Removed::default();
        for topic in deleted {
            self.usage.forget(topic);
            let mut first_seq = 0;
            loop {
                let all = ReadableSeqs { first_seq, last_seq: i64::MAX as u64 };
                let slice = self.find_seqs(topic, all, SLICE).await?;
                let Some(&last_seq) = slice.last() else { break };
                let slice = kept_in(topic, ReadableSeqs { first_seq, last_seq });
                let usage = self.count_usage(slice.clone()).await?;
                removed = sum(removed, Removed { events: usage.events, bytes: usage.bytes });
                self.collections.events.delete_many(slice).await?;
                first_seq = last_seq + 1;
            }
            let range = doc! { "_id": { "$gte": bson_key(topic, 0), "$lte": bson_key(topic, u64::MAX) } };
            self.collections.events.delete_many(range).await?;
            self.writer.lock().await.catalog.deleted.remove(&topic);
        }
        Ok(removed)
    }
}

fn sum(one: Removed, other: Removed) -> Removed {
    Removed { events: one.events + other.events, bytes: one.bytes + other.bytes }
}
