//! `GET /state/{topic}` and `GET /state/{topic}/{key}`: the newest event of each key.
//!
//! Every response contains the position of the newest event that it covers: a consumer that starts after that position misses no
//! later event and receives none that the state covers. The pages of one list share the position of the first page. Keys that
//! change in the meantime are omitted from later pages, because their newest events come after the position.

use super::answer::{self, Answered};
use super::call::Call;
use super::fields::shown;
use super::response_stream::{CHUNK, ResponsePieces, StreamClient, StreamError, body_of};
use super::topic_reader::{TopicReader, id_of, put_event_of};
use super::{ApiError, entity_tag, response_compression};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use prombus::{EventPosition, Keys, LatestPage, LatestQuery, PullLimit, ReadError, Uuid};
use prombus_protocol::{Start, Topic, put_string};

const LIMIT_DEFAULT: i64 = 1_000;
const LIMIT_MAX: i64 = 1_000_000;
/// Maximum number of keys in one internal page (the result of one read of the backend): all of them are in memory at the same
/// time.
const PAGE_KEYS_MAX: u32 = 10_000;
/// Maximum size of an internal page of a request with `at`. The backend reads the whole topic for each of them, so they are
/// larger than others.
const PAGE_BYTES_AT: usize = 4 << 20;
const POSITION_ID: HeaderName = HeaderName::from_static("x-position-id");
const POSITION_SEQ: HeaderName = HeaderName::from_static("x-position-seq");

/// `GET /state/{topic}/{key}`.
pub(super) async fn one(call: Call) -> Answered {
    let topic = call.topic()?;
    let key = call.key().to_owned();
    of_key(call, topic, &key).await
}

async fn of_key(call: Call, topic: Topic, key: &str) -> Answered {
    call.check_may_read(topic.as_str())?;
    let keys = Keys::These(vec![key.to_owned()]);
    let query = LatestQuery { keys, at_ts: call.query.bound_ts("at")?, ..LatestQuery::default() };
    let page = match call.gateway.backend.latest(&topic, query).await {
        Err(ReadError::UnknownTopic(_)) => LatestPage::default(),
        page => page?,
    };
    let Some(item) = page.events.items().first() else {
        let message = format!("{topic} has no key {:?}", shown(key));
        let mut error = ApiError::not_found(message).into_response();
        put_position(error.headers_mut(), page.position);
        return Ok(error);
    };
    let tag = format!("\"{}\"", id_of(item));
    if let Some(known) = entity_tag::known_as(&call.headers, &tag) {
        return Ok(not_modified(&known, page.position));
    }
    let mut record = Vec::with_capacity(page.events.body(item).len() + 80);
    put_event_of(&mut record, &page.events, item);
    let mut response = answer::typed("application/json", Body::from(record));
    entity_tag::put(response.headers_mut(), &tag);
    put_position(response.headers_mut(), page.position);
    Ok(response)
}

/// `GET /state/{topic}`.
pub(super) async fn all(call: Call) -> Answered {
    let topic = call.topic()?;
    let limit = call.query.whole("limit", 1, LIMIT_MAX)?;
    let at_ts = call.query.bound_ts("at")?;
    let is_lines = call.query.flag("ndjson")?.unwrap_or_else(|| wants_lines(&call.headers));
    let next = match call.query.one("next")? {
        Some(next) => Some(next),
        None => call.query.one("after")?,
    };
    let cursor = next.map(Cursor::parse).transpose()?;
    // Only this query parameter works for every key: clients resolve `.` and `..` in paths before they send them.
    if let Some(key) = call.query.one("key")?.map(str::to_owned) {
        // Not compressed, like the route of a single key.
        return of_key(call, topic, &key).await.map(response_compression::plain);
    }
    call.check_may_read(topic.as_str())?;

    // Without a limit, lines contain all keys, and JSON contains one page.
    let left = limit.map_or(if is_lines { u64::MAX } else { LIMIT_DEFAULT as u64 }, i64::unsigned_abs);
    let client = StreamClient::new(&call);
    let list = List::open(client, topic, at_ts, cursor, is_lines, left).await?;
    list.into_answer(&call.headers)
}

