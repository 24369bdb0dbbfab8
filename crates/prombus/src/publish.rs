//! Publishing: checking events, gathering them in a batch, waiting until it is durable.

use crate::backend::{BoxFuture, event_id_of};
use crate::error::{PublishError, Unavailable};
use crate::local::quiet::wake;
use crate::store::{CommitWatch, NewEvent, TopicId};
use parking_lot::Mutex;
use prombus_protocol::{
    BodyFields, Json, JsonError, PublishOptions, Topic, TopicFor, Uuid, push_json, put_body_end,
    put_body_head, put_body_topic, put_body_ts,
};
use serde::Serialize;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A batch with more memory than this is not kept for the next one.
const KEPT_BYTES_MAX: usize = 256 * 1024;

/// What became of a published event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its id.
    pub id: Uuid,
    /// Its place in its topic.
    pub seq: u64,
    /// The topic had this id already; nothing was added.
    pub duplicate: bool,
}

/// Events to publish together: all or nothing, with one commit. Events of a batch are checked when they are added.
#[derive(Clone, Debug)]
pub struct PublishBatch {
    /// Keys and bodies.
    bytes: Vec<u8>,
    events: Vec<BatchEvent>,
    /// The topics of the events; one that comes again behind another stands here again.
    topics: Vec<Topic>,
    /// The last begin of a body: the next one is most likely the same.
    head: Option<(i64, Range<usize>)>,
    /// Where payloads are written before they are checked.
    scratch: Vec<u8>,
    now_ms: i64,
    max_payload_bytes: usize,
}

#[derive(Clone, Debug)]
struct BatchEvent {
    /// Its place in the list of topics.
    topic: u32,
    id: Option<Uuid>,
    ts: i64,
    key: Option<Range<usize>>,
    body: Range<usize>,
    /// `null` for a key: it deletes the key in a compacted topic.
    is_tombstone: bool,
}

impl PublishBatch {
    pub(crate) fn new(now_ms: i64, max_payload_bytes: usize) -> Self {
        Self {
            bytes: Vec::new(),
            events: Vec::new(),
            topics: Vec::new(),
            head: None,
            scratch: Vec::new(),
            now_ms,
            max_payload_bytes,
        }
    }

    /// Empties it for another use; its memory stays.
    pub(crate) fn reset(&mut self, now_ms: i64) {
        self.bytes.clear();
        self.events.clear();
        self.topics.clear();
        self.head = None;
        self.now_ms = now_ms;
    }

    /// Whether it is small enough to be kept for another use.
    pub(crate) fn is_worth_keeping(&self) -> bool {
        self.bytes.capacity() + self.scratch.capacity() <= KEPT_BYTES_MAX && self.events.capacity() <= 4_096
    }

    /// The time that its events get if they have none of their own.
    pub(crate) fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// How many events it holds.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether it holds no event.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How many bytes its events take in memory.
    pub fn byte_count(&self) -> usize {
        self.bytes.len() + self.events.len() * size_of::<BatchEvent>()
    }

    /// Adds an event.
    ///
    /// # Errors
    /// [`PublishError`] says what is wrong with it; the batch is as it was.
    pub fn push<T: Serialize + ?Sized>(
        &mut self,
        topic: impl TopicFor<T>,
        payload: &T,
        options: &PublishOptions,
    ) -> Result<(), PublishError> {
        let topic = topic.topic()?;
        let mut json = std::mem::take(&mut self.scratch);
        json.clear();
        let written = serde_json::to_writer(&mut json, payload);
        let pushed = match written {
            Ok(()) => self.push_json(topic, &json, options),
            Err(error) => Err(PublishError::Serialize(error.to_string())),
        };
        self.scratch = json;
        pushed
    }

    /// Adds an event whose payload is JSON text already. It is checked once and kept as it is; line breaks between tokens
    /// become spaces.
    ///
    /// # Errors
    /// [`PublishError`] says what is wrong with it; the batch is as it was.
    pub fn push_json(
        &mut self,
        topic: Topic,
        json: &[u8],
        options: &PublishOptions,
    ) -> Result<(), PublishError> {
        options.check()?;
        self.add(&topic, json.len(), options, |bytes| push_json(bytes, json))
    }

    /// Adds an event of the bus's own around a payload that was checked when it was published: it may be a little larger and
    /// deeper than publishers' may.
    ///
    /// # Errors
    /// [`PublishError`] says what is wrong with the options; the batch is as it was.
    pub(crate) fn push_own(
        &mut self,
        topic: &Topic,
        json: &[u8],
        options: &PublishOptions,
    ) -> Result<(), PublishError> {
        options.check()?;
        self.add(topic, 0, options, |bytes| {
            bytes.extend_from_slice(json);
            Ok(())
        })
    }

