//! Follows a topic or pattern without a group: stored events from a start position on, then new events as they are published.
//!
//! The stream reconnects by itself and continues at its position, so that no event is missed or returned twice. The position
//! advances only when an event is returned.

use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::ClientError;
use crate::history::{After, HistoryEvent};
use crate::lines::Pieces;
use crate::sse::{SseMessage, SseParser};
use hyper::Method;
use prombus_protocol::{ErrorCode, EventRecord, Filter, Start};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The longest silence before the connection counts as lost. The server sends a comment every 15 s.
const SILENCE_MAX: Duration = Duration::from_secs(45);

/// A stream of events without a group; see [`Client::follow`].
pub struct Follow {
    client: Client,
    topic: String,
    start: Start,
    filter: Filter,
    stream: Option<Stream>,
    /// Where the stream continues after a reconnect; `None` before the first connection.
    position: Option<String>,
    /// The seq of the last returned event, if this follows one topic; otherwise 0.
    last_seq: u64,
    /// Events up to this seq are skipped. Set if the last returned event was removed from the topic while the connection was lost:
    /// reading then starts at the oldest event.
    skip_to_seq: u64,
    backoff: Backoff,
    on_lost: Box<dyn FnMut(&ClientError) + Send>,
}

/// One connection.
struct Stream {
    pieces: Pieces,
    parser: SseParser,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: String,
}

/// A topic as `GET /topics/{topic}` describes it.
#[derive(Deserialize)]
struct TopicEnd {
    last_seq: u64,
}

impl Client {
    /// Follows a topic or a pattern: returns the stored events from `start` on, then new events, without a group and without acks.
    /// The start position is fixed when this call returns: [`Start::Latest`] returns every event that is published after it.
    ///
    /// ```no_run
    /// # async fn example(client: prombus_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use prombus_client::{Filter, Start};
    ///
    /// let mut orders = client.follow("orders.*", Start::Latest, Filter::default()).await?;
    /// loop {
    ///     let found = orders.next().await?;
    ///     println!("{} {}", found.event.topic, found.event.payload);
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`ClientError`]. A failed first connection is not retried.
    pub async fn follow(&self, topic: &str, start: Start, filter: Filter) -> Result<Follow, ClientError> {
        let mut follow = self.follower(topic, start, filter);
        follow.open().await?;
        Ok(follow)
    }

    /// Like [`follow`](Self::follow), from the first event after a known one. If the seq of that event is given, this also works after
    /// retention or compaction has removed it. Not for patterns.
    ///
    /// # Errors
    /// See [`ClientError`]. A failed first connection is not retried.
    pub async fn follow_after(
        &self,
        topic: &str,
        after: After,
        filter: Filter,
    ) -> Result<Follow, ClientError> {
        let mut follow = self.follower(topic, Start::AfterId(after.id), filter);
        follow.last_seq = after.seq.unwrap_or(0);
        match follow.open().await {
            Err(error) if follow.last_was_removed(&error) => {
                follow.start_again().await?;
                follow.open().await?;
            }
            opened => opened?,
        }
        Ok(follow)
    }

    /// A stream that is not open yet.
    fn follower(&self, topic: &str, start: Start, filter: Filter) -> Follow {
        Follow {
            client: self.clone(),
            topic: topic.to_owned(),
            start,
            filter,
            stream: None,
            position: None,
            last_seq: 0,
            skip_to_seq: 0,
            backoff: Backoff::new(),
            on_lost: Box::new(|_| {}),
        }
    }
}

impl Follow {
    /// Sets a function that is called when the connection is lost, before the reconnect.
    #[must_use]
    pub fn on_lost(mut self, on_lost: impl FnMut(&ClientError) + Send + 'static) -> Self {
        self.on_lost = Box::new(on_lost);
        self
    }

    /// The next event. If the connection is lost, this reconnects and continues. Nothing is lost if the future is dropped before it
    /// resolves.
    ///
    /// # Errors
    /// If the server permanently refuses the stream, for example because the token was revoked.
    pub async fn next(&mut self) -> Result<HistoryEvent, ClientError> {
        loop {
            let Some(stream) = &mut self.stream else {
                self.reopen().await?;
                continue;
            };
            let error = match stream.next().await {
                Ok(SseMessage { kind: Some(_), data, .. }) => stream.error_of(data.as_deref()),
                Ok(message) => {
                    self.backoff.reset();
                    match self.taken(message)? {
                        Some(event) => return Ok(event),
                        None => continue,
                    }
                }
                Err(error) => error,
            };
            self.stream = None;
            (self.on_lost)(&error);
        }
    }

