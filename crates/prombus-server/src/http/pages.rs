//! Reading a topic piece by piece, for answers that are streams: never more than one piece in memory, and the next one is read
//! when the client has taken the last.

use super::ApiError;
use super::query::{Begin, Place};
use crate::auth::Principal;
use crate::budget::Share;
use crate::gateway::{Gateway, now_ms};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::{once, try_unfold};
use futures_util::{StreamExt as _, TryStream, TryStreamExt as _};
use prombus::{DeliveryBatch, DeliveryItem, EventChunk, LatestPage, LatestQuery, PullLimit, ReadError, Uuid};
use prombus_protocol::{ErrorCode, Start, Topic, put_record};
use std::sync::Arc;
use thiserror::Error;
use tokio::runtime::Handle;

/// A piece while memory is scarce.
const SMALL_BYTES: usize = 16 * 1024;
/// A piece.
pub(super) const CHUNK: PullLimit = PullLimit { events: u32::MAX, bytes: 256 * 1024 };

/// Why an answer that had begun was broken off.
#[derive(Debug, Error)]
pub(super) enum StreamError {
    #[error("the token has expired")]
    Expired,
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl StreamError {
    /// The error response, where the answer has not begun.
    pub(super) fn into_answer(self) -> ApiError {
        match self {
            Self::Read(error) => error.into(),
            Self::Expired => ApiError::new(ErrorCode::BadToken, self),
        }
    }
}

/// Who an answer goes to, and what of it waits for them.
pub(super) struct Outlet {
    pub(super) gateway: Arc<Gateway>,
    principal: Arc<Principal>,
    /// What the client has not taken yet, counted with the buffers of all connections.
    share: Share,
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.hold(0);
    }
}

impl Outlet {
    pub(super) fn new(gateway: &Arc<Gateway>, principal: &Arc<Principal>) -> Self {
        Self { gateway: Arc::clone(gateway), principal: Arc::clone(principal), share: Share::default() }
    }

    /// One for the same caller.
    pub(super) fn another(&self) -> Self {
        Self::new(&self.gateway, &self.principal)
    }

    /// Says how many bytes wait for the client.
    fn hold(&mut self, bytes: usize) {
        self.gateway.budget.set(&mut self.share, bytes);
    }

    /// While the shared buffer budget is used up, every response continues in small pieces.
    pub(super) fn within_budget(&self, limit: PullLimit) -> PullLimit {
        let has_room = self.gateway.budget.has_room();
        PullLimit { bytes: if has_room { limit.bytes } else { limit.bytes.min(SMALL_BYTES) }, ..limit }
    }

    pub(super) fn check_token(&self) -> Result<(), StreamError> {
        if self.principal.is_expired(now_ms()) { Err(StreamError::Expired) } else { Ok(()) }
    }
}

/// A place in a topic that goes forward.
pub(super) struct Pages {
    pub(super) outlet: Outlet,
    pub(super) topic: Topic,
    pub(super) next_seq: u64,
}

impl Pages {
    /// Goes to a place. In a topic that is not there yet, that is its first event; an event to start behind must be there.
    pub(super) async fn locate(outlet: Outlet, topic: Topic, start: Start) -> Result<Self, ApiError> {
        let next_seq = match (outlet.gateway.backend.locate(&topic, start).await, start) {
            (Ok(seq), _) => seq,
            (Err(ReadError::UnknownTopic(_)), Start::AfterId(id)) => {
                return Err(ReadError::UnknownId(id).into());
            }
            (Err(ReadError::UnknownTopic(_)), _) => 1,
            (Err(error), _) => return Err(error.into()),
        };
        Ok(Self { outlet, topic, next_seq })
    }

    /// Goes to a place of any kind. A topic that is not there yet has nothing before any position.
    pub(super) async fn begin(outlet: Outlet, topic: Topic, begin: Begin) -> Result<Self, ApiError> {
        let position = match begin {
            Begin::At(start) => return Self::locate(outlet, topic, start).await,
            Begin::After(Place::Id(id)) => return Self::locate(outlet, topic, Start::AfterId(id)).await,
            Begin::After(Place::Position(position)) => position,
        };
        let next_seq = match outlet.gateway.backend.first_after(&topic, position).await {
            Err(ReadError::UnknownTopic(_)) => 1,
            located => located?,
        };
        Ok(Self { outlet, topic, next_seq })
    }

