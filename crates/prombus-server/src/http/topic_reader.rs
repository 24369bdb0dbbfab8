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
    /// The number of the topic that was read, if it exists.
    topic_number: Option<u32>,
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
        Ok(Self { client, topic, next_seq, topic_number: None })
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
        Ok(Self { client, topic, next_seq, topic_number: None })
    }

    /// Reads the next events of a topic that is followed. If the topic was deleted, continues with the first event of a new topic of
    /// the same name.
    pub(super) async fn read_on(&mut self, limit: PullLimit) -> Result<EventChunk, StreamError> {
        let (from, before) = (self.next_seq, self.topic_number);
        let chunk = self.read(limit).await?;
        // A chunk from seq 1 on contains the first events of the new topic too.
        if from == 1 || before.is_none() || before == self.topic_number {
            return Ok(chunk);
        }
        self.next_seq = 1;
        self.read(limit).await
    }

    /// Resolves when there may be more to read, or when the topic is deleted.
    pub(super) async fn arrival(&self) -> Result<(), ReadError> {
        let backend = &self.client.gateway.backend;
        match self.topic_number {
            Some(number) => backend.arrival_or_deletion(&self.topic, number, self.next_seq).await,
            None => backend.arrival(&self.topic, self.next_seq).await,
        }
    }

    /// Reads the next events.
    pub(super) async fn read(&mut self, limit: PullLimit) -> Result<EventChunk, StreamError> {
        self.client.check_token()?;
        let limit = self.client.within_budget(limit);
        let read = self.client.gateway.backend.read(&self.topic, self.next_seq, limit).await;
        let chunk = match read {
            // A topic that does not exist yet counts as empty.
            Err(ReadError::UnknownTopic(_)) => {
                self.topic_number = None;
                EventChunk { next_seq: self.next_seq, ..EventChunk::default() }
            }
            read => read.inspect(|chunk| self.topic_number = Some(chunk.topic_number))?,
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
