//! Reading the states of a projector back from its output topic.

use super::ProjectorError;
use crate::batch::PullLimit;
use crate::bus::Bus;
use crate::error::ReadError;
use crate::event::Event;
use prombus_protocol::{Start, Topic, Uuid};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// The header of a state event that says up to which input its projector had come: group, input topic, seq and id.
pub const POSITION_HEADER: &str = "projector-position";

/// An input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InputPosition {
    pub(super) seq: u64,
    pub(super) id: Uuid,
}

impl InputPosition {
    pub(super) fn header(self, group: &str, input: &Topic) -> String {
        // No name has a space.
        format!("{group} {input} {} {}", self.seq, self.id)
    }

    fn from_header(header: &str, group: &str, input: &Topic) -> Option<Self> {
        let mut parts = header.split(' ');
        let is_ours = parts.next() == Some(group) && parts.next() == Some(input.as_str());
        if !is_ours {
            return None;
        }
        Some(Self { seq: parts.next()?.parse().ok()?, id: Uuid::try_parse(parts.next()?).ok()? })
    }
}

pub(super) struct RestoredStates<S> {
    pub(super) states: BTreeMap<String, S>,
    pub(super) position: Option<InputPosition>,
    /// Where the next state event goes.
    pub(super) next_seq: u64,
}

/// The newest state of each key, and how far the projector had come.
pub(super) async fn restore<S: DeserializeOwned>(
    bus: &Bus,
    input: &Topic,
    output: &Topic,
    group: &str,
) -> Result<RestoredStates<S>, ProjectorError> {
    let mut restored = RestoredStates { states: BTreeMap::new(), position: None, next_seq: 1 };
    let mut strange = 0_u64;
    loop {
        let page = match bus.read_from(output, restored.next_seq, PullLimit::default()).await {
            Ok(page) => page,
            Err(ReadError::UnknownTopic(_)) => break,
            Err(error) => return Err(error.into()),
        };
        for event in &page.events {
            let header = event.header(POSITION_HEADER);
            let position = header.and_then(|header| InputPosition::from_header(&header, group, input));
            restored.position = position.or(restored.position);
            if !take_in(&mut restored.states, event) {
                strange += 1;
            }
        }
        if page.next_seq <= restored.next_seq {
            break;
        }
        restored.next_seq = page.next_seq;
    }
    if strange > 0 {
        tracing::warn!("projector {group}: {strange} events of {output} are no states and were passed over");
    }
    if let Some(position) = restored.position
        && !is_of(bus, input, position).await?
    {
        tracing::warn!(
            "projector {group}: {input} is not the topic that {output} was made from; folding all of it"
        );
        restored.position = None;
    }
    Ok(restored)
}

/// False when it is no state.
fn take_in<S: DeserializeOwned>(states: &mut BTreeMap<String, S>, event: &Event) -> bool {
    let Some(key) = event.key() else { return false };
    match event.json::<Option<S>>() {
        Ok(Some(state)) => {
            states.insert(key.to_owned(), state);
            true
        }
        Ok(None) => {
            states.remove(key);
            true
        }
        Err(_) => false,
    }
}

/// Whether the input topic has come to this position, with this event. A topic that was deleted and made anew has not.
async fn is_of(bus: &Bus, input: &Topic, position: InputPosition) -> Result<bool, ProjectorError> {
    let end = match bus.backend().locate(input, Start::Latest).await {
        Ok(next) => next,
        Err(ReadError::UnknownTopic(_)) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if end <= position.seq {
        return Ok(false);
    }
    let limit = PullLimit { events: 1, ..PullLimit::default() };
    let page = bus.read_from(input, position.seq, limit).await?;
    // One that was cleaned away says nothing.
    let found = page.events.first().filter(|event| event.seq() == position.seq);
    Ok(found.is_none_or(|event| event.id() == position.id))
}
