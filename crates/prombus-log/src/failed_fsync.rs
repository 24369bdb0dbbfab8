//! Records the first failed write or fdatasync. The content of the disk is then unknown: writing stops until the log is
//! opened again. Reading continues.
//!
//! An fsync is never retried: the kernel may have dropped the dirty pages, and the next fsync would succeed without them.

use crate::error::Unavailable;
use std::sync::OnceLock;

/// The first failure of a write or a sync.
#[derive(Debug, Default)]
pub(crate) struct WriteFailure {
    reason: OnceLock<String>,
}

impl WriteFailure {
    /// Records the reason if it is the first one. Returns whether it is.
    pub(crate) fn set(&self, reason: String) -> bool {
        self.reason.set(reason).is_ok()
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), Unavailable> {
        match self.get() {
            None => Ok(()),
            Some(reason) => Err(Unavailable::Poisoned(reason.to_owned())),
        }
    }
}
