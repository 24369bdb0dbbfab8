//! Snapshots of compacted topics. A row for every key that changed since the last snapshot is published to the snapshot
//! topic, followed by a marker with the position of the snapshot.
//!
//! A row is an event with the changed key and the payload `{key, payload, ts}`; for a deleted key it is a tombstone (`null`).
//! The marker's key is the name of the snapshot topic, so a newer marker supersedes the older ones; a key of that name is
//! left out of snapshots. The newest rows, plus all events of the topic after the marker's position, are the whole state.

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
/// The most rows that are deleted in one batch.
const STALE_ROWS: usize = 32;
/// Markers have this tag.
pub const MARKER_TAG: &str = "snapshot.marker";

/// The payload of a marker: the position of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMarker {
    /// The topic whose state the snapshot contains.
    pub topic: String,
    /// The snapshot and all events after this position are the whole state.
    pub position: MarkerPosition,
    /// How many keys the topic had, without deleted ones.
    pub keys: u64,
    /// How many rows were published for this marker.
    pub rows: u64,
    /// When the snapshot was taken, in milliseconds since 1970.
    pub ts: i64,
}

/// A position in a topic, as markers contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkerPosition {
    /// The id of the event.
    pub id: Uuid,
    /// The seq of the event.
    pub seq: u64,
}

impl From<EventPosition> for MarkerPosition {
    fn from(position: EventPosition) -> Self {
        Self { id: position.id, seq: position.seq }
    }
}

/// Why a snapshot failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The topic or its snapshots could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Rows could not be published.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The snapshot topic contains the snapshots of another topic. Two topics that shared it would take a full snapshot each
    /// time, and mix their keys.
    #[error("{snapshots} has the snapshots of {topic}; name another snapshot_topic")]
    Taken {
        /// The snapshot topic.
        snapshots: String,
        /// The topic whose snapshots it contains.
        topic: String,
    },
}

/// The store that a snapshot is taken from and published to.
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

/// Publishes the changes of a topic since its last snapshot to its snapshot topic. Returns `None` if nothing changed.
///
/// # Errors
/// [`SnapshotError`]. Rows that were published before the error are published again with the next snapshot, which is
/// harmless.
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
    // The rows are durable by now: a marker never exists without them.
    batch.push(snapshots, &marker, &options)?;
    backend.publish(batch).await?;
    Ok(Some(marker))
}

/// Returns the last seq that the snapshot with this marker includes; `None` if the topic has no later events. If the topic may
/// have been deleted and created again since, also deletes the rows of keys that it does not have.
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
    // The event at the marker's position is gone, usually because a newer event of its key has replaced it. If no event up to
    // `after` is left either, the topic may have been deleted and created again.
    if after < marked.seq {
        let limit = PullLimit { events: 1, ..PAGE };
        let old = LatestQuery { to_seq: Some(after), with_deleted: true, limit, ..LatestQuery::default() };
        if backend.latest(topic, old).await?.events.is_empty() {
            remove_stale(backend, topic, snapshots).await?;
        }
    }
    Ok(Some(after))
}

/// Publishes the rows of a page and returns how many.
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
                tracing::warn!("the key {key:?} is left out of {snapshots}: it is reserved for markers");
                continue;
            }
            let options = PublishOptions { key: Some(key.to_owned()), ..PublishOptions::default() };
            batch.push_own(snapshots, &row(&event, key), &options)?;
        }
        let count = batch.len();
        match backend.publish(batch).await {
            // A batch must fit into a segment, which may be small.
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

/// Deletes rows whose keys the topic does not have: they are from before the topic was deleted and created again.
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
        // A batch must fit into a segment, which may be small.
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

/// The newest marker of a snapshot topic; `None` if it has no marker.
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
    // Any client may publish to this topic: ignore an event that is not a marker.
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