    /// Adds an event whose payload and options were checked when its frame was read.
    ///
    /// # Errors
    /// [`PublishError::TooLarge`]; the batch is as it was.
    pub fn push_parsed(
        &mut self,
        topic: &Topic,
        payload: &Json<'_>,
        options: &PublishOptions,
    ) -> Result<(), PublishError> {
        self.add(topic, payload.get().len(), options, |bytes| {
            payload.push(bytes);
            Ok(())
        })
    }

    fn add(
        &mut self,
        topic: &Topic,
        payload_bytes: usize,
        options: &PublishOptions,
        put_payload: impl FnOnce(&mut Vec<u8>) -> Result<(), JsonError>,
    ) -> Result<(), PublishError> {
        if payload_bytes > self.max_payload_bytes {
            return Err(PublishError::TooLarge { bytes: payload_bytes, limit_bytes: self.max_payload_bytes });
        }
        let ts = options.ts.unwrap_or(self.now_ms);
        let key_start = self.bytes.len();
        let key = options.key.as_ref().map(|key| {
            self.bytes.extend_from_slice(key.as_bytes());
            key_start..self.bytes.len()
        });
        let start = self.bytes.len();
        self.put_head(topic, ts, options);
        let payload_start = self.bytes.len();
        if let Err(error) = put_payload(&mut self.bytes) {
            self.bytes.truncate(key_start);
            self.head = None;
            return Err(error.into());
        }
        let is_tombstone = key.is_some() && self.bytes[payload_start..].trim_ascii() == b"null";
        put_body_end(&mut self.bytes);
        let body = start..self.bytes.len();
        if self.topics.last() != Some(topic) {
            self.topics.push(topic.clone());
        }
        let topic = self.topics.len() as u32 - 1;
        self.events.push(BatchEvent { topic, id: options.id, ts, key, body, is_tombstone });
        Ok(())
    }

    /// Puts a body up to its payload.
    fn put_head(&mut self, topic: &Topic, ts: i64, options: &PublishOptions) {
        let PublishOptions { id: _, ts: _, key, headers, tags, caused_by, sid } = options;
        let is_plain =
            key.is_none() && sid.is_none() && headers.is_empty() && tags.is_empty() && caused_by.is_empty();
        if !is_plain {
            let fields = BodyFields {
                ts,
                topic: topic.as_str(),
                sid: *sid,
                key: key.as_deref(),
                partition: None,
                headers,
                caused_by,
                tags,
            };
            return put_body_head(&mut self.bytes, &fields);
        }
        match &self.head {
            Some((known, bytes)) if *known == ts => self.bytes.extend_from_within(bytes.clone()),
            _ => {
                let start = self.bytes.len();
                put_body_ts(&mut self.bytes, ts);
                self.head = Some((ts, start..self.bytes.len()));
            }
        }
        put_body_topic(&mut self.bytes, topic);
    }

    /// The topics of its events, at least once each.
    pub(crate) fn topics(&self) -> &[Topic] {
        &self.topics
    }

    /// For each event the place of its topic in [`Self::topics`].
    pub(crate) fn topic_places(&self) -> impl Iterator<Item = usize> {
        self.events.iter().map(|event| event.topic as usize)
    }

    /// The event at a place, for a store in which its topic has this id.
    pub(crate) fn event(&self, at: usize, topic: TopicId) -> NewEvent<'_> {
        let event = &self.events[at];
        NewEvent {
            topic,
            id: event.id.map(event_id_of),
            ts: event.ts,
            key: event.key.clone().map(|key| &self.bytes[key]),
            body: &self.bytes[event.body.clone()],
            tombstone: event.is_tombstone,
        }
    }
}

/// What resolves when a publish is durable.
pub(crate) type PublishResult = Result<Vec<Published>, PublishError>;

/// A batch on its way. It is in line and becomes durable whether or not somebody waits for it. Only when far too much waits to be
/// written already is there no place in the line: then it gets one while somebody awaits this, and dropping it is logged.
#[must_use = "awaiting it waits until the events are durable"]
pub struct Publishing {
    state: State,
}

enum State {
    Done(Option<PublishResult>),
    Committing {
        batch: u64,
        outcomes: Vec<Published>,
        watch: Arc<CommitWatch>,
    },
    /// Behind others, in a line that moves when there is room.
    Queued {
        place: Arc<Place>,
        line: Arc<dyn Line>,
    },
    /// The line itself is full.
    Outside {
        batch: PublishBatch,
        line: Arc<dyn Line>,
    },
    Other(BoxFuture<'static, PublishResult>),
}

/// A place in the line.
#[derive(Debug)]
pub(crate) struct Place {
    state: Mutex<PlaceState>,
}

#[derive(Debug)]
struct PlaceState {
    batch: Option<PublishBatch>,
    /// The number of the log's batch and what the events became, or why they were refused.
    result: Option<Result<(u64, Vec<Published>), PublishError>>,
    waker: Option<Waker>,
}

impl Place {
    pub(crate) fn new(batch: PublishBatch) -> Self {
        Self { state: Mutex::new(PlaceState { batch: Some(batch), result: None, waker: None }) }
    }

