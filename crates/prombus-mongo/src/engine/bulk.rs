//! Builds the bulk of a commit: one ordered `insert` command that contains the commit's fence (`fence.rs`), its events, and its state
//! records (changes of topics and groups), in this order.
//!
//! **Invariant:** a bulk is one command that is never split. A bulk is *cut* if the server stops executing the command before its end: then
//! only its first documents are stored.

use crate::bson_writer::BsonWriter;
use crate::engine::catalog::{Catalog, CatalogTopic, topic_made};
use crate::engine::document::{EventPlace, prepared_fields, put_event};
use crate::engine::fence::{Fence, FencedTopic};
use crate::engine::keys::{RECORDS, key};
use prombus::engine::network::{Change, CommitAnswer, EncodedRecord, PendingCommit, QueuedEvent};
use prombus::engine::{EventId, TopicId};
use prombus::{Published, Uuid};
use std::collections::{BTreeMap, HashMap};

/// The maximum size of the records in one document.
const RECORDS_BYTES_MAX: usize = 8 << 20;
/// The maximum number of documents with state records in one commit. The seq of the first of them is the number of the commit's fence times
/// this maximum.
pub(crate) const RECORD_PIECES_MAX: u64 = 256;
/// The time limit of a small bulk on the server. A leader that takes over waits until the previous leader's last bulk is whole, or the time
/// limit of that bulk has passed.
const MAX_TIME_MS: u32 = 1_000;
/// The time limit is longer by one millisecond per this many events.
const EVENTS_PER_MS: u32 = 5;
/// The maximum to which the time limit grows: it is doubled each time a commit was voided and is sent again.
const MAX_TIME_LIMIT_MS: u32 = 120_000;
/// The size of a bulk's fields other than its documents.
const COMMAND_OVERHEAD: usize = 4_096;

/// The seqs of events that already exist, by topic and id.
pub(crate) type KnownIds = HashMap<(TopicId, EventId), u64>;

/// The content of a commit, and the result for its callers.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) fence: Fence,
    /// State records: changes of topics and groups.
    pub(crate) records: Vec<EncodedRecord>,
    /// The result for the callers, if the commit succeeds.
    pub(crate) answer: CommitAnswer,
    /// New events and their positions.
    events: Vec<(QueuedEvent, EventPlace)>,
    /// Topics that the commit creates.
    made: BTreeMap<TopicId, CatalogTopic>,
}

impl Plan {
    /// Assigns seqs to the events of a commit, except to duplicates. `known` contains the ids that are already stored.
    pub(crate) fn new(commit: &PendingCommit, fence: Fence, catalog: &Catalog, known: &KnownIds) -> Self {
        let mut plan = Self {
            fence,
            records: Vec::new(),
            answer: CommitAnswer::default(),
            events: Vec::with_capacity(commit.event_count()),
            made: BTreeMap::new(),
        };
        plan.fence.newest_id = commit.newest_id;
        plan.fence.newest_ms = commit.newest_ms;
        let mut tails: BTreeMap<TopicId, FencedTopic> = BTreeMap::new();
        let mut seen: KnownIds = HashMap::new();
        for change in &commit.changes {
            match change {
                Change::TopicMade { topic, name } => {
                    plan.records.push(topic_made(*topic, name));
                    plan.made.insert(*topic, CatalogTopic::new(name.clone()));
                }
                Change::Batch { events, records } => {
                    let outcomes = events.iter();
                    let outcomes =
                        outcomes.map(|event| plan.place(event, catalog, known, &mut seen, &mut tails));
                    let outcomes = outcomes.collect();
                    plan.answer.outcomes.push(outcomes);
                    plan.records.extend(records.iter().cloned());
                }
                Change::TopicDeleted { topic, record } => {
                    plan.answer.newest.remove(topic);
                    plan.records.push(record.clone());
                }
            }
        }
        plan.fence.topics = tails.into_values().collect();
        plan.fence.record_pieces = plan.record_pieces().len() as u32;
        plan.fence.max_time_ms = MAX_TIME_MS + plan.events.len() as u32 / EVENTS_PER_MS;
        plan
    }

    fn place(
        &mut self,
        event: &QueuedEvent,
        catalog: &Catalog,
        known: &KnownIds,
        seen: &mut KnownIds,
        tails: &mut BTreeMap<TopicId, FencedTopic>,
    ) -> Published {
        let id = Uuid::from_u128(event.id.as_u128());
        let name = (event.topic, event.id);
        if event.is_client_id
            && let Some(&seq) = known.get(&name).or_else(|| seen.get(&name))
        {
            return Published { id, seq, duplicate: true };
        }
        let tail = tails.entry(event.topic).or_insert_with(|| {
            let before = catalog.topics.get(&event.topic).or_else(|| self.made.get(&event.topic));
            FencedTopic {
                topic: event.topic,
                from: before.map_or(0, |it| it.last_seq) + 1,
                to: before.map_or(0, |it| it.last_seq),
                max_ts: before.map_or(i64::MIN, |it| it.max_ts),
                topic_bytes: before.map_or(0, |it| it.topic_bytes),
            }
        });
        tail.to += 1;
        tail.max_ts = tail.max_ts.max(event.ts);
        tail.topic_bytes += event.bytes() as u64;
        let place = EventPlace {
            seq: tail.to,
            fence: self.fence.number,
            max_ts: tail.max_ts,
            topic_bytes: tail.topic_bytes,
        };
        self.events.push((event.clone(), place));
        // A later event of the same commit may have the same id, so this id must be known too.
        seen.insert(name, tail.to);
        self.answer.newest.insert(event.topic, tail.to);
        Published { id, seq: tail.to, duplicate: false }
    }

