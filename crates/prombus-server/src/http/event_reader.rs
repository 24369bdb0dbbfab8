//! Reads events for `/replay`, `/export` and `/subscribe`: from one topic, or from the topics of a pattern as one sequence.

use super::ApiError;
use super::call::Call;
use super::pattern_reader::PatternReader;
use super::query::{Begin, ResumePoint};
use super::response_stream::{StreamClient, StreamError};
use super::topic_reader::{TopicReader, id_of, put_event_of};
use bytes::Bytes;
use prombus::{BusPosition, EventBatch, EventItem, MergedQuery, More, PullLimit, ReadError};
use prombus_protocol::{Body, Filter, Pattern, Start, Topic};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a response keeps trying to read unreadable events before it is aborted.
const UNREADABLE_WAIT: Duration = Duration::from_secs(30);
/// The pause after the first failed read. It doubles after each further failure.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// The longest pause between two reads.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Reads events forward from a position.
pub(super) struct EventReader {
    pub(super) kind: ReaderKind,
    filter: Option<Arc<Filter>>,
}

pub(super) enum ReaderKind {
    Topic(TopicReader),
    Pattern(PatternReader),
}

/// Where a reader of a pattern ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// At the event that is the newest when the reader is opened.
    Now,
    /// Never: it follows new events until the caller stops reading.
    Stopped,
}

/// Events that were read together.
pub(super) struct ReadEvents {
    pub(super) events: EventBatch,
    /// For a pattern: the position after each of the `events`. Empty for a topic.
    places: Vec<BusPosition>,
    /// The filter that [`wanted`](Self::wanted) applies.
    filter: Option<Arc<Filter>>,
    /// Whether there may be more events.
    pub(super) has_more: bool,
}

/// The client that reads, and its filter.
pub(super) struct ReadRequest {
    client: StreamClient,
    filter: Option<Filter>,
}

impl ReadRequest {
    /// Checks that the caller may read the topics of a pattern.
    pub(super) fn of(call: &Call, pattern: &Pattern) -> Result<Self, ApiError> {
        call.check_may_read(pattern.as_str())?;
        let client = StreamClient::new(call);
        Ok(Self { client, filter: call.query.filter()? })
    }
}

impl EventReader {
    /// Starts at a position in topics that the caller may read.
    pub(super) async fn open(
        reading: ReadRequest,
        pattern: &Pattern,
        begin: Begin,
        until: Until,
    ) -> Result<Self, ApiError> {
        let ReadRequest { client, filter } = reading;
        if let Some(topic) = pattern.as_topic() {
            let topic_reader = TopicReader::begin(client, topic, begin).await?;
            return Ok(Self { kind: ReaderKind::Topic(topic_reader), filter: filter.map(Arc::new) });
        }
        let backend = Arc::clone(&client.gateway.backend);
        let after = match begin {
            Begin::At(Start::Latest) => None,
            Begin::At(start) => Some(backend.place_of(pattern, start).await?),
            Begin::After(ResumePoint::Id(id)) => Some(backend.place_of(pattern, Start::AfterId(id)).await?),
            Begin::After(ResumePoint::Position(position)) => Some(position),
        };
        let query = MergedQuery { pattern: pattern.clone(), filter, after, is_live: until == Until::Stopped };
        let reader = backend.merged(query).await?;
        Ok(Self { kind: ReaderKind::Pattern(PatternReader::new(client, reader)), filter: None })
    }

    pub(super) fn client(&mut self) -> &mut StreamClient {
        match &mut self.kind {
            ReaderKind::Topic(topic_reader) => &mut topic_reader.client,
            ReaderKind::Pattern(pattern_reader) => &mut pattern_reader.client,
        }
    }

    /// Whether this reads a pattern, where clients resume from a position instead of an event id.
    pub(super) fn is_pattern(&self) -> bool {
        matches!(self.kind, ReaderKind::Pattern(_))
    }

    /// Whether the position may advance without events being returned: because of a filter, or because the reader reads a
    /// pattern.
    pub(super) fn may_skip_events(&self) -> bool {
        self.is_pattern() || self.filter.is_some()
    }

    /// The position after the events that were read, in the form that clients get.
    pub(super) fn position(&self) -> String {
        match &self.kind {
            ReaderKind::Topic(topic_reader) => topic_reader
                .client
                .gateway
                .backend
                .place_before(&topic_reader.topic, topic_reader.next_seq)
                .to_string(),
            ReaderKind::Pattern(pattern_reader) => pattern_reader.position(),
        }
    }