    /// The batch, for whoever moves the line.
    pub(crate) fn take_batch(&self) -> Option<PublishBatch> {
        self.state.lock().batch.take()
    }

    /// There was no room after all.
    pub(crate) fn put_back(&self, batch: PublishBatch) {
        self.state.lock().batch = Some(batch);
    }

    pub(crate) fn finish(&self, result: Result<(u64, Vec<Published>), PublishError>) {
        let mut state = self.state.lock();
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            wake(waker);
        }
    }

    fn poll(&self, context: &Context<'_>) -> Option<Result<(u64, Vec<Published>), PublishError>> {
        let mut state = self.state.lock();
        if state.result.is_none() {
            state.waker = Some(context.waker().clone());
        }
        state.result.take()
    }
}

/// Where batches wait for room.
pub(crate) trait Line: Send + Sync {
    /// Puts a batch into the store, or into the line.
    fn enter(self: Arc<Self>, batch: PublishBatch) -> Publishing;
    /// Moves the line as far as there is room.
    fn advance(&self);
    fn watch(&self) -> &Arc<CommitWatch>;
}

impl Publishing {
    /// One that is done.
    pub fn done(result: PublishResult) -> Self {
        Self { state: State::Done(Some(result)) }
    }

    /// One that somebody else works on.
    pub fn boxed(future: BoxFuture<'static, PublishResult>) -> Self {
        Self { state: State::Other(future) }
    }

    pub(crate) fn committing(batch: u64, outcomes: Vec<Published>, watch: Arc<CommitWatch>) -> Self {
        Self { state: State::Committing { batch, outcomes, watch } }
    }

    pub(crate) fn queued(place: Arc<Place>, line: Arc<dyn Line>) -> Self {
        Self { state: State::Queued { place, line } }
    }

    pub(crate) fn outside(batch: PublishBatch, line: Arc<dyn Line>) -> Self {
        Self { state: State::Outside { batch, line } }
    }

    /// Whether it has its place: what is published later comes later. Otherwise it gets one while it is awaited.
    pub fn is_in_line(&self) -> bool {
        !matches!(self.state, State::Outside { .. })
    }

    /// What the events became, when they are in line: ids and seqs are known before they are durable.
    pub fn outcomes(&self) -> Option<&[Published]> {
        match &self.state {
            State::Committing { outcomes, .. } => Some(outcomes),
            State::Done(Some(Ok(outcomes))) => Some(outcomes),
            _ => None,
        }
    }
}

impl Future for Publishing {
    type Output = PublishResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.state {
                State::Done(result) => {
                    return Poll::Ready(result.take().unwrap_or(Err(Unavailable::Closed.into())));
                }
                State::Committing { batch, outcomes, watch } => {
                    return watch.poll_durable(*batch, context).map(|durable| match durable {
                        Ok(()) => Ok(std::mem::take(outcomes)),
                        Err(reason) => Err(reason.into()),
                    });
                }
                State::Queued { place, line } => {
                    // First asked to be woken, then tried: room that comes in between is not missed.
                    line.watch().register_for_room(context);
                    line.advance();
                    match place.poll(context) {
                        None => return Poll::Pending,
                        Some(Err(error)) => return Poll::Ready(Err(error)),
                        Some(Ok((batch, outcomes))) => {
                            let watch = Arc::clone(line.watch());
                            self.state = State::Committing { batch, outcomes, watch };
                        }
                    }
                }
                State::Outside { batch, line } => {
                    line.watch().register_for_room(context);
                    line.advance();
                    let batch = std::mem::replace(batch, PublishBatch::new(0, 0));
                    let line = Arc::clone(line);
                    let mut next = line.enter(batch);
                    std::mem::swap(&mut self.state, &mut next.state);
                    // What is swapped out is empty and not worth a warning.
                    next.state = State::Done(None);
                    if matches!(self.state, State::Outside { .. }) {
                        return Poll::Pending;
                    }
                }
                State::Other(future) => return future.as_mut().poll(context),
            }
        }
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        if let State::Outside { batch, .. } = &self.state
            && !batch.is_empty()
        {
            tracing::warn!(
                "{} events were not published: too much waits to be written, and nobody awaited them",
                batch.len()
            );
        }
    }
}

impl std::fmt::Debug for Publishing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Publishing({:?})", self.outcomes())
    }
}
