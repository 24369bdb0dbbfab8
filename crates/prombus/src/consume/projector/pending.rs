//! Changes of a projector that are not published yet.

use crate::consume::rejected::Rejected;
use prombus_protocol::Uuid;
use std::collections::BTreeMap;

/// States that a tick changed are published in parts of at most this size. A larger state is a part of its own.
const TICK_BYTES: usize = 256 * 1024;
/// Approximate size of an event without its key and payload: position, id, time.
const EVENT_BYTES: usize = 300;

#[derive(Default)]
pub(super) struct Pending {
    /// Changed states, by key.
    pub(super) states: BTreeMap<String, PendingState>,
    pub(super) dead_letters: Vec<Rejected>,
    /// Approximate size of all these events.
    pub(super) bytes: usize,
}

pub(super) struct PendingState {
    /// The new state; `null` if the key was removed.
    pub(super) json: Vec<u8>,
    /// The id of the last input that changed the state; `None` if a tick changed it.
    pub(super) cause: Option<Uuid>,
}

impl Pending {
    /// How many states go into the next commit. Changes of inputs are published together. Changes of a tick are divided,
    /// because a tick may change all states at once, more than fit into a segment. If a crash interrupts the tick, the next
    /// tick changes the rest.
    pub(super) fn together(&self) -> usize {
        if !self.dead_letters.is_empty() || self.states.values().any(|state| state.cause.is_some()) {
            return self.states.len();
        }
        let mut bytes = 0;
        let fits = self.states.iter().take_while(|(key, state)| {
            bytes += key.len() + state.json.len() + EVENT_BYTES;
            bytes <= TICK_BYTES
        });
        fits.count().max(1)
    }
}
