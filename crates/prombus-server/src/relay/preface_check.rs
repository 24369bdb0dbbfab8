//! The leader's side of a preface: whether it is believed.

use super::preface::{MAC_BYTES, PREFACE_BYTES, Preface, PrefaceRefused, RelayKey};
use super::replay_window::ReplayWindows;
use crate::peer::Ends;
use parking_lot::Mutex;

/// Checks the prefaces of one term.
pub(crate) struct PrefaceCheck {
    term: u64,
    key: RelayKey,
    windows: Mutex<ReplayWindows>,
}

/// A preface that is believed.
pub(crate) struct Believed {
    pub(crate) ends: Ends,
    /// What the follower gets before anything else.
    pub(crate) confirmation: [u8; MAC_BYTES],
}

impl PrefaceCheck {
    pub(crate) fn new(term: u64, secret: &[u8; 32]) -> Self {
        Self { term, key: RelayKey::new(secret), windows: Mutex::default() }
    }

    /// How many bytes a preface has.
    pub(crate) const BYTES: usize = PREFACE_BYTES;

    /// Believes a preface once.
    pub(crate) fn check(&self, bytes: &[u8; PREFACE_BYTES]) -> Result<Believed, PrefaceRefused> {
        let preface = Preface::decode(bytes, &self.key, self.term)?;
        self.windows.lock().use_once(preface.nonce)?;
        Ok(Believed { ends: preface.ends, confirmation: self.key.confirmation(bytes) })
    }
}
