//! Snapshots of compacted topics: every key that changed since the last snapshot is published to the snapshot topic, and behind
//! them a marker that says how far the snapshot goes.
//!
//! A row is `{key, payload, ts}` with the key as its key; a key that was deleted is deleted there too (`null`). The marker has the
//! name of the snapshot topic as its key, so the newest one stands in the place of those before; a key of that name is left out.
//! The newest rows and everything that the topic has behind the marker's position are the whole state.

use crate::backend::{Backend, EventPosition, Keys, LatestPage, LatestQuery};
use crate::batch::{EventBatch, PullLimit};
use crate::box_future::BoxFuture;
use crate::error::{PublishError, ReadError};
use crate::event::Event;
use crate::publish::PublishBatch;
use crate::publishing::Publishing;
use prombus_protocol::{PublishOptions, Start, Topic, Uuid, put_string};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Arc;

/// Rows are published in batches of about this size.
const PAGE: PullLimit = PullLimit { events: 1_000, bytes: 512 * 1024 };
/// So many rows are deleted at once.
const STALE_ROWS: usize = 32;
/// Markers have this tag.
pub const MARKER_TAG: &str = "snapshot.marker";

/// How far a snapshot goes: the payload of a marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMarker {
    /// The topic whose state it is.
    pub topic: String,
    /// With everything behind this position the snapshot is the whole state.
    pub position: MarkerPosition,
    /// How many keys the topic had.
    pub keys: u64,
    /// How many rows were published for this marker.
    pub rows: u64,
    /// When it was taken.
    pub ts: i64,
}

/// A place in a topic, as a marker has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkerPosition {
    /// The id of the event there.
    pub id: Uuid,
    /// Its seq.
    pub seq: u64,
}

impl From<EventPosition> for MarkerPosition {
    fn from(position: EventPosition) -> Self {
        Self { id: position.id, seq: position.seq }
    }
}

/// Why there is no snapshot.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The topic or its snapshots could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Rows could not be published.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// Another topic's snapshots are there. Two that share a topic would begin anew with every snapshot, and mix their keys.
    #[error("{snapshots} has the snapshots of {topic}; name another snapshot_topic")]
    Taken {
        /// Where they were to go.
        snapshots: String,
        /// Whose are there.
        topic: String,
    },
}

/// What a snapshot is taken from, and published to.
pub(crate) trait SnapshotSource: Sync {
    fn has_topic(&self, name: &str) -> bool;
    fn latest<'a>(
        &'a self,
        topic: &'a Topic,
        query: LatestQuery,
    ) -> BoxFuture<'a, Result<LatestPage, ReadError>>;
    fn locate<'a>(&'a self, topic: &'a Topic, start: Start) -> BoxFuture<'a, Result<u64, ReadError>>;
    fn batch(&self) -> PublishBatch;
    fn publish(&self, batch: PublishBatch) -> Publishing;
}

impl SnapshotSource for &dyn Backend {
    fn has_topic(&self, name: &str) -> bool {
        self.topic(name).is_some()
    }

    fn latest<'a>(
        &'a self,
        topic: &'a Topic,
        query: LatestQuery,
    ) -> BoxFuture<'a, Result<LatestPage, ReadError>> {
        Backend::latest(*self, topic, query)
    }

    fn locate<'a>(&'a self, topic: &'a Topic, start: Start) -> BoxFuture<'a, Result<u64, ReadError>> {
        Backend::locate(*self, topic, start)
    }

    fn batch(&self) -> PublishBatch {
        Backend::batch(*self)
    }

    fn publish(&self, batch: PublishBatch) -> Publishing {
        Backend::publish(*self, batch)
    }
}

/// Publishes what changed in a topic since its last snapshot to its snapshot topic. `None` when nothing did.
///
/// # Errors
/// [`SnapshotError`]; what was published so far is published again with the next one, which changes nothing.
pub async fn take_snapshot(
    backend: &dyn Backend,
    topic: &Topic,
    snapshots: &Topic,
) -> Result<Option<SnapshotMarker>, SnapshotError> {
    snapshot_of(&backend, topic, snapshots).await
}

pub(crate) async fn snapshot_of(
    backend: &impl SnapshotSource,
    topic: &Topic,
    snapshots: &Topic,
) -> Result<Option<SnapshotMarker>, SnapshotError> {
    let last = last_marker(backend, snapshots).await?;
    if let Some(other) = last.as_ref().filter(|marker| marker.topic != topic.as_str()) {
        return Err(SnapshotError::Taken { snapshots: snapshots.to_string(), topic: other.topic.clone() });
    }
    let mut after = match &last {
        None => 0,
        Some(marker) => match start_after(backend, topic, snapshots, marker.position).await? {
            Some(after) => after,
            None => return Ok(None),
        },
    };
    let mut query = LatestQuery { with_deleted: true, limit: PAGE, ..LatestQuery::default() };
    let (mut position, mut rows, mut keys) = (None, 0, 0);
    loop {
        query.after_seq = after;
        let page = backend.latest(topic, query.clone()).await?;
        let Some(newest) = page.position else { return Ok(None) };
        if position.is_none() {
            position = Some(newest);
            keys = page.key_count;
            query.to_seq = Some(newest.seq);
        }
        rows += publish_rows(backend, Arc::new(page.events), snapshots).await?;
        match page.next_after {
            Some(next) => after = next,
            None => break,
        }
    }
    let Some(position) = position.filter(|_| rows > 0) else { return Ok(None) };
    let mut batch = backend.batch();
    let ts = batch.now_ms();
    let marker = SnapshotMarker { topic: topic.to_string(), position: position.into(), keys, rows, ts };
    let options = PublishOptions {
        key: Some(snapshots.to_string()),
        tags: vec![MARKER_TAG.to_owned()],
        ..PublishOptions::default()
    };
    // The rows are durable by now: a marker is never there without them.
    batch.push(snapshots, &marker, &options)?;
    backend.publish(batch).await?;
    Ok(Some(marker))
}

