//! Where `/replay`, `/export` and `/subscribe` read: one topic, or the topics of a pattern as one sequence.

use super::ApiError;
use super::call::Call;
use super::many::Many;
use super::pages::{Outlet, Pages, StreamError, id_of, put_event_of};
use super::query::{Begin, Place};
use bytes::Bytes;
use prombus::{BusPosition, DeliveryBatch, DeliveryItem, MergedQuery, More, PullLimit, ReadError};
use prombus_protocol::{Body, Filter, Pattern, Start, Topic};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a response retries unreadable events before it is broken off.
const UNREADABLE_WAIT: Duration = Duration::from_secs(30);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Events, from a place on.
pub(super) struct Source {
    pub(super) kind: Kind,
    filter: Option<Arc<Filter>>,
}

pub(super) enum Kind {
    One(Pages),
    Many(Many),
}

/// Whether a source of many topics ends at the newest event of now, or follows new events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Now,
    Stopped,
}

/// Events that were read together.
pub(super) struct Taken {
    pub(super) events: DeliveryBatch,
    /// The place behind each, of a pattern.
    places: Vec<BusPosition>,
    /// The filter that is not applied yet.
    filter: Option<Arc<Filter>>,
    /// Whether there may be more.
    pub(super) has_more: bool,
}

/// Who reads, and what they want of the topics.
pub(super) struct Reading {
    outlet: Outlet,
    filter: Option<Filter>,
}

impl Reading {
    /// Checks that the caller may read the topics of a pattern.
    pub(super) fn of(call: &Call, pattern: &Pattern) -> Result<Self, ApiError> {
        call.check_may_read(pattern.as_str())?;
        let outlet = Outlet::new(&call.gateway, &call.principal);
        Ok(Self { outlet, filter: call.query.filter()? })
    }
}

impl Source {
    /// Goes to a place in topics that the caller may read.
    pub(super) async fn open(
        reading: Reading,
        pattern: &Pattern,
        begin: Begin,
        until: Until,
    ) -> Result<Self, ApiError> {
        let Reading { outlet, filter } = reading;
        if let Some(topic) = pattern.as_topic() {
            let pages = Pages::begin(outlet, topic, begin).await?;
            return Ok(Self { kind: Kind::One(pages), filter: filter.map(Arc::new) });
        }
        let backend = Arc::clone(&outlet.gateway.backend);
        let after = match begin {
            Begin::At(Start::Latest) => None,
            Begin::At(start) => Some(backend.place_of(pattern, start).await?),
            Begin::After(Place::Id(id)) => Some(backend.place_of(pattern, Start::AfterId(id)).await?),
            Begin::After(Place::Position(position)) => Some(position),
        };
        let query = MergedQuery { pattern: pattern.clone(), filter, after, is_live: until == Until::Stopped };
        // It lists the topics: that may take a while.
        let reader = tokio::task::spawn_blocking(move || backend.merged(query)).await;
        let reader = reader.map_err(ApiError::internal)??;
        Ok(Self { kind: Kind::Many(Many::new(outlet, reader)), filter: None })
    }

    pub(super) fn outlet(&mut self) -> &mut Outlet {
        match &mut self.kind {
            Kind::One(pages) => &mut pages.outlet,
            Kind::Many(many) => &mut many.outlet,
        }
    }

    /// Whether ids of events are not places.
    pub(super) fn is_pattern(&self) -> bool {
        matches!(self.kind, Kind::Many(_))
    }

    /// Whether it may come to places without handing out their events.
    pub(super) fn has_filter(&self) -> bool {
        self.is_pattern() || self.filter.is_some()
    }

    /// The place behind what was read, as clients keep it.
    pub(super) fn position(&self) -> String {
        match &self.kind {
            Kind::One(pages) => {
                pages.outlet.gateway.backend.place_before(&pages.topic, pages.next_seq).to_string()
            }
            Kind::Many(many) => many.position(),
        }
    }

