//! Reads one topic forward, piece by piece.

use super::ApiError;
use super::query::{Begin, ResumePoint};
use super::response_stream::{StreamClient, StreamError};
use prombus::{EventBatch, EventChunk, EventItem, LatestPage, LatestQuery, PullLimit, ReadError, Uuid};
use prombus_protocol::{Start, Topic, put_record};

/// Reads a topic forward from a position.
pub(super) struct TopicReader {
    pub(super) client: StreamClient,
    pub(super) topic: Topic,
    /// The first seq that was not read.
    pub(super) next_seq: u64,
}

impl TopicReader {
    /// Locates the start. In a topic that does not exist yet, reading starts at the first event; but with `AfterId`, the event
    /// must exist.
    pub(super) async fn locate(client: StreamClient, topic: Topic, start: Start) -> Result<Self, ApiError> {
        let next_seq = match (client.gateway.backend.locate(&topic, start).await, start) {
            (Ok(seq), _) => seq,
            (Err(ReadError::UnknownTopic(_)), Start::AfterId(id)) => {
                return Err(ReadError::UnknownId(id).into());
            }
            (Err(ReadError::UnknownTopic(_)), _) => 1,
            (Err(error), _) => return Err(error.into()),
        };
        Ok(Self { client, topic, next_seq })
    }

    /// Like [`locate`](Self::locate), but also accepts a position. In a topic that does not exist yet, reading starts at the
    /// first event.
    pub(super) async fn begin(client: StreamClient, topic: Topic, begin: Begin) -> Result<Self, ApiError> {
        let position = match begin {
            Begin::At(start) => return Self::locate(client, topic, start).await,
            Begin::After(ResumePoint::Id(id)) => {
                return Self::locate(client, topic, Start::AfterId(id)).await;
            }
            Begin::After(ResumePoint::Position(position)) => position,
        };
        let next_seq = match client.gateway.backend.first_after(&topic, position).await {
            Err(ReadError::UnknownTopic(_)) => 1,
            located => located?,
        };
        Ok(Self { client, topic, next_seq })
    }

    /// Reads the next events.
    pub(super) async fn read(&mut self, limit: PullLimit) -> Result<EventChunk, StreamError> {
        self.client.check_token()?;
        let limit = self.client.within_budget(limit);
        let read = self.client.gateway.backend.read(&self.topic, self.next_seq, limit).await;
        let chunk = match read {
            // A topic that does not exist yet counts as empty.
            Err(ReadError::UnknownTopic(_)) => {
                EventChunk { next_seq: self.next_seq, ..EventChunk::default() }
            }
            read => read?,
        };
        self.next_seq = chunk.next_seq.max(self.next_seq);
        Ok(chunk)
    }

    /// The newest events by key.
    pub(super) async fn latest(&mut self, query: &LatestQuery) -> Result<LatestPage, StreamError> {
        self.client.check_token()?;
        let query = LatestQuery { limit: self.client.within_budget(query.limit), ..query.clone() };
        match self.client.gateway.backend.latest(&self.topic, query).await {
            Err(ReadError::UnknownTopic(_)) => Ok(LatestPage::default()),
            page => Ok(page?),
        }
    }
}

/// The id of an event.
pub(super) fn id_of(item: &EventItem) -> Uuid {
    Uuid::from_u128(item.id.as_u128())
}

/// Appends an event as a record.
pub(super) fn put_event_of(into: &mut Vec<u8>, events: &EventBatch, item: &EventItem) {
    put_record(into, id_of(item), item.seq, events.body(item));
}