    /// Gives the commit the next number, because the fence with its old number is void. The bulk may have exceeded its time limit, so the
    /// limit is doubled.
    pub(crate) fn renumber(&mut self) {
        let number = self.fence.number + 1;
        self.fence.number = number;
        self.fence.max_time_ms = (self.fence.max_time_ms * 2).min(MAX_TIME_LIMIT_MS);
        self.events.iter_mut().for_each(|(_, place)| place.fence = number);
    }

    /// The records in their stored form, in pieces. There is at least one piece: the last piece is the last document of the bulk, and its
    /// existence shows that the bulk is whole. An event could not show that, because cleaning may have removed it.
    fn record_pieces(&self) -> Vec<Vec<u8>> {
        let mut pieces: Vec<Vec<u8>> = vec![Vec::new()];
        for EncodedRecord { tag, body } in &self.records {
            let fits =
                |piece: &Vec<u8>| piece.is_empty() || piece.len() + body.len() + 8 <= RECORDS_BYTES_MAX;
            if !pieces.last().is_some_and(fits) {
                pieces.push(Vec::new());
            }
            if let Some(piece) = pieces.last_mut() {
                piece.extend_from_slice(&tag.to_le_bytes());
                piece.extend_from_slice(&(body.len() as u32).to_le_bytes());
                piece.extend_from_slice(body);
            }
        }
        pieces
    }

    /// Returns the bytes of the `insert` command. `is_small` leaves out the field `payload` of events, which is only for queries by people.
    pub(crate) fn command(&self, command: &BulkCommand<'_>, catalog: &Catalog, is_small: bool) -> Vec<u8> {
        let bytes: usize = self.events.iter().map(|(event, _)| event.prepared.len() + 400).sum();
        let mut writer = BsonWriter::with_capacity(bytes + COMMAND_OVERHEAD);
        let outer = writer.begin();
        writer.string("insert", command.collection);
        writer.boolean("ordered", true);
        writer.i32("maxTimeMS", self.fence.max_time_ms as i32);
        let concern = writer.begin_document("writeConcern");
        match command.write_concern {
            WriteConcern::Nodes(count) => writer.i32("w", count),
            WriteConcern::Tag(tag) => writer.string("w", tag),
        }
        writer.boolean("j", true);
        writer.end(concern);
        let documents = writer.begin_array("documents");
        self.fence.put(&mut writer, "0", command.now_ms);
        let mut at = 1_usize;
        for (event, place) in &self.events {
            let topic = catalog.topics.get(&event.topic).or_else(|| self.made.get(&event.topic));
            let topic = topic.map_or("", |topic| topic.name.as_str());
            let small = is_small.then(|| prepared_fields(event.ts, &event.body, false));
            let fields = small.as_ref().unwrap_or(&event.prepared);
            put_event(&mut writer, &at.to_string(), event, place, topic, fields);
            at += 1;
        }
        for (piece, bytes) in self.record_pieces().iter().enumerate() {
            let record = writer.begin_document(&at.to_string());
            writer.binary("_id", &key(RECORDS, self.fence.number * RECORD_PIECES_MAX + piece as u64));
            writer.i64("commit", self.fence.number as i64);
            writer.binary("records", bytes);
            writer.end(record);
            at += 1;
        }
        writer.end(documents);
        writer.end(outer);
        writer.into_bytes()
    }
}

/// Settings of a bulk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BulkCommand<'a> {
    pub(crate) collection: &'a str,
    pub(crate) write_concern: WriteConcern<'a>,
    pub(crate) now_ms: i64,
}

/// How many members of the replica set must have a write before the server confirms it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WriteConcern<'a> {
    /// This number of members.
    Nodes(i32),
    /// `majority`, or the name of a custom write concern.
    Tag(&'a str),
}

/// Reads records as [`Plan::command`] wrote them.
///
/// # Errors
/// If the bytes are truncated.
pub(crate) fn parse_records(mut bytes: &[u8], into: &mut Vec<EncodedRecord>) -> Result<(), String> {
    while !bytes.is_empty() {
        let cut = "state records are cut short";
        let (head, rest) = bytes.split_first_chunk::<8>().ok_or(cut)?;
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let (body, rest) = rest.split_at_checked(number(4) as usize).ok_or(cut)?;
        into.push(EncodedRecord { tag: number(0), body: body.to_vec() });
        bytes = rest;
    }
    Ok(())
}
