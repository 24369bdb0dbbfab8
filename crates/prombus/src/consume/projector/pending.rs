//! What a projector has changed and not published yet.

use prombus_protocol::{PublishOptions, Uuid};
use std::collections::BTreeMap;

/// States that a tick changed are published in parts of this size.
const TICK_BYTES: usize = 256 * 1024;
/// What an event takes beside its key and payload, about: position, id, time.
const EVENT_BYTES: usize = 300;

#[derive(Default)]
pub(super) struct Pending {
    pub(super) states: BTreeMap<String, PendingState>,
    pub(super) letters: Vec<(Vec<u8>, PublishOptions)>,
    pub(super) bytes: usize,
}

pub(super) struct PendingState {
    pub(super) json: Vec<u8>,
    /// The last input that changed it; a tick has none.
    pub(super) cause: Option<Uuid>,
}

impl Pending {
    /// How many states must go in one commit. A tick's may go in parts: it may change all states at once, more than a segment
    /// takes, and a crash in between leaves the others to the next tick.
    pub(super) fn together(&self) -> usize {
        if !self.letters.is_empty() || self.states.values().any(|state| state.cause.is_some()) {
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
