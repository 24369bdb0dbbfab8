//! The derived collections `topics` and `cursors`, for people and tools. The leader updates them about once per second; the engine never
//! reads them. A cursor is the event at a group's floor in a topic. The floor is the highest seq up to which the group has settled all
//! events.

use crate::engine::catalog::{Catalog, Touched};
use crate::engine::collections::Collections;
use crate::engine::keys::{bson_key, kept_in};
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::error::Result as MongoResult;
use parking_lot::Mutex;
use prombus::engine::network::ReadableSeqs;
use prombus::engine::{GroupFloors, StateFold, TopicId};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often the derived collections are written.
pub(crate) const INTERVAL: Duration = Duration::from_millis(800);
/// The maximum number of updates in one command.
const UPDATES_MAX: usize = 1_000;

/// The changes since the collections were last written.
#[derive(Debug)]
pub(crate) struct Derived {
    /// The current state of topics and groups.
    fold: StateFold,
    /// The term of the leader that writes.
    term: u64,
    changed: Mutex<Changed>,
}

#[derive(Debug, Default)]
struct Changed {
    /// The names of changed topics; `None` if the topic was deleted.
    topics: BTreeMap<TopicId, Option<String>>,
    groups: std::collections::BTreeSet<u32>,
}

impl Derived {
    /// A new leader writes everything, because the previous leader may have ended before it wrote its last changes.
    pub(crate) fn new(catalog: &Catalog, term: u64) -> Self {
        let topics = catalog.topics.iter();
        let topics = topics.map(|(&topic, it)| (topic, Some(it.name.to_string()))).collect();
        let groups = catalog.fold.group_numbers().into_iter().collect();
        Self { fold: catalog.fold.clone(), term, changed: Mutex::new(Changed { topics, groups }) }
    }

    pub(crate) fn touch(&self, touched: Touched, catalog: &Catalog) {
        if touched.topics.is_empty() && touched.groups.is_empty() {
            return;
        }
        let mut changed = self.changed.lock();
        for topic in touched.topics {
            let name = catalog.topics.get(&topic).map(|it| it.name.to_string());
            changed.topics.insert(topic, name);
        }
        changed.groups.extend(touched.groups);
    }

    /// Writes the changes. If that fails, they are written the next time.
    pub(crate) async fn write(&self, collections: &Collections) -> MongoResult<()> {
        let Changed { topics, groups } = std::mem::take(&mut *self.changed.lock());
        let written =
            self.write_changed(collections, &topics, &groups.iter().copied().collect::<Vec<_>>()).await;
        if written.is_err() {
            let mut changed = self.changed.lock();
            for (topic, name) in topics {
                changed.topics.entry(topic).or_insert(name);
            }
            changed.groups.extend(groups);
        }
        written
    }

    async fn write_changed(
        &self,
        collections: &Collections,
        topics: &BTreeMap<TopicId, Option<String>>,
        groups: &[u32],
    ) -> MongoResult<()> {
        let firsts: BTreeMap<TopicId, u64> =
            if topics.is_empty() { BTreeMap::new() } else { self.fold.firsts().into_iter().collect() };
        let updates = topics.iter().filter_map(|(topic, name)| {
            let name = name.as_ref()?;
            let first_seq = firsts.get(topic).copied().unwrap_or(1).max(1) as i64;
            let settings = self.fold.topic_settings(name).map_or(Bson::Null, Bson::String);
            let document =
                doc! { "name": name, "first_seq": first_seq, "settings": settings, "term": self.term as i64 };
            Some(upsert(Bson::Int32(topic.number() as i32), document))
        });
        update(collections, collections.topics.name(), updates.collect()).await?;
        let deleted = topics.iter().filter(|(_, name)| name.is_none());
        let deleted: Vec<i32> = deleted.map(|(topic, _)| topic.number() as i32).collect();
        if !deleted.is_empty() {
            collections.topics.delete_many(doc! { "_id": { "$in": deleted } }).await?;
        }
        for groups in groups.chunks(UPDATES_MAX) {
            self.write_cursors(collections, groups).await?;
        }
        Ok(())
    }

    async fn write_cursors(&self, collections: &Collections, groups: &[u32]) -> MongoResult<()> {
        let mut updates = Vec::new();
        let mut deleted = Vec::new();
        for &number in groups {
            let Some(group) = self.fold.group_floors(number) else {
                deleted.push(i64::from(number));
                continue;
            };
            for &(topic, floor) in group.floors.iter().filter(|(_, floor)| *floor > 0) {
                if let Some(event) = event_at(collections, topic, floor).await? {
                    updates.extend(self.cursor(number, &group, floor, &event));
                }
            }
        }
        if !deleted.is_empty() {
            collections.cursors.delete_many(doc! { "group_no": { "$in": deleted } }).await?;
        }
        update(collections, collections.cursors.name(), updates).await
    }

    fn cursor(
        &self,
        number: u32,
        group: &GroupFloors,
        floor: u64,
        event: &RawDocumentBuf,
    ) -> Option<Document> {
        let topic = event.get_str("topic").ok()?;
        let document = doc! {
            "topic": topic, "group": &group.name, "lastId": event.get_str("id").ok()?, "lastTs": event.get_i64("ts").ok()?,
            "lastSeq": floor as i64, "subscription": &group.subscription, "group_no": i64::from(number),
            "term": self.term as i64,
        };
        Some(upsert(Bson::String(format!("{topic}::{}", group.name)), document))
    }
}

/// The event at a floor. If cleaning removed that event, the last event before it that still exists.
async fn event_at(
    collections: &Collections,
    topic: TopicId,
    floor: u64,
) -> MongoResult<Option<RawDocumentBuf>> {
    let fields = || doc! { "id": 1, "ts": 1, "topic": 1 };
    let exact = doc! { "_id": bson_key(topic, floor), "expire_at": { "$exists": false } };
    if let Some(event) = collections.events.find_one(exact).projection(fields()).await? {
        return Ok(Some(event));
    }
    let before = kept_in(topic, ReadableSeqs { first_seq: 0, last_seq: floor });
    collections.events.find_one(before).sort(doc! { "_id": -1 }).projection(fields()).await
}

fn upsert(id: Bson, document: Document) -> Document {
    doc! { "q": { "_id": id }, "u": document, "upsert": true }
}

async fn update(collections: &Collections, name: &str, updates: Vec<Document>) -> MongoResult<()> {
    for updates in updates.chunks(UPDATES_MAX) {
        let command = doc! { "update": name, "updates": updates.to_vec(), "ordered": false };
        collections.database.run_command(command).await?;
    }
    Ok(())
}