    /// Reads on, on a thread that may wait for the disk.
    pub(super) async fn read(&mut self, limit: PullLimit) -> Result<Taken, StreamError> {
        match &mut self.kind {
            Kind::One(pages) => {
                let from = pages.next_seq;
                let chunk = pages.read(limit).await?;
                Ok(self.taken(chunk.events, Vec::new(), chunk.next_seq > from))
            }
            Kind::Many(many) => {
                let chunk = many.read_complete(limit).await?;
                Ok(self.taken(chunk.events, chunk.places, chunk.more == More::Now))
            }
        }
    }

    /// Reads what came, which is in memory most likely.
    pub(super) async fn read_newest(&mut self, limit: PullLimit) -> Result<Taken, StreamError> {
        match &mut self.kind {
            Kind::One(pages) => {
                let from = pages.next_seq;
                let chunk = pages.read_newest(limit).await?;
                Ok(self.taken(chunk.events, Vec::new(), chunk.next_seq > from))
            }
            Kind::Many(many) => {
                let chunk = many.read(limit).await?;
                Ok(self.taken(chunk.events, chunk.places, chunk.more == More::Now))
            }
        }
    }

    /// Reads, and retries for 30 s while events cannot be read: the response has begun, and a temporary error must not break it
    /// off.
    pub(super) async fn read_patiently(
        &mut self,
        limit: PullLimit,
        until: Until,
    ) -> Result<Taken, StreamError> {
        let give_up_at = Instant::now() + UNREADABLE_WAIT;
        let mut wait = RETRY_FIRST;
        loop {
            let read = match (&self.kind, until) {
                (Kind::Many(_), Until::Stopped) => self.read_newest(limit).await,
                _ => self.read(limit).await,
            };
            match read {
                Err(StreamError::Read(error))
                    if error.is_unreadable() && Instant::now() + wait < give_up_at =>
                {
                    let gateway = Arc::clone(&self.outlet().gateway);
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
            Kind::One(pages) => pages.outlet.gateway.backend.arrival(&pages.topic, pages.next_seq).await,
            Kind::Many(many) => {
                many.arrival().await;
                Ok(())
            }
        }
    }

    pub(super) fn taken(&self, events: DeliveryBatch, places: Vec<BusPosition>, has_more: bool) -> Taken {
        Taken { events, places, filter: self.filter.clone(), has_more }
    }
}

impl Taken {
    /// The events that are wanted, in order.
    pub(super) fn wanted(&self) -> impl DoubleEndedIterator<Item = (usize, &DeliveryItem)> {
        self.events.items().iter().enumerate().filter(|(_, item)| {
            let body = Body::new(self.events.body(item));
            self.filter.as_ref().is_none_or(|filter| filter.matches(self.events.key(item), &body))
        })
    }

    /// Appends an event as a record.
    pub(super) fn put(&self, into: &mut Vec<u8>, item: &DeliveryItem) {
        put_event_of(into, &self.events, item);
    }

    /// The place after an event, as clients keep it: for one topic, the event's id.
    pub(super) fn place(&self, at: usize, item: &DeliveryItem) -> String {
        self.places.get(at).map_or_else(|| id_of(item).to_string(), ToString::to_string)
    }
}

/// The topic or pattern in the query.
pub(super) fn query_pattern(call: &Call) -> Result<Pattern, ApiError> {
    match call.query.one("topic")? {
        None | Some("") => Err(ApiError::bad_request("topic required")),
        Some(name) => Pattern::new(name).map_err(|error| ApiError::from(error).at("\"topic\"")),
    }
}

/// The one topic that a pattern is, where a pattern will not do.
pub(super) fn only_topic(pattern: &Pattern, why: &str) -> Result<Topic, ApiError> {
    pattern.as_topic().ok_or_else(|| ApiError::bad_request(format!("{why} needs one topic, not a pattern")))
}

/// Bytes, unless there are none.
pub(super) fn non_empty(out: Vec<u8>) -> Option<Bytes> {
    (!out.is_empty()).then(|| out.into())
}