    /// Reads the next events. For a pattern, [`Until::Now`] waits for stored events that are not returned yet
    /// ([`More::Soon`]).
    pub(super) async fn read(&mut self, limit: PullLimit, until: Until) -> Result<ReadEvents, StreamError> {
        match &mut self.kind {
            ReaderKind::Topic(topic_reader) => {
                let from = topic_reader.next_seq;
                let chunk = match until {
                    Until::Now => topic_reader.read(limit).await?,
                    Until::Stopped => topic_reader.read_on(limit).await?,
                };
                Ok(self.taken(chunk.events, Vec::new(), chunk.next_seq > from))
            }
            ReaderKind::Pattern(pattern_reader) => {
                let chunk = match until {
                    Until::Now => pattern_reader.read_complete(limit).await?,
                    Until::Stopped => pattern_reader.read(limit).await?,
                };
                Ok(self.taken(chunk.events, chunk.places, chunk.more == More::Now))
            }
        }
    }

    /// Like [`read`](Self::read), but retries for 30 s while events cannot be read: the response has begun, and a temporary error
    /// must not abort it.
    pub(super) async fn read_patiently(
        &mut self,
        limit: PullLimit,
        until: Until,
    ) -> Result<ReadEvents, StreamError> {
        let give_up_at = Instant::now() + UNREADABLE_WAIT;
        let mut wait = RETRY_FIRST;
        loop {
            match self.read(limit, until).await {
                Err(StreamError::Read(error))
                    if error.is_unreadable() && Instant::now() + wait < give_up_at =>
                {
                    let gateway = Arc::clone(&self.client().gateway);
                    tokio::select! {
                        () = sleep(wait) => {}
                        () = gateway.stopping.wait() => return Err(error.into()),
                    }
                    wait = (wait * 2).min(RETRY_MAX);
                }
                read => return read,
            }
        }
    }

    /// Resolves when there may be more to read.
    pub(super) async fn arrival(&mut self) -> Result<(), ReadError> {
        match &mut self.kind {
            ReaderKind::Topic(topic_reader) => topic_reader.arrival().await,
            ReaderKind::Pattern(pattern_reader) => {
                pattern_reader.arrival().await;
                Ok(())
            }
        }
    }

    /// Combines events that were read from this reader with its filter.
    pub(super) fn taken(&self, events: EventBatch, places: Vec<BusPosition>, has_more: bool) -> ReadEvents {
        ReadEvents { events, places, filter: self.filter.clone(), has_more }
    }
}

impl ReadEvents {
    /// The events that match the filter, in order.
    pub(super) fn wanted(&self) -> impl DoubleEndedIterator<Item = (usize, &EventItem)> {
        self.events.items().iter().enumerate().filter(|(_, item)| {
            let body = Body::new(self.events.body(item));
            self.filter.as_ref().is_none_or(|filter| filter.matches(self.events.key(item), &body))
        })
    }

    /// Appends an event as a record.
    pub(super) fn put(&self, into: &mut Vec<u8>, item: &EventItem) {
        put_event_of(into, &self.events, item);
    }

    /// The position after an event, in the form that clients get: for one topic, the event's id.
    pub(super) fn place(&self, at: usize, item: &EventItem) -> String {
        self.places.get(at).map_or_else(|| id_of(item).to_string(), ToString::to_string)
    }
}

/// The topic or pattern in the query parameter `topic`.
pub(super) fn query_pattern(call: &Call) -> Result<Pattern, ApiError> {
    match call.query.one("topic")? {
        None | Some("") => Err(ApiError::bad_request("topic required")),
        Some(name) => Pattern::new(name).map_err(|error| ApiError::from(error).at("\"topic\"")),
    }
}

/// The topic that `pattern` names. If it is not a single topic, the error message begins with `why`, the parameter that requires
/// one.
pub(super) fn only_topic(pattern: &Pattern, why: &str) -> Result<Topic, ApiError> {
    pattern.as_topic().ok_or_else(|| ApiError::bad_request(format!("{why} needs one topic, not a pattern")))
}

/// The output as a piece of a response; `None` if it is empty.
pub(super) fn non_empty(out: Vec<u8>) -> Option<Bytes> {
    (!out.is_empty()).then(|| out.into())
}