/// The seq after which events are not in the snapshot with this marker; `None` when the topic has no such events.
async fn start_after(
    backend: &impl SnapshotSource,
    topic: &Topic,
    snapshots: &Topic,
    marked: MarkerPosition,
) -> Result<Option<u64>, SnapshotError> {
    let keys = Keys::These(Vec::new());
    let now = backend.latest(topic, LatestQuery { keys, limit: PAGE, ..LatestQuery::default() }).await?;
    if now.position.map(MarkerPosition::from) == Some(marked) {
        return Ok(None);
    }
    let after = match backend.locate(topic, Start::AfterId(marked.id)).await {
        Ok(next) => marked.seq.min(next - 1),
        // A topic that was deleted and created again starts over.
        Err(ReadError::UnknownId(_)) => 0,
        Err(error) => return Err(error.into()),
    };
    // The marker's event is gone, usually because newer ones have replaced it. If no other event of that age is left either, the
    // topic may be another one of the same name.
    if after < marked.seq {
        let limit = PullLimit { events: 1, ..PAGE };
        let old = LatestQuery { to_seq: Some(after), with_deleted: true, limit, ..LatestQuery::default() };
        if backend.latest(topic, old).await?.events.is_empty() {
            remove_stale(backend, topic, snapshots).await?;
        }
    }
    Ok(Some(after))
}

/// Publishes the rows of a page. Answers how many.
async fn publish_rows(
    backend: &impl SnapshotSource,
    events: Arc<EventBatch>,
    snapshots: &Topic,
) -> Result<u64, SnapshotError> {
    let (mut at, mut rows, mut most) = (0, 0, events.items().len());
    while at < events.items().len() {
        let mut batch = backend.batch();
        let end = events.items().len().min(at + most);
        for event in (at..end).map(|at| Event::read(Arc::clone(&events), at)) {
            let Some(key) = event.key() else { continue };
            if key == snapshots.as_str() {
                tracing::warn!("the key {key:?} is left out of {snapshots}: markers have it");
                continue;
            }
            let options = PublishOptions { key: Some(key.to_owned()), ..PublishOptions::default() };
            batch.push_own(snapshots, &row(&event, key), &options)?;
        }
        let count = batch.len();
        match backend.publish(batch).await {
            // Segments may be small.
            Err(PublishError::BatchTooLarge(_)) if count > 1 => most = count / 2,
            published => {
                published?;
                rows += count as u64;
                at = end;
            }
        }
    }
    Ok(rows)
}

/// Deletes rows whose keys the topic does not have: they are from before it was deleted and made again.
async fn remove_stale(
    backend: &impl SnapshotSource,
    topic: &Topic,
    snapshots: &Topic,
) -> Result<(), SnapshotError> {
    let mut query = LatestQuery { limit: PAGE, ..LatestQuery::default() };
    loop {
        let page = backend.latest(snapshots, query.clone()).await?;
        query.to_seq = query.to_seq.or(page.position.map(|position| position.seq));
        let mut stale: BTreeSet<String> = keys_of(page.events).collect();
        stale.remove(snapshots.as_str());
        let keys = Keys::These(stale.iter().cloned().collect());
        let mut known = LatestQuery { keys, limit: PAGE, ..LatestQuery::default() };
        loop {
            let page = backend.latest(topic, known.clone()).await?;
            for key in keys_of(page.events) {
                stale.remove(&key);
            }
            match page.next_after {
                Some(next) => known.after_seq = next,
                None => break,
            }
        }
        let stale: Vec<String> = stale.into_iter().collect();
        // Segments may be small.
        for part in stale.chunks(STALE_ROWS) {
            let mut batch = backend.batch();
            for key in part {
                let options = PublishOptions { key: Some(key.clone()), ..PublishOptions::default() };
                batch.push_own(snapshots, b"null", &options)?;
            }
            backend.publish(batch).await?;
        }
        match page.next_after {
            Some(next) => query.after_seq = next,
            None => return Ok(()),
        }
    }
}

fn keys_of(events: EventBatch) -> impl Iterator<Item = String> {
    Event::all_read(events).filter_map(|event| event.key().map(str::to_owned))
}

/// The newest marker of a snapshot topic.
async fn last_marker(
    backend: &impl SnapshotSource,
    snapshots: &Topic,
) -> Result<Option<SnapshotMarker>, ReadError> {
    if !backend.has_topic(snapshots.as_str()) {
        return Ok(None);
    }
    let keys = Keys::These(vec![snapshots.to_string()]);
    let page = backend.latest(snapshots, LatestQuery { keys, limit: PAGE, ..LatestQuery::default() }).await?;
    if page.events.is_empty() {
        return Ok(None);
    }
    // Anybody may publish there: an event that is not a marker does not count.
    Ok(Event::read(Arc::new(page.events), 0).json().ok())
}

fn row(event: &Event, key: &str) -> Vec<u8> {
    let payload = event.payload();
    if payload.trim() == "null" {
        return b"null".to_vec();
    }
    let mut row = Vec::with_capacity(payload.len() + key.len() + 48);
    row.extend_from_slice(b"{\"key\":");
    put_string(&mut row, key);
    row.extend_from_slice(b",\"payload\":");
    row.extend_from_slice(payload.as_bytes());
    write!(row, ",\"ts\":{}}}", event.ts()).expect("a vector takes everything");
    row
}