    /// Advances the position. Returns the message's event, if it has one that was not returned before.
    fn taken(&mut self, message: SseMessage) -> Result<Option<HistoryEvent>, ClientError> {
        let SseMessage { id, data, .. } = message;
        let Some(json) = data else {
            self.position = id.or(self.position.take());
            return Ok(None);
        };
        let event: EventRecord = serde_json::from_slice(&json)
            .map_err(|error| self.client.invalid_response(format!("invalid event: {error}")))?;
        self.position = id.or(self.position.take());
        if event.seq <= self.skip_to_seq {
            return Ok(None);
        }
        if !self.is_pattern() {
            (self.last_seq, self.skip_to_seq) = (event.seq, 0);
        }
        Ok(Some(HistoryEvent { json, event }))
    }

    fn is_pattern(&self) -> bool {
        self.topic.contains('*')
    }

    /// Opens a new connection; retries until it succeeds or the server permanently refuses the stream.
    async fn reopen(&mut self) -> Result<(), ClientError> {
        loop {
            sleep(self.backoff.next_wait()).await;
            match self.open().await {
                Ok(()) => return Ok(()),
                Err(error) if self.last_was_removed(&error) => match self.start_again().await {
                    Err(error) if error.ends_subscription() => return Err(error),
                    // After a failure that may pass, the next attempt to continue after the removed event leads here again.
                    _ => {}
                },
                Err(error) if error.ends_subscription() => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Whether the last returned event is not in the topic any more.
    fn last_was_removed(&self, error: &ClientError) -> bool {
        error.code() == Some(ErrorCode::UnknownId) && self.last_seq > 0
    }

    /// Continues at the start of the topic, because the last returned event is not there any more. If retention or compaction removed it,
    /// events up to its seq are skipped. If the topic ends before that seq, it was deleted and created again: all its events are new.
    async fn start_again(&mut self) -> Result<(), ClientError> {
        let path = Client::path(&["topics", &self.topic], &[]);
        let last_seq = match self.client.get_json::<TopicEnd>(&path).await {
            Ok(topic) => topic.last_seq,
            Err(error) if error.code() == Some(ErrorCode::NotFound) => 0,
            Err(error) => return Err(error),
        };
        (self.start, self.position) = (Start::Earliest, None);
        if last_seq < self.last_seq {
            self.last_seq = 0;
        }
        self.skip_to_seq = self.last_seq;
        Ok(())
    }

    async fn open(&mut self) -> Result<(), ClientError> {
        let path = self.path();
        let response = timeout(SILENCE_MAX, self.client.http().open(Method::GET, &path, None)).await;
        let response = response.map_err(|_| self.silent())??;
        let pieces = Pieces::new(self.client.http_shared(), response.into_body());
        let mut stream = Stream { pieces, parser: SseParser::default() };
        // The stream begins with its position.
        match stream.next().await? {
            SseMessage { id: Some(position), data: None, .. } => self.position = Some(position),
            _ => return Err(self.client.invalid_response("the stream has no start position".to_owned())),
        }
        self.stream = Some(stream);
        Ok(())
    }

    fn path(&self) -> String {
        let mut query: Vec<(&str, String)> = match (&self.position, self.start) {
            (Some(position), _) => vec![("lastEventId", position.clone())],
            (None, start @ (Start::Latest | Start::Earliest)) => vec![("from", start.name().to_owned())],
            (None, start @ Start::Ts(ts)) => {
                vec![("from", start.name().to_owned()), ("ts", ts.max(0).to_string())]
            }
            (None, start @ Start::AfterId(id)) => {
                vec![("from", start.name().to_owned()), ("afterId", id.to_string())]
            }
        };
        query.extend(self.filter.key.iter().map(|key| ("key", key.clone())));
        query.extend(self.filter.tag.iter().map(|tag| ("tag", tag.clone())));
        query.extend(self.filter.header.iter().map(|(name, value)| ("header", format!("{name}:{value}"))));
        let query: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Client::path(&["subscribe", &self.topic], &query)
    }

    fn silent(&self) -> ClientError {
        let why = format!("no answer in {} s", SILENCE_MAX.as_secs());
        ClientError::Lost { address: self.client.address().to_string(), why }
    }
}

impl Stream {
    /// The next message. An end of the stream is an error.
    async fn next(&mut self) -> Result<SseMessage, ClientError> {
        loop {
            if let Some(message) = self.parser.next() {
                return Ok(message);
            }
            match timeout(SILENCE_MAX, self.pieces.next()).await {
                Ok(piece) => match piece? {
                    Some(piece) => self.parser.push(&piece),
                    None => return Err(self.pieces.lost("the server ended the stream")),
                },
                Err(_) => {
                    let why = format!("nothing was received for {} s", SILENCE_MAX.as_secs());
                    return Err(self.pieces.lost(&why));
                }
            }
        }
    }

    /// The error that the last message of a failed stream contains.
    fn error_of(&self, data: Option<&[u8]>) -> ClientError {
        let body = data.and_then(|data| serde_json::from_slice::<ErrorBody>(data).ok());
        self.pieces.lost(body.as_ref().map_or("the server ended the stream", |body| &body.error))
    }
}

impl std::fmt::Debug for Follow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Follow({}, {:?})", self.topic, self.position)
    }
}