/// Where a list continues: after `after_seq`. `position` is the position of the first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    after_seq: u64,
    position: EventPosition,
}

impl Cursor {
    fn parse(text: &str) -> Result<Self, ApiError> {
        let mut parts = text.splitn(3, '.');
        let mut number = || parts.next()?.parse().ok();
        let (after_seq, seq) = (number(), number());
        let id = parts.next().and_then(|id| Uuid::try_parse(id).ok());
        match (after_seq, seq, id) {
            (Some(after_seq), Some(seq), Some(id)) => {
                Ok(Self { after_seq, position: EventPosition { id, seq } })
            }
            _ => Err(ApiError::bad_request("\"next\" is not a value from an earlier response")),
        }
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.after_seq, self.position.seq, self.position.id)
    }
}

struct List {
    topic_reader: TopicReader,
    query: LatestQuery,
    /// The position that the list is valid for; `None` if the topic has no events.
    position: Option<EventPosition>,
    /// Whether the response is NDJSON, not a JSON object.
    is_lines: bool,
    /// How many more events the response may contain.
    left: u64,
    /// How many events the response contains so far.
    count: u64,
    /// The first internal page, which is read before the response begins; `None` when it has been written.
    first: Option<LatestPage>,
    /// Whether the start of the response was written.
    has_begun: bool,
    /// Whether the end of the response was written.
    is_done: bool,
}

impl ResponsePieces for List {
    const ROUTE: &'static str = "/state";

    fn client(&mut self) -> &mut StreamClient {
        &mut self.topic_reader.client
    }

    async fn next(&mut self) -> Result<Option<Bytes>, StreamError> {
        if self.is_done {
            return Ok(None);
        }
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.has_begun, true) && !self.is_lines {
            out.extend_from_slice(b"{\"topic\":");
            put_string(&mut out, self.topic_reader.topic.as_str());
            out.extend_from_slice(b",\"position\":");
            match self.position {
                Some(EventPosition { id, seq }) => {
                    out.extend_from_slice(format!("{{\"id\":\"{id}\",\"seq\":{seq}}}").as_bytes());
                }
                None => out.extend_from_slice(b"null"),
            }
            out.extend_from_slice(b",\"events\":[");
        }
        let mut next = None;
        while !self.is_done && out.len() < CHUNK.bytes / 2 {
            let page = match self.first.take() {
                Some(page) => page,
                None => {
                    self.query.limit = page_limit(&self.query, self.left);
                    self.topic_reader.latest(&self.query).await?
                }
            };
            self.put_page(&mut out, &page);
            next = page.next_after;
            self.is_done = next.is_none() || self.left == 0;
            self.query.after_seq = next.unwrap_or(0);
        }
        if self.is_done && !self.is_lines {
            let cursor = next.zip(self.position).map(|(after_seq, position)| Cursor { after_seq, position });
            out.extend_from_slice(format!("],\"count\":{},\"next\":", self.count).as_bytes());
            match cursor {
                Some(cursor) => out.extend_from_slice(format!("\"{cursor}\"}}").as_bytes()),
                None => out.extend_from_slice(b"null}"),
            }
        }
        // Empty output occurs only at the end, and `None` ends the response.
        Ok((!out.is_empty()).then(|| out.into()))
    }
}