    /// Reads on, here: for what is in memory most likely.
    pub(super) async fn read_newest(&mut self, limit: PullLimit) -> Result<EventChunk, StreamError> {
        self.outlet.check_token()?;
        let limit = self.outlet.within_budget(limit);
        let read = self.outlet.gateway.backend.read(&self.topic, self.next_seq, limit).await;
        self.went_on(read)
    }

    /// Reads on, on a thread that may wait for the disk: sockets on this one would wait with it.
    pub(super) async fn read(&mut self, limit: PullLimit) -> Result<EventChunk, StreamError> {
        self.outlet.check_token()?;
        let (gateway, topic, from) = (Arc::clone(&self.outlet.gateway), self.topic.clone(), self.next_seq);
        let limit = self.outlet.within_budget(limit);
        let runtime = Handle::current();
        let read = move || runtime.block_on(gateway.backend.read(&topic, from, limit));
        let read = tokio::task::spawn_blocking(read).await;
        self.went_on(
            read.unwrap_or_else(|error| Err(ReadError::Failed(format!("reading panicked: {error}")))),
        )
    }

    /// The newest events by key, on a thread that may wait for the disk.
    pub(super) async fn latest(&mut self, query: &LatestQuery) -> Result<LatestPage, StreamError> {
        self.outlet.check_token()?;
        let (gateway, topic) = (Arc::clone(&self.outlet.gateway), self.topic.clone());
        let query = LatestQuery { limit: self.outlet.within_budget(query.limit), ..query.clone() };
        let read = if query.at_ts.is_some() {
            // It waits for its turn, and then takes a thread of its own.
            Ok(gateway.backend.latest(&topic, query).await)
        } else {
            let runtime = Handle::current();
            let read = move || runtime.block_on(gateway.backend.latest(&topic, query));
            tokio::task::spawn_blocking(read).await
        };
        match read.unwrap_or_else(|error| Err(ReadError::Failed(format!("reading panicked: {error}")))) {
            Err(ReadError::UnknownTopic(_)) => Ok(LatestPage::default()),
            page => Ok(page?),
        }
    }

    fn went_on(&mut self, read: Result<EventChunk, ReadError>) -> Result<EventChunk, StreamError> {
        let chunk = match read {
            // It is empty, then.
            Err(ReadError::UnknownTopic(_)) => {
                EventChunk { next_seq: self.next_seq, ..EventChunk::default() }
            }
            read => read?,
        };
        self.next_seq = chunk.next_seq.max(self.next_seq);
        Ok(chunk)
    }
}

/// The id of an event.
pub(super) fn id_of(item: &DeliveryItem) -> Uuid {
    Uuid::from_u128(item.id.as_u128())
}

/// Appends an event as a record.
pub(super) fn put_event_of(into: &mut Vec<u8>, events: &DeliveryBatch, item: &DeliveryItem) {
    put_record(into, id_of(item), item.position.seq, events.body(item));
}

/// An answer made of pieces.
pub(super) trait Pieces: Send + 'static {
    /// The route, for the log.
    const ROUTE: &'static str;

    /// Who it goes to.
    fn outlet(&mut self) -> &mut Outlet;

    /// The next piece; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, StreamError>> + Send;
}

/// The body that has these pieces. An error breaks it off, so that the client does not take it for whole.
pub(super) fn body_of<P: Pieces>(pieces: P) -> Body {
    Body::from_stream(stream_of(pieces))
}

/// Like [`body_of`], but produces the first piece before the response begins, so that a failure there is an error response.
pub(super) async fn checked_body_of<P: Pieces>(mut pieces: P) -> Result<Body, ApiError> {
    let first = pieces.next().await.map_err(StreamError::into_answer)?;
    let Some(first) = first else { return Ok(Body::empty()) };
    pieces.outlet().hold(first.len());
    let first = once(async { Ok::<_, StreamError>(first) });
    Ok(Body::from_stream(first.chain(stream_of(pieces).into_stream())))
}

fn stream_of<P: Pieces>(pieces: P) -> impl TryStream<Ok = Bytes, Error = StreamError> + Send {
    try_unfold(pieces, async |mut pieces| match pieces.next().await {
        Ok(Some(bytes)) => {
            // It is held until the next one is asked for.
            pieces.outlet().hold(bytes.len());
            // A client that takes everything at once must not keep the thread to itself.
            tokio::task::consume_budget().await;
            Ok(Some((bytes, pieces)))
        }
        Ok(None) => Ok(None),
        Err(error) => {
            tracing::warn!(path = P::ROUTE, "the answer was broken off: {error}");
            Err(error)
        }
    })
}
