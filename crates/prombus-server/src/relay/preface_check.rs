//! The leader's check of prefaces.

use super::preface::{MAC_BYTES, PREFACE_BYTES, Preface, PrefaceRefused, RelayKey};
use super::replay_window::ReplayWindows;
use crate::peer::Ends;
use parking_lot::Mutex;

/// Checks the prefaces of one term.
pub(crate) struct PrefaceCheck {
    term: u64,
    key: RelayKey,
    /// The prefaces that were used.
    windows: Mutex<ReplayWindows>,
}

/// An accepted preface.
pub(crate) struct AcceptedPreface {
    /// The two ends of the client's connection to the follower.
    pub(crate) ends: Ends,
    /// The first bytes that the follower receives.
    pub(crate) confirmation: [u8; MAC_BYTES],
}

impl PrefaceCheck {
    pub(crate) fn new(term: u64, secret: &[u8; 32]) -> Self {
        Self { term, key: RelayKey::new(secret), windows: Mutex::default() }
    }

    /// Size of a preface.
    pub(crate) const BYTES: usize = PREFACE_BYTES;

    /// Accepts each preface at most once.
    pub(crate) fn check(&self, bytes: &[u8; PREFACE_BYTES]) -> Result<AcceptedPreface, PrefaceRefused> {
        let preface = Preface::decode(bytes, &self.key, self.term)?;
        self.windows.lock().use_once(preface.nonce)?;
        Ok(AcceptedPreface { ends: preface.ends, confirmation: self.key.confirmation(bytes) })
    }
}
