//! Converts changes to events.

use super::ChangefeedOptions;
use crate::json::{json_of_document, name_of};
use mongodb::bson::{Bson, Document};
use mongodb::change_stream::event::ResumeToken;
use prombus::outbox::OutboxRecord;
use prombus::{RawValue, Uuid};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The UUIDv5 namespace of event ids. It must stay the same: with another namespace, a change that is published again would get another id,
/// and the bus would not recognise the duplicate.
const NAMESPACE: Uuid = Uuid::from_u128(0x6f1b_94c2_8d07_5e3a_a1c5_47e2_90bd_3f68);

/// What happened to a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The document existed when the feed was seeded.
    Seed,
    /// The document was inserted.
    Insert,
    /// Some fields of the document were changed.
    Update,
    /// The document was replaced as a whole.
    Replace,
    /// The document was deleted.
    Delete,
}

impl ChangeKind {
    /// The name of the kind in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Seed => "seed",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Replace => "replace",
            Self::Delete => "delete",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [Self::Insert, Self::Update, Self::Replace, Self::Delete]
            .into_iter()
            .find(|kind| kind.as_str() == name)
    }
}

/// A change of a document.
#[derive(Clone, Debug)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// The `_id` of the document.
    pub id: Bson,
    /// The document. `None` if it was deleted, or if the feed does not request the documents of updates.
    pub document: Option<Document>,
    /// What an update changed: `updatedFields`, `removedFields`, `truncatedArrays`. `None` if the change is not an update.
    pub update: Option<Document>,
    /// The time of the change, in milliseconds since 1970; `None` for a seed.
    pub ts: Option<i64>,
}

/// Modifies an event, or leaves it out.
type Map = Arc<dyn Fn(&Change, OutboxRecord) -> Option<OutboxRecord> + Send + Sync>;

/// How changes become events.
pub(super) struct EventMap {
    /// The topic of the events.
    topic: String,
    /// The function that the user set.
    map: Option<Map>,
}

impl EventMap {
    pub(super) fn new(options: &ChangefeedOptions) -> Self {
        Self { topic: options.topic.clone(), map: None }
    }

    pub(super) fn set(
        &mut self,
        map: impl Fn(&Change, OutboxRecord) -> Option<OutboxRecord> + Send + Sync + 'static,
    ) {
        self.map = Some(Arc::new(map));
    }

    /// The event of a change. The map function cannot change the event's id, because the id shows that a change is published twice.
    fn record(&self, change: &Change, id: Uuid) -> Result<Option<OutboxRecord>, String> {
        let mut payload = Document::new();
        payload.insert("op", change.kind.as_str());
        payload.insert("_id", change.id.clone());
        if let Some(document) = &change.document {
            payload.insert("document", document.clone());
        }
        if let Some(update) = &change.update {
            payload.insert("update", update.clone());
        }
        let payload = RawValue::from_string(json_of_document(&payload)).map_err(|error| error.to_string())?;
        let key = Some(name_of(&change.id));
        let topic = self.topic.clone();
        let record = OutboxRecord { id, topic, payload, headers: BTreeMap::new(), key, ts: change.ts };
        Ok(match &self.map {
            Some(map) => map(change, record).map(|record| OutboxRecord { id, ..record }),
            None => Some(record),
        })
    }
}

/// One document of a change stream.
pub(super) struct StreamItem {
    /// The position after this document.
    pub(super) token: ResumeToken,
    /// The event, unless the map leaves it out.
    pub(super) record: Option<OutboxRecord>,
    /// Why the stream ends with this document; `None` if it does not end.
    pub(super) end: Option<String>,
}

/// Parses a document of a change stream, and converts its change to an event.
///
/// # Errors
/// If the document is not a change.
pub(super) fn parse_item(document: &Document, map: &EventMap) -> Result<StreamItem, String> {
    let token = document.get("_id").cloned().ok_or("a change has no _id")?;
    let id = token_id(&token)?;
    let token: ResumeToken =
        mongodb::bson::deserialize_from_bson(token).map_err(|error| error.to_string())?;
    let operation = document.get_str("operationType").map_err(|_| "a change has no operationType")?;
    let Some(kind) = ChangeKind::parse(operation) else {
        return Ok(StreamItem { token, record: None, end: Some(operation.to_owned()) });
    };
    let key = document.get_document("documentKey").ok().and_then(|key| key.get("_id"));
    let change = Change {
        kind,
        id: key.cloned().ok_or("a change has no documentKey")?,
        document: document.get_document("fullDocument").ok().cloned(),
        update: document.get_document("updateDescription").ok().cloned(),
        ts: change_time(document),
    };
    Ok(StreamItem { token, record: map.record(&change, id)?, end: None })
}

fn change_time(document: &Document) -> Option<i64> {
    match (document.get("wallTime"), document.get("clusterTime")) {
        (Some(Bson::DateTime(at)), _) => Some(at.timestamp_millis()),
        (_, Some(Bson::Timestamp(at))) => Some(i64::from(at.time) * 1_000),
        _ => None,
    }
}

/// The id of the event of a change.
fn token_id(token: &Bson) -> Result<Uuid, String> {
    let data = token.as_document().and_then(|token| token.get_str("_data").ok());
    Ok(Uuid::new_v5(&NAMESPACE, data.ok_or("a change has no resume token")?.as_bytes()))
}

/// The event for a document that exists when a feed is seeded. Its id is derived from the `_id` of the document and from `token`, the
/// position at which seeding began. So the events keep their ids if seeding is interrupted and repeated.
pub(super) fn seed_record(
    document: Document,
    token: &ResumeToken,
    map: &EventMap,
) -> Result<Option<OutboxRecord>, String> {
    let token = mongodb::bson::serialize_to_bson(token).map_err(|error| error.to_string())?;
    let id = document.get("_id").cloned().ok_or("a document has no _id")?;
    let event = Uuid::new_v5(&token_id(&token)?, name_of(&id).as_bytes());
    let change = Change { kind: ChangeKind::Seed, id, document: Some(document), update: None, ts: None };
    map.record(&change, event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::doc;

    fn item(operation: &str) -> Result<StreamItem, String> {
        let document = doc! {
            "_id": { "_data": "8263A1" }, "operationType": operation, "documentKey": { "_id": 7 },
            "fullDocument": { "_id": 7, "name": "x" }, "wallTime": mongodb::bson::DateTime::from_millis(5),
        };
        parse_item(&document, &EventMap::new(&ChangefeedOptions::collection("c").topic("t")))
    }

    #[test]
    fn every_change_becomes_an_event_with_its_own_id() {
        let insert = item("insert").expect("a change").record.expect("an event");
        assert_eq!(
            insert.payload.get(),
            "{\"op\":\"insert\",\"_id\":7,\"document\":{\"_id\":7,\"name\":\"x\"}}"
        );
        assert_eq!((insert.key.as_deref(), insert.ts, insert.topic.as_str()), (Some("7"), Some(5), "t"));
        assert_eq!(insert.id, item("update").expect("a change").record.expect("an event").id);
        assert_eq!(insert.id.to_string(), "2544af55-f89c-5c44-af9a-9dd404deedda");
    }

    #[test]
    fn a_drop_ends_the_stream() {
        let dropped = item("drop").expect("it is understood");
        assert_eq!((dropped.end.as_deref(), dropped.record.is_none()), (Some("drop"), true));
        assert!(
            parse_item(
                &doc! { "operationType": "insert" },
                &EventMap::new(&ChangefeedOptions::collection("c").topic("t"))
            )
            .is_err()
        );
    }
}
