//! The events of a topic from a place on, page after page, in constant memory.

use crate::array::ArraySplitter;
use crate::client::Client;
use crate::error::ClientError;
use crate::lines::Pieces;
use bytes::Bytes;
use hyper::Method;
use prombus_protocol::{ErrorCode, EventRecord, Uuid};
use serde::Deserialize;

/// Events of a page: as many as a server gives, for a page is streamed.
const PAGE_EVENTS: &str = "1000000";

/// Which events.
#[derive(Clone, Copy, Debug, Default)]
pub struct HistoryQuery {
    /// Those behind this one.
    pub after: Option<After>,
    /// Those of this time and later.
    pub from_ts: Option<i64>,
    /// Those of this time and earlier.
    pub to_ts: Option<i64>,
    /// Those up to this seq; without it, what is newest when the end is reached.
    pub to_seq: Option<u64>,
}

/// An event to go on behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    /// Its id.
    pub id: Uuid,
    /// Its seq, if it is known: it says where to go on when the topic does not have the event any more.
    pub seq: Option<u64>,
}

/// Events in the order of their seqs.
pub struct History {
    client: Client,
    topic: String,
    query: HistoryQuery,
    page: Option<(Pieces, ArraySplitter)>,
    /// Events up to this seq are left out: they were read before, and the event behind which to go on is gone.
    skip_to_seq: u64,
    is_over: bool,
}

/// An event and the JSON that it came as.
#[derive(Debug)]
pub struct HistoryEvent {
    /// The text.
    pub json: Bytes,
    /// The event.
    pub event: EventRecord,
}

#[derive(Deserialize)]
struct PageEnd {
    next: Option<Uuid>,
}

impl Client {
    /// The events of a topic. A topic that is not there has none.
    pub fn history(&self, topic: &str, query: HistoryQuery) -> History {
        let topic = topic.to_owned();
        History { client: self.clone(), topic, query, page: None, skip_to_seq: 0, is_over: false }
    }
}

impl History {
    /// The next event.
    ///
    /// # Errors
    /// [`ClientError::Lost`] when the connection breaks: what came so far is not all.
    pub async fn next(&mut self) -> Result<Option<HistoryEvent>, ClientError> {
        while !self.is_over {
            if self.page.is_none() {
                self.open_page().await?;
            }
            let Some((pieces, splitter)) = &mut self.page else { continue };
            if let Some(json) = splitter.next() {
                let event: EventRecord = serde_json::from_slice(&json)
                    .map_err(|error| pieces.odd(format!("an event: {error}")))?;
                if self.query.to_seq.is_some_and(|seq| event.seq > seq) {
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
        match self.ask(self.query.after.map(|after| after.id)).await {
            Err(error) if error.code() == Some(ErrorCode::UnknownId) => {
                // Retention or compaction took it. From the start on, what is new is what has a higher seq.
                let Some(seq) = self.query.after.and_then(|after| after.seq) else { return Err(error) };
                self.skip_to_seq = self.skip_to_seq.max(seq);
                self.ask(None).await
            }
            asked => asked,
        }
    }

    async fn ask(&mut self, after: Option<Uuid>) -> Result<(), ClientError> {
        let mut query = vec![("topic", self.topic.clone()), ("limit", PAGE_EVENTS.to_owned())];
        match after {
            Some(id) => query.extend([("from", "afterId".to_owned()), ("afterId", id.to_string())]),
            None if self.query.from_ts.is_some() => query.push(("from", "ts".to_owned())),
            None => query.push(("from", "earliest".to_owned())),
        }
        if let Some(ts) = self.query.from_ts {
            query.push(("ts", ts.max(0).to_string()));
        }
        let query: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let path = Client::path(&["replay"], &query);
        let response = self.client.http().open(Method::GET, &path, None).await?;
        let pieces = Pieces::new(self.client.http_shared(), response.into_body());
        self.page = Some((pieces, ArraySplitter::default()));
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), ClientError> {
        let Some((pieces, splitter)) = self.page.take() else { return Ok(()) };
        let rest = splitter.rest().ok_or_else(|| pieces.odd("a page without an end"))?;
        // Behind the array stands `,"count":…}`.
        let text = [b"{\"events\":0", &rest[..]].concat();
        let end: PageEnd = serde_json::from_slice(&text)
            .map_err(|error| pieces.odd(format!("the end of a page: {error}")))?;
        self.is_over = end.next.is_none();
        if let Some(next) = end.next
            && self.query.after.is_none_or(|after| after.id != next)
        {
            self.query.after = Some(After { id: next, seq: None });
        }
        Ok(())
    }
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "History({}, {:?})", self.topic, self.query)
    }
}
