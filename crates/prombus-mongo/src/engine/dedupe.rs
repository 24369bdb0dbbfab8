//! Detects duplicates: before a commit is sent, the ids that publishers chose for its events are looked up, topic by topic. If the lookup
//! misses an id, the unique index refuses the event.

use crate::engine::bulk::KnownIds;
use crate::engine::catalog::Catalog;
use crate::engine::database::MongoDatabase;
use crate::engine::document::seq_of;
use futures_util::TryStreamExt as _;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, doc};
use mongodb::error::Result as MongoResult;
use prombus::engine::network::{Change, CommitError, PendingCommit, ReadableSeqs, has_id_mark};
use prombus::engine::{EventId, TopicId};
use std::collections::BTreeMap;

/// The maximum number of ids in one query.
const QUERY_IDS_MAX: usize = 5_000;

pub(crate) fn bson_id(id: EventId) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: id.to_bytes().to_vec() })
}

fn unreachable(error: prombus::ReadError) -> CommitError {
    CommitError::Unreachable(error.to_string())
}

impl MongoDatabase {
    /// The ids in a commit that already exist in their topics. Documents above the last seq of a topic are remains of a void commit and do
    /// not count.
    pub(crate) async fn known_ids(
        &self,
        commit: &PendingCommit,
        catalog: &Catalog,
    ) -> Result<KnownIds, CommitError> {
        let mut by_topic: BTreeMap<TopicId, Vec<EventId>> = BTreeMap::new();
        for change in &commit.changes {
            if let Change::Batch { events, .. } = change {
                for event in events.iter().filter(|event| event.is_client_id) {
                    by_topic.entry(event.topic).or_default().push(event.id);
                }
            }
        }
        let mut known = KnownIds::new();
        for (topic, ids) in by_topic {
            let Some(last_seq) = catalog.topics.get(&topic).map(|topic| topic.last_seq) else { continue };
            // A publisher may also repeat an id that prombus generated.
            let own: Vec<EventId> = ids.iter().copied().filter(|&id| has_id_mark(id, self.id_mark)).collect();
            let seqs = ReadableSeqs { first_seq: 0, last_seq };
            let mut found = Vec::new();
            for ids in ids.chunks(QUERY_IDS_MAX) {
                found.extend(self.reading(|| self.find_client_ids(topic, ids)).await.map_err(unreachable)?);
            }
            if !own.is_empty() {
                found.extend(
                    self.reading(|| self.find_own_ids(topic, &own, seqs)).await.map_err(unreachable)?,
                );
            }
            let found = found.into_iter().filter(|(_, seq)| *seq <= last_seq);
            known.extend(found.map(|(id, seq)| ((topic, id), seq)));
        }
        Ok(known)
    }

    /// Finds which of these ids publishers chose for events of a topic, including events that cleaning removed.
    pub(crate) async fn find_client_ids(
        &self,
        topic: TopicId,
        ids: &[EventId],
    ) -> MongoResult<Vec<(EventId, u64)>> {
        let ids: Vec<Bson> = ids.iter().copied().map(bson_id).collect();
        let filter = doc! { "topic_no": topic.number() as i32, "client_id": { "$in": ids } };
        let found = self.collections.events.find(filter).projection(doc! { "client_id": 1 });
        let mut found = found.hint(mongodb::options::Hint::Name("publishers' ids".to_owned())).await?;
        let mut known = Vec::new();
        while let Some(document) = found.try_next().await? {
            let id = document.get_binary("client_id").ok().and_then(|id| <[u8; 16]>::try_from(id.bytes).ok());
            known.extend(id.map(EventId::from_bytes).zip(seq_of(&document)));
        }
        Ok(known)
    }
}
