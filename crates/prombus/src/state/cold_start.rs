//! Cold start: loads the state of a topic as of a position, then follows the topic from there. No event is missed, none is
//! seen twice.

use crate::backend::{Backend, EventPosition, LatestQuery};
use crate::batch::PullLimit;
use crate::error::ReadError;
use crate::event::Event;
use prombus_protocol::{Start, Topic};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The newest event of each key of a topic, as of a position.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The newest event of each key.
    events: HashMap<String, Event>,
    /// The newest event that the state includes; `None` if the topic has no events.
    position: Option<EventPosition>,
}

impl State {
    /// Loads the current state of a topic. A topic that does not exist has no keys.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(crate) async fn load(backend: &dyn Backend, topic: &Topic) -> Result<Self, ReadError> {
        let mut state = Self::default();
        if backend.topic(topic.as_str()).is_none() {
            return Ok(state);
        }
        let limit = PullLimit { events: 10_000, bytes: 1 << 20 };
        let mut query = LatestQuery { limit, ..LatestQuery::default() };
        loop {
            let page = backend.latest(topic, query.clone()).await?;
            if state.position.is_none() {
                state.position = page.position;
                // A key that changes while this runs may be missing in later pages: its new event comes after the position.
                query.to_seq = page.position.map(|position| position.seq);
            }
            for event in Event::all_read(page.events) {
                if let Some(key) = event.key() {
                    state.events.insert(key.to_owned(), event);
                }
            }
            match page.next_after {
                Some(next) => query.after_seq = next,
                None => return Ok(state),
            }
        }
    }

    /// The newest event of a key.
    pub fn get(&self, key: &str) -> Option<&Event> {
        self.events.get(key)
    }

    /// All keys with their newest events, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Event)> {
        self.events.iter().map(|(key, event)| (key.as_str(), event))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether the state has no keys.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The position of the newest event that the state includes; `None` if the topic has no events.
    pub fn position(&self) -> Option<EventPosition> {
        self.position
    }

    /// The start position of a group that continues right after this state: pass it to
    /// [`Subscribe::from`](crate::Subscribe::from).
    pub fn start(&self) -> Start {
        self.position.map_or(Start::Earliest, |position| Start::AfterId(position.id))
    }

    /// Applies the next event.
    pub fn apply(&mut self, event: &Event) -> StateChange {
        self.position = Some(EventPosition { id: event.id(), seq: event.seq() });
        match event.key() {
            None => StateChange::Other(event.clone()),
            Some(_) if event.is_addressed() => StateChange::Other(event.clone()),
            Some(key) if event.payload().trim() == "null" => {
                self.events.remove(key);
                StateChange::Deleted(event.clone())
            }
            Some(key) => {
                self.events.insert(key.to_owned(), event.clone());
                StateChange::Set(event.clone())
            }
        }
    }
}

/// How an event changed a state.
#[derive(Clone, Debug)]
pub enum StateChange {
    /// The event's key has a new value.
    Set(Event),
    /// The event's key is deleted.
    Deleted(Event),
    /// The event has no key, or is addressed to one group.
    Other(Event),
}

/// A state that follows its topic. It is not a group: nothing is acked, and every follower sees all events.
pub struct StateFollower {
    backend: Arc<dyn Backend>,
    topic: Topic,
    state: State,
    /// The first seq that was not read.
    next_seq: u64,
    /// Events that were read and not applied yet.
    read: VecDeque<Event>,
}

impl StateFollower {
    pub(crate) async fn load(backend: Arc<dyn Backend>, topic: Topic) -> Result<Self, ReadError> {
        let state = State::load(&*backend, &topic).await?;
        let next_seq = state.position.map_or(1, |position| position.seq + 1);
        Ok(Self { backend, topic, state, next_seq, read: VecDeque::new() })
    }

    /// The current state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Waits for the next event and applies it. Cancel-safe: no event is lost if this future is dropped.
    ///
    /// # Errors
    /// See [`ReadError`]; `next` may be called again.
    pub async fn next(&mut self) -> Result<StateChange, ReadError> {
        loop {
            if let Some(event) = self.read.pop_front() {
                return Ok(self.state.apply(&event));
            }
            self.backend.arrival(&self.topic, self.next_seq).await?;
            let limit = PullLimit { events: 1_000, bytes: 1 << 20 };
            let chunk = self.backend.read(&self.topic, self.next_seq, limit).await?;
            self.next_seq = chunk.next_seq;
            self.read.extend(Event::all_read(chunk.events));
        }
    }
}

impl std::fmt::Debug for StateFollower {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "StateFollower({}, {} keys, next {})", self.topic, self.state.len(), self.next_seq)
    }
}