impl List {
    /// Reads the first page, whose position is used for all pages.
    async fn open(
        client: StreamClient,
        topic: Topic,
        at_ts: Option<i64>,
        cursor: Option<Cursor>,
        is_lines: bool,
        left: u64,
    ) -> Result<Self, ApiError> {
        let mut query = LatestQuery { at_ts, limit: CHUNK, ..LatestQuery::default() };
        if let Some(cursor) = cursor {
            query.after_seq = cursor.after_seq;
            query.to_seq = Some(cursor.position.seq);
        }
        query.limit = page_limit(&query, left);
        let first = match client.gateway.backend.latest(&topic, query.clone()).await {
            Err(ReadError::UnknownTopic(_)) => LatestPage::default(),
            page => page?,
        };
        let position = cursor.map(|cursor| cursor.position).or(first.position);
        query.to_seq = position.map(|position| position.seq);
        let topic_reader = TopicReader::locate(client, topic, Start::Earliest).await?;
        Ok(Self {
            topic_reader,
            query,
            position,
            is_lines,
            left,
            count: 0,
            first: Some(first),
            has_begun: false,
            is_done: false,
        })
    }

    /// The entity tag. It contains the id of the position because a topic that is deleted and created again has the same seqs,
    /// and the number of keys because retention removes keys without changing the position.
    fn tag(&self) -> Option<String> {
        let key_count = self.first.as_ref().map_or(0, |first| first.key_count);
        let form = if self.is_lines { "lines" } else { "page" };
        let (after_seq, left) = (self.query.after_seq, self.left);
        self.position.map(|it| format!("\"{}-{key_count}-{after_seq}-{left}-{form}\"", it.id))
    }

    fn into_answer(self, headers: &HeaderMap) -> Answered {
        let (tag, position) = (self.tag(), self.position);
        if let Some(known) = tag.as_deref().and_then(|tag| entity_tag::known_as(headers, tag)) {
            let mut response = not_modified(&known, position);
            // The same headers as on the full response, where the compression layer adds the second one.
            response.headers_mut().append(header::VARY, HeaderValue::from_static("accept"));
            response.headers_mut().append(header::VARY, HeaderValue::from_static("accept-encoding"));
            return Ok(response);
        }
        let content_type = if self.is_lines { "application/x-ndjson" } else { "application/json" };
        let mut response = answer::typed(content_type, body_of(self));
        response.headers_mut().append(header::VARY, HeaderValue::from_static("accept"));
        if let Some(tag) = tag {
            entity_tag::put(response.headers_mut(), &tag);
        }
        put_position(response.headers_mut(), position);
        Ok(response)
    }

    fn put_page(&mut self, out: &mut Vec<u8>, page: &LatestPage) {
        for item in page.events.items() {
            if !self.is_lines && self.count > 0 {
                out.push(b',');
            }
            put_event_of(out, &page.events, item);
            if self.is_lines {
                out.push(b'\n');
            }
            self.count += 1;
            self.left = self.left.saturating_sub(1);
        }
    }
}

fn page_limit(query: &LatestQuery, left: u64) -> PullLimit {
    let events = u32::try_from(left).unwrap_or(u32::MAX).min(PAGE_KEYS_MAX);
    PullLimit { events, bytes: if query.at_ts.is_some() { PAGE_BYTES_AT } else { CHUNK.bytes } }
}

fn wants_lines(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.into_iter().any(|value| value.contains("application/x-ndjson"))
}

fn not_modified(tag: &str, position: Option<EventPosition>) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    entity_tag::put(response.headers_mut(), tag);
    put_position(response.headers_mut(), position);
    response
}

fn put_position(headers: &mut HeaderMap, position: Option<EventPosition>) {
    let Some(EventPosition { id, seq }) = position else { return };
    if let Ok(id) = HeaderValue::from_str(&id.to_string()) {
        headers.insert(POSITION_ID, id);
    }
    headers.insert(POSITION_SEQ, HeaderValue::from(seq));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_a_round_trip_and_other_texts_are_refused() {
        let position = EventPosition { id: Uuid::from_u128(7), seq: 9 };
        let cursor = Cursor { after_seq: 3, position };
        assert_eq!(Cursor::parse(&cursor.to_string()).ok(), Some(cursor));
        for text in ["", "1", "1.2", "1.2.x", "x.2.00000000-0000-0000-0000-000000000007", "-1.2.3"] {
            assert!(Cursor::parse(text).is_err(), "{text}");
        }
    }
}
