//! Reads the events of a topic or pattern page by page, in constant memory.

use crate::array_splitter::ArraySplitter;
use crate::client::Client;
use crate::error::ClientError;
use crate::lines::Pieces;
use bytes::Bytes;
use hyper::Method;
use prombus_protocol::{ErrorCode, EventRecord, Filter, Uuid};
use serde::Deserialize;

/// Events per page: the most that a server allows. A page is streamed, so its size does not matter for memory.
const PAGE_EVENTS: &str = "1000000";

/// Which events of a history to read. By default, all.
#[derive(Clone, Copy, Debug, Default)]
pub struct HistoryQuery {
    /// Only events after this one.
    pub after: Option<After>,
    /// Only events with this `ts` or a later one.
    pub from_ts: Option<i64>,
    /// Only events with this `ts` or an earlier one.
    pub to_ts: Option<i64>,
    /// Only events up to this seq. By default, the history ends when no newer event is stored. Not for patterns. It has no effect with
    /// `last`, which means the newest events when the server reads them.
    pub to_seq: Option<u64>,
    /// Only this many of the newest events, at most 1,000,000. Not for patterns.
    pub last: Option<u64>,
    /// Reads the newest events first. Not for patterns.
    pub is_descending: bool,
}

/// The event after which a history continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    /// The id of the event.
    pub id: Uuid,
    /// The seq of the event, if known. With a seq, the history can continue even if the event was removed from the topic.
    pub seq: Option<u64>,
}

/// A stream of events: in seq order for a topic, in commit order for a pattern.
pub struct History {
    client: Client,
    topic: String,
    query: HistoryQuery,
    filter: Filter,
    /// The page that is being read.
    page: Option<(Pieces, ArraySplitter)>,
    /// Where the next page starts: the field `next` at the end of the previous page.
    next: Option<String>,
    /// Events up to this seq are skipped. Set if the event after which the history continues was removed: reading then starts at the oldest
    /// event.
    skip_to_seq: u64,
    /// Whether the end of the history was reached.
    is_over: bool,
}

/// An event, and the JSON text in which it was received.
#[derive(Debug)]
pub struct HistoryEvent {
    /// The JSON text.
    pub json: Bytes,
    /// The event.
    pub event: EventRecord,
}

#[derive(Deserialize)]
struct PageEnd {
    next: Option<String>,
}

impl Client {
    /// The events of a topic, or of the topics of a pattern. A topic that does not exist has no events.
    pub fn history(&self, topic: &str, query: HistoryQuery) -> History {
        let (client, topic, filter) = (self.clone(), topic.to_owned(), Filter::default());
        History { client, topic, query, filter, page: None, next: None, skip_to_seq: 0, is_over: false }
    }
}

impl History {
    /// Restricts the history to events that match the filter.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// The next event; `None` at the end of the history.
    ///
    /// # Errors
    /// See [`ClientError`]. [`ClientError::Lost`] if the connection breaks; the events so far are then incomplete.
    pub async fn next(&mut self) -> Result<Option<HistoryEvent>, ClientError> {
        while !self.is_over {
            if self.page.is_none() {
                self.open_page().await?;
            }
            let Some((pieces, splitter)) = &mut self.page else { continue };
            if let Some(json) = splitter.next() {
                let event: EventRecord = serde_json::from_slice(&json)
                    .map_err(|error| pieces.invalid_response(format!("invalid event: {error}")))?;
                let is_bounded = self.query.last.is_none();
                if is_bounded && self.query.to_seq.is_some_and(|seq| event.seq > seq) {
                    if self.query.is_descending {
                        continue;
                    }
                    self.is_over = true;
                    break;
                }
                self.query.after = Some(After { id: event.id, seq: Some(event.seq) });
                if event.seq > self.skip_to_seq && self.is_in_time(event.ts) {
                    return Ok(Some(HistoryEvent { json, event }));
                }
                continue;
            }
            match pieces.next().await? {
                Some(piece) => splitter.push(&piece),
                None => self.end_page()?,
            }
        }
        self.page = None;
        Ok(None)
    }

    fn is_in_time(&self, ts: i64) -> bool {
        self.query.from_ts.is_none_or(|from| ts >= from) && self.query.to_ts.is_none_or(|to| ts <= to)
    }

    async fn open_page(&mut self) -> Result<(), ClientError> {
        let after = self.next.take().or_else(|| self.query.after.map(|after| after.id.to_string()));
        match self.ask(after).await {
            Err(error) if error.code() == Some(ErrorCode::UnknownId) && !self.query.is_descending => {
                // Retention or compaction removed the event. Read from the start, and skip events up to its seq.
                let seq = self.query.after.and_then(|after| after.seq).filter(|_| !self.topic.contains('*'));
                let Some(seq) = seq else { return Err(error) };
                self.skip_to_seq = self.skip_to_seq.max(seq);
                self.ask(None).await
            }
            asked => asked,
        }
    }

    async fn ask(&mut self, after: Option<String>) -> Result<(), ClientError> {
        let limit = self.query.last.map_or_else(|| PAGE_EVENTS.to_owned(), |last| last.to_string());
        let mut query = vec![("topic", self.topic.clone()), ("limit", limit)];
        match after {
            Some(place) => query.extend([("from", "afterId".to_owned()), ("afterId", place)]),
            None if self.query.last.is_some() => query.push(("from", "latest".to_owned())),
            None if self.query.from_ts.is_some() => query.push(("from", "ts".to_owned())),
            None => query.push(("from", "earliest".to_owned())),
        }
        if let Some(ts) = self.query.from_ts {
            query.push(("ts", ts.max(0).to_string()));
        }
        if let Some(ts) = self.query.to_ts {
            query.push(("toTs", ts.max(0).to_string()));
        }
        if self.query.is_descending {
            query.push(("order", "desc".to_owned()));
        }
        query.extend(self.filter.key.iter().map(|key| ("key", key.clone())));
        query.extend(self.filter.tag.iter().map(|tag| ("tag", tag.clone())));
        query.extend(self.filter.header.iter().map(|(name, value)| ("header", format!("{name}:{value}"))));
        let query: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let path = Client::path(&["replay"], &query);
        let response = self.client.http().open(Method::GET, &path, None).await?;
        let pieces = Pieces::new(self.client.http_shared(), response.into_body());
        self.page = Some((pieces, ArraySplitter::default()));
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), ClientError> {
        let Some((pieces, splitter)) = self.page.take() else { return Ok(()) };
        let rest = splitter.rest().ok_or_else(|| pieces.invalid_response("the page is incomplete"))?;
        // The text after the array is `,"count":…}`. With this prefix, it is a JSON object.
        let text = [b"{\"events\":0", &rest[..]].concat();
        let end: PageEnd = serde_json::from_slice(&text)
            .map_err(|error| pieces.invalid_response(format!("invalid end of a page: {error}")))?;
        self.is_over = end.next.is_none() || self.query.last.is_some();
        self.next = end.next;
        Ok(())
    }
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "History({}, {:?})", self.topic, self.query)
    }
}
